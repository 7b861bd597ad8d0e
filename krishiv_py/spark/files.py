"""Spark's paths for Arrow's file systems."""

from __future__ import annotations

from urllib.parse import unquote, urlparse

import pyarrow.fs as pafs


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """The Arrow file system and path of a Spark path."""
    if "://" not in uri and not uri.startswith("file:"):
        return pafs.LocalFileSystem(), uri
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return pafs.LocalFileSystem(), unquote(parsed.path)
    system, path = pafs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
    return system, str(path)


def write_whole(system: pafs.FileSystem, path: str, data: bytes) -> None:
    """Write a file, or replace it, whole or not at all; its folder is made if need be."""
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path + ".tmp") as stream:
        stream.write(data)
    system.move(path + ".tmp", path)


def arrow_reads(path: str) -> bool:
    """Whether Arrow knows the file system of a path."""
    return "://" not in path or path.split(":", 1)[0] in ("file", "hdfs", "s3", "s3a", "gs", "gcs")
