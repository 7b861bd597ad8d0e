"""One pipeline with corrections into every table, on the test driver and on Spark: the table is the fold of the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import Batches, DeltaSink, MemorySink, PostgresSink, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.compat import changes, fold
from krishiv_py.connectors import Sink
from krishiv_py.testing import Driver, stream_of
from tests.tables.server import Server
from tests.tables.stores import delta_rows, iceberg, iceberg_rows

SCHEMA = "user string, at bigint, amount bigint"
SENDS: list[Any] = [
    [{"user": "a", "at": 50, "amount": 1}, {"user": None, "at": 20, "amount": 2}, {"user": "b", "at": 900, "amount": 3}],
    [{"user": "a", "at": 30, "amount": 5}, {"user": "b", "at": 1_000, "amount": 4}, {"user": None, "at": 300, "amount": 9}],
    [{"user": "a", "at": 40, "amount": 5}, {"user": "b", "at": 1_000, "amount": 4}, {"user": None, "at": 150, "amount": 3}],
    [{"user": "a", "at": 2_500, "amount": 5}, {"user": "b", "at": 100, "amount": 4}, {"user": None, "at": 350, "amount": 3}],
    [{"user": "a", "at": 1_200, "amount": 5}, {"user": "b", "at": 2_600, "amount": 4}, {"user": "z", "at": 7, "amount": 1}],
]
KEY = ["user", "window_start", "window_end"]


def plan(rows: Stream, late: Sink) -> ResultStream:
    """Sessions, which are withdrawn when they grow, and rows that are too late."""
    keyed = rows.watermark("at", 0).key_by("user").allowed_lateness(1_000).emit("retractions")
    return keyed.session_window(200).agg(count(), sum("amount")).with_late_event_handler(SideOutputLateEventHandler(late))


def sorted_rows(actual: list[dict[str, Any]]) -> list[str]:
    """Rows in an order of their own."""
    return sorted(str(sorted(row.items(), key=lambda item: item[0])) for row in actual)


class Store:
    """A sink with a key, one without, and what is in them."""

    def __init__(self, kind: str, server: Server, table: Callable[[], str], folder: Path) -> None:
        self.kind, self.server, self.names, self.folder = kind, server, (table(), table()), folder

    def sinks(self) -> tuple[Sink, Sink]:
        """For results and for late rows."""
        one, other = self.names
        if self.kind == "postgres":
            return PostgresSink(self.server.address(), one, key=KEY), PostgresSink(self.server.address(), other)
        if self.kind == "delta":
            return DeltaSink(self.folder / one, key=KEY), DeltaSink(self.folder / other, partition_by=["reason"])
        return iceberg(self.folder, one), iceberg(self.folder, other)

    def rows(self, which: int) -> list[dict[str, Any]]:
        """What a table holds."""
        name = self.names[which]
        if self.kind == "postgres":
            return [actual for (actual,) in self.server.rows(f"SELECT row_to_json(t) FROM {name} t")]
        return delta_rows(self.folder / name) if self.kind == "delta" else iceberg_rows(self.folder, name)


@pytest.fixture(params=["postgres", "delta", "iceberg"])
def store(request: pytest.FixtureRequest, server: Server, table: Callable[[], str], tmp_path: Path) -> Store:
    """A place for results and late rows."""
    return Store(request.param, server, table, tmp_path)


def expected(kind: str) -> tuple[list[str], list[str]]:
    """What the driver gives: the fold of its log (a table without a key keeps the log), and late rows."""
    driver = Driver(plan(stream_of(SCHEMA), MemorySink()), idle_batches=False)
    steps = [driver.send(rows) for rows in SENDS] + [driver.tick(), driver.close()]
    log = pa.concat_tables(step.results for step in steps)
    late = pa.concat_tables(step.late for step in steps)
    assert {"-U", "-D", "+U"} & set(log["op"].to_pylist()) and late.num_rows
    valid = log.to_pylist() if kind == "iceberg" else fold(changes(log))
    return sorted_rows(valid), sorted_rows(late.to_pylist())


def test_the_driver_writes_results_and_late_rows(store: Store) -> None:
    results, late = store.sinks()
    driver = Driver(plan(stream_of(SCHEMA), late), sink=results, idle_batches=False)
    for rows in SENDS:
        driver.send(rows)
    driver.tick()
    driver.close()
    assert (sorted_rows(store.rows(0)), sorted_rows(store.rows(1))) == expected(store.kind)


def test_one_query_writes_every_table_over_a_restart(
    session: Session, server: Server, table: Callable[[], str], tmp_path: Path
) -> None:
    stores = {kind: Store(kind, server, table, tmp_path) for kind in ("postgres", "delta", "iceberg")}
    log = table()
    stream, sender = session.memory_stream(SCHEMA)
    results = plan(stream, stores["postgres"].sinks()[1])
    outputs = [results.to(store.sinks()[0], name=kind) for kind, store in stores.items()]
    outputs.append(results.to(PostgresSink(server.address(), log), name="log"))
    for sends in (SENDS[:2], SENDS[2:]):
        for rows in sends:
            sender.send(rows)
        if sends[-1] is SENDS[-1]:
            sender.close()
        batches = Batches.available_now(flush=sends[-1] is SENDS[-1])
        session.start(outputs, checkpoint=str(tmp_path / "checkpoint"), batches=batches).await_termination()
    for kind, store in stores.items():
        assert sorted_rows(store.rows(0)) == expected(kind)[0]
    assert sorted_rows(stores["postgres"].rows(1)) == expected("postgres")[1]
    kept = [actual for (actual,) in server.rows(f"SELECT row_to_json(t) FROM {log} t")]
    assert sorted_rows(kept) == expected("iceberg")[0]


def test_late_rows_of_a_bounded_run_go_to_a_table(session: Session, server: Server, table: Callable[[], str]) -> None:
    name = table()
    stream, sender = session.memory_stream(SCHEMA)
    for rows in SENDS:
        sender.send(rows)
    sender.close()
    plan(stream, PostgresSink(server.address(), name)).run()
    kept = [actual for (actual,) in server.rows(f"SELECT row_to_json(t) FROM {name} t")]
    assert sorted_rows(kept) == expected("postgres")[1]
