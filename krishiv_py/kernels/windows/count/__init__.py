"""Count windows (SEMANTICS §3.7)."""
