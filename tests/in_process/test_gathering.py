"""Sends that are one batch give what a batch for each of them gives; batches follow a time, and are bounded."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import (
    Batches,
    MemorySink,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    SourceError,
    col,
    collect_list,
    count,
)
from krishiv_py import sum as total
from krishiv_py.plan.running import BEHIND
from krishiv_py.runtime.ranges.limits import Limit
from krishiv_py.storage.sends.log import HandedSends
from krishiv_py.storage.sends.segments import Send
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

SCHEMA = "key string, at bigint, n bigint"
PLANS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.key_by("key").tumbling_window(10),
    "hopping": lambda s: s.key_by("key").hopping_window(10, 4),
    "late by window": lambda s: s.key_by("key").tumbling_window(10).late_rule("window"),
    "allowed lateness": lambda s: s.key_by("key").tumbling_window(10).allowed_lateness(7),
    "sessions": lambda s: s.key_by("key").session_window(6),
    "sessions late by window": lambda s: s.key_by("key").session_window(6).late_rule("window"),
    "look-back": lambda s: s.key_by("key").lookback_window(8),
    "without key": lambda s: s.tumbling_window(10),
}
AGGREGATES = count(), total("n"), collect_list("n")


def built(stream: Any, name: str, sink: MemorySink | None) -> Any:
    """A plan, whose late rows go to a sink."""
    made = PLANS[name](stream.filter(col("n") % 7 != 3).watermark("at", 5)).agg(*AGGREGATES)
    return made if sink is None else made.with_late_event_handler(SideOutputLateEventHandler(sink))


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without an order."""
    return sorted(map(repr, rows))


SENDS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(0, 90)), st.integers(0, 50)), max_size=3
    ),
    min_size=1,
    max_size=12,
)


def row_counts(counters: dict[str, int]) -> dict[str, int]:
    """Return counters without those of the lateness of rows that are on time."""
    return {name: n for name, n in counters.items() if not name.startswith(BEHIND)}


@given(name=st.sampled_from(sorted(PLANS)), sends=SENDS, rising=st.booleans())
@settings(max_examples=scaled(60), deadline=None)
def test_sends_in_one_batch_give_what_a_batch_for_each_gives(name: str, sends: list[list[Any]], rising: bool) -> None:
    rows = [[{"key": k, "at": moment, "n": n} for k, moment, n in send] for send in sends]
    if rising:  # a stream that is nearly in order, as most are
        for number, send in enumerate(rows):
            for row in send:
                row["at"] = number * 8 + (row["at"] or 0) % 11
    driver = Driver(built(stream_of(SCHEMA), name, None))
    one_by_one = [driver.send(send) for send in rows]
    one_by_one.append(driver.close())
    late = MemorySink()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        for send in rows:
            sender.send(send)
        query = built(stream, name, late).start(MemorySink())
        sender.close()
        query.process_all_available()
        assert query.progress.batch_id <= len(rows)
        assert plain(query.results().to_pylist()) == plain([r for step in one_by_one for r in step.results.to_pylist()])
        assert query.progress.late == driver.progress.late
        # how far a row was behind goes by the watermark of its batch, so by batches
        assert row_counts(query.progress.counters) == row_counts(driver.progress.counters)
        query.stop()


def test_a_backlog_of_sends_in_order_is_few_batches() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        for i in range(500):
            sender.send([{"key": "a", "at": i * 10, "n": 1}])
        query = built(stream, "tumbling", None).start(MemorySink())
        query.process_all_available()
        assert query.progress.rows == 500
        assert query.progress.batch_id < 10
        assert query.progress.backlog == {"memory": 0}


def test_a_restarted_query_reads_the_same_sends_in_the_batch_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, put = MemorySink(), MemorySink.put

    def failing(self: MemorySink, batch_id: int, tables: list[pa.Table]) -> None:
        if any(table.num_rows for table in tables):
            raise OSError("no room")
        put(self, batch_id, tables)

    monkeypatch.setattr(MemorySink, "put", failing)
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
        for i in range(100):
            sender.send([{"key": "a", "at": i, "n": 1}])
        query = built(stream, "tumbling", None).start(sink, checkpoint=str(tmp_path / "c"))
        with pytest.raises(Exception, match="no room"):
            query.process_all_available()
        monkeypatch.setattr(MemorySink, "put", put)
        sender.close()
        query = built(stream, "tumbling", None).start(sink, checkpoint=str(tmp_path / "c"))
        query.process_all_available()
        assert sum(query.results()["count"].to_pylist()) == 100


def test_sends_that_are_not_handed_over_are_read_from_their_files() -> None:
    handed = HandedSends(threading.Event())
    rows = pa.table({"n": pa.array(range(3 << 20))})
    large = Send(rows, None, None, rows.nbytes)
    handed.put(0, large, (0, 100))
    handed.put(1, large, (0, 200))  # no room for it
    assert handed.take(0, 9) == [(large, (0, 100))]
    assert handed.take(1, 9) == []
    handed.put(2, large, (0, 300))
    assert handed.take(3, 9) == []
    assert handed.take(2, 9) == []  # those before go


def test_batches_follow_the_target() -> None:
    limit = Limit(1_000_000, 1 << 28, target_s=0.2)
    for _ in range(20):
        limit.took(limit.rows, 0)
        limit.ran(limit.rows / 1_000_000)
    assert 100_000 <= limit.rows <= 400_000
    before = limit.rows
    limit.took(1, 1)
    limit.ran(0.001)
    assert limit.rows == before  # a batch that was not full says nothing


def test_files_of_a_backlog_are_read_in_growing_batches(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        pq.write_table(pa.table({"key": ["a"], "at": [number * 10], "n": [number]}), tmp_path / "in" / f"{number:03d}.parquet")
    with Session.in_process() as session:
        stream = session.read_parquet(str(tmp_path / "in"), SCHEMA, streaming=True)
        query = built(stream, "tumbling", None).start(MemorySink(), batches=Batches.target("1 s", max_bytes=1_000_000))
        query.process_all_available()
        assert query.progress.rows == 34
        assert 1 < query.progress.batch_id < 30


def test_spark_refuses_a_target_with_what_to_write() -> None:
    with pytest.raises(PlanError, match=r"in process.*max_files_per_batch"):
        Batches.target("1 s")._check_for_spark()
    with pytest.raises(PlanError, match="max_rows"):
        Batches.target("1 s", max_rows=0)


def test_sends_join_where_the_lag_is_long(tmp_path: Path) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, at bigint")
        counted = stream.watermark("at", "10 minutes").key_by("user").tumbling_window("1 minute").agg(count())
        query = counted.start(MemorySink(), checkpoint=str(tmp_path / "c"))
        sender.send([{"user": "a", "at": 0}])
        query.process_all_available()
        with query._engine.batch:  # type: ignore[attr-defined]
            for number in range(200):
                sender.send([{"user": "a", "at": 1_000 * (number % 60)}])
        query.process_all_available()
        assert query.progress.batch_id <= 5
        assert query.lookup("a")["count"].to_pylist() == [201]


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize("end", ["parquet", "json", "json.gz", "csv"])
def test_a_batch_of_files_is_bounded_by_rows(tmp_path: Path, end: str, available_now: bool) -> None:
    """However much there is to catch up with, memory is that of a batch."""
    for n in range(8):
        rows = [{"k": f"user{i % 3}", "at": n * 100_000 + i * 100} for i in range(1_000)]
        write(tmp_path / f"p{n}.{end}", rows)
        os.utime(tmp_path / f"p{n}.{end}", (n + 1, n + 1))
    with Session.in_process() as session:
        readers: dict[str, Callable[..., Any]] = {"parquet": session.read_parquet, "csv": session.read_csv}
        read: Callable[..., Any] = readers.get(end, session.read_json)
        options: dict[str, Any] = {"header": True} if end == "csv" else {}
        stream = read(str(tmp_path), "k string, at bigint", streaming=True, **options)
        counted = stream.watermark("at", 0).key_by("k").tumbling_window(1_000).agg(count())
        batches = attrs.evolve(Batches.available_now() if available_now else Batches(), max_rows=2_500)
        sink = MemorySink()
        query = counted.start(sink, batches=batches)
        query.process_all_available()
        assert 2 <= query.progress.batch_id <= 9
        assert query.progress.rows == 8_000
        assert not any(query.progress.late.values()), query.progress.late
        query.stop()


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of rows in the form that its name ends with."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    if path.suffix == ".csv":
        lines = ["k,at", *(f"{row['k']},{row['at']}" for row in rows)]
    else:
        lines = list(map(json.dumps, rows))
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_a_file_that_nobody_can_read_bounds_no_batch(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"x" * 5_000)
    (tmp_path / "b.parquet").write_bytes(b"PAR1" + b"x" * 5_000)
    with Session.in_process() as session:
        stream = session.read_parquet(str(tmp_path), "k string, at bigint", streaming=True)
        query = (
            stream.watermark("at", 0)
            .key_by("k")
            .tumbling_window(1_000)
            .agg(count())
            .start(MemorySink(), batches=attrs.evolve(Batches(), max_rows=100))
        )
        with pytest.raises(SourceError, match="not a whole parquet file"):
            query.process_all_available()
