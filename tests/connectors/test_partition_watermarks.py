"""Partitions of a source that are read in parallel and drift apart: each has a watermark, without a specification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ResultStream, Stream, count
from krishiv_py.api.query import NoRunner
from krishiv_py.connectors import Planned, Source
from krishiv_py.connectors.ranges import node_of
from krishiv_py.testing import Driver, micro_batches

FAST, SLOW = range(0, 100_000, 100), range(0, 100_000, 1_000)


class Parts(Source):
    """Two partitions; the same number of rows of each in a batch, so one runs ahead."""

    finite = True
    parallelism = 2

    def __init__(self, *, named: bool = True) -> None:
        self.schema = pa.schema([("part", pa.string()), ("at", pa.int64())])
        self.source_column = "part" if named else None
        self.watermark_sources = ("fast", "slow") if named else ()

    def plan(self, last: Any) -> Planned | None:
        begin = last or 0
        return Planned(begin + 50, [["fast", begin], ["slow", begin]]) if begin < len(FAST) else None

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        name, begin = planned
        times = list((SLOW if name == "fast" else FAST)[begin : begin + 50])
        yield pa.record_batch({"part": pa.array([name] * len(times), pa.string()), "at": pa.array(times, pa.int64())})

    def describe(self) -> str:
        return "in pages of 50"


def stream(source: Source) -> Stream:
    """Its rows."""
    node = node_of(source, None)
    return Stream(node, node.schema, NoRunner())


def windows(rows: Stream) -> ResultStream:
    """A count for each ten seconds."""
    return rows.watermark("at", "1 s").tumbling_window("10 s").late_rule("event").agg(count())


def late(source: Source) -> int:
    """How many rows are late."""
    driver = Driver(windows(stream(source)))
    counted = [n for rows in micro_batches(source) for n in driver.send(rows).results["count"].to_pylist()]
    counted += driver.close().results["count"].to_pylist()
    refused: int = driver.progress.late["late"]
    assert refused + sum(counted) == len(FAST) + len(SLOW)
    return refused


def test_each_named_partition_has_a_watermark() -> None:
    assert late(Parts()) == 0
    assert late(Parts(named=False)) > 500, "the test would prove little"
    plan = windows(stream(Parts()))
    text = plan.explain()
    assert "in pages of 50" in text and "30 s" in text


@pytest.mark.parametrize(
    "step", [lambda s: s.select("at"), lambda s: s.with_column("part", "upper(part)"), lambda s: s.filter("at >= 0")]
)
def test_a_column_that_no_longer_names_partitions_is_no_name(step: Any) -> None:
    """One watermark for all where the names are gone, one each where the column comes through."""
    driver = Driver(windows(step(stream(Parts()))))
    for rows in micro_batches(Parts()):
        driver.send(rows)
    kept = "part" in step(stream(Parts())).schema.names and "upper" not in windows(step(stream(Parts()))).explain()
    assert (driver.progress.late["late"] == 0) is kept
