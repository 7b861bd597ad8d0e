"""What sets object stores apart from disks, and one from another; and how their paths are read."""

from __future__ import annotations

import pyarrow.fs as pafs


def is_store(system: pafs.FileSystem) -> bool:
    """Whether files appear whole when they are closed, and a rename is a copy: on S3 and on Google's store."""
    return system.type_name in ("s3", "gcs")


def leaves_uploads(system: pafs.FileSystem) -> bool:
    """Whether uploads can be left open, for another process to finish them: on S3."""
    return bool(system.type_name == "s3")


def is_google(system: pafs.FileSystem) -> bool:
    """Whether a file system is Google's store, which copies objects without moving bytes."""
    return bool(system.type_name == "gcs")


def bucket_and_key(path: str) -> tuple[str, str]:
    """The bucket of a path as Arrow writes it, ``bucket/folder/file``, and the key in it."""
    bucket, _, key = path.partition("/")
    return bucket, key
