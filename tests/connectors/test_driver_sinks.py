"""Results and late rows of the test driver in sinks, files included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    ConsoleSink,
    ForeachBatchSink,
    MemorySink,
    OperatorError,
    ParquetSink,
    PlanError,
    SideOutputLateEventHandler,
    count,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.connectors import Sink
from krishiv_py.testing import Driver, stream_of
from tests.connectors.sinks import CsvSink, SparkJsonSink, SqliteSink

SENT = ([{"at": 1}, {"at": 12}], [{"at": 2}], [{"at": 35}, {"at": 3}])


def plan(late: Sink | None = None) -> ResultStream:
    stream = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
    return stream if late is None else stream.with_late_event_handler(SideOutputLateEventHandler(late))


def given(driver: Driver) -> tuple[list[Any], list[Any]]:
    steps = [*(driver.send(rows) for rows in SENT), driver.close()]
    return [r for s in steps for r in s.results.to_pylist()], [r for s in steps for r in s.late.to_pylist()]


def read(folder: Path) -> list[Any]:
    return [r for file in sorted(folder.glob("*.parquet")) for r in pq.read_table(file).to_pylist()]


def test_memory_holds_what_the_steps_gave() -> None:
    results, late = MemorySink(), MemorySink()
    rows, refused = given(Driver(plan(late), sink=results))
    assert len(rows) == 3 and len(refused) == 2
    tables = results.table(), late.table()
    assert [t.to_pylist() for t in tables if t is not None] == [rows, refused]


def test_files_hold_what_the_steps_gave_one_file_a_batch(tmp_path: Path) -> None:
    driver = Driver(plan(ParquetSink(tmp_path / "late")), sink=ParquetSink(tmp_path / "out"))
    rows, refused = given(driver)
    assert (read(tmp_path / "out"), read(tmp_path / "late")) == (rows, refused)
    assert [int(f.name.split("-")[2]) for f in sorted((tmp_path / "out").glob("*.parquet"))] == [0, 2, 3]
    assert not list((tmp_path / "out" / "_krishiv_staging").glob("*"))


def test_a_restarted_driver_writes_on(tmp_path: Path) -> None:
    driver = Driver(plan(), sink=ParquetSink(tmp_path / "out"))
    rows = driver.send(SENT[0]).results.to_pylist()
    rows += driver.restarted().close().results.to_pylist()
    assert read(tmp_path / "out") == rows != []


def test_two_drivers_write_into_one_folder_and_one_memory_sink(tmp_path: Path) -> None:
    kept = MemorySink()
    for sink in (ParquetSink(tmp_path), kept):
        rows = given(Driver(plan(), sink=sink))[0] + given(Driver(plan(), sink=sink))[0]
        table = kept.table()
        actual = read(tmp_path) if table is None else table.to_pylist()
        assert sorted(map(str, actual)) == sorted(map(str, rows))


def test_sinks_of_a_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = given(Driver(plan(), sink=CsvSink(str(tmp_path / "csv"))))
    files = [pa_csv.read_csv(f, pa_csv.ReadOptions(autogenerate_column_names=True)) for f in (tmp_path / "csv").glob("*.csv")]
    assert pa.concat_tables(files).num_rows == len(rows)
    given(Driver(plan(), sink=ConsoleSink(), name="mine"))
    assert "-- mine, batch 0" in capsys.readouterr().out
    given(Driver(plan(), sink=SqliteSink(str(tmp_path / "rows.db"))))


@pytest.mark.parametrize("sink", [SparkJsonSink("out"), ForeachBatchSink(print), print])
def test_a_sink_that_needs_spark_is_refused(sink: Any) -> None:
    with pytest.raises(PlanError, match="a Driver cannot write results to a sink that needs Spark"):
        Driver(plan(), sink=sink)


@pytest.mark.parametrize("sink", ["out", 5, MemorySink, object()])
def test_what_is_no_sink_is_refused(sink: Any) -> None:
    with pytest.raises((PlanError, TypeError)):
        Driver(plan(), sink=sink)


def test_one_place_for_both_outputs_is_refused(tmp_path: Path) -> None:
    kept = MemorySink()
    places: tuple[tuple[Sink, Sink, str], ...] = (
        (kept, kept, "go to one sink"),
        (ParquetSink(tmp_path), ParquetSink(f"{tmp_path}/"), "have one folder"),
        (ParquetSink(tmp_path), ParquetSink(tmp_path / "in" / "it"), "have folders of which one lies in the other"),
    )
    for late, sink, why in places:
        with pytest.raises(PlanError, match=f"results and late rows {why}"):
            Driver(plan(late), sink=sink)


def test_a_failing_file_names_sink_and_batch(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("not a folder")
    with pytest.raises(OperatorError, match=r"the sink ParquetSink failed.*batch 0"):
        Driver(plan(), sink=ParquetSink(tmp_path / "out")).send(SENT[0])


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.list_(pa.duration("us")), pa.struct([("d", pa.duration("us"))]), pa.timestamp("us", "UTC")]
)
def test_parquet_files_keep_durations(kind: pa.DataType, tmp_path: Path) -> None:
    Driver(stream_of(pa.schema([("x", kind)])), sink=ParquetSink(str(tmp_path))).send([{"x": None}])
    assert pq.read_table(tmp_path).schema.field("x").type == kind
