"""Immutable logical plan: durations, expressions, aggregates, windows, nodes. No Spark, no data."""
