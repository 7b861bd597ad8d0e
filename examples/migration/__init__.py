"""Five jobs by hand and here; docs/structured-streaming.md shows them, and a test compares their results."""
