"""Arrays and nothing else: grouping, sorting, ranks, ranges and intervals, vectorised over many groups.

Imports NumPy and Arrow only, no other room."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
