"""Define what a running query says of itself: counters, progress, and control files."""
