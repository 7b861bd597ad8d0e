"""Kafka to Kafka, Delta and PostgreSQL, while process tree, Python worker, broker and database are killed at random moments."""
