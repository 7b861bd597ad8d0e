"""Watermarks and processing time between micro-batches: notes, controls, heartbeats."""
