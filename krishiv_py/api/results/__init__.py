"""Results: a stream of them that goes on, and the log of changes for those who read it."""
