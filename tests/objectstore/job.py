"""Queries whose input, checkpoints and outputs are in a bucket.

``python -m tests.objectstore.job SCHEME PORT KEY SECRET kill WORK`` runs one to the end of its input, from wherever it was, as
``tests.crash.job`` does on this machine's disk. ``... whole WORK FOLDER`` runs several in one session, and next to them the
same over a local FOLDER. ``... halves WORK FOLDER`` reads what lies in the bucket, and then what it uploads from FOLDER.
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
from tests.gcs.store import Google
from tests.objectstore.store import Store

TO_THE_END = Batches.available_now(flush=True)


def builder(store: Store | Google) -> SessionBuilder:
    """A session that reaches a store; large chunks of state are files already when they are small."""
    one_task: SessionBuilder = Session.builder().master("local[2]").config("spark.sql.shuffle.partitions", 1)
    settings: SessionBuilder = one_task.profile("single-node-durable")
    return store.reaching(settings).config("spark.krishiv.chunkFileBytes", 2_000)


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
    actual = plan(lambda: session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1), kind, late)
    return actual.start(ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=batches)


def refused(call: Callable[[], object]) -> str:
    """The error of a call."""
    try:
        call()
    except KrishivError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "nothing was refused"


def refusals(session: Session, store: Store | Google, bucket: str, source: str) -> dict[str, str]:
    """What is refused before a query begins."""
    nowhere = f"{store.scheme}://nowhere"
    stream = session.read_parquet(source, SCHEMA, streaming=True).watermark("at", 0).tumbling_window(1_000).agg(count())
    out = ParquetSink(f"{bucket}/never")
    return {
        "checkpoint": refused(lambda: stream.start(out, checkpoint=f"{nowhere}/checkpoint")),
        "sink": refused(lambda: stream.start(ParquetSink(f"{nowhere}/out"), checkpoint=f"{bucket}/never-cp")),
        "source": refused(lambda: session.read_parquet(f"{nowhere}/in", SCHEMA, streaming=True)),
        "scheme": refused(lambda: session.read_parquet(source.replace(store.scheme, store.wrong_scheme), SCHEMA)),
        "spool": refused(lambda: session.memory_stream(SCHEMA, spool=f"{bucket}/spool")),
    }


def sent(session: Session, work: str, spool: str) -> None:
    """A memory stream, in two runs of its query."""
    for last in (False, True):
        stream, sender = session.memory_stream(SCHEMA, spool=spool)
        sums = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))
        query = sums.start(SparkJsonSink(f"{work}/out"), checkpoint=f"{work}/checkpoint")
        for number in range(2):
            moment = (2 if last else 0) + number
            sender.send([{"user": n % 7, "at": 1_000 * moment + n, "amount": n} for n in range(300)])
        if last:
            sender.close()
        query.process_all_available()
        query.stop()


def whole(store: Store | Google, work: str, folder: str) -> dict[str, object]:
    """One of each."""
    bucket = store.url(work)
    with builder(store).get_or_create() as session:
        log = Log()
        given: dict[str, object] = {"refused": refusals(session, store, bucket, store.url("in"))}
        log("refusals")
        source, kinds = store.url("in"), ("tumbling", "session")
        for query in [start(session, f"{folder}/in", f"{folder}/{kind}", kind) for kind in kinds]:
            query.await_termination()
        log("local")
        start(session, source, f"{bucket}/tumbling", "tumbling", Batches.available_now()).await_termination()
        log("first half")
        for path in sorted(Path(folder, "more").iterdir()):
            store.put(f"in/{path.name}", path.read_bytes())
        queries = [start(session, source, f"{bucket}/{kind}", kind) for kind in kinds]
        for query in queries:
            query.await_termination()
        log("two queries at once, one of them the second half")
        sent(session, f"{bucket}/sent", f"{folder}/spool")
        log("a memory stream")
        late = SideOutputLateEventHandler(ParquetSink(f"{bucket}/bounded-late"))
        bounded = plan(lambda: session.read_parquet(source, SCHEMA, max_files_per_batch=1), "tumbling", late)
        given["bounded"] = bounded.collect().num_rows
        log("bounded")
        given["shown"] = f"{bounded.explain()}{builder(store)!r}{queries[0].explain()}"
    return given


def halves(store: Store | Google, work: str, folder: str) -> None:
    """One query in two runs."""
    log = Log()
    with builder(store).get_or_create() as session:
        log("session")
        start(session, store.url("in"), store.url(work), "tumbling", Batches.available_now()).await_termination()
        log("first half")
        for path in sorted(Path(folder).iterdir()):
            store.put(f"in/{path.name}", path.read_bytes())
        start(session, store.url("in"), store.url(work), "tumbling").await_termination()
        log("second half")
        if isinstance(store, Google):
            session.spark.sparkContext._jsc.hadoopConfiguration().set("fs.gs.block.size", "64m")  # as Hadoop 3.5 has it
        print(refused(lambda: session.read_parquet(store.url("in"), SCHEMA)))


def main(scheme: str, port: str, key: str, secret: str, what: str, work: str, folder: str = "") -> None:
    """See the docstring of the module."""
    store = Google(int(port)) if scheme == Google.scheme else Store(int(port), key, secret)
    if what == "whole":
        Path(folder, "written.json").write_text(json.dumps(whole(store, work, folder)))
        return
    if what == "halves":
        halves(store, work, folder)
        return
    with builder(store).get_or_create() as session:
        start(session, store.url("in"), store.url(work), "tumbling").await_termination()
    store.put(f"{work}/done", b"")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
