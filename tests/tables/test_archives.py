"""Delta and Iceberg tables as archives: of a live source that is the same table, and of a savepoint, though it has grown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from krishiv_py import Batches, MemorySink, Session, count
from krishiv_py import sum as total
from krishiv_py.testing import Driver, stream_of
from tests.tables.stores import catalog

SCHEMA = "user string, at bigint, amount bigint"
ROWS: list[list[dict[str, Any]]] = [
    [{"user": f"u{i % 3}", "at": (n * 40 + i) * 1_000, "amount": i} for i in range(50)] for n in range(5)
]
SEAM = 3
Append = Callable[[list[dict[str, Any]]], None]
Read = Callable[[Session, bool], Any]


def windows(stream: Any) -> Any:
    """Minutes of users."""
    return stream.watermark("at", 20_000).key_by("user").tumbling_window(60_000)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Append, Read]:
    """A table: what appends rows to it, and what reads it, as a stream or once."""
    if request.param == "delta":
        path = str(tmp_path / "orders")

        def append(rows: list[dict[str, Any]]) -> None:
            write_deltalake(path, pa.Table.from_pylist(rows), mode="append")

        return append, lambda session, streaming: session.read_delta(path, streaming=streaming)
    lake = catalog(tmp_path)
    made = load_catalog("default", **lake)
    made.create_namespace("lake")
    made.create_table("lake.orders", schema=pa.Table.from_pylist(ROWS[0]).schema)

    def add(rows: list[dict[str, Any]]) -> None:
        made.load_table("lake.orders").append(pa.Table.from_pylist(rows))

    return add, lambda session, streaming: session.read_iceberg("lake.orders", catalog=lake, streaming=streaming)


def results(plan: Any, begin: int) -> list[str]:
    """What one long run gives, from a batch on."""
    driver = Driver(plan)
    return sorted(str(row) for step in [driver.send(rows) for rows in ROWS][begin:] for row in step.results.to_pylist())


def read(sink: MemorySink) -> list[str]:
    """All rows of a sink."""
    rows = sink.table()
    return [] if rows is None else sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("streaming", [True, False])
def test_a_table_is_archive_and_live_source(table: tuple[Append, Read], tmp_path: Path, streaming: bool) -> None:
    append, stream = table
    for rows in ROWS[:SEAM]:
        append(rows)
    sink = MemorySink()
    with Session.in_process() as session:
        live = stream(session, True)
        query = session.start(
            [windows(live).agg(count()).to(sink)],
            checkpoint=str(tmp_path / "checkpoint"),
            bootstrap={_name(live): stream(session, streaming)},
        )
        for rows in ROWS[SEAM:]:
            append(rows)
            query.process_all_available()
        query.stop()
    assert read(sink) == results(windows(stream_of(SCHEMA)).agg(count()), 0)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_table_that_has_grown_gives_what_a_savepoint_took(
    table: tuple[Append, Read], tmp_path: Path, streaming: bool
) -> None:
    append, stream = table
    for rows in ROWS[:SEAM]:
        append(rows)
    sink = MemorySink()
    with Session.in_process() as session:
        live = stream(session, True)
        query = windows(live).agg(count()).start(MemorySink(), checkpoint=str(tmp_path / "old"))
        query.process_all_available()
        savepoint = query.savepoint(str(tmp_path / "savepoint"))
        query.stop()
        for rows in ROWS[SEAM:]:
            append(rows)
        session.start(
            [windows(live).agg(total("amount").alias("total"), count()).to(sink)],
            checkpoint=str(tmp_path / "new"),
            savepoint=savepoint,
            bootstrap={_name(live): stream(session, streaming)},
            batches=Batches.available_now(),
        ).await_termination()
    assert read(sink) == results(windows(stream_of(SCHEMA)).agg(total("amount").alias("total"), count()), SEAM)


def _name(live: Any) -> str:
    """What the source is called."""
    return str(live._node.name)
