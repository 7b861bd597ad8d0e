"""Clients of HDFS: hdfs-native, which speaks Hadoop's protocol without Java, and reads Hadoop's files of settings by itself.

A client has threads and connections, which a forked child does not have: there a client of the parent's would wait for ever,
even when it is thrown away. So the child makes its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from krishiv_py.errors import require_extra
from krishiv_py.storage.settings import known_settings

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions

DEFAULT: Final = "fs.defaultFS"
PREFIXES: Final = ("dfs.", "hadoop.security.authentication")
"""Settings that are forwarded, next to the default file system."""
USER: Final = "HADOOP_USER_NAME"
_SPARKS_USER: Final = "SPARK_USER"
_UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
_KEPT_S: Final = 3.2
"""For how long hdfs-native keeps a connection to a datanode, for any client of the process, and a little more."""
_REFUSALS: Final[dict[str, type[OSError]]] = {
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotDirectoryException": NotADirectoryError,
    "NotDirectoryException": NotADirectoryError,
}
_clients: Final[dict[str, tuple[Mapping[str, str], Client]]] = {}
_making: Final = threading.RLock()
_safe_at: list[float] = [0.0]


def is_hdfs_setting(name: str) -> bool:
    """Return whether a setting of Hadoop's says something about HDFS."""
    return name == DEFAULT or name.startswith(PREFIXES)


def hdfs_settings() -> dict[str, str]:
    """The settings in use."""
    return {name: value for name, value in known_settings().items() if is_hdfs_setting(name)}


def hdfs_client(host: str) -> Client:
    """The client for a namenode ``host:port``, or a name service; for the default file system if `host` is empty.

    Raises
    ------
    MissingExtraError
        When hdfs-native is not installed.
    """
    settings = hdfs_settings()
    with _making:
        found = _clients.get(host)
        if found is None or found[0] != settings:
            time.sleep(max(0.0, _safe_at[0] - time.monotonic()))
            found = _clients[host] = settings, new_client(host, settings)
    return found[1]


def new_client(host: str, settings: Mapping[str, str]) -> Client:
    """A client of its own, by these settings."""
    require_extra("HDFS", ("hdfs_native",), "hdfs", "no file there can be read or written")
    from hdfs_native import Client

    if USER not in os.environ and _SPARKS_USER in os.environ:
        os.environ[USER] = os.environ[_SPARKS_USER]  # as the JVM of a task does
    with as_os_errors():
        return Client(f"hdfs://{host}", dict(settings))


def write_options() -> WriteOptions:
    """Return how new files are written: they replace others, with the replication and size of blocks that were set."""
    from hdfs_native import WriteOptions

    settings = hdfs_settings()
    replication, block = settings.get("dfs.replication"), settings.get("dfs.blocksize")
    return WriteOptions(
        overwrite=True,
        create_parent=False,
        replication=int(replication) if replication else None,
        block_size=_bytes(block) if block else None,
    )


def _bytes(text: str) -> int:
    """A size as Hadoop writes it: ``134217728`` or ``128m``."""
    unit = _UNITS.get(text[-1].lower())
    return int(text) if unit is None else int(text[:-1]) << unit


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Let what the namenode refuses be an error of the operating system's, in one line and not with the stack of its Java.

    Raises
    ------
    OSError
        For whatever hdfs-native raises.
    """
    try:
        yield
    except RuntimeError as problem:
        kind, text = _split_error(str(problem))
        raise _REFUSALS.get(kind, OSError)(text) from None
    except OSError as problem:
        text = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        kind_of = IsADirectoryError if text.startswith("Path is not a file") else type(problem)
        raise kind_of(text) from None


def _split_error(text: str) -> tuple[str, str]:
    """Class and first line of what Rust shows as ``RPCError("class", "text\\n\\tat …")``."""
    first = text.split("\\n", 1)[0].splitlines()[0] if text else text
    head, quote, rest = first.partition('("')
    name, comma, said = rest.partition('", "')
    if not quote:
        return "", first
    if not comma:
        return "", f"{head}: {rest.rstrip(')').rstrip(chr(34))}"
    return name.rpartition(".")[2], said.removesuffix('")').replace('\\"', '"')


def _forked() -> None:
    """In a child that was forked: leave the parent's clients alone, whose end would wait for their threads."""
    if not _clients:
        return
    keep: Any = ctypes.pythonapi.Py_IncRef
    for _, client in _clients.values():
        keep(ctypes.py_object(client))
    _clients.clear()
    _safe_at[0] = time.monotonic() + _KEPT_S


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
os.register_at_fork(after_in_child=_forked)
