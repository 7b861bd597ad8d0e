"""Tests that need Spark."""
