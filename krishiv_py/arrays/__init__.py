"""Arrays and nothing else: grouping, sorting, ranks, ranges and intervals, vectorised over many groups.

Imports NumPy and Arrow only, no other room."""
