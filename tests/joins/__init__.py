"""Joins of two streams (SEMANTICS §9)."""
