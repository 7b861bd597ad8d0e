"""Sources on Spark: which files there are, and DataFrames whose tasks make Arrow batches of them."""
