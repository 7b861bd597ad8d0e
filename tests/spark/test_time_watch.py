"""Event times of another unit are noticed on Spark, in bounded runs and in queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.plan.options.query import FutureAction, FutureReference


def test_seconds_for_milliseconds(session: kv.Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("at bigint")
    plan = stream.watermark("at", 0).tumbling_window(1_000).agg(kv.count())
    with pytest.warns(RuntimeWarning, match="probably seconds") as seen:
        query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        for n in range(2):
            sender.send([{"at": 1_732_867_260 + n}])
            query.process_all_available()
        (problem,) = query.progress.doubts
        text = query.explain()
        query.stop()
    assert len([w for w in seen if "probably seconds" in str(w.message)]) == 1
    assert f"! {problem}" in text and "! event times" not in plan.explain()


def test_a_bounded_run(session: kv.Session, tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": [1_732_867_260, 1_732_867_261]}), tmp_path / "rows.parquet")
    rows = session.read_parquet(str(tmp_path / "rows.parquet"))
    with pytest.warns(RuntimeWarning, match="probably seconds"):
        rows.watermark("at", 0).tumbling_window(1_000).agg(kv.count()).collect()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bounded", [True, False])
def test_a_number_without_unit_that_looks_like_seconds(session: kv.Session, tmp_path: Path, bounded: bool) -> None:
    rows = pa.table({"at": [1_732_867_260_000]})
    stream, sender = session.memory_stream(rows.schema)
    plan = stream.watermark("at", 10).tumbling_window(60).agg(kv.count())
    sender.send(rows)
    with pytest.warns(RuntimeWarning, match="lag 10 is 10 ms, size 60 is 60 ms.*seconds are probably meant"):
        if bounded:
            plan.collect()
        else:
            query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
            query.process_all_available()
            doubts = query.progress.doubts
            query.stop()
            assert len(doubts) == 1


@pytest.mark.slow
def test_a_clock_that_runs_ahead_is_named_and_a_catch_up_is_none(
    session: kv.Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the clock of the batch: rows of the last day are in order, one of tomorrow is from the future (SEMANTICS §4.4)."""
    now = time.time_ns() // 1_000_000
    day = 86_400_000
    hours = [now - day + hour * 3_600_000 for hour in range(24)]
    cases: list[tuple[FutureAction, FutureReference | None]]
    cases = [("warn", None), ("drop", None), ("side_output", None), ("warn", "watermark")]
    for action, reference in cases:
        caplog.clear()
        stream, sender = session.memory_stream("at bigint")
        timed = stream.watermark("at", 0).future_tolerance("60 s", action, reference)
        sink, late = kv.MemorySink(), kv.MemorySink()
        plan = timed.with_late_event_handler(kv.SideOutputLateEventHandler(late)).tumbling_window("1 h").agg(kv.count())
        query = plan.start(sink, checkpoint=str(tmp_path / f"{action} {reference}"))
        for rows in (hours[:1], [*hours[1:], now + day]):
            sender.send([{"at": moment} for moment in rows])
            query.process_all_available()
        counters, watermark_us = query.progress.counters, query.progress.watermark_us
        lines = [r.getMessage() for r in caplog.records if r.name == "krishiv_py.future"]
        query.stop()
        by_clock = reference is None
        assert counters["future"] == (1 if by_clock else 24)
        assert watermark_us == (hours[-1] if action != "warn" else now + day) * 1_000
        given = late.table()
        assert (0 if given is None else given.num_rows) == (1 if action == "side_output" else 0)
        assert len(lines) == 1 and f"ahead of the {'clock' if by_clock else 'watermark'}" in lines[0]
        assert "rows of the source 'memory" in lines[0], lines[0]


def test_a_restart_counts_rows_from_the_future_once(session: kv.Session, tmp_path: Path) -> None:
    now = time.time_ns() // 1_000_000
    stream, sender = session.memory_stream("at bigint")
    plan = stream.watermark("at", 0).future_tolerance("60 s", "drop").tumbling_window("1 h").agg(kv.count())
    for n in range(2):
        query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        sender.send([{"at": now - 1_000 + n}, {"at": now + 3_600_000 + n}])
        query.process_all_available()
        assert query.progress.counters["future_dropped"] == n + 1
        query.stop()


class Drifting(Source):
    """Two partitions; the second one is read at half of the speed."""

    schema = pa.schema([("at", pa.int64())])
    finite = True
    parallelism = 2

    def plan(self, last: JsonValue) -> Planned | None:
        """Ten seconds of one, five of the other."""
        begin = last if isinstance(last, int) else 0
        return Planned(begin + 10, [["a", begin, begin + 10], ["b", begin // 2, begin // 2 + 5]]) if begin < 100 else None

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """One row a second."""
        assert isinstance(planned, list)
        yield pa.record_batch({"at": pa.array([1_000 * n for n in range(planned[1], planned[2])], pa.int64())})

    def partition_of(self, planned: JsonValue) -> str:
        """Its first element."""
        assert isinstance(planned, list)
        return str(planned[0])


@pytest.mark.slow
def test_a_partition_that_others_make_late_is_named(session: kv.Session, tmp_path: Path) -> None:
    plan = session.read_source(Drifting()).watermark("at", "12 s").late_rule("event").tumbling_window("5 s").agg(kv.count())
    with pytest.warns(RuntimeWarning, match=r"partition 'b' are .* before those that 'a' had.*rows of this batch are late"):
        query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"), batches=kv.Batches.available_now())
        query.await_termination()
    assert query.progress.late["late"] > 0 and len(query.progress.doubts) == 1
    assert query.progress.partition_times_us == {"a": 99_000_000, "b": 49_000_000}
    assert "a watermark" in query.progress.doubts[0] and query.progress.doubts[0] in query.explain()
