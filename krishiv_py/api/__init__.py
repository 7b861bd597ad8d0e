"""The fluent builder: one stage, one type, one file."""
