"""Watermarks and processing time between micro-batches: the ledger, control files, heartbeats."""
