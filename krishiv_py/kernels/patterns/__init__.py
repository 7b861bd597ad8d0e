"""The search for patterns in the rows of a key (SEMANTICS §15)."""
