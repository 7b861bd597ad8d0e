"""Displays, without a JVM."""
