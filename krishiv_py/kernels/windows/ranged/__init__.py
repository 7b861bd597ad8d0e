"""Windows around rows: look-back and distinct-set sliding windows (SEMANTICS §3.4, §3.5)."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
