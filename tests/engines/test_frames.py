"""What Spark adds: DataFrames and files with odd types and names, sinks that take rows through Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    CountByKeyLateEventHandler,
    JsonSink,
    MemorySink,
    ParquetSink,
    SideOutputLateEventHandler,
    col,
    count,
    first,
    max,
)
from krishiv_py.errors import ColumnError, SchemaError
from krishiv_py.session import Session
from tests.engines.arrow_types import ACCEPTED, column, is_key

UNFIT = "parse_json('{}') AS v, INTERVAL '1' MONTH AS months, make_interval(1, 1) AS mixed, TIME'01:00:00' AS clock"
FIT = "id AS at, NULL AS nothing, INTERVAL '1' DAY AS day, CAST('a' AS CHAR(3)) AS c, CAST(id AS DECIMAL(5, 2)) AS d"


def frame(session: Session, columns: str) -> Any:
    return session.spark.sql(f"SELECT {columns} FROM range(3)")


def test_only_the_columns_a_query_needs_must_have_a_type(session: Session) -> None:
    stream = session.from_dataframe(frame(session, f"{FIT}, {UNFIT}"))
    assert [str(t) for t in stream.schema.types] == ["int64", "null", "duration[us]", "string", "decimal128(5, 2)"]
    keyed = stream.drop("v").watermark("at", 0).key_by("c", "day")
    result = keyed.tumbling_window(10).agg(max("d"), count("nothing")).collect().to_pylist()
    assert [(r["c"].strip(), str(r["max_d"]), r["count_nothing"]) for r in result] == [("a", "2.00", 0)]


@pytest.mark.parametrize("name", ["v", "months", "mixed", "clock"])
def test_naming_a_column_that_was_left_out_says_why_it_is_not_there(session: Session, name: str) -> None:
    stream = session.from_dataframe(frame(session, f"{FIT}, {UNFIT}"))
    windowed = stream.watermark("at", 0)
    for call in (
        lambda: stream.select(name),
        lambda: stream.filter(col(name).is_null()),
        lambda: stream.with_column("x", col("at") + 1).with_column("y", col(name)),
        lambda: windowed.key_by(name).tumbling_window(1).agg(count()),
        lambda: windowed.tumbling_window(1).agg(first(name)),
        lambda: stream.watermark(name, 0),
    ):
        with pytest.raises(ColumnError):
            call()
    with pytest.raises(ColumnError, match="a type no stream can have"):
        stream.select(name)


def test_late_rows_that_cannot_be_whole_are_refused_at_the_call(session: Session) -> None:
    stream = session.from_dataframe(frame(session, f"{FIT}, {UNFIT}"))
    handler = SideOutputLateEventHandler(MemorySink())
    with pytest.raises(SchemaError, match="cannot be whole"):
        stream.watermark("at", 0).tumbling_window(1).agg(count()).with_late_event_handler(handler)
    plan = stream.select("at", "day").watermark("at", 0).tumbling_window(1).agg(count()).with_late_event_handler(handler)
    assert plan.collect().num_rows == 3


def test_a_frame_without_any_fitting_column_is_refused(session: Session) -> None:
    with pytest.raises(SchemaError, match="no column has a type"):
        session.from_dataframe(frame(session, UNFIT))


def test_dots_and_backticks_in_names(session: Session, tmp_path: Path) -> None:
    names = ["a.b", "a`b", "`", "x y", "東京", "reason", "späť;{}()="]
    made = frame(
        session, "id AS at, " + ", ".join(f"id AS `{n.replace('`', '``')}`" for n in names) + ", named_struct('c.`d', id) AS s"
    )
    made.write.json(str(tmp_path / "rows"))
    for stream in (
        session.from_dataframe(made),
        session.read_json(str(tmp_path / "rows")),
        session.read_json(str(tmp_path / "rows"), made.schema),
    ):
        plan = stream.watermark("at", 0).key_by(*names).tumbling_window(10).agg(first(col("s")).alias("s`."))
        actual = plan.collect().sort_by("x y").to_pylist()
        assert [r["a`b"] for r in actual] == [0, 1, 2]
        assert actual[1]["s`."] == {"c.`d": 1}


def every_type() -> pa.RecordBatch:
    """A row in time, with a column of every type that is accepted."""
    types = list(ACCEPTED)
    return pa.RecordBatch.from_arrays(
        [pa.array([1, 1, 1, 1]), *(column(t) for t in types)], names=["at", *(f"c{i}.`" for i in range(len(types)))]
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_late_rows_of_every_type_reach_a_sink(session: Session, tmp_path: Path, kind: str) -> None:
    batch = every_type()
    sink = (JsonSink if kind == "json" else ParquetSink)(str(tmp_path / "late"))
    stream, sender = session.memory_stream(batch.schema)
    plan = stream.watermark("at", 0).tumbling_window(10).agg(count()).with_late_event_handler(SideOutputLateEventHandler(sink))
    sender.send([{"at": 100}])
    sender.send(batch)
    sender.close()
    plan.collect()
    query = plan.start(MemorySink())
    query.process_all_available()
    query.stop()
    runs: dict[str, list[Any]] = {}  # by the mark in the names of their files
    for file in sorted((tmp_path / "late").glob("part-*")):
        rows = [json.loads(r) for r in file.read_text().splitlines()] if kind == "json" else pq.read_table(file).to_pylist()
        runs.setdefault(file.name.split("-")[1], []).extend(rows)
    of_job, of_query = (sorted(rows, key=repr) for rows in runs.values())
    assert len(of_job) == len(of_query) == 4
    for name in {n for row in [*of_job, *of_query] for n in row}:  # JSON leaves nulls out
        assert [repr(r.get(name)) for r in of_job] == [repr(r.get(name)) for r in of_query], name


def test_late_rows_are_counted_by_keys_of_every_type(session: Session) -> None:
    batch = every_type()
    keys = [name for name, type_ in zip(batch.schema.names[1:], ACCEPTED, strict=True) if is_key(type_)]
    handler = CountByKeyLateEventHandler()
    stream, sender = session.memory_stream(batch.schema)
    plan = stream.watermark("at", 0).key_by(*keys).tumbling_window(10).agg(count()).with_late_event_handler(handler)
    sender.send([{"at": 100}])
    sender.send(batch)
    sender.close()
    assert plan.collect()["count"].to_pylist() == [1]
    assert handler.total == 4
