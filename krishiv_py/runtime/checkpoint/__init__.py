"""Define what a checkpoint holds, and whether a query may go on from it."""
