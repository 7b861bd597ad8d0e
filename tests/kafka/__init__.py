"""Kafka: a real broker, started from pinned jars, and the source and sink against it."""
