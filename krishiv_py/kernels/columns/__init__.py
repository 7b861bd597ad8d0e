"""Columns of an operator: expressions, event times, windows of a time, and the layout of working rows, partials and results.

Imports ``arrays`` and ``aggregates``."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
