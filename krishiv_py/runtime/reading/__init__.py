"""Readers that make Arrow batches of files, with the rules for malformed and missing values."""
