"""Paths as Spark reads them: which scheme is which kind of store is known here only."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias
from urllib.parse import quote

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import EnvironmentSetupError, PlanError
from krishiv_py.storage.hdfs import Hadoop, check_hdfs, hdfs_path, hdfs_system, is_hdfs_setting
from krishiv_py.storage.local import DISK
from krishiv_py.storage.store import Store
from krishiv_py.storage.stores import azure, google, s3
from krishiv_py.storage.stores.azure import Azure, arrow_azure, check_azure, container_and_host
from krishiv_py.storage.stores.google import Google, arrow_google, check_google
from krishiv_py.storage.stores.s3 import S3, arrow_store, check_s3

Open: TypeAlias = Callable[[str, str, str], tuple[Store, str]]
"""Makes a store and a path in it of scheme, host and path of a URI."""


@attrs.frozen
class StoreKind:
    """A kind of store.

    Attributes
    ----------
    schemes : tuple of str
        Schemes of its paths as Spark writes them.
    others : tuple of str
        Schemes that Spark does not know.
    named : str
        What it is called in errors.
    open : callable
        Makes a store.
    check : callable
        Sees that a place answers: its path, and whether files are to be written there.
    by_path : bool
        Whether each path is checked; otherwise one of each host.
    """

    schemes: tuple[str, ...]
    others: tuple[str, ...]
    named: str
    open: Open
    check: Callable[[str, bool], None]
    by_path: bool = False


def _s3(scheme: str, host: str, path: str) -> tuple[Store, str]:
    where = _in_bucket("s3a://bucket/folder", scheme, host, path)
    return S3(arrow_store(host), f"{scheme}://"), where


def _google(scheme: str, host: str, path: str) -> tuple[Store, str]:
    where = _in_bucket("gs://bucket/folder", scheme, host, path)
    return Google(arrow_google(), f"{scheme}://"), where


def _azure(scheme: str, host: str, path: str) -> tuple[Store, str]:
    container, account = container_and_host(f"{scheme}://{host}/{path}")
    where = f"{container}{posixpath.normpath(f'/{path}')}".rstrip("/")
    return Azure(arrow_azure(account), f"{scheme}://", account), where


def _hadoop(scheme: str, host: str, path: str) -> tuple[Store, str]:
    return Hadoop(hdfs_system(host), f"{scheme}://{host}"), hdfs_path(path)


KINDS: Final = (
    StoreKind(("s3a",), ("s3",), "S3", _s3, lambda path, written: check_s3(path)),
    StoreKind(("gs",), ("gcs",), "Google's store", _google, lambda path, written: check_google(path)),
    StoreKind(("abfss", "abfs"), (), "Azure", _azure, lambda path, written: check_azure(path)),
    StoreKind(("hdfs",), (), "HDFS", _hadoop, lambda path, written: check_hdfs(path, written=written), by_path=True),
)
"""The stores that the library knows, apart from disks."""
_BY_SCHEME: Final = {scheme: kind for kind in KINDS for scheme in (*kind.schemes, *kind.others)}


_ENDS: Final = tuple(f".{name}" for name in s3.NAMES)
_OF_AZURE: Final = tuple(azure.PREFIX + name for name in azure.NAMES)
_BY_NAME: Final = (*(google.PREFIX + name for name in google.NAMES), *_OF_AZURE)


def says_where(name: str) -> bool:
    """Return whether a setting of Hadoop's says how an object store or HDFS is reached from here."""
    of_account = any(name.startswith(f"{each}.") for each in _OF_AZURE)
    of_bucket = name.startswith(s3.PREFIX) and name.endswith(_ENDS)
    return name in _BY_NAME or of_account or of_bucket or is_hdfs_setting(name)


def kind_of(path: str) -> StoreKind | None:
    """Return the kind of store of a path; None for a disk, and for one that only Arrow may know."""
    return _BY_SCHEME.get(path.partition("://")[0]) if "://" in path else None


def store_at(uri: str) -> tuple[Store, str]:
    """Return the store of a path and the path in it. Spark encodes no character: a name may hold ``#``, ``?`` or ``%20``.

    Raises
    ------
    PlanError
        For a path without a bucket, or with credentials.
    EnvironmentSetupError
        For a store that cannot be reached with what is installed.
    """
    if is_local_path(uri):
        return DISK, local_path(uri)
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    kind = kind_of(uri)
    return _of_arrow(uri, scheme, rest) if kind is None else kind.open(scheme, host, path)


def local_path(uri: str) -> str:
    """Return a path of this machine without its scheme."""
    if not uri.startswith("file:"):
        return uri
    rest = uri.removeprefix("file:")
    return "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest


def read_at(uri: str) -> bytes | None:
    """Return the bytes of a file; None if it does not exist."""
    store, path = store_at(uri)
    return store.read(path)


def write_at(uri: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file, or replace it, whole or not at all. See :meth:`~krishiv_py.storage.store.Store.write`."""
    store, path = store_at(uri)
    store.write(path, data, durable=durable)


def check_reachable(paths: Iterable[str | None], *, written: bool = False) -> None:
    """See that the stores of some paths answer to this process, and that files may be written there if they are to be.

    It takes seconds, not the minutes for which a store that is busy is waited for later. Disks are not checked.

    Raises
    ------
    EnvironmentSetupError
        When one does not answer, or refuses.
    MissingExtraError
        When what reaches it is not installed.
    PlanError
        For credentials in a path, and for a path without a bucket.
    """
    checked: set[tuple[str, str]] = set()
    for path in paths:
        kind = None if path is None else kind_of(path)
        if kind is None or path is None:
            continue
        place = (kind.named, path if kind.by_path else path.partition("://")[2].partition("/")[0])
        if place not in checked:
            if not kind.by_path:
                store_at(path)  # refuses paths that are none
            kind.check(path, written)
            checked.add(place)


def arrow_reads(path: str) -> bool:
    """Return whether the library reads files of a path itself, and not Spark."""
    return is_local_path(path) or kind_of(path) is not None


def is_local_path(path: str) -> bool:
    """Return whether a path is on this machine's own file system."""
    return "://" not in path or path.startswith("file:")


def _in_bucket(example: str, scheme: str, host: str, path: str) -> str:
    """Return a path in a bucket as Hadoop reads it."""
    if "@" in host:
        raise _secret_in_path(scheme)
    if not host:
        raise PlanError("a path names no bucket", got=f"{scheme}:///{path}", hint=f"write {example}")
    return f"{host}{posixpath.normpath(f'/{path}')}".rstrip("/")


def _of_arrow(uri: str, scheme: str, rest: str) -> tuple[Store, str]:
    host, slash, path = rest.partition("/")
    try:
        system, path_found = pafs.FileSystem.from_uri(f"{scheme}://{host}{slash}{quote(path)}")
    except (ImportError, OSError, pa.ArrowException) as problem:
        got, consequence = str(problem).splitlines()[0], "no file there can be read or written"
        hint = "use s3a://, gs://, abfss://, hdfs:// or a mounted path"
        raise EnvironmentSetupError(f"Arrow cannot reach {scheme}://", got=got, then=consequence, hint=hint) from problem
    return Store(system, f"{scheme}://"), str(path_found)


def _secret_in_path(scheme: str) -> PlanError:
    return PlanError(
        "a path holds credentials",
        got=f"{scheme}://[redacted]@…",
        then="paths are written into notes, names and errors",
        hint='write them into Session.builder().storage_options({"AWS_ACCESS_KEY_ID": ...}), and the path without them',
    )
