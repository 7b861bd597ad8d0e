"""Sources as ranges: planned in the process of the query, noted in a log, and read by whoever runs the batch."""
