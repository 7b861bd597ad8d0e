"""Bytes on disk and between tasks: Arrow chunks as files or values, temporary folders, checksums."""
