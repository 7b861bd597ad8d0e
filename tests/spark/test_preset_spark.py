"""The preset ``spark`` and hand-written Structured Streaming give the same results of the same files (SEMANTICS §4.6)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from krishiv_py import Batches, MemorySink, Session, count
from krishiv_py.spark.setup.config import _FILE_MANAGER, _WITHOUT_PROGRAMS

BEGIN = datetime(2024, 11, 29, 8, tzinfo=timezone.utc)
LAG = "10 seconds"
FILES = 6
LATE_S = (0, 2, 12, 25, 40, 70)
"""How late rows are: on time, between the watermark of a batch and that of the batch before, and late by both."""


def written(folder: Path, time: str, keys: str, seed: int) -> None:
    """Write files that are a batch each."""
    chosen, schema = random.Random(seed), pa.schema([("k", pa.string()), (time, pa.timestamp("us", "UTC"))])
    for number in range(FILES):
        seconds = [20 * number + chosen.randrange(20) - chosen.choice(LATE_S) for _ in range(60)]
        rows = [{"k": chosen.choice(keys), time: BEGIN + timedelta(seconds=s)} for s in seconds]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folders of two sources by the name of their column of times."""
    actual = {time: tmp_path_factory.mktemp(time) for time in ("at", "bt")}
    for seed, (time, folder) in enumerate(actual.items()):
        written(folder, time, "abcdefgh", seed)
    return {time: str(folder) for time, folder in actual.items()}


@pytest.fixture(scope="module")
def spark(session: Session) -> Iterator[SparkSession]:
    """Yield the session of Spark, whose own queries start no program for each file of a checkpoint."""
    actual = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    actual.conf.set(_FILE_MANAGER, _WITHOUT_PROGRAMS)
    yield actual
    actual.conf.unset(_FILE_MANAGER)


Read = Callable[[str], Any]


def native_windows(window: Any) -> Callable[[Read], Any]:
    return lambda read: read("at").groupBy("k", window.alias("w")).count().select("k", "w.start", "count")


def native_join(how: str) -> Callable[[Read], Any]:
    def joined(read: Read) -> Any:
        left, right = read("at").alias("l"), read("bt").alias("r")
        near = fn.expr("l.k = r.k AND bt BETWEEN at - INTERVAL 3 SECONDS AND at + INTERVAL 5 SECONDS")
        return left.join(right, near, how).select("l.k", "at", "bt")

    return joined


def own_join(how: str) -> Callable[[Read], Any]:
    return lambda read: read("at").interval_join(read("bt"), on="k", lower="-3 s", upper="5 s", how=how)


PAIRS: dict[str, tuple[Callable[[Read], Any], Callable[[Read], Any], tuple[str, ...]]] = {
    "windows": (
        lambda read: native_windows(fn.window("at", "10 seconds"))(read),
        lambda read: read("at").key_by("k").tumbling_window("10 s").agg(count()),
        ("k", "window_start", "count"),
    ),
    "hopping windows": (
        lambda read: native_windows(fn.window("at", "20 seconds", "5 seconds"))(read),
        lambda read: read("at").key_by("k").hopping_window("20 s", "5 s").agg(count()),
        ("k", "window_start", "count"),
    ),
    "sessions": (
        lambda read: native_windows(fn.session_window("at", "4 seconds"))(read),
        lambda read: read("at").key_by("k").session_window("4 s").agg(count()),
        ("k", "window_start", "count"),
    ),
    "deduplication": (
        lambda read: read("at").dropDuplicatesWithinWatermark(["k"]),
        lambda read: read("at").drop_duplicates("k", within="10 s"),
        ("k", "at"),
    ),
    "deduplication with the time": (
        lambda read: read("at").dropDuplicates(["k", "at"]),
        lambda read: read("at").drop_duplicates("k", "at", within="1 s"),
        ("k", "at"),
    ),
    "inner join": (native_join("inner"), own_join("inner"), ("k", "at", "bt")),
    "left join": (native_join("left_outer"), own_join("left"), ("k", "at", "bt")),
}


def plain(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Return rows sorted, points in time as seconds."""
    return sorted((tuple(v.timestamp() if isinstance(v, datetime) else v for v in row) for row in rows), key=repr)


SHORT = ("sessions", "inner join")
"""What a run of all tests compares; `nox -s slow` has the others."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in PAIRS])
def test_results_are_those_of_structured_streaming(
    name: str, folders: dict[str, str], spark: SparkSession, session: Session, tmp_path: Path
) -> None:
    native, own, columns = PAIRS[name]
    given: list[tuple[Any, ...]] = []

    def frame(time: str) -> Any:
        read = spark.readStream.schema(f"k string, {time} timestamp").option("maxFilesPerTrigger", 1)
        return read.parquet(folders[time]).withWatermark(time, LAG)

    def keep(rows: Any, batch: int) -> None:
        given.extend(map(tuple, rows.collect()))

    writer = native(frame).writeStream.outputMode("append").option("checkpointLocation", str(tmp_path / "native"))
    writer.foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()

    def stream(time: str) -> Any:
        read = session.read_parquet(folders[time], f"k string, {time} timestamp", streaming=True, max_files_per_batch=1)
        return read.watermark(time, LAG).preset("spark")

    sink = MemorySink()
    query = own(stream).start(sink, checkpoint=str(tmp_path / "own"), batches=Batches.available_now())
    query.await_termination()
    table = sink.table()
    assert table is not None
    assert given and plain(zip(*table.select(columns).to_pydict().values(), strict=True)) == plain(given)
