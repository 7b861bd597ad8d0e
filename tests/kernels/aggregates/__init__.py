"""Aggregates: values, exactness, accumulators of users, and what they raise."""
