"""Tables that change, on all engines: restarts, workers, bounded runs, moves between engines, sinks with a key."""

from __future__ import annotations

import builtins
import random
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

from krishiv_py import DeltaSink, MemorySink, Session, count, sum
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Content, Row, Rows, counted, folded, grouped
from tests.kernels.changes.test_content import DDL, QUERIES, batches_of

ENDS = (
    "sums",
    "extremes",
    "chained",
    "a log of groups",
    "union by key",
    "union, then a total",
    "distinct rows",
    "everything",
    "ranked rows",
    "left join",
    "full join",
    "join, then a total",
)


def _streams(session: Session, sides: int) -> tuple[list[Any], list[Any]]:
    made = [session.memory_stream(DDL, name=name) for name in ("left", "right")[:sides]]
    return [stream for stream, _ in made], [sender for _, sender in made]


def _plan(name: str, streams: list[Any]) -> Any:
    return QUERIES[name].plan(*(stream.from_changelog("log", "pk", sequence="seq") for stream in streams))


def _wanted(name: str, batches: list[dict[str, Rows]]) -> Counter[str]:
    contents = {side: Content("pk", "seq") for side in ("left", "right")[: QUERIES[name].sides]}
    for batch in batches:
        for side, rows in batch.items():
            for row in rows:
                contents[side].apply(row)
    return counted(QUERIES[name].of(*(content.rows for content in contents.values())))


def _batches(name: str, seed: int) -> list[dict[str, Rows]]:
    return [batch for batch in batches_of(random.Random(f"{name} {seed}"), QUERIES[name].sides) if any(batch.values())]


def _send(senders: list[Any], batch: dict[str, Rows]) -> None:
    for sender, rows in zip(senders, batch.values(), strict=True):
        if rows:
            sender.send(rows)


def _run(session: Session, name: str, folder: Path, batches: list[dict[str, Rows]]) -> list[Row]:
    """Return what a query gives that is stopped and started once."""
    streams, senders = _streams(session, QUERIES[name].sides)
    sink, plan = MemorySink(), _plan(name, streams)
    query = plan.start(sink, checkpoint=folder / "checkpoint")
    for number, batch in enumerate(batches):
        _send(senders, batch)
        query.process_all_available()
        if number == len(batches) // 2:
            query.stop()
            query = plan.start(sink, checkpoint=folder / "checkpoint")
    query.stop()
    rows = sink.table()
    return [] if rows is None else rows.to_pylist()


def _collected(session: Session, name: str, batches: list[dict[str, Rows]]) -> Counter[str]:
    streams, senders = _streams(session, QUERIES[name].sides)
    for batch in batches:
        _send(senders, batch)
    for sender in senders:
        sender.close()
    return counted(_plan(name, streams).collect().to_pylist())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("seed", range(scaled(3)))
def test_in_process(seed: int, name: str, workers: int, tmp_path: Path) -> None:
    batches = _batches(name, seed)
    with Session.in_process(workers=workers) as session:
        assert folded(_run(session, name, tmp_path, batches)) == _wanted(name, batches)
        assert _collected(session, name, batches) == _wanted(name, batches)


@pytest.mark.one_in(12)
@pytest.mark.spark
@pytest.mark.parametrize("name", ENDS)
def test_on_spark(name: str, session: Session, tmp_path: Path) -> None:
    batches = _batches(name, 1)[:4]
    assert folded(_run(session, name, tmp_path, batches)) == _wanted(name, batches)
    assert _collected(session, name, batches) == _wanted(name, batches)


@pytest.mark.one_in(2)
@pytest.mark.spark
@pytest.mark.parametrize("name", ["chained", "left join"])
def test_a_checkpoint_goes_to_spark_and_back(name: str, session: Session, tmp_path: Path) -> None:
    batches = (_batches(name, 2) + _batches(name, 3))[:6]
    sink, cut = MemorySink(), [batches[:2], batches[2:4], batches[4:]]
    sessions = [Session.in_process(), session, Session.in_process()]
    savepoint: Path | None = None
    given = list[Row]()
    for number, (each, part) in enumerate(zip(sessions, cut, strict=True)):
        streams, senders = _streams(each, QUERIES[name].sides)
        sink = MemorySink()
        begin = {} if savepoint is None else {"savepoint": savepoint}
        query = _plan(name, streams).start(sink, checkpoint=tmp_path / f"c{number}", **begin)
        for batch in part:
            _send(senders, batch)
            query.process_all_available()
        savepoint = query.savepoint(str(tmp_path / f"s{number}"))
        query.stop()
        rows = sink.table()
        given += [] if rows is None else rows.to_pylist()
    for each in (sessions[0], sessions[2]):
        each.stop()
    assert folded(given) == _wanted(name, batches)


@pytest.mark.parametrize("seed", range(scaled(2)))
def test_a_sink_with_a_key_holds_the_content(seed: int, tmp_path: Path) -> None:
    batches = _batches("sums", seed)
    with Session.in_process() as session:
        streams, senders = _streams(session, 1)
        plan = _plan("sums", streams)
        query = plan.start(DeltaSink(str(tmp_path / "t"), key=["k"]), checkpoint=tmp_path / "c")
        for batch in batches:
            _send(senders, batch)
            query.process_all_available()
            table = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
            assert table.num_rows == query.state().num_rows
        query.stop()
    names = ["k", "n", "s", "w", "a", "some"]
    assert counted(table.select(names).to_pylist()) == _wanted("sums", batches)


def test_lookup_gives_the_row_of_the_content() -> None:
    driver = Driver(stream_of("user string, n bigint").key_by("user").agg(total=sum("n")))
    driver.send([{"user": "ann", "n": 5}, {"user": "bob", "n": 1}])
    driver.send([{"user": "ann", "n": 2}])
    assert {row["user"]: row["total"] for row in driver.state().to_pylist()} == {"ann": 7, "bob": 1}


def _windows(stream: Any) -> Any:
    table = stream.watermark("seq", 4).from_changelog("log", "pk").filter("w is not null")
    return table.key_by("k").allowed_lateness(1_000).hopping_window(20, 10).agg(n=count(), s=sum("w"))


def _windows_of(batches: list[Rows]) -> Counter[str]:
    content = Content("pk", None)
    for row in (row for batch in batches for row in batch):
        content.apply(row)
    rows = [
        row | {"window_start": start, "window_end": start + 20}
        for row in content.rows
        if row["w"] is not None
        for start in (row["seq"] // 10 * 10 - 10, row["seq"] // 10 * 10)
    ]
    aggregates = {"n": len, "s": lambda members: builtins.sum(row["w"] for row in members)}
    return counted(grouped(rows, ("k", "window_start", "window_end"), aggregates))


def _run_windows(session: Session, folder: Path, batches: list[Rows]) -> list[Row]:
    stream, sender = session.memory_stream(DDL)
    sink, plan = MemorySink(), _windows(stream)
    query = plan.start(sink, checkpoint=folder / "c")
    for number, batch in enumerate(batches):
        sender.send(batch)
        query.process_all_available()
        if number == len(batches) // 2:
            query.stop()
            query = plan.start(sink, checkpoint=folder / "c")
    sender.close()
    query.process_all_available()
    query.stop()
    rows = sink.table()
    return [] if rows is None else rows.to_pylist()


def _changes_with_time(seed: int) -> list[Rows]:
    batches = [batch["left"] for batch in batches_of(random.Random(f"windows {seed}"), 1) if batch["left"]]
    for batch in batches:
        for row in batch:
            row["w"] = None if row["w"] is None else row["w"] % 1_000
    return batches


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_windows_over_changes_in_process(seed: int, workers: int, tmp_path: Path) -> None:
    batches = _changes_with_time(seed)
    with Session.in_process(workers=workers) as session:
        assert folded(_run_windows(session, tmp_path, batches)) == _windows_of(batches)


@pytest.mark.spark
def test_windows_over_changes_on_spark(session: Session, tmp_path: Path) -> None:
    batches = _changes_with_time(1)[:4]
    assert folded(_run_windows(session, tmp_path, batches)) == _windows_of(batches)
    stream, sender = session.memory_stream(DDL)
    for batch in batches:
        sender.send(batch)
    sender.close()
    assert folded(_windows(stream).collect().to_pylist()) == _windows_of(batches)


def test_windows_over_changes_in_a_bounded_run() -> None:
    batches = _changes_with_time(2)
    with Session.in_process() as session:
        stream, sender = session.memory_stream(DDL)
        for batch in batches:
            sender.send(batch)
        sender.close()
        assert folded(_windows(stream).collect().to_pylist()) == _windows_of(batches)
