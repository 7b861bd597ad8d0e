"""Spark's paths for Arrow's file systems."""

from __future__ import annotations

from urllib.parse import quote

import pyarrow.fs as pafs


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """The Arrow file system and path of a Spark path. Spark encodes no character: a name may hold ``#``, ``?`` or ``%20``."""
    if uri.startswith("file:"):
        rest = uri[len("file:") :]
        return pafs.LocalFileSystem(), "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest
    scheme, remote, rest = uri.partition("://")
    if not remote:
        return pafs.LocalFileSystem(), uri
    host, slash, path = rest.partition("/")
    system, found = pafs.FileSystem.from_uri(f"{'s3' if scheme == 's3a' else scheme}://{host}{slash}{quote(path)}")
    return system, str(found)


def write_whole(system: pafs.FileSystem, path: str, data: bytes) -> None:
    """Write a file, or replace it, whole or not at all; its folder is made if need be."""
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path + ".tmp") as stream:
        stream.write(data)
    system.move(path + ".tmp", path)


def arrow_reads(path: str) -> bool:
    """Whether Arrow knows the file system of a path."""
    return "://" not in path or path.split(":", 1)[0] in ("file", "hdfs", "s3", "s3a", "gs", "gcs")
