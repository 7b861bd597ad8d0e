"""Logical plan → checked plan → physical plan, as named stages."""
