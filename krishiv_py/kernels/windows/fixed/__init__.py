"""Tumbling and hopping windows and time-interval panes (SEMANTICS §3.1, §3.2, §3.6)."""
