"""A query whose input, checkpoint and outputs are in a bucket: ``python -m tests.objectstore.job PORT WORK``.

Runs to the end of its input, from wherever it was, as ``tests.crash.job`` does on this machine's disk.
"""

from __future__ import annotations

import sys
import time

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler
from krishiv_py.session import SessionBuilder
from tests.crash.job import SCHEMA, plan
from tests.objectstore.store import BUCKET, JARS, Store


def builder(store: Store) -> SessionBuilder:
    """A session that reaches a store; large chunks of state are files already when they are small."""
    settings: SessionBuilder = (
        Session.builder().master("local[2]").profile("single-node-durable").storage_options(store.options)
    )
    jars = ",".join(map(str, JARS.fetch()))
    return settings.config("spark.jars", jars).config("spark.krishiv.chunkFileBytes", 2_000)


def run(session: Session, source: str, work: str, kind: str = "tumbling") -> tuple[int, int]:
    """Run a query to the end of its input; returns rows and late rows."""
    late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
    found = plan(lambda: session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1), kind, late)
    batches = Batches.available_now(flush=True)
    query = found.start(ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=batches)
    query.await_termination()
    return query.progress.rows, query.progress.late["late"]


def main(port: str, work: str) -> None:
    """Run, or go on."""
    store = Store(int(port))
    with builder(store).get_or_create() as session:
        told = run(session, f"s3a://{BUCKET}/in", f"s3a://{BUCKET}/{work}")
    store.client().put_object(Bucket=BUCKET, Key=f"{work}/done", Body=f"{told[0]} {told[1]}".encode())


if __name__ == "__main__":
    began = time.monotonic()
    main(*sys.argv[1:])
    print(f"{time.monotonic() - began:.1f} s")
