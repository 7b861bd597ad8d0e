"""Bytes on disk and between tasks: file systems, Arrow chunks as files or values, temporary folders."""
