"""The input rows of a query with several stages: those of every source, each counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Session, Stream, count
from krishiv_py.testing import Driver, stream_of

LEFT = [{"u": "x", "a": i} for i in range(5)]
RIGHT = [{"u": "x", "b": i} for i in range(7)]


def once(stream: Stream, time: str) -> Any:
    return stream.watermark(time, 0).drop_duplicates("u", within="1 s")


def joined(left: Stream, right: Stream) -> Any:
    return once(left, "a").interval_join(once(right, "b"), on="u", lower=0, upper=10)


def test_rows_of_both_sides_of_a_join_are_counted() -> None:
    driver = Driver(joined(stream_of("u string, a bigint"), stream_of("u string, b bigint")))
    driver.send({"left": LEFT, "right": RIGHT})
    progress = driver.progress
    assert progress.rows == progress.counters["rows"] == driver.counters["rows"] == 12
    assert sorted(stage.rows for stage in progress.stages.values()) == [2, 5, 7]
    assert driver.restarted().progress.rows == 12


def test_rows_of_a_chain_are_those_of_its_source() -> None:
    counts = once(stream_of("u string, a bigint"), "a").key_by("u").tumbling_window("1 s").agg(count())
    driver = Driver(counts)
    driver.send(LEFT)
    driver.close()
    assert driver.progress.rows == driver.counters["rows"] == 5


def test_a_source_that_two_stages_read_is_counted_once() -> None:
    source = stream_of("u string, a bigint")
    left, right = once(source, "a"), source.watermark("a", 0).drop_duplicates("u", within="2 s")
    driver = Driver(left.interval_join(right, on="u", lower=0, upper=10, suffixes=("_l", "_r")))
    driver.send(LEFT)
    assert driver.progress.rows == 5


@pytest.mark.spark
def test_a_bounded_run_counts_all_sources(session: Session, tmp_path: Path) -> None:
    for name, rows in (("left", LEFT), ("right", RIGHT)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "0.parquet")
    left, right = (
        session.read_parquet(str(tmp_path / name), f"u string, {time} bigint") for name, time in (("left", "a"), ("right", "b"))
    )
    result = joined(left, right).run()
    assert result.counters["rows"] == 12
    assert sorted(counters["rows"] for counters in result.counters_by_stage.values()) == [2, 5, 7]
