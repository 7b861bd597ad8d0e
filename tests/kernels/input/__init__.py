"""What is classified before rows are taken in: lateness, the future, sources, units of time."""
