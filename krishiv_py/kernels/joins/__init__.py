"""Joins of two streams (SEMANTICS §9): rows of both sides, kept until no partner can come."""
