"""The row clock over captures, histories and engines: what rows are classified by goes along."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Session, SideOutputLateEventHandler, collect_list, count
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.testing import Capture, Driver, stream_of

SCHEMA = "user string, at bigint"
Row = dict[str, Any]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.in_process() as made:
        yield made


@attrs.define
class Shards(Source):
    """Two shards, of which some batches read a few rows; a shard is known from the first batch on."""

    batches: Sequence[tuple[Sequence[int], Sequence[int]]]
    schema: pa.Schema = attrs.field(factory=lambda: pa.schema([("user", pa.string()), ("at", pa.int64())]))
    finite: bool = True

    def plan(self, last: Any) -> Planned | None:
        number = 0 if last is None else int(last)
        if number == len(self.batches):
            return None
        ranges: list[JsonValue] = [[number, shard] for shard in (0, 1) if self.batches[number][shard]]
        return Planned(number + 1, ranges)

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        times = self.batches[planned[0]][planned[1]]
        yield pa.record_batch([pa.array(["ann"] * len(times)), pa.array(times, pa.int64())], self.schema)

    def partition_of(self, planned: Any) -> str:
        return f"shard {planned[1]}"

    def partitions_at(self, position: JsonValue) -> list[str]:
        return ["shard 0", "shard 1"]


def windows(rows: Stream) -> ResultStream:
    timed = rows.watermark("at", "1 s", clock="row").key_by("user")
    return timed.tumbling_window("10 s").agg(count(), collect_list("at").alias("times"))


def test_a_capture_waits_for_the_partitions_that_the_query_knew(session: Session, tmp_path: Path) -> None:
    shards = Shards([([1_000, 25_000], []), ([31_000], []), ([], [2_000, 30_000]), ([45_000], [3_000, 50_000])])
    stream = session.read_source(shards)
    query = windows(stream).start(MemorySink(), checkpoint=tmp_path / "checkpoint")
    query.process_all_available()
    produced = query.results()
    assert query.progress.late["late"] == 1
    path = session.capture(tmp_path / "checkpoint", windows(stream), tmp_path / "capture")
    driver, results = Driver.from_capture(path, windows(stream_of(SCHEMA))), []
    while (output := driver.next_batch()) is not None:
        results.append(output.results)
    assert pa.concat_tables(results).to_pylist() == produced.to_pylist()
    assert driver.counters["late"] == 1
    explanation = Capture(path, windows(stream_of(SCHEMA))).why("ann", 2_000)
    assert explanation.rows.select(["batch", "event_time", "fate", "watermark"]).to_pylist() == [
        {"batch": 0, "event_time": "1970-01-01T00:00:01Z", "fate": "in", "watermark": "unset"},
        {"batch": 2, "event_time": "1970-01-01T00:00:02Z", "fate": "in", "watermark": "unset"},
        {"batch": 3, "event_time": "1970-01-01T00:00:03Z", "fate": "late", "watermark": "1970-01-01T00:00:29Z"},
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("seed", range(2))
def test_why_says_of_each_row_what_became_of_it(session: Session, tmp_path: Path, size: int, seed: int) -> None:
    rng = random.Random(seed)
    times = [1_000 * (number + rng.randrange(-9, 5)) for number in range(20, 60)]
    rows = [{"user": rng.choice("ab"), "at": at} for at in times]

    def timed(stream: Stream) -> ResultStream:
        kept = stream.watermark("at", "4 s", clock="row").filter("at % 7000 != 0").key_by("user")
        return kept.tumbling_window("10 s").agg(count())

    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    query = timed(stream).start(MemorySink(), checkpoint=tmp_path / "checkpoint", keep_batches=50)
    for begin in range(0, len(rows), size):
        sender.send(rows[begin : begin + size])
        query.process_all_available()
    query.stop()
    capture = Capture(session.capture(tmp_path / "checkpoint", timed(stream), tmp_path / "capture"), timed(stream_of(SCHEMA)))
    newest, expected = -(10**9), list[tuple[int, str]]()
    for number, (row, at) in enumerate(zip(rows, times, strict=True)):
        if row["user"] == "a" and at % 7_000 and 30_000 <= at < 40_000:
            expected.append((number, "late" if at < newest - 4_000 else "in"))
        newest = max(newest, at)
    assert {fate for _, fate in expected} == {"in", "late"} or seed
    lines = capture.why("a", 30_000).rows.to_pylist()
    assert [(line["batch"] * size + line["row"], line["fate"]) for line in lines] == expected


def on_arrival(rows: Stream) -> ResultStream:
    timed = rows.watermark("at", "1 s", clock="row").key_by("user")
    return timed.lookback_window("10 s", emit="arrival", with_row=True).agg(count())


def without_duplicates(rows: Stream) -> ResultStream:
    return rows.watermark("at", "1 s", clock="row").drop_duplicates("user", within="5 s")


@pytest.mark.parametrize("build", [windows, on_arrival, without_duplicates])
@pytest.mark.parametrize("seam", [0, 25, 60])
def test_lanes_go_through_the_seam_of_a_history(
    session: Session, tmp_path: Path, build: Callable[[Stream], ResultStream], seam: int
) -> None:
    rng = random.Random(seam)
    rows = [{"user": rng.choice("ab"), "at": 500 * (number + rng.randrange(-12, 5))} for number in range(20, 80)]
    driver = Driver(build(stream_of(SCHEMA)))
    steps = [driver.send([row]) for row in rows]
    (tmp_path / "archive").mkdir()
    for number, begin in enumerate(range(0, seam, 7)):
        part = pa.Table.from_pylist(rows[begin : min(begin + 7, seam)], stream_of(SCHEMA).schema)
        pq.write_table(part, file := tmp_path / "archive" / f"{number}.parquet")
        os.utime(file, (number + 1, number + 1))
    archived = session.read_parquet(tmp_path / "archive", SCHEMA, max_files_per_batch=2)
    live, sender = session.memory_stream(SCHEMA, name="live")
    for begin in range(seam, len(rows), 11):
        sender.send(rows[begin : begin + 11])
    sink, late = MemorySink(), MemorySink()
    query = session.start(
        [build(live).with_late_event_handler(SideOutputLateEventHandler(late)).to(sink)],
        checkpoint=tmp_path / "checkpoint",
        bootstrap={"live": archived},
        batches=Batches.available_now(),
    )
    query.await_termination()
    assert sorted(map(repr, rows_in(sink))) == sorted(repr(row) for step in steps for row in step.results.to_pylist())
    assert [row["at"] for row in rows_in(late)] == [row["at"] for step in steps for row in step.late.to_pylist()]


def rows_in(sink: MemorySink) -> list[Row]:
    """Return all rows of a sink."""
    table = sink.table()
    return [] if table is None else table.to_pylist()
