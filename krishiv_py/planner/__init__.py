"""Logical plan → checked plan → physical plan, as named stages."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
