"""The search for patterns in the rows of a key (SEMANTICS §15)."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
