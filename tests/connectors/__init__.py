"""Sinks and sources as interfaces: those of the library, and those a user brings."""
