"""The only room that imports pyspark: sessions, scans, the streaming and bounded adapters, outputs, queries."""
