"""Sums of floating-point numbers without rounding: independent of order, batching and merging.

Imports ``arrays`` and the face of ``aggregates``."""
