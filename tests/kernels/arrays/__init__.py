"""Grouping and sorting."""
