"""Define what a text of SQL says: statements, window functions, aggregates."""
