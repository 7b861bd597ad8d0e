"""Columns of an operator: expressions, event times, windows of a time, and the layout of working rows, partials and results.

Imports ``arrays`` and ``aggregates``."""
