"""From files to files with a restart: each run reads what has come since the last one and writes every result once."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import Batches, ParquetSink, Session, count, sum

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])


def run(session: Session, folder: Path) -> None:
    """What a scheduled job would do: read what is there, write what is final, stop."""
    orders = session.read_parquet(str(folder / "in"), SCHEMA, streaming=True)
    query = (
        orders.watermark("at", "10 seconds")
        .key_by("user")
        .tumbling_window("1 minute")
        .agg(count(), sum("amount"))
        .start(ParquetSink(str(folder / "out")), checkpoint=folder / "checkpoint", batches=Batches.available_now())
    )
    query.await_termination()


with tempfile.TemporaryDirectory() as name, Session.embedded() as session:
    folder = Path(name)
    (folder / "in").mkdir()
    first = [{"user": "a", "at": 5_000, "amount": 1}, {"user": "a", "at": 80_000, "amount": 2}]
    pq.write_table(pa.Table.from_pylist(first, SCHEMA), folder / "in" / "1.parquet")
    run(session, folder)
    later = [{"user": "a", "at": 90_000, "amount": 4}, {"user": "a", "at": 200_000, "amount": 8}]
    pq.write_table(pa.Table.from_pylist(later, SCHEMA), folder / "in" / "2.parquet")
    run(session, folder)  # the window from 60 s on was open in between
    results = sorted(pq.read_table(folder / "out").to_pylist(), key=lambda row: row["window_start"])

for row in results:
    print(row)
assert [(row["window_start"], row["count"], row["sum_amount"]) for row in results] == [(0, 1, 1), (60_000, 2, 6)], results
print("files: every result once, over a restart")
