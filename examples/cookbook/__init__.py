"""Whole programs, one file each; docs/cookbook.md shows them and tests run them."""
