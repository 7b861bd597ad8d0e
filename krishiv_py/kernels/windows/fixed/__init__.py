"""Tumbling and hopping windows and time-interval panes (SEMANTICS §3.1, §3.2, §3.6)."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
