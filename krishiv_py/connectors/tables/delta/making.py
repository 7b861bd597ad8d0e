"""Checks what ``read_delta`` was given, and opens the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.tables.delta.log import table_at
from krishiv_py.connectors.tables.delta.place import a_place, options
from krishiv_py.connectors.tables.delta.source import DeltaSource, OnChange
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, a_switch, one_of
from krishiv_py.plan.schema import as_schema

DeltaPlace: TypeAlias = "Literal['earliest', 'latest'] | int"
_MOST: Final = (1 << 63) - 1


def delta_source(
    path: str | os.PathLike[str],
    *,
    streaming: bool = False,
    version: int | None = None,
    starting: DeltaPlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
    parallelism: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSource:
    """Return a Delta table as a :class:`~krishiv_py.connectors.Source`; :meth:`krishiv_py.Session.read_delta` has the
    parameters.

    For the test driver: ``krishiv_py.testing.micro_batches(delta_source(...))``.

    Raises
    ------
    PlanError
        For arguments that mean nothing or do not go together.
    SchemaError
        For a column of a type that the library does not have.
    SourceError
        When there is no table, no such version, or one that cannot be read without Spark's own reader.
    MissingExtraError
        When deltalake is not installed.

    Examples
    --------
    >>> import tempfile
    >>> import deltalake
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import delta_source
    >>> from krishiv_py.testing import micro_batches
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     deltalake.write_deltalake(folder, pa.table({"user": ["ann", "bob"]}))
    ...     [batch.to_pylist() for batch in micro_batches(delta_source(folder))]
    [[{'user': 'ann'}, {'user': 'bob'}]]
    """
    place, storage = a_place(path), options(storage_options or {})
    a_switch(streaming, "streaming")
    one_of(on_change, "on_change", ("fail", "skip"))
    if max_files_per_batch is not None:
        a_number(max_files_per_batch, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
    if parallelism is not None:
        a_number(parallelism, "parallelism", 1, "state how many tasks read at once, from 1", most=10_000)
    if version is not None:
        a_number(version, "version", 0, "pass a version of the table, from 0", most=_MOST)
    begin = _starting(starting)
    if streaming and version is not None:
        raise _apart("version", "streaming=True", "use starting= to say with which version a stream begins")
    if not streaming and begin != "earliest":
        raise _apart("starting", "a table that is read once", "use version=, or streaming=True")
    table = table_at(place, storage, version)
    latest = int(table.version())
    if isinstance(begin, int) and begin > latest + 1:
        raise PlanError(
            "`starting` lies after the last version",
            got=f"{begin}, and the table is at {latest}",
            hint=f'use at most {latest + 1}, or "latest"',
        )
    return DeltaSource(
        path=place,
        schema=as_schema(pa.schema(table.schema().to_arrow())),
        table=str(table.metadata().id),
        columns_at=latest,
        base=begin - 1 if isinstance(begin, int) else latest,
        whole=begin == "earliest",
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=parallelism or os.cpu_count() or 1,
        storage=storage,
    )


def _starting(value: object) -> DeltaPlace:
    if value == "earliest" or value == "latest":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        hint = 'use "earliest" for the whole table and what follows, "latest", or a version from 0'
        raise PlanError("`starting` says nothing", got=shown(value), hint=hint)
    return value


def _apart(name: str, other: str, hint: str) -> PlanError:
    return PlanError(f"`{name}` does not go with {other}", got=name, hint=hint)
