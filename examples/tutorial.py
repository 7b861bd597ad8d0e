"""The end of the tutorial: one pipeline for tests, in process and for Spark, run twice from one checkpoint."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import Batches, ParquetSink, ResultStream, Session, SideOutputLateEventHandler, Stream, avg, count


def means(readings: Stream, late_folder: str) -> ResultStream:
    return (
        readings.watermark("at", "10 seconds")
        .key_by("sensor")
        .tumbling_window("1 minute")
        .agg(count(), avg("celsius").alias("mean"))
        .with_late_event_handler(SideOutputLateEventHandler(ParquetSink(late_folder)))
    )


def run(session: Session, folder: str) -> None:
    readings = session.read_parquet(f"{folder}/in", "sensor string, at bigint, celsius double", streaming=True)
    query = means(readings, f"{folder}/late").start(
        ParquetSink(f"{folder}/out"), checkpoint=f"{folder}/checkpoint", batches=Batches.available_now()
    )
    query.await_termination()


folder = tempfile.mkdtemp()


def put(file: str, rows: list[tuple[str, int, float]]) -> None:
    Path(folder, "in").mkdir(exist_ok=True)
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, ["sensor", "at", "celsius"]), f"{folder}/in/{file}")


with Session.in_process() as session:
    put("1.parquet", [("a", 1_000, 20.0), ("a", 59_000, 22.0), ("a", 75_000, 23.0)])
    run(session, folder)
    put("2.parquet", [("a", 80_000, 25.0), ("b", 20_000, 99.0), ("a", 140_000, 21.0)])
    run(session, folder)

results = pq.read_table(f"{folder}/out").sort_by("window_start").to_pylist()
late = pq.read_table(f"{folder}/late").to_pylist()
for row in results + late:
    print(row)
assert [(row["window_start"], row["count"], row["mean"]) for row in results] == [(0, 2, 21.0), (60_000, 2, 24.0)], results
assert [(row["sensor"], row["at"], row["reason"]) for row in late] == [("b", 20_000, "late")], late
print("tutorial: one pipeline, two runs, every result once")
