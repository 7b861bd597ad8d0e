"""Queries whose input, checkpoints and outputs are in a bucket.

``python -m tests.objectstore.job PORT KEY SECRET kill WORK`` runs one to the end of its input, from wherever it was, as
``tests.crash.job`` does on this machine's disk. ``... whole WORK FOLDER`` runs several in one session, and beside them the
same over a local FOLDER.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from krishiv_py import Batches, ParquetSink, Query, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.errors import KrishivError
from krishiv_py.session import SessionBuilder
from tests.connectors.sinks import SparkJsonSink
from tests.crash.job import SCHEMA, plan
from tests.objectstore.store import BUCKET, JARS, Store

TO_THE_END = Batches.available_now(flush=True)


def builder(store: Store) -> SessionBuilder:
    """A session that reaches a store; large chunks of state are files already when they are small."""
    settings: SessionBuilder = (
        Session.builder().master("local[2]").profile("single-node-durable").storage_options(store.options)
    )
    jars = ",".join(map(str, JARS.fetch()))
    return settings.config("spark.jars", jars).config("spark.krishiv.chunkFileBytes", 2_000)


class Log:
    """Says how long each part took."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        print(f"{now - self._since:6.1f} s {what}", file=sys.stderr, flush=True)
        self._since = now


def start(session: Session, source: str, work: str, kind: str, batches: Batches = TO_THE_END) -> Query:
    """Start a query with both outputs."""
    late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
    found = plan(lambda: session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1), kind, late)
    return found.start(ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=batches)


def refused(call: Callable[[], object]) -> str:
    """The error of a call."""
    try:
        call()
    except KrishivError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "nothing was refused"


def refusals(session: Session, bucket: str, source: str) -> dict[str, str]:
    """What is refused before a query begins."""
    stream = session.read_parquet(source, SCHEMA, streaming=True).watermark("at", 0).tumbling_window(1_000).agg(count())
    out = ParquetSink(f"{bucket}/never")
    return {
        "checkpoint": refused(lambda: stream.start(out, checkpoint="s3a://nowhere/checkpoint")),
        "sink": refused(lambda: stream.start(ParquetSink("s3a://nowhere/out"), checkpoint=f"{bucket}/never-cp")),
        "source": refused(lambda: session.read_parquet("s3a://nowhere/in", SCHEMA, streaming=True)),
        "scheme": refused(lambda: session.read_parquet(source.replace("s3a:", "s3:"), SCHEMA)),
        "spool": refused(lambda: session.memory_stream(SCHEMA, spool=f"{bucket}/spool")),
    }


def sent(session: Session, work: str, spool: str) -> None:
    """A memory stream, in two runs of its query."""
    for last in (False, True):
        stream, sender = session.memory_stream(SCHEMA, spool=spool)
        sums = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))
        query = sums.start(SparkJsonSink(f"{work}/out"), checkpoint=f"{work}/checkpoint")
        for number in range(2):
            at = (2 if last else 0) + number
            sender.send([{"user": n % 7, "at": 1_000 * at + n, "amount": n} for n in range(300)])
        if last:
            sender.close()
        query.process_all_available()
        query.stop()


def whole(store: Store, work: str, folder: str) -> dict[str, object]:
    """One of each."""
    bucket = f"s3a://{BUCKET}/{work}"
    with builder(store).get_or_create() as session:
        log = Log()
        told: dict[str, object] = {"refused": refusals(session, bucket, f"s3a://{BUCKET}/in")}
        log("refusals")
        source, kinds = f"s3a://{BUCKET}/in", ("tumbling", "session")
        for query in [start(session, f"{folder}/in", f"{folder}/{kind}", kind) for kind in kinds]:
            query.await_termination()
        log("local")
        start(session, source, f"{bucket}/tumbling", "tumbling", Batches.available_now()).await_termination()
        log("first half")
        for path in sorted(Path(folder, "more").iterdir()):
            store.client().upload_file(str(path), BUCKET, f"in/{path.name}")
        queries = [start(session, source, f"{bucket}/{kind}", kind) for kind in kinds]
        for query in queries:
            query.await_termination()
        log("two queries at once, one of them the second half")
        sent(session, f"{bucket}/sent", f"{folder}/spool")
        log("a memory stream")
        late = SideOutputLateEventHandler(ParquetSink(f"{bucket}/bounded-late"))
        bounded = plan(lambda: session.read_parquet(source, SCHEMA, max_files_per_batch=1), "tumbling", late)
        told["bounded"] = bounded.collect().num_rows
        log("bounded")
        told["shown"] = f"{bounded.explain()}{builder(store)!r}{queries[0].explain()}"
    return told


def main(port: str, key: str, secret: str, what: str, work: str, folder: str = "") -> None:
    """See the docstring of the module."""
    store = Store(int(port), key, secret)
    if what == "whole":
        Path(folder, "told.json").write_text(json.dumps(whole(store, work, folder)))
        return
    with builder(store).get_or_create() as session:
        start(session, f"s3a://{BUCKET}/in", f"s3a://{BUCKET}/{work}", "tumbling").await_termination()
    store.client().put_object(Bucket=BUCKET, Key=f"{work}/done", Body=b"")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
