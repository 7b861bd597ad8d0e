"""Joins of two streams (SEMANTICS §9): rows of both sides, kept until no partner can come."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
