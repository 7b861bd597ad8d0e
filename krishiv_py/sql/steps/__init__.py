"""Define what is done with rows: groups, ranks, looks back."""
