"""A source of a user's own without Spark: what it states is checked, and what it plans and reads is held to that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.counter_source import CounterSource, per_ten_seconds
from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.connectors.ranges import NotedRanges, node_of
from krishiv_py.errors import CheckpointError, KrishivError, PlanError, SchemaError, SourceError
from krishiv_py.plan.running import Control
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.testing import Driver, micro_batches

SCHEMA = pa.schema([("at", pa.int64())])


class Listed(Source):
    """Gives what it was made of, once."""

    schema = SCHEMA
    finite = True

    def __init__(self, planned: Any = None, rows: Any = None) -> None:
        self.planned, self.rows = planned, rows

    def plan(self, last: JsonValue) -> Planned | None:
        """Its batch, or None."""
        if isinstance(self.planned, Exception):
            raise self.planned
        return self.planned if last is None else None

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Its rows."""
        if isinstance(self.rows, Exception):
            raise self.rows
        yield from self.rows


class Whole(Listed):
    """Gives its rows at once."""

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Any:
        """Its rows."""
        return self.rows


def stream(source: Source) -> Stream:
    node = node_of(source, None)
    return Stream(node, node.schema, NoRunner())


def test_the_driver_reads_what_a_source_plans() -> None:
    driver = Driver(per_ten_seconds(stream(CounterSource(1_000, 250, 7))))
    outs = [driver.send(rows) for rows in micro_batches(CounterSource(1_000, 250, 7))]
    outs.append(driver.close())
    results, late = [o.results for o in outs], [o.late for o in outs]
    counted = sum(pa.concat_tables(results)["count"].to_pylist())
    assert counted + pa.concat_tables(late).num_rows == 3_000
    assert len(outs) == 5 and pa.concat_tables(late).num_rows > 0


_ANY: list[Any] = [{1}, {1: 2}]  # what type checkers refuse
BATCH = pa.record_batch({"at": pa.array([1, 2])})
NOT_ONE_BY_ONE: list[Any] = [pa.table(BATCH), BATCH, BATCH.to_pandas(), None, {"at": [1]}, "at"]
WRONG: list[tuple[Source, type[KrishivError], str]] = [
    (Listed(ZeroDivisionError("no")), SourceError, r"Listed cannot plan .*position None.*ZeroDivisionError.*Listed.plan"),
    (Listed(5), SourceError, "planned no batch.*got: 5"),
    (Listed(Planned(1, [])), SourceError, "planned no batch"),
    (Listed(Planned(1, "range")), SourceError, "planned no batch"),
    (Listed(Planned(_ANY[0], [1])), SourceError, "cannot be noted.*not JSON serializable"),
    (Listed(Planned(float("nan"), [1])), SourceError, "cannot be noted"),
    (Listed(Planned(_ANY[1], [1])), SourceError, "cannot be noted.*another value"),
    (Listed(Planned("\ud800", [1])), SourceError, "cannot be noted"),
    (Listed(Planned(1, [[1]]), ValueError("gone")), SourceError, r"cannot be read .*range \[1\].: ValueError: gone"),
    (Listed(Planned(1, [1]), [5]), SourceError, "cannot be read"),
    *((Whole(Planned(1, [1]), rows), SourceError, "no batches one by one.*yield batch.*Whole.read") for rows in NOT_ONE_BY_ONE),
    (Listed(Planned(1, [1]), [pa.record_batch({"x": pa.array([1])})]), SourceError, "cannot be read.*at"),
    (Listed(Planned(1, [1]), [pa.record_batch({"at": pa.array(["x"])})]), SchemaError, "at"),
]


@pytest.mark.parametrize(("source", "kind", "said"), WRONG, ids=range(len(WRONG)))
def test_what_a_source_does_wrong_is_named(source: Source, kind: type[KrishivError], said: str) -> None:
    with pytest.raises(kind, match=f"(?s){said}"):
        list(micro_batches(source))


def test_batches_tables_and_more_columns_are_taken() -> None:
    wide = pa.table({"x": ["a"], "at": pa.array([3], pa.int32())})
    (actual,) = micro_batches(Listed(Planned([1], [{"r": 1}]), [BATCH, BATCH.slice(0, 0), wide]))
    assert actual.schema == SCHEMA and actual["at"].to_pylist() == [1, 2, 3]


class Named(Listed):
    """Names watermark sources."""

    schema = pa.schema([("s", pa.string()), ("at", pa.int64())])
    source_column: str | None = "s"
    watermark_sources: Any = ("a", "b")


def test_what_a_source_states_is_checked() -> None:
    for wrong, said in ((Listed, r"pass an object: Listed\(\.\.\.\)"), (5, "subclass krishiv_py.connectors.Source")):
        with pytest.raises(PlanError, match=f"read_source.* takes a source .*{said}"):
            node_of(wrong, None)  # type: ignore[arg-type]
    cases: list[tuple[str, Any, str]] = [
        ("source_column", "x", "x"),
        ("source_column", None, "belong together"),
        ("watermark_sources", (), "belong together"),
        ("watermark_sources", (1,), "watermark_sources"),
        ("finite", 1, "finite"),
        ("parallelism", 0, "parallelism"),
        ("poll_seconds", 0, "poll_seconds"),
        ("poll_seconds", True, "poll_seconds"),
        ("schema", 5, "schema"),
    ]
    for name, value, said in cases:
        source = Named()
        setattr(source, name, value)
        with pytest.raises(KrishivError, match=said):
            node_of(source, None)


def test_watermarks_must_name_the_sources_there_are() -> None:
    lag = WatermarkSpec.fixed_lag(0)
    spec = MultiSourceWatermarkSpec.new().source("a", lag)
    with pytest.raises(PlanError, match=r"a watermark source is not a declared source .*'b'"):
        stream(Named()).with_watermark(spec, "at", source_column="s")
    with pytest.raises(PlanError, match=r"no watermark source has the name of a declared source .*'c'"):
        stream(Named()).with_watermark(spec.source("b", lag).source("c", lag), "at", source_column="s")
    stream(Named()).with_watermark(spec.source("b", lag), "at", source_column="s")


def test_the_log_of_ranges_says_where_to_go_on(tmp_path: Path) -> None:
    folder = str(tmp_path / "ranges")
    log = RangeLog.open(folder, durable=True)
    for number in range(5):
        log.note(NotedRanges(f'{{"at": {number}}}', ("1", "2")))
    log.drop_read(4)
    again = RangeLog.open(folder, durable=False)
    assert (again.last, again.position, again.ended) == (4, '{"at": 4}', False)
    assert sorted(p.name[:20].lstrip("0") or "0" for p in (tmp_path / "ranges").glob("*.parquet")) == ["2", "3", "4"]
    times = [p.stat().st_mtime for p in sorted((tmp_path / "ranges").glob("*.parquet"))]
    assert times == sorted(set(times))
    again.end(Control(1 << 62, None, 0))
    again.drop_read(100)
    assert RangeLog.open(folder, durable=False).ended
    (newest,) = (tmp_path / "ranges").glob("*.parquet")
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        RangeLog.open(folder, durable=False)


@pytest.mark.parametrize("position", [1, "a", {"p": 1, "q": [2]}, [1, 2]])
def test_the_same_position_again_is_an_error_and_no_endless_source(position: Any) -> None:
    class Stuck(Source):
        schema = pa.schema([("at", pa.int64())])

        def plan(self, last: Any) -> Planned:
            again = dict(reversed(position.items())) if isinstance(position, dict) else position
            return Planned(position if last is None else again, [[0]])

        def read(self, planned: Any, columns: Any) -> Any:
            yield pa.RecordBatch.from_pylist([{"at": 1}], self.schema)

    batches = micro_batches(Stuck())
    next(batches)
    with pytest.raises(SourceError, match="Stuck planned a batch that ends at the position it was given"):
        next(batches)
