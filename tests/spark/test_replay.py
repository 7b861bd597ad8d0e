"""Several file sources replayed by a bounded run: batch by batch as a streaming query took them (docs/sources.md)."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import (
    Batches,
    MemorySink,
    MultiSourceWatermarkSpec,
    ResultStream,
    Session,
    SideOutputLateEventHandler,
    Stream,
    WatermarkSpec,
    collect_list,
    count,
    sum,
)
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.testing import replay, stream_of
from tests.spark.conftest import DDL, row, sorted_rows
from tests.spark.test_files import write

LIMITS: dict[str, int | None] = {"one": 1, "two": 2, "all": None}


def filled(folder: Path) -> None:
    """Three folders with other numbers of files; times go forward with jumps, some of them far back."""
    chance = random.Random(11)
    for source, n_files in (("one", 7), ("two", 5), ("all", 3)):
        for n in range(n_files):
            times = [n * 1_500 + chance.randrange(-3_000, 3_000) for _ in range(5)]
            rows = [row(chance.choice("abc"), t, n) for t in times]
            name = folder / source / f"{(n * 5) % n_files}x.{source}"
            if source == "two":
                name.parent.mkdir(parents=True, exist_ok=True)
                name.write_text("".join(json.dumps(r) + "\n" for r in rows) + ("broken\n" if n == 1 else ""))
                os.utime(name, (1_000 + n, 1_000 + n))
            else:
                write(name, *rows, at_s=1_000 + n)
    (folder / "one" / "empty").write_bytes(b"")


def one_watermark(stream: Stream) -> TimedStream:
    return stream.watermark("at", 800)


def by_source(stream: Stream) -> TimedStream:
    spec = MultiSourceWatermarkSpec.new()
    for i, name in enumerate(LIMITS):
        spec = spec.source(name, WatermarkSpec.fixed_lag(i * 300))
    return stream.with_watermark(spec, "at", source_column="source")


@pytest.mark.slow
@pytest.mark.parametrize("marked", [pytest.param(one_watermark, marks=pytest.mark.slow), by_source])
def test_a_union_of_files_is_replayed_as_a_query_took_it(
    session: Session, tmp_path: Path, marked: Callable[[Stream], TimedStream]
) -> None:
    filled(tmp_path)

    def plan(streaming: bool) -> ResultStream:
        streams: dict[str, Any] = {}
        for name, limit in LIMITS.items():
            read = session.read_json if name == "two" else session.read_parquet
            options: dict[str, Any] = {"streaming": streaming, "max_files_per_batch": limit, "on_malformed": "side_output"}
            streams[name] = read(tmp_path / name, DDL, **options)
        streams["one"] = streams["one"].filter("amount <> 4")
        keyed = marked(session.union(streams)).key_by("user")
        windows: ResultStream = keyed.tumbling_window(1_000).agg(count(), sum("amount"))
        late = SideOutputLateEventHandler(MemorySink())
        return windows.with_late_event_handler(late).allowed_lateness(500).emit("updates")

    replayed = plan(False).run()
    query = plan(True).start(MemorySink(), batches=Batches.available_now(flush=True))
    query.await_termination()
    assert replayed.late.num_rows > 3 and replayed.table.num_rows > 10
    assert sorted_rows(replayed.late) == sorted_rows(query.late_rows())
    assert sorted_rows(replayed.table) == sorted_rows(query.results())
    assert replayed.counters == query.progress.counters


def test_features_on_arrival_are_the_same_online_offline_and_without_spark(session: Session, tmp_path: Path) -> None:
    """docs/features.md: a query over files as they came, a batch job over all of them, and the driver's replay."""
    chance = random.Random(5)
    ids = iter(range(1_000))
    files = [tmp_path / "archive" / f"{name}.parquet" for name in ("c", "a", "d", "b")]
    for n, file in enumerate(files):
        write(
            file,
            *(row(chance.choice("ab"), n * 1_000 + chance.randrange(-900, 900), next(ids)) for _ in range(12)),
            at_s=2_000 + n,
        )

    def features(stream: Stream) -> ResultStream:
        keyed = stream.watermark("at", 700).key_by("user").lookback_window(1_500, emit="arrival", with_row=True)
        return keyed.agg(count(), sum("amount"), collect_list("amount").alias("seen"))

    def read(streaming: bool) -> ResultStream:
        return features(session.read_parquet(tmp_path / "archive", DDL, streaming=streaming, max_files_per_batch=1))

    query = read(True).start(MemorySink(), batches=Batches.available_now())
    query.await_termination()
    served = sorted_rows(query.results())
    assert len(served) == 48 - query.progress.late["late"] < 48
    assert sorted_rows(read(False).collect()) == served
    assert sorted_rows(replay(features(stream_of(DDL)), files).results) == served
