"""Feature logs for tests, and a plain reference of what a label has."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from krishiv_py import DeltaSink, IcebergSink
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.sinks.features import FeatureSink
from krishiv_py.features import FeatureLog, FeatureTable, training_set
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.testing import Driver, ManualClock, stream_of

SCHEMA = "card string, at bigint, spent bigint"


def in_iceberg(folder: Path) -> FeatureTable:
    """Return a log in a table of a catalog in a folder."""
    folder.mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return FeatureTable(IcebergSink("features.spent", catalog=catalog), key="card", at="at")


KINDS: dict[str, Callable[[Path], FeatureLog | FeatureTable]] = {
    "parquet": lambda folder: FeatureLog(folder, key="card", at="at"),
    "delta": lambda folder: FeatureTable(DeltaSink(folder), key="card", at="at"),
    "iceberg": in_iceberg,
}
"""A log of each kind, in a folder."""


def log_of(folder: str, batches: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], schema: str = SCHEMA) -> FeatureLog:
    """Return a log with rows that were published at some times, ms; each is a micro-batch."""
    log = FeatureLog(folder, key="card", at="at")
    write(log, batches, schema)
    return log


def write(log: FeatureSink, batches: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], schema: str = SCHEMA) -> None:
    """Write rows to a log, as :func:`log_of` does."""
    clock = ManualClock()
    driver = Driver(stream_of(schema), sink=log, clock=clock)
    for now, rows in batches:
        clock.set(now)
        driver.send(list(rows))


def _disorder_of(column: pa.ChunkedArray) -> dt.timedelta:
    """Return the least lag with which no row of a column of times, or of ms, is late."""
    us = 1 if pa.types.is_timestamp(column.type) else 1_000
    times = [time * us for time in column.cast(pa.int64()).to_pylist() if time is not None]
    newest = itertools.accumulate(times, max)
    return dt.timedelta(microseconds=max((most - time for most, time in zip(newest, times, strict=True)), default=0))


def streamed(labels: pa.Table, logs: Mapping[str, FeatureSink], seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Return labels that are a stream with their features, by a driver, in any cuts and with restarts; no row is late."""
    rng, schema = random.Random(seed), labels.schema
    rows = [log.read().sort_by("published_at") for log in logs.values()]
    if options.get("as_of") == "event":
        options["lag"] = max(_disorder_of(table[log.at]) for table, log in zip(rows, logs.values(), strict=True))
    stream = Stream(MemorySource("test", schema, ""), schema, NoRunner()).watermark("decided", _disorder_of(labels["decided"]))
    driver, given = Driver(training_set(stream, logs, **options)), []
    left = {".".join(["left"] * len(rows)): labels}
    left |= {".".join([*["left"] * (len(rows) - 1 - number), "right"]): table for number, table in enumerate(rows)}
    while any(table.num_rows for table in left.values()):
        cuts = {name: rng.randint(0, table.num_rows) for name, table in left.items()}
        given.append(driver.send({name: table.slice(0, cuts[name]) for name, table in left.items()}))
        left = {name: table.slice(cuts[name]) for name, table in left.items()}
        driver = driver.restarted() if rng.random() < 0.3 else driver
    given.append(driver.close())
    assert not driver._store.tables, "nothing is left behind"
    assert {row["reason"] for step in given for row in step.late.to_pylist()} <= {"null_time"}
    return [row for step in given for row in step.results.to_pylist()]


def row(at: int | None, spent: int, card: str | None = "a") -> dict[str, Any]:
    """Return a feature row."""
    return {"card": card, "at": at, "spent": spent}


def expected(
    labels: Iterable[Mapping[str, Any]],
    batches: Iterable[tuple[int, Sequence[Mapping[str, Any]]]],
    *,
    as_of: str = "served",
    max_age: int | None = None,
    allow_exact: bool = False,
    known_at: int | None = None,
) -> list[Any]:
    """Return the value of each label: a loop over all rows, in ms."""
    rows = [(r["at"], now, number, r) for number, (now, some) in enumerate(batches) for r in some if r["at"] is not None]
    values = []
    for label in labels:
        best: Any = None
        for at, published, number, r in rows:
            if label["decided"] is None or label["card"] is None or r["card"] != label["card"]:
                continue
            if at > label["decided"] or (at == label["decided"] and not allow_exact):
                continue
            if as_of == "served" and published > label["decided"]:
                continue
            if known_at is not None and published > known_at:
                continue
            if best is None or (at, published, number) >= best[0]:
                best = (at, published, number), r
        if best is not None and max_age is not None and label["decided"] - best[0][0] >= max_age:
            best = None
        values.append(None if best is None else best[1]["spent"])
    return values
