"""Checkpoints on Spark: folders that all machines of a cluster reach, and going on with another number of tasks."""
