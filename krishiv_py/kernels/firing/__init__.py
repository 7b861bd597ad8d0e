"""Determine when windows fire: what is due, the gate of interval triggers, and rows one by one with running aggregates.

Imports every room but ``windows`` and ``wrappers``."""
