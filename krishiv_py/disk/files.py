"""Paths for Arrow's file systems as Spark reads them, and files that are there whole or not at all."""

from __future__ import annotations

import posixpath
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.disk.folders import private_folder, sync
from krishiv_py.disk.hdfs.client import is_hdfs_setting
from krishiv_py.disk.hdfs.system import hdfs_path, hdfs_system
from krishiv_py.disk.stores import google, s3
from krishiv_py.disk.stores.google import add_folder, arrow_google
from krishiv_py.disk.stores.kinds import is_google, is_store
from krishiv_py.disk.stores.s3 import arrow_store
from krishiv_py.errors import EnvironmentSetupError, PlanError

_ENDS: Final = tuple(f".{name}" for name in s3.NAMES)
_BY_NAME: Final = tuple(google.PREFIX + name for name in google.NAMES)


def says_where(name: str) -> bool:
    """Whether a setting of Hadoop's says how an object store or HDFS is reached from here."""
    return name in _BY_NAME or (name.startswith(s3.PREFIX) and name.endswith(_ENDS)) or is_hdfs_setting(name)


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """The Arrow file system and path of a Spark path. Spark encodes no character: a name may hold ``#``, ``?`` or ``%20``."""
    if uri.startswith("file:"):
        rest = uri[len("file:") :]
        return pafs.LocalFileSystem(), "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest
    scheme, remote, rest = uri.partition("://")
    if not remote:
        return pafs.LocalFileSystem(), uri
    host, slash, path = rest.partition("/")
    if scheme in ("s3", "s3a", "gs", "gcs"):
        if "@" in host:
            raise _secret_in_path(scheme)
        if not host:
            hint = f"write {'s3a' if 's3' in scheme else 'gs'}://bucket/folder"
            raise PlanError("a path names no bucket", got=repr(uri), hint=hint)
        system = arrow_store(host) if "s3" in scheme else arrow_google()
        return system, f"{host}{posixpath.normpath(f'/{path}')}".rstrip("/")  # as Hadoop reads it
    if scheme == "hdfs":
        return hdfs_system(host), hdfs_path(path)
    try:
        system, found = pafs.FileSystem.from_uri(f"{scheme}://{host}{slash}{quote(path)}")
    except (ImportError, OSError, pa.ArrowException) as problem:
        raise _no_system(scheme, problem) from problem
    return system, str(found)


def _no_system(scheme: str, problem: Exception) -> EnvironmentSetupError:
    got, consequence = str(problem).splitlines()[0], "no file there can be read or written"
    hint = "use s3a://, hdfs://, gs:// or a mounted path"
    return EnvironmentSetupError(f"Arrow cannot reach {scheme}://", got=got, then=consequence, hint=hint)


def _secret_in_path(scheme: str) -> PlanError:
    return PlanError(
        "a path holds credentials",
        got=f"{scheme}://[redacted]@…",
        then="paths are written into notes, names and errors",
        hint='write them into Session.builder().storage_options({"AWS_ACCESS_KEY_ID": ...}), and the path without them',
    )


def write_whole(system: pafs.FileSystem, path: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file, or replace it, whole or not at all; its folder is made if need be.

    With `durable` it survives a loss of power once this has returned (object stores and HDFS see to that themselves).
    """
    if is_store(system):  # there what is closed is whole
        put(system, path, data)
        return
    make_folder(system, path.rpartition("/")[0])
    with system.open_output_stream(path + ".tmp") as stream:
        stream.write(data)
    if durable:
        sync_files(system, [path + ".tmp"])
    system.move(path + ".tmp", path)
    if durable:
        sync_files(system, [path.rpartition("/")[0]])


def put(system: pafs.FileSystem, path: str, data: bytes | pa.Buffer) -> None:
    """Write a small file, not safe against a crash but where the file system is an object store."""
    with system.open_output_stream(path) as stream:
        stream.write(data)


def read_whole(system: pafs.FileSystem, path: str) -> bytes | None:
    """What a file holds; None if it is not there."""
    try:
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def make_folder(system: pafs.FileSystem, path: str) -> None:
    """Make a folder of the library's own: on this machine for this user alone."""
    if isinstance(system, pafs.LocalFileSystem):
        private_folder(path)
    elif is_google(system):
        add_folder(path)
    else:
        system.create_dir(path, recursive=True)


def sync_files(system: pafs.FileSystem, paths: list[str]) -> None:
    """Let files, or the names in folders, survive a loss of power."""
    if isinstance(system, pafs.LocalFileSystem):
        for path in paths:
            sync(path)


def arrow_reads(path: str) -> bool:
    """Whether Arrow knows the file system of a path."""
    return "://" not in path or path.split(":", 1)[0] in ("file", "hdfs", "s3", "s3a", "gs", "gcs")


def is_local_path(path: str) -> bool:
    """Whether a path is on this machine's own file system."""
    return "://" not in path or path.startswith("file:")
