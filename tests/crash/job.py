"""The job that is killed: ``python -m tests.crash.job KIND INPUT WORK``. Runs to the end of its input, from wherever it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from krishiv_py import (
    Batches,
    LateEventHandler,
    Output,
    ParquetSink,
    Session,
    SideOutputLateEventHandler,
    collect_list,
    count,
    max,
    sum,
    windows,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from tests.crash.ordered import KINDS as ORDERED
from tests.crash.ordered import ordered
from tests.crash.tables import Counted, looked_up, reloaded

SCHEMA = "user bigint, at bigint, amount bigint"
JOINS = ("interval", "asof", "windows", "matched")
"""Kinds that read the input twice: as the left side, and, under other names, as the right one."""
SEVERAL = ("outputs", "reloaded")
"""Kinds with several outputs. What "reloaded" gives depends on when it runs, so it has a test of its own."""
KINDS = ("tumbling", "session", "lookback", "stages", "arrival", "dedup", *JOINS, "outputs", "lookup", *ORDERED)
RENAMED = {"user": "customer", "at": "seen", "amount": "price"}


def joined(left: Stream, right: Stream, kind: str, late: LateEventHandler) -> ResultStream:
    """The input met with itself, or results of both sides; the right side lags more, and few of its rows take part."""
    one = left.watermark("at", 1_000)
    other = right.filter("amount < 20").rename(**RENAMED).watermark("seen", 2_000)
    on = {"user": "customer"}
    if kind == "matched":
        once = one.drop_duplicates("user", "amount", within=3_000).with_late_event_handler(late)
        sums = other.key_by("customer").tumbling_window(1_000).agg(count(), sum("price"))
        return once.interval_join(sums, on, lower=-200, upper=1_000, how="full")
    if kind == "interval":
        met: ResultStream = one.interval_join(other, on, lower=-200, upper=100, how="full")
    elif kind == "asof":
        met = one.asof_join(other, on, direction="nearest", tolerance=300)
    else:
        met = one.window_join(other, on, window=windows.hopping(1_000, 500), how="left")
    return met.allowed_lateness(500).with_late_event_handler(late)


def plan(read: Callable[[], Stream], kind: str, late: LateEventHandler) -> ResultStream:
    """One operator of each kind, and a chain of three; `late` takes the rows that are late in the first stage."""
    if kind in JOINS:
        return joined(read(), read(), kind, late)
    if kind == "lookup":
        return looked_up(read, late)
    timed = read().watermark("at", 2_000)
    if kind == "dedup":
        return timed.drop_duplicates("user", "amount", within=3_000).with_late_event_handler(late)
    keyed = timed.key_by("user").with_late_event_handler(late)
    return ordered(keyed, kind) if kind in ORDERED else windowed(keyed, kind)


def windowed(keyed: KeyedStream, kind: str) -> ResultStream:
    """An aggregation over windows."""
    if kind == "stages":
        second = keyed.tumbling_window(1_000).agg(count(), max("at")).filter("count > 1").key_by("user")
        sums = second.session_window(1_500).agg(sum("count").alias("n"), collect_list("max_at").alias("last"))
        return sums.tumbling_window(5_000).agg(sum("n").alias("n"), collect_list("user").alias("users"), count())
    if kind == "tumbling":
        return keyed.allowed_lateness(1_000).emit("retractions").tumbling_window(5_000).agg(count(), sum("amount"), max("at"))
    if kind == "session":
        return keyed.session_window(1_500, touch="merge").agg(count(), sum("amount"), max("at"))
    if kind == "arrival":
        ranged = keyed.allowed_lateness(500).lookback_window(3_000, emit="arrival", with_row=True)
        return ranged.agg(count(), sum("amount").over(1_000), max("at"), collect_list("amount").alias("amounts"))
    return keyed.lookback_window(3_000).agg(count(), sum("amount"), max("at"))


def outputs(read: Callable[[], Stream], late: LateEventHandler, work: str) -> list[Output]:
    """Windows of a part, sums of them, and the other rows as they are; the late rows of the first."""
    few, rest = read().split("amount < 50")
    inner = few.watermark("at", 2_000).key_by("user").with_late_event_handler(late).tumbling_window(1_000).agg(count())
    sums = inner.key_by("user").session_window(1_500).agg(sum("count").alias("n"))
    whole = inner.tumbling_window(5_000).agg(sum("count").alias("n"), collect_list("user").alias("users"))
    return [
        sums.to(ParquetSink(f"{work}/out"), name="out"),
        whole.to(ParquetSink(f"{work}/whole"), name="whole"),
        rest.to(ParquetSink(f"{work}/rest"), name="rest"),
    ]


def reloading(read: Callable[[], Stream], late: LateEventHandler, work: str) -> list[Output]:
    """Tables that count in files how often they were loaded, and a first output that is slow, so that kills hit the second."""
    return reloaded(read, late, work, Counted(f"{work}/loads"), Counted(f"{work}/loads-behind"), slow_s=0.4)


def made_session() -> Session:
    """A session on Spark, or one in this process where ``KRISHIV_ENGINE`` says so."""
    if os.environ.get("KRISHIV_ENGINE") == "in_process":
        return Session.in_process(profile="single-node-durable")
    settings = Session.builder().master("local[2]").profile("single-node-durable").config("spark.krishiv.chunkFileBytes", 2_000)
    return settings.get_or_create()


def main(kind: str, source: str, work: str) -> None:
    """Run, or go on."""
    with made_session() as session:
        late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))

        def read() -> Stream:
            return session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1)

        checkpoint, batches = f"{work}/checkpoint", Batches.available_now(flush=True)
        if kind in SEVERAL:
            several = outputs(read, late, work) if kind == "outputs" else reloading(read, late, work)
            query = session.start(several, checkpoint=checkpoint, batches=batches)
        else:
            query = plan(read, kind, late).start(ParquetSink(f"{work}/out"), checkpoint=checkpoint, batches=batches)
        query.await_termination()
        Path(work, "rows").write_text(f"{query.progress.rows} {query.progress.late['late']}")
    Path(work, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
