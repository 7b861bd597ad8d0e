"""Aggregates: what a call of one says, and the functions that make them; one file a family."""
