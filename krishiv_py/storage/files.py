"""Paths as Spark reads them: which scheme is which kind of store is known here only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.storage import hdfs
from krishiv_py.storage.local import DISK
from krishiv_py.storage.store import Store, StoreKind
from krishiv_py.storage.stores import azure, google, s3

KINDS: Final = (s3.KIND, google.KIND, azure.KIND, hdfs.KIND)
"""The stores that the library knows, apart from disks."""
_BY_SCHEME: Final = {scheme: kind for kind in KINDS for scheme in (*kind.schemes, *kind.others)}


def says_where(name: str) -> bool:
    """Return whether a setting of Hadoop's says how an object store or HDFS is reached from here."""
    return any(kind.is_setting(name) for kind in KINDS)


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


def _of_arrow(uri: str, scheme: str, rest: str) -> tuple[Store, str]:
    host, slash, path = rest.partition("/")
    try:
        system, path_found = pafs.FileSystem.from_uri(f"{scheme}://{host}{slash}{quote(path)}")
    except (ImportError, OSError, pa.ArrowException) as problem:
        got, consequence = str(problem).splitlines()[0], "no file there can be read or written"
        hint = "use s3a://, gs://, abfss://, hdfs:// or a mounted path"
        raise EnvironmentSetupError(f"Arrow cannot reach {scheme}://", got=got, then=consequence, hint=hint) from problem
    return Store(system, f"{scheme}://"), str(path_found)
