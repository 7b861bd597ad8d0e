"""Names of data sets outside of a query, as OpenLineage has them: a namespace, and a name in it; never a secret."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Final

import attrs

from krishiv_py.storage import files

_PATTERN: Final = re.compile(r"[*?\[{]")
_WRITTEN: Final = {"s3a": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes that other programs call by another name."""


@attrs.frozen
class Dataset:
    """A set of data that a source reads or a sink writes.

    Attributes
    ----------
    namespace : str
        The system that has it: ``kafka://host:9092``, ``postgres://host:5432``, ``s3://bucket``, ``file``.
    name : str
        Its name there: a topic, ``database.schema.table``, a path.

    Examples
    --------
    >>> from krishiv_py.connectors import Dataset
    >>> Dataset("crm://crm.host", "customers")
    Dataset(namespace='crm://crm.host', name='customers')
    """

    namespace: str
    name: str


def files_at(path: str, *, literal: bool = True) -> Dataset:
    """Return the data set of the files below a path; of a pattern (unless it is `literal`) the folder above its first sign.

    Examples
    --------
    >>> files_at("s3a://key:word@bucket/events/day=*/", literal=False)
    Dataset(namespace='s3://bucket', name='events')
    """
    scheme, host, rest = "", "", files.local_path(path)
    if not files.is_local_path(path):
        scheme, _, rest = path.partition("://")
        host, _, rest = rest.partition("/")
        kind = files.kind_of(path)
        user, _, server = host.rpartition("@")  # abfss://container@account has no user
        host = server if ":" in user or not (kind and kind.named == "Azure") else host
    parts = rest.split("/")
    if not literal:
        parts = parts[: next((n for n, part in enumerate(parts) if _PATTERN.search(part)), len(parts))]
    inside = posixpath.normpath("/".join(parts)) if any(parts) else ""
    if not scheme:
        return Dataset("file", os.path.abspath(inside or ("/" if rest.startswith("/") else ".")))
    return Dataset(f"{_WRITTEN.get(scheme, scheme)}://{host}", inside.lstrip("/") or "/")


def server_of(address: str, standard_port: int | None = None) -> str:
    """Return ``host:port`` of an address, without scheme, user and path; of several servers the first.

    Examples
    --------
    >>> server_of("SASL_SSL://one:9093,two:9093", 9092), server_of("https://user:word@host/path?x=1")
    ('one:9093', 'host')
    """
    host = re.split(r"[/?#]", address.split(",")[0].strip().rpartition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    bare = not re.search(r":\d+$", host)
    return f"{host}:{standard_port}" if standard_port is not None and bare else host
