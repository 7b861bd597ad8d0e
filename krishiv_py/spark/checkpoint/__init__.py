"""What lies in a checkpoint beside Spark's own files, and whether a query may go on from it."""
