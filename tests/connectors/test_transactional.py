"""A transactional sink: every row once, whatever is repeated and wherever it is broken off."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import SideOutputLateEventHandler, count
from krishiv_py.connectors import OutputBatch, TableSink, TransactionalSink
from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.connectors.sink import OutputName
from krishiv_py.connectors.sinks.known import as_sink, described
from krishiv_py.errors import CheckpointError, OperatorError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests.connectors.sinks import Crash, CsvSink, DyingSink, SqliteSink

SCHEMA = pa.schema([("n", pa.int64())])


def output(query: str = "q", name: OutputName = "results") -> OutputOf:
    return OutputOf(query, "a query", name, SCHEMA)


def table(*values: int) -> pa.Table:
    return pa.table({"n": list(values)}, SCHEMA)


def rows(sink: SqliteSink, name: str = "results") -> list[int]:
    with sink.opened() as database:
        return [n for (n,) in database.execute(f"SELECT n FROM {name} ORDER BY n")]


@pytest.mark.parametrize(("point", "at"), list(itertools.product(("begin", "written", "committed", "noted"), range(4))))
def test_a_crash_at_any_point_of_any_batch_leaves_every_row_once(tmp_path: Path, point: str, at: int) -> None:
    batches = [[table(0, 1), table(2)], [table(3)], [], [table(4, 5)]]
    sink = DyingSink(str(tmp_path / "out.db"), point, at)
    begun, finished = -1, -1  # what the checkpoint says
    for _run in range(2):
        publisher, replayed = TablePublisher(sink, output()), begun
        try:
            for number in range(finished + 1, len(batches)):
                begun = max(begun, number)
                publisher.publish(number, batches[number], is_replay=number <= replayed)
                if point == "noted" and number == at and replayed == -1:
                    raise Crash  # published, and the checkpoint does not say so yet
                finished = number
        except (Crash, OperatorError) as problem:
            assert isinstance(problem, Crash) or isinstance(problem.__cause__, Crash)
    assert finished == len(batches) - 1
    assert rows(sink) == [0, 1, 2, 3, 4, 5]


def test_outputs_and_queries_are_distinguished(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "out.db")
    for query, name in (("q", "results"), ("q", "late_rows"), ("other", "results")):
        TablePublisher(sink, output(query, name)).publish(0, [table(1)], is_replay=True)  # type: ignore[arg-type]
    assert (rows(sink), rows(sink, "late_rows")) == ([1, 1], [1])


def test_a_checkpoint_restored_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "out.db")
    first = TablePublisher(sink, output())
    for number in range(4):
        first.publish(number, [table(number)], is_replay=False)
    restored = TablePublisher(sink, output())
    restored.publish(1, [table(1)], is_replay=True)
    with pytest.raises(CheckpointError, match=r"SqliteSink holds batch 3 .*got: batch 2, .*older copy.*Hint: restore the sink"):
        restored.publish(2, [table(7)], is_replay=False)
    assert rows(sink) == [0, 1, 2, 3]


def test_what_the_sink_raises_names_it_and_its_batch(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "missing" / "out.db")
    with pytest.raises(OperatorError, match=r"the sink SqliteSink failed .*batch 7.*unable to open.*Hint: fix SqliteSink"):
        TablePublisher(sink, output()).publish(7, [table(1)], is_replay=False)


def test_a_transaction_that_fails_is_given_up() -> None:
    calls: list[str] = []

    class Recorded(TransactionalSink):
        """Notes what is called."""

        def last_committed(self, batch: OutputBatch) -> int | None:
            calls.append("last_committed")
            return None

        def begin(self, batch: OutputBatch) -> None:
            calls.append("begin")

        def write(self, batch: OutputBatch, table: pa.Table) -> None:
            calls.append("write")
            if batch.batch_id == 2:
                raise ValueError("no space")

        def commit(self, batch: OutputBatch) -> None:
            calls.append("commit")

        def abort(self, batch: OutputBatch) -> None:
            calls.append("abort")

    publisher = TablePublisher(Recorded(), output())
    publisher.publish(0, [table(1), table(2)], is_replay=False)
    publisher.publish(1, [], is_replay=False)
    with pytest.raises(OperatorError, match="ValueError: no space"):
        publisher.publish(2, [table(1), table(2)], is_replay=False)
    assert calls == ["last_committed", "begin", "write", "write", "commit", "begin", "write", "abort"]


def test_the_driver_writes_late_rows_to_it(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "out.db")
    plan = stream_of("n bigint").watermark("n", 0).tumbling_window(10).agg(count())
    driver = Driver(plan.with_late_event_handler(SideOutputLateEventHandler(sink)))
    for batch in ([5, 100], [7], [8, 200]):
        driver.send([{"n": n} for n in batch])
        driver = driver.restarted()
    assert rows(sink, "late_rows") == [7, 8]


def test_what_a_sink_states_is_checked_and_reported(tmp_path: Path) -> None:
    class Folderless(CsvSink):
        """Has lost its folder."""

        path: Any = None

        def __init__(self) -> None: ...

    wrong: list[tuple[Any, str]] = [
        (Folderless(), "Folderless has no folder .*got: None"),
        (SqliteSink, r"results cannot go to this sink .*pass an object: SqliteSink\(\.\.\.\)"),
        ("out", "results cannot go to this sink .*TransactionalSink, TableSink, FileSink or FrameSink"),
        (type("Unnamed", (CsvSink,), {"suffix": "csv"})("out"), "Unnamed has no suffix .*got: 'csv'"),
    ]
    for sink, said in wrong:
        with pytest.raises(PlanError, match=said):
            as_sink(sink, "results")
    assert described(as_sink(CsvSink("out"), "results")) == "CsvSink (files that tasks write, a repeated batch is replaced)"
    assert described(SqliteSink(tmp_path)) == "SqliteSink (tables on the driver, a committed batch is skipped)"
    assert described(as_sink(print, "results")) == "print (a DataFrame on the cluster, a repeated batch is given again)"


def test_a_sink_of_tables_learns_of_batches_without_rows() -> None:
    seen: list[Any] = []

    class Plain(TableSink):
        """Keeps what it is given."""

        def write_tables(self, batch: OutputBatch, tables: Any) -> None:
            seen.append((batch.batch_id, batch.is_replay, batch.output, batch.schema == SCHEMA, len(tables)))

    publisher = TablePublisher(Plain(), output())
    publisher.publish(3, [table(1)], is_replay=True)
    publisher.publish(4, [], is_replay=False)
    assert seen == [(3, True, "results", True, 1), (4, False, "results", True, 0)]
