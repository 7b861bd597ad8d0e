"""Deduplication: which rows pass, and what is remembered of them. Imports neither windows nor joins."""
