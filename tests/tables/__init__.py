"""Table sinks against the real thing: a PostgreSQL server, Delta tables and an Iceberg catalog in folders."""
