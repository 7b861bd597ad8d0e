"""The feature log as a sink: what rows have, exactly once, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    CheckpointError,
    ColumnError,
    DeltaSink,
    KrishivError,
    MemorySink,
    OperatorError,
    PlanError,
    SchemaError,
    Session,
    SideOutputLateEventHandler,
    SourceError,
    count,
    sum,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.features import FeatureLog, FeatureTable, training_set
from krishiv_py.in_process.engine import Engine
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.features.logs import KINDS, SCHEMA, log_of, row


def spent_so_far(payments: Stream) -> ResultStream:
    timed = payments.watermark("at", "5 s", clock="row").key_by("card")
    return timed.lookback_window("1 h", emit="arrival", with_row=True).agg(sum("amount").alias("spent"))


def payment(at: int, amount: int) -> dict[str, Any]:
    return {"card": "a", "at": at, "amount": amount}


@pytest.mark.parametrize("kind", KINDS)
def test_f10_a_restart_between_publishing_and_the_commit_leaves_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log, times = KINDS[kind](tmp_path / "log"), iter(range(1_000, 10**9, 1_000))
    commit, failed = Engine._commit, list[pa.Table]()

    def failing(engine: Engine, planned: Any) -> None:
        if planned.number == 1 and not failed:
            failed.append(log.read())
            raise RuntimeError("the machine stops here")
        commit(engine, planned)

    with Session.in_process() as session:
        session.use_clock(lambda: next(times))
        payments, sender = session.memory_stream("card string, at bigint, amount bigint", spool=str(tmp_path / "spool"))
        monkeypatch.setattr(Engine, "_commit", failing)
        query = spent_so_far(payments).start(log, checkpoint=tmp_path / "checkpoint")
        sender.send([payment(1_000, 5)])
        query.process_all_available()
        sender.send([payment(2_000, 7)])
        with pytest.raises(OperatorError, match="the machine stops here"):
            query.process_all_available()
        query = spent_so_far(payments).start(log, checkpoint=tmp_path / "checkpoint")
        query.process_all_available()
        query.stop()
    assert failed[0]["spent"].to_pylist() == [5, 12]
    assert log.read().equals(failed[0])
    assert failed[0]["batch"].to_pylist() == [0, 1]


def test_all_rows_of_a_batch_have_its_clock_whatever_the_files(tmp_path: Path) -> None:
    rows = [row(at, at, card) for card in "abc" for at in range(10)]
    log = log_of(str(tmp_path), [(7, rows), (9, rows[:3])])
    read = log.read()
    assert read.num_rows == 33 and read.column_names == ["card", "at", "spent", "published_at", "batch"]
    assert read["published_at"].cast(pa.int64()).to_pylist() == [7_000] * 30 + [9_000] * 3
    assert read["batch"].to_pylist() == [0] * 30 + [1] * 3
    assert {len(pq.read_schema(file)) for file in tmp_path.glob("*.parquet")} == {5}


REFUSED: list[tuple[str, str, type[KrishivError], str]] = [
    ("user string, at bigint", "at", ColumnError, "no column 'card'"),
    ("card string, since bigint", "at", ColumnError, "no column 'at'"),
    ("card string, at string", "at", ColumnError, "column 'at' cannot be event time"),
    ("card map<string, int>, at bigint", "at", ColumnError, "column 'card' cannot be a key"),
    ("card string, at bigint, batch int", "at", PlanError, "has a column 'batch' of its own"),
    ("card string, at bigint, op string", "at", PlanError, "a feature log has values, and no changes"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("schema", "at", "error", "text"), REFUSED)
def test_results_that_are_no_features_are_refused(
    tmp_path: Path, schema: str, at: str, error: type[KrishivError], text: str, kind: str
) -> None:
    with pytest.raises(error, match=text):
        Driver(stream_of(schema), sink=attrs.evolve(KINDS[kind](tmp_path), at=at) if at != "at" else KINDS[kind](tmp_path))


def test_late_rows_are_no_features(tmp_path: Path) -> None:
    handler = SideOutputLateEventHandler(FeatureLog(tmp_path, key="card", at="at"))
    counts = (
        stream_of(SCHEMA).watermark("at", 0).with_late_event_handler(handler).key_by("card").tumbling_window(10).agg(count())
    )
    with pytest.raises(PlanError, match="a feature log takes results"):
        Driver(counts)


@pytest.mark.parametrize(("given", "text"), [({"key": []}, "has a key"), ({"key": 7}, "`key`"), ({"at": 7}, "`at`")])
def test_key_and_time_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        FeatureLog("out", **{"key": "card", "at": "at", **given})


def test_a_log_that_is_read_by_another_key_is_an_error(tmp_path: Path) -> None:
    log_of(str(tmp_path), [(12, [row(10, 1)])])
    with pytest.raises(ColumnError, match=r"lacks a column \(got: user\)"):
        FeatureLog(tmp_path, key="user", at="at").read()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_has_the_rows_of_a_log_and_gives_the_same_training_set(tmp_path: Path, kind: str) -> None:
    rows = [[row(at, at, card) for card in "abc" for at in range(first, first + 10)] for first in (0, 5, 3)]
    batches = list(zip((7, 9, 20), rows, strict=True))
    files = log_of(str(tmp_path / "files"), batches)
    table, clock = KINDS[kind](tmp_path / "table"), ManualClock()
    driver = Driver(stream_of(SCHEMA), sink=table, clock=clock)
    for now, some in batches:
        clock.set(now)
        driver.send(some)
    assert table.read().equals(files.read())
    labels = pa.table({"card": ["a", "b", "c", "a"], "decided": [8, 15, 25, 3]})
    sets = [training_set(labels, {"card": log}, key="card", at="decided") for log in (files, table)]
    assert sets[0].equals(sets[1]) and sets[0]["spent"].to_pylist() == [7, 14, 14, None]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_f15_a_table_that_evolves_has_null_where_rows_are_older(tmp_path: Path, kind: str) -> None:
    first, clock = KINDS[kind](tmp_path / "table"), ManualClock()
    clock.set(12)
    Driver(stream_of(SCHEMA), sink=first, clock=clock).send([row(10, 1)])
    evolving = FeatureTable(attrs.evolve(first.table, evolve=True), key="card", at="at")  # type: ignore[union-attr]
    wider = stream_of(f"{SCHEMA}, trips bigint")
    with pytest.raises(SchemaError, match="no column trips"):
        Driver(wider, sink=KINDS[kind](tmp_path / "table"))
    clock.set(22)
    Driver(wider, sink=evolving, clock=clock).send([{**row(20, 2), "trips": 3}])
    labels = pa.table({"card": ["a", "a"], "decided": [15, 30]})
    assert training_set(labels, {"card": evolving}, key="card", at="decided")["trips"].to_pylist() == [None, 3]


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a feature table is a Delta or an Iceberg table"):
        FeatureTable(MemorySink(), key="card", at="at")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a feature table keeps every row"):
        FeatureTable(DeltaSink(tmp_path, key=["card"]), key="card", at="at")
    for kind in ("delta", "iceberg"):
        with pytest.raises((SourceError, OperatorError), match="there is no feature log"):
            KINDS[kind](tmp_path / kind).read()


def test_the_table_of_a_log_that_is_gone_stops_its_query(tmp_path: Path) -> None:
    with Session.in_process() as session:
        payments, sender = session.memory_stream("card string, at bigint, amount bigint", spool=str(tmp_path / "spool"))
        log = KINDS["delta"](tmp_path / "log")
        sender.send([payment(1_000, 5)])
        query = spent_so_far(payments).start(log, checkpoint=tmp_path / "checkpoint")
        query.process_all_available()
        query.stop()
        (tmp_path / "log").rename(tmp_path / "away")
        with pytest.raises(CheckpointError, match=r"the output folder .* is gone"):
            spent_so_far(payments).start(log, checkpoint=tmp_path / "checkpoint")
