"""Windows that fire more than once: running aggregates row by row, and the change log of results.

Imports every room but ``windows`` and ``wrappers``."""
