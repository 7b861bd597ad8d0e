"""History, then live: a query that begins with a run over archives gives what one long run gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import (
    Batches,
    CheckpointError,
    MemorySink,
    MultiSourceWatermarkSpec,
    ParquetSink,
    PlanError,
    SchemaError,
    Session,
    WatermarkSpec,
    col,
    count,
    windows,
)
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.testing import Driver, stream_of, union_of

SCHEMA = "user string, at bigint, amount bigint"
ARROW = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
ROWS: list[list[dict[str, Any]]] = [
    [{"user": f"u{i % 3}", "at": (n * 40 + i) * 1_000 - (70_000 if i % 11 == 0 else 0), "amount": i} for i in range(60)]
    for n in range(6)
]
OTHERS: list[list[dict[str, Any]]] = [
    [{"user": f"u{i % 4}", "at": (n * 40 + 3 * i) * 1_000, "amount": i * 10} for i in range(20)] for n in range(6)
]
SEAM = 3


def timed(stream: Any, lag: int = 5_000) -> Any:
    """Rows with event time."""
    return stream.watermark("at", lag)


def keyed(stream: Any) -> Any:
    """Rows by user."""
    return timed(stream).key_by("user")


ONE: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: keyed(s).tumbling_window(60_000).agg(count(), kv.sum("amount").alias("total")),
    "lateness": lambda s: keyed(s).tumbling_window(60_000).allowed_lateness(100_000).agg(count(), kv.avg("amount").alias("m")),
    "hopping": lambda s: keyed(s).hopping_window(60_000, 20_000).agg(kv.max("amount").alias("top")),
    "changes": lambda s: keyed(s).tumbling_window(60_000).allowed_lateness(100_000).emit("retractions").agg(count()),
    "session": lambda s: keyed(s).session_window(9_000).agg(count(), kv.min("amount").alias("low")),
    "capped": lambda s: keyed(s).session_window(9_000, max_duration=30_000).agg(count()),
    "counted": lambda s: keyed(s).count_window(7).agg(kv.sum("amount").alias("total")),
    "look back": lambda s: keyed(s).lookback_window(30_000).agg(count(), kv.sum("amount").alias("total")),
    "duplicates": lambda s: timed(s).drop_duplicates("user", within="20 seconds"),
    "steps": lambda s: (
        keyed(s.filter(col("amount") > 3).with_column("twice", col("amount") * 2))
        .tumbling_window(60_000)
        .agg(kv.sum("twice").alias("total"))
    ),
    "stages": lambda s: (
        keyed(s)
        .tumbling_window(20_000)
        .agg(count().alias("n"))
        .key_by("user")
        .tumbling_window(60_000)
        .agg(kv.max("n").alias("most"))
    ),
}

TWO: dict[str, Callable[[Any, Any], Any]] = {
    "interval": lambda a, b: timed(a).interval_join(timed(b), on="user", lower="-10 seconds", upper="10 seconds"),
    "as of": lambda a, b: timed(a).asof_join(timed(b), on="user", tolerance="1 minute"),
    "windows": lambda a, b: timed(a).window_join(timed(b), on="user", window=windows.tumbling("1 minute")),
}


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def archive(session: Session, folder: Path, batches: list[list[dict[str, Any]]], name: str = "archive") -> Any:
    """Files of rows, one a batch."""
    where = folder / name
    where.mkdir(exist_ok=True)
    for number, rows in enumerate(batches):
        pq.write_table(pa.Table.from_pylist(rows, ARROW), where / f"{number}.parquet")
        os.utime(where / f"{number}.parquet", (number + 1, number + 1))
    if not batches:
        return session.read_parquet(str(where), schema=ARROW, max_files_per_batch=1)
    return session.read_parquet(str(where), max_files_per_batch=1)


def read(sink: MemorySink) -> list[dict[str, Any]]:
    """All rows of a sink."""
    actual = sink.table()
    return [] if actual is None else actual.to_pylist()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seam", [0, 3, 6])
@pytest.mark.parametrize("name", list(ONE))
def test_history_and_live_are_one_long_run(session: Session, tmp_path: Path, name: str, seam: int) -> None:
    make, late = ONE[name], MemorySink()
    driver = Driver(make(stream_of(SCHEMA)).with_late_event_handler(kv.SideOutputLateEventHandler(MemorySink())))
    steps = [driver.send(rows) for rows in ROWS]
    live, sender = session.memory_stream(SCHEMA, name="orders")
    for rows in ROWS[seam:]:
        sender.send(rows)
    sink = MemorySink()
    plan = make(live).with_late_event_handler(kv.SideOutputLateEventHandler(late))
    query = session.start(
        [plan.to(sink)],
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap={"orders": archive(session, tmp_path, ROWS[:seam])},
        batches=Batches.available_now(),
    )
    query.await_termination()
    assert read(sink) == [row for step in steps for row in step.results.to_pylist()]
    assert read(late) == [row for step in steps for row in list(step.late_by_stage.values())[-1].to_pylist()]
    assert (query.progress.rows, query.progress.open_windows) == (driver.progress.rows, driver.progress.open_windows)
    assert os.listdir(tmp_path) and not (tmp_path / "checkpoint-history").exists()


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("name", list(TWO))
def test_joins_too_with_one_archive_or_two(session: Session, tmp_path: Path, name: str, both: bool) -> None:
    make = TWO[name]
    driver = Driver(make(stream_of(SCHEMA), stream_of(SCHEMA)))
    sent = [{"left": a, "right": b} for a, b in zip(ROWS, OTHERS, strict=True)]
    if not both:
        sent = [{"left": a} for a in ROWS[:SEAM]] + [{"left": a, "right": b} for a, b in zip(ROWS[SEAM:], OTHERS, strict=False)]
    want = [row for rows in sent for row in driver.send(rows).results.to_pylist()]
    left, to_left = session.memory_stream(SCHEMA, name="orders")
    right, to_right = session.memory_stream(SCHEMA, name="payments")
    for rows in sent[SEAM:]:
        to_left.send(rows["left"])
        to_right.send(rows["right"])
    archives = {"left": archive(session, tmp_path, ROWS[:SEAM])}
    if both:
        archives["payments"] = archive(session, tmp_path, OTHERS[:SEAM], "other")
    sink = MemorySink()
    session.start(
        [make(left, right).to(sink)],
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap=archives,
        batches=Batches.available_now(),
    ).await_termination()
    assert read(sink) == want


def test_a_union_with_a_watermark_for_each_stream(session: Session, tmp_path: Path) -> None:
    def make(a: Any, b: Any, union: Any) -> Any:
        spec = (
            MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(5_000))
        )
        rows = union({"a": a, "b": b}).with_watermark(spec, "at", source_column="source")
        return rows.key_by("user").tumbling_window(60_000).agg(count())

    driver = Driver(make(stream_of(SCHEMA), stream_of(SCHEMA), union_of))
    a, to_a = session.memory_stream(SCHEMA)
    b, to_b = session.memory_stream(SCHEMA)
    want = [
        row for one, other in zip(ROWS, OTHERS, strict=True) for row in driver.send({"a": one, "b": other}).results.to_pylist()
    ]
    for one, other in zip(ROWS[SEAM:], OTHERS[SEAM:], strict=True):
        to_a.send(one)
        to_b.send(other)
    sink = MemorySink()
    archives = {"a": archive(session, tmp_path, ROWS[:SEAM]), "b": archive(session, tmp_path, OTHERS[:SEAM], "other")}
    session.start(
        [make(a, b, session.union).to(sink)],
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap=archives,
        batches=Batches.available_now(),
    ).await_termination()
    assert read(sink) == want


def test_until_divides_an_archive_that_overlaps_the_live_source(session: Session, tmp_path: Path) -> None:
    rows = [row for batch in ROWS for row in batch]
    until = 130_000
    driver = Driver(ONE["tumbling"](stream_of(SCHEMA)))
    want = driver.send([row for row in rows if row["at"] < until]).results.to_pylist()
    want += driver.send([row for row in rows if row["at"] >= until]).results.to_pylist()
    live, sender = session.memory_stream(SCHEMA, name="orders")
    sender.send(rows)  # all of them are in the archive, too
    sink = MemorySink()
    given: Any = {"checkpoint": str(tmp_path / "checkpoint"), "batches": Batches.available_now()}
    plan = [ONE["tumbling"](live).to(sink)]
    begun: Any = {"bootstrap": {"orders": archive(session, tmp_path, [rows])}, "until": until}
    session.start(plan, **given, **begun).await_termination()
    assert read(sink) == want
    sender.send([{"user": "u1", "at": 125_000, "amount": 1}, {"user": "u1", "at": 400_000, "amount": 1}])
    session.start(plan, **given).await_termination()  # the seam holds without being named again
    driver.send([{"user": "u1", "at": 400_000, "amount": 1}])
    with pytest.raises(CheckpointError, match="ended at another time"):
        session.start(plan, **given, bootstrap=begun["bootstrap"], until=until + 1)
    query = session.start(plan, **given, **begun)
    query.await_termination()
    past, live_rows = (sum(mine(row["at"]) for row in rows) for mine in (until.__gt__, until.__le__))
    counted = {name: n for name, n in query.progress.late.items() if n and name != "late"}
    assert counted == {"before_until": past + 1, "after_until": live_rows}
    assert query.progress.rows - sum(counted.values()) == driver.progress.rows


@pytest.mark.parametrize("after", ["amount < 40", "amount < 0"])
def test_what_a_filter_leaves_out_beyond_the_seam_moves_no_watermark(session: Session, tmp_path: Path, after: str) -> None:
    """A row of the other side of the seam is no row of this one, also where a filter after the watermark leaves it out."""

    def plan(stream: Any) -> Any:
        return timed(stream).filter(after).key_by("user").tumbling_window(60_000).agg(count())

    rows, until = [row for batch in ROWS for row in batch], 130_000
    driver = Driver(plan(stream_of(SCHEMA)))
    want = driver.send([row for row in rows if row["at"] < until]).results.to_pylist()
    want += driver.send([row for row in rows if row["at"] >= until]).results.to_pylist()
    live, sender = session.memory_stream(SCHEMA, name="orders")
    sender.send(rows)
    sink = MemorySink()
    begun: Any = {"bootstrap": {"orders": archive(session, tmp_path, [rows])}, "until": until}
    query = session.start(
        [plan(live).to(sink)], checkpoint=str(tmp_path / "checkpoint"), batches=Batches.available_now(), **begun
    )
    query.await_termination()
    assert read(sink) == want
    assert query.progress.late["late"] == 0
    assert query.progress.watermark_us == driver.watermark_us


def test_results_of_the_history_can_be_kept_back(session: Session, tmp_path: Path) -> None:
    driver = Driver(ONE["tumbling"](stream_of(SCHEMA)))
    results = [driver.send(rows).results.to_pylist() for rows in ROWS]
    live, sender = session.memory_stream(SCHEMA, name="orders")
    for rows in ROWS[SEAM:]:
        sender.send(rows)
    out = tmp_path / "out"
    session.start(
        [ONE["tumbling"](live).to(ParquetSink(str(out)))],
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap={"orders": archive(session, tmp_path, ROWS[:SEAM])},
        publish=False,
        batches=Batches.available_now(),
    ).await_termination()
    got = pq.read_table(out).sort_by([("window_end", "ascending"), ("user", "ascending")]).to_pylist()
    want = [row for rows in results[SEAM:] for row in rows]
    assert got == sorted(want, key=lambda row: (row["window_end"], row["user"]))


@pytest.mark.parametrize("publish", [True, False])
def test_a_history_that_was_broken_off_goes_on(session: Session, tmp_path: Path, publish: bool) -> None:
    """A function of the plan fails in the third file, as a crash would; files of output hold every row once."""
    armed = [True]

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if armed[0] and batch.num_rows and batch.column("at")[-1].as_py() > 130_000:
            raise RuntimeError("no more")
        return batch

    driver = Driver(ONE["tumbling"](stream_of(SCHEMA)))
    results = [driver.send(rows).results.to_pylist() for rows in ROWS]
    live, sender = session.memory_stream(SCHEMA, name="orders")
    for rows in ROWS[SEAM:]:
        sender.send(rows)
    plan = ONE["tumbling"](live.map_batches(fails, SCHEMA))
    given: Any = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "bootstrap": {"orders": archive(session, tmp_path, ROWS[:SEAM])},
        "batches": Batches.available_now(),
        "publish": publish,
    }
    outputs = [plan.to(ParquetSink(str(tmp_path / "out")))]
    with pytest.raises(kv.KrishivError):
        session.start(outputs, **given)
    assert not (tmp_path / "checkpoint").exists()
    armed[0] = False
    session.start(outputs, **given).await_termination()
    got = pq.read_table(tmp_path / "out").sort_by([("window_end", "ascending"), ("user", "ascending")]).to_pylist()
    want = [row for rows in results[0 if publish else SEAM :] for row in rows]
    assert got == sorted(want, key=lambda row: (row["window_end"], row["user"]))


def test_a_checkpoint_that_was_being_made_of_a_history_is_made_again(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note of the plan is written last; what was there of the batches before is not a checkpoint that lost it."""
    driver = Driver(ONE["tumbling"](stream_of(SCHEMA)))
    results = [row for rows in ROWS for row in driver.send(rows).results.to_pylist()]
    live, sender = session.memory_stream(SCHEMA, name="orders")
    for rows in ROWS[SEAM:]:
        sender.send(rows)
    outputs = [ONE["tumbling"](live).to(ParquetSink(str(tmp_path / "out")))]
    given: Any = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "bootstrap": {"orders": archive(session, tmp_path, ROWS[:SEAM])},
        "batches": Batches.available_now(),
    }

    def is_killed(*note: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointNotes, "begin", is_killed)
        with pytest.raises(KeyboardInterrupt):
            session.start(outputs, **given)
    assert (tmp_path / "checkpoint/offsets").exists() and not (tmp_path / "checkpoint/krishiv/plan.json").exists()
    session.start(outputs, **given).await_termination()
    got = pq.read_table(tmp_path / "out").sort_by([("window_end", "ascending"), ("user", "ascending")]).to_pylist()
    assert got == sorted(results, key=lambda row: (row["window_end"], row["user"]))


def test_files_that_are_archive_and_live_source_are_read_once(session: Session, tmp_path: Path) -> None:
    past = archive(session, tmp_path, ROWS[:SEAM])
    live = session.read_parquet(str(tmp_path / "archive"), streaming=True, max_files_per_batch=1)
    sink = MemorySink()
    query = session.start(
        [ONE["tumbling"](live).to(sink)], checkpoint=str(tmp_path / "checkpoint"), bootstrap={"archive": past}
    )
    archive(session, tmp_path, ROWS)
    query.process_all_available()
    driver = Driver(ONE["tumbling"](stream_of(SCHEMA)))
    assert read(sink) == [row for rows in ROWS for row in driver.send(rows).results.to_pylist()]
    query.stop()


@pytest.mark.parametrize("other", [True, False])
def test_a_closed_memory_stream_is_an_archive_that_ends_no_input(session: Session, tmp_path: Path, other: bool) -> None:
    make, sink = ONE["tumbling"], MemorySink()
    driver = Driver(make(stream_of(SCHEMA)))
    must = [row for rows in ROWS[: None if other else SEAM] for row in driver.send(rows).results.to_pylist()]
    past, to_past = session.memory_stream(SCHEMA, name="past")
    live, sender = session.memory_stream(SCHEMA, name="live") if other else (past, to_past)
    for rows in ROWS[:SEAM]:
        to_past.send(rows)
    to_past.close()
    for rows in ROWS[SEAM:] if other else []:
        sender.send(rows)
    query = session.start([make(live).to(sink)], checkpoint=str(tmp_path / "c"), bootstrap={"live" if other else "past": past})
    query.process_all_available()
    assert query.progress.late == driver.progress.late
    query.stop()
    if not other:  # the stream is the live source, too, and that has ended
        must += driver.close().results.to_pylist()
    assert read(sink) == must


def test_what_cannot_be_is_refused_before_anything_runs(session: Session, tmp_path: Path) -> None:
    live, _ = session.memory_stream(SCHEMA, name="orders")
    past = archive(session, tmp_path, ROWS[:1])
    outputs, given = [ONE["tumbling"](live).to(MemorySink())], {"checkpoint": str(tmp_path / "checkpoint")}

    def begins(**more: Any) -> Any:
        return session.start(outputs, **{**given, **more})

    with pytest.raises(PlanError, match="does not read"):
        begins(bootstrap={"payments": past})
    with pytest.raises(SchemaError, match="lacks a column"):
        begins(bootstrap={"orders": past.select("user", "at")})
    with pytest.raises(SchemaError, match="another type"):
        begins(bootstrap={"orders": past.with_column("amount", col("amount").cast("int"))})
    with pytest.raises(PlanError, match="cannot be read as rows"):
        begins(bootstrap={"orders": ONE["tumbling"](past)})
    with pytest.raises(PlanError, match="without bootstrap"):
        begins(until=5)
    with pytest.raises(PlanError, match=r"without an archive|does not read"):
        begins(bootstrap={"orders": past}, until={"payments": 5})
    with pytest.raises(PlanError, match="offsets are of a topic"):
        begins(bootstrap={"orders": past}, until={"orders": {0: 5}})
    with pytest.raises(CheckpointError, match="no savepoint is here"):
        begins(bootstrap={"orders": past}, savepoint="x")
    begins().stop()
    with pytest.raises(CheckpointError, match="began without a history"):
        begins(bootstrap={"orders": past})
