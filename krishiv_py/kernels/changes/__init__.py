"""Operators whose results are tables that change (SEMANTICS §16)."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
