"""Sources: which files there are, and readers that make Arrow batches of them in the tasks."""
