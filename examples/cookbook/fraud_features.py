"""Features of payments for a model: served from a stream, trained from files, and equal row by row.

``python -m examples.cookbook.fraud_features``: one function of a stream is both computations.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import MemorySink, ResultStream, Session, Stream, avg, count, sum

SCHEMA = pa.schema([("tx", pa.int64()), ("card", pa.string()), ("amount", pa.int64()), ("at", pa.int64())])
BATCHES = [
    [{"tx": 1, "card": "a", "amount": 5, "at": 1_000}, {"tx": 2, "card": "b", "amount": 9, "at": 2_000}],
    [{"tx": 3, "card": "a", "amount": 7, "at": 30_000}, {"tx": 4, "card": "a", "amount": 1, "at": 28_000}],
    [{"tx": 5, "card": "a", "amount": 2, "at": 62_000}],
]


def features(payments: Stream) -> ResultStream:
    """The last minute of the card of each payment, the payment included."""
    return (
        payments.watermark("at", "5 seconds")
        .key_by("card")
        # emit="arrival": a decision cannot wait for the watermark. Each payment sees what had come before it, and no more,
        # so training sees what serving saw.
        .lookback_window("1 minute", emit="arrival", with_row=True)
        .agg(count().alias("n_minute"), sum("amount").alias("spent_minute"), avg("amount").alias("mean_minute"))
    )


def online() -> list[dict[str, object]]:
    """Serve: each send is answered in the batch that takes it."""
    with Session.in_process() as session:
        payments, sender = session.memory_stream(SCHEMA)
        query = features(payments).start(MemorySink())
        for rows in BATCHES:
            sender.send(rows)
            query.process_all_available()
        served: list[dict[str, object]] = query.results().to_pylist()
        return served


def offline(archive: Path) -> list[dict[str, object]]:
    """Train: the archive has one file for each batch, and is read in that order."""
    for number, rows in enumerate(BATCHES):
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), archive / f"{number:05d}.parquet")
    with Session.in_process() as session:
        table = features(session.read_parquet(archive, SCHEMA, max_files_per_batch=1)).collect()
    trained: list[dict[str, object]] = table.to_pylist()
    return trained


with tempfile.TemporaryDirectory() as name:
    served, trained = online(), offline(Path(name))

print(*served, sep="\n")
assert [(row["tx"], row["n_minute"], row["spent_minute"]) for row in served] == [
    (1, 1, 5),
    (2, 1, 9),
    (4, 2, 6),
    (3, 2, 12),
    (5, 3, 10),
]
assert trained == served, "the model would see other values than it was trained on"
print("fraud features: online and offline are equal")
