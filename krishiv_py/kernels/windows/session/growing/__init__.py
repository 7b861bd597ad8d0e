"""Sessions with triggers and without a longest duration: they only grow and join."""
