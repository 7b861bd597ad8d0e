"""What is kept: cost, sections, the state table, time to live, limits."""
