"""A source that is too far ahead is held back, until the slow one has come nearer or has nothing more to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.errors import CheckpointError, PlanError

PUBLISHED: dict[str, list[int]] = {}


class Steps(Source):
    """A row a batch, so many ms after the one before."""

    schema = pa.schema([("at", pa.int64())])
    poll_seconds = 0.02

    def __init__(self, name: str, step: int, rows: int) -> None:
        self.name, self.step, self.rows = name, step, rows

    def plan(self, last: JsonValue) -> Planned | None:
        """The next row."""
        number = last + 1 if isinstance(last, int) else 0
        return Planned(number, [number]) if number < self.rows else None

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """It."""
        assert isinstance(planned, int)
        yield pa.record_batch({"at": pa.array([planned * self.step], pa.int64())})

    def finished(self, position: JsonValue) -> None:
        """Note how far the others are."""
        assert isinstance(position, int)
        PUBLISHED.setdefault(self.name, []).append(position * self.step)
        if self.name == "slow":
            PUBLISHED.setdefault("ahead", []).append(PUBLISHED.get("fast", [0])[-1] - position * self.step)


def both(streams: dict[str, Any], session: kv.Session, drift: int | None = 2_000, idle: str | None = None) -> kv.ResultStream:
    spec = kv.MultiSourceWatermarkSpec.new(max_drift=drift, idle_timeout=idle)
    for name in streams:
        spec = spec.source(name, kv.WatermarkSpec.fixed_lag(0))
    timed = session.union(streams).with_watermark(spec, "at", source_column="source")
    return timed.key_by("source").tumbling_window(1_000).agg(kv.count())


@pytest.mark.slow
def test_the_fast_source_waits_for_the_slow_one_and_not_for_ever(session: kv.Session) -> None:
    PUBLISHED.clear()
    sources = {"fast": Steps("fast", 2_000, 5), "slow": Steps("slow", 100, 8)}
    query = both({n: session.read_source(s, name=n) for n, s in sources.items()}, session).start(kv.MemorySink())
    end, given = time.monotonic() + 90, ""
    while query.progress.rows < 13 and time.monotonic() < end:
        assert query.exception() is None
        given = max(given, query.why_not_fired(100_000), key=len)
        time.sleep(0.02)
    assert query.progress.rows == 13, "the slow source has nothing more to read, so it holds nobody"
    assert query.progress.held_back.keys() == {"fast"}
    assert "Source 'fast' is held back: it is more than 2 s (max_drift) ahead of source 'slow'." in given
    query.stop()
    assert PUBLISHED["slow"] == [100 * n for n in range(8)] and PUBLISHED["fast"] == [2_000 * n for n in range(5)]
    assert max(PUBLISHED["ahead"]) <= 2_000 + 2 * 2_000, "two batches more at most: the fifth one waited"


@pytest.mark.slow
def test_memory_streams_wait_too_over_a_restart_and_none_loses_a_send(session: kv.Session, tmp_path: Path) -> None:
    streams, senders = {}, {}
    for name in ("fast", "slow"):
        streams[name], senders[name] = session.memory_stream("at bigint", name=name)
    sink, checkpoint = kv.MemorySink(), str(tmp_path / "checkpoint")
    plan = both(streams, session)
    for i in range(6):
        senders["fast"].send([{"at": i * 3_000}])
        senders["slow"].send([{"at": i * 400}])
    query = plan.start(sink, checkpoint=checkpoint)
    query.process_all_available()
    assert query.progress.rows == 12 and query.progress.held_back["fast"] >= 1
    query.stop()
    senders["slow"].send([{"at": 20_000}, {"at": 100}])
    senders["slow"].advance_watermark(30_000)
    query = plan.start(sink, checkpoint=checkpoint)
    for name in ("fast", "slow"):
        senders[name].close()
    query.process_all_available()
    assert query.progress.rows == 14 and query.progress.watermark == "end of input"
    (late,) = [n for n in query.progress.late.values() if n]
    counted = sum(query.results()["count"].to_pylist())
    assert (counted, late) == (13, 1)
    query.stop()
    table = plan.collect()
    assert sum(table["count"].to_pylist()) + late >= 13
    with pytest.raises(CheckpointError, match="memory streams"):
        both(streams, session, None).start(sink, checkpoint=checkpoint)


@pytest.mark.slow
def test_who_is_held_back_is_reported_between_batches_and_no_more_when_it_goes_on(session: kv.Session) -> None:
    streams, senders = {}, {}
    for name in ("fast", "slow"):
        streams[name], senders[name] = session.memory_stream("at bigint", name=name)
        senders[name].send([{"at": 0}])
    query = both(streams, session, idle="5 min").start(kv.MemorySink())
    given = "Source 'fast' is held back: it is more than 2 s (max_drift) ahead of source 'slow'."
    try:
        for i in range(1, 7):
            senders["fast"].send([{"at": i * 3_000}])
        until(lambda: given in query.why_not_fired(100_000), query)
        assert query.progress.held_back == {"fast": 1}
        until(lambda: query.progress.rows >= 3, query)
        time.sleep(1)
        assert query.progress.rows <= 5, "two batches more at most"
        for sender in senders.values():
            sender.close()
        query.process_all_available()
        assert query.progress.rows == 8
        until(lambda: "held back" not in query.why_not_fired(100_000), query)
    finally:
        query.stop()


def until(holds: Callable[[], bool], query: kv.Query) -> None:
    """Wait for it while the query runs."""
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end and query.exception() is None, (query.status, query.progress)
        time.sleep(0.05)


def test_streams_that_spark_plans_are_refused(session: kv.Session) -> None:
    rate = session.from_dataframe(session.spark.readStream.format("rate").load().selectExpr("value AS at"))
    plan = both({"a": rate, "b": session.read_source(Steps("b", 1, 1), name="b")}, session)
    with pytest.raises(PlanError, match=r"(?s)max_drift holds back sources.*DataFrame.*Hint"):
        plan.start(kv.MemorySink())


@pytest.mark.slow
def test_files_that_spark_reads_wait_for_a_slower_source(session: kv.Session, tmp_path: Path) -> None:
    PUBLISHED.clear()
    (tmp_path / "in").mkdir()
    for n in range(5):
        (tmp_path / f"in/{n}.csv").write_text(f"{n * 2_000}\n")
    files = session.read_csv(tmp_path / "in", "at bigint", streaming=True, max_files_per_batch=1)
    query = both({"fast": files, "slow": session.read_source(Steps("slow", 500, 6), name="slow")}, session).start(
        kv.MemorySink()
    )
    until(lambda: query.progress.rows == 11, query)
    assert query.progress.held_back["fast"] >= 1
    query.stop()
