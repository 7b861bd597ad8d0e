"""Checks the arguments of ``read_iceberg``, and opens the table."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from krishiv_py.connectors.tables.iceberg.place import a_catalog, a_table, iceberg, opened, without_secrets
from krishiv_py.connectors.tables.iceberg.source import IcebergSource, OnChange, columns_of, trimmed
from krishiv_py.errors import RAISED, PlanError, SourceError, shown
from krishiv_py.plan.checks import a_number, a_switch, one_of
from krishiv_py.plan.schema import as_schema

IcebergPlace: TypeAlias = "Literal['earliest', 'latest'] | int"
Snapshot: TypeAlias = "int | str | dt.datetime"
_MOST: Final = (1 << 63) - 1
_SNAPSHOT: Final = "pass the number of a snapshot, the name of a tag or branch, or a datetime with a time zone"


def iceberg_source(
    table: str,
    *,
    catalog: str | Mapping[str, str],
    streaming: bool = False,
    snapshot: Snapshot | None = None,
    starting: IcebergPlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
    parallelism: int | None = None,
) -> IcebergSource:
    """Return an Iceberg table as a :class:`~krishiv_py.connectors.Source`; :meth:`krishiv_py.Session.read_iceberg` has the
    parameters.

    For the test driver: ``krishiv_py.testing.micro_batches(iceberg_source(...))``.

    Raises
    ------
    PlanError
        For arguments that mean nothing or do not go together.
    SchemaError
        For a column of a type that the library does not have.
    SourceError
        When there is no table, no such snapshot, or the catalog does not answer.
    MissingExtraError
        When pyiceberg is not installed.

    Examples
    --------
    >>> from krishiv_py.connectors import iceberg_source
    >>> from krishiv_py.testing import micro_batches
    >>> def replayed(driver):
    ...     events = iceberg_source("lake.events", catalog={"type": "rest", "uri": "http://localhost:8181"})
    ...     return [driver.send(batch).results for batch in micro_batches(events)]
    """
    name, place = a_table(table), a_catalog(catalog)
    a_switch(streaming, "streaming")
    one_of(on_change, "on_change", ("fail", "skip"))
    if max_files_per_batch is not None:
        a_number(max_files_per_batch, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
    if parallelism is not None:
        a_number(parallelism, "parallelism", 1, "pass how many tasks read at once, from 1", most=10_000)
    if snapshot is not None:
        _check_snapshot(snapshot)
    begin = _starting(starting)
    if streaming and snapshot is not None:
        raise _apart("snapshot", "streaming=True", "use starting= for the snapshot with which a stream begins")
    if not streaming and begin != "earliest":
        raise _apart("starting", "a table that is read once", "use snapshot=, or streaming=True")
    try:
        opened_table = opened(place).load_table(name)
    except iceberg("exceptions").NoSuchTableError:
        hint = "check namespace and name, and write the table first"
        raise SourceError("there is no such Iceberg table", got=name, hint=hint) from None
    except RAISED as problem:
        got = f"{name}: {without_secrets(problem, place)}"
        hint = "see that the catalog can be reached, and how its properties are spelt"
        raise SourceError("the catalog of Iceberg does not answer", got=got, hint=hint) from None
    metadata = opened_table.metadata
    schema, current = opened_table.schema(), metadata.current_snapshot()
    base, sequence = (None, 0) if current is None else (int(current.snapshot_id), int(current.sequence_number or 0))
    if snapshot is not None:
        base = _snapshot_id(opened_table, name, snapshot)
        schema = opened_table.scan(snapshot_id=base).projection()
    elif isinstance(begin, int):
        first = metadata.snapshot_by_id(begin)
        if first is None:
            raise _no_snapshot(opened_table, name, begin)
        base, sequence = first.parent_snapshot_id, int(first.sequence_number or 1) - 1
    return IcebergSource(
        name=name,
        catalog=place,
        schema=as_schema(columns_of(schema)),
        metadata=trimmed(metadata),
        columns=schema.model_dump_json(),
        files=dict(opened_table.io.properties),
        table=str(metadata.table_uuid),
        base=base,
        sequence=sequence,
        whole=begin == "earliest",
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=parallelism or os.cpu_count() or 1,
    )


def _starting(value: object) -> IcebergPlace:
    if value == "earliest" or value == "latest":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        hint = 'use "earliest" for the whole table and what follows, "latest", or the number of a snapshot'
        raise PlanError("`starting` is not a place in a table", got=shown(value), hint=hint)
    return value


def _check_snapshot(value: object) -> None:
    fits = (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST) or (
        isinstance(value, str) and bool(value)
    )
    if not fits and not (isinstance(value, dt.datetime) and value.tzinfo is not None):
        raise PlanError("`snapshot` is not a snapshot", got=shown(value), hint=_SNAPSHOT)


def _snapshot_id(table: Any, name: str, wanted: Snapshot) -> int:
    """Return the number of a snapshot."""
    if isinstance(wanted, dt.datetime):
        snapshot = table.snapshot_as_of_timestamp(int(wanted.timestamp() * 1_000))
    elif isinstance(wanted, str):
        snapshot = table.snapshot_by_name(wanted)
    else:
        snapshot = table.snapshot_by_id(wanted)
    if snapshot is None:
        raise _no_snapshot(table, name, wanted)
    return int(snapshot.snapshot_id)


def _no_snapshot(table: Any, name: str, wanted: Snapshot) -> SourceError:
    there = [str(each.snapshot_id) for each in table.metadata.snapshots]
    shown_some = ", ".join(there[-5:]) if there else "none"
    got = f"{name}: {shown(wanted)}; the last ones are {shown_some}"
    hint = "use one that the table still has; old ones expire"
    return SourceError("the Iceberg table has no such snapshot", got=got, hint=hint)


def _apart(name: str, other: str, hint: str) -> PlanError:
    return PlanError(f"`{name}` does not go with {other}", got=name, hint=hint)
