"""Expressions as frozen trees, built by ``col`` and ``lit`` or read from text."""
