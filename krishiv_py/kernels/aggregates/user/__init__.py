"""Aggregates of users: how kernels call them, and accumulators as they are stored."""

from krishiv_py.kernels.aggregates.user.aggregator import User as User
