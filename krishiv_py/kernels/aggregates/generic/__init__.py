"""Define what an aggregate is to the kernels, and what any aggregate can do without its own way: prefixes and ranges of rows.

Imports ``arrays`` and the base of ``aggregates``."""
