"""Operators around operators: time to live, firing before a batch is taken in, other names for results.

Imports ``columns``, ``state`` and ``results``, but no window."""
