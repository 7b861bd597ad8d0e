"""Operators whose results are tables that change (SEMANTICS §16)."""
