"""Aggregates of users: how kernels call them, and accumulators as they are stored. Imports the rest of the room."""
