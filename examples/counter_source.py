"""A source of your own: a seeded counter with three partitions, each a watermark source, read in parallel and restarted."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from krishiv_py import Batches, MultiSourceWatermarkSpec, ParquetSink, ResultStream, Session, Stream, WatermarkSpec, count, sum
from krishiv_py.connectors import JsonValue, Planned, Source


class CounterSource(Source):
    """Rows 0, 1, 2, … of each partition, with event times that are a little out of order; the same rows in every run."""

    schema = pa.schema([("partition", pa.string()), ("at", pa.int64()), ("value", pa.int64())])
    source_column = "partition"
    watermark_sources = ("p0", "p1", "p2")
    parallelism = 3
    finite = True

    def __init__(self, rows: int, per_batch: int, seed: int) -> None:
        self.rows, self.per_batch, self.seed = rows, per_batch, seed

    def plan(self, last: JsonValue) -> Planned | None:
        """The next rows of every partition."""
        begin = last if isinstance(last, int) else 0
        end = min(begin + self.per_batch, self.rows)
        if begin == end:
            return None
        return Planned(end, [{"partition": p, "begin": begin, "end": end} for p in self.watermark_sources])

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Compute the rows of a range."""
        assert isinstance(planned, dict)
        number = np.arange(planned["begin"], planned["end"], dtype=np.int64)  # type: ignore[arg-type]
        which = self.watermark_sources.index(str(planned["partition"]))
        value = (number * 2_654_435_761 + which * 97 + self.seed) % 3_000
        moment = number * (100 + which) - value % 1_500
        name = pa.repeat(self.watermark_sources[which], len(number))
        yield pa.RecordBatch.from_arrays([name, pa.array(moment), pa.array(value)], schema=self.schema)


def per_ten_seconds(stream: Stream) -> ResultStream:
    """Count and sum by partition; rows that are more than 300 ms out of order are late."""
    lags = MultiSourceWatermarkSpec.new()
    for name in CounterSource.watermark_sources:
        lags = lags.source(name, WatermarkSpec.fixed_lag("300 ms"))
    timed = stream.with_watermark(lags, "at", source_column="partition")
    return timed.key_by("partition").tumbling_window("10 s").agg(count(), sum("value"))


def main() -> None:
    """Run to the end in one Spark job, and as a streaming query that is stopped in the middle."""
    source = CounterSource(rows=1_000, per_batch=250, seed=7)
    with tempfile.TemporaryDirectory() as name, Session.embedded() as session:
        folder = Path(name)
        whole = per_ten_seconds(session.read_source(source)).run()
        pieces = per_ten_seconds(session.read_source(source))
        query = pieces.start(ParquetSink(folder / "out"), checkpoint=folder / "checkpoint")
        while query.status == "running" and query.progress.rows < 750:
            time.sleep(0.1)
        query.stop()
        batches = Batches.available_now()
        query = pieces.start(ParquetSink(folder / "out"), checkpoint=folder / "checkpoint", batches=batches)
        query.await_termination()
        read = pa.concat_tables([pa.parquet.read_table(folder / "out")])
        by = [("partition", "ascending"), ("window_start", "ascending")]
        assert read.sort_by(by).to_pylist() == whole.table.sort_by(by).to_pylist()
        assert query.progress.late["late"] == whole.late.num_rows
    print(whole.table.sort_by(by).slice(0, 3).to_pylist())
    print("counter: equal results, bounded and over a restart")


if __name__ == "__main__":
    main()
