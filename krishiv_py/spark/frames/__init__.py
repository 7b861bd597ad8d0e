"""Results as streaming DataFrames: within the query that reads the frame (direct), or handed over by a query of their own."""
