"""Joins: the methods that begin one, its two sides, and the stream it gives."""
