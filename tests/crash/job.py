"""The job that is killed: ``python -m tests.crash.job KIND INPUT WORK``. Runs to the end of its input, from wherever it was."""

from __future__ import annotations

import sys
from pathlib import Path

from krishiv_py import (
    Batches,
    LateEventHandler,
    ParquetSink,
    Session,
    SideOutputLateEventHandler,
    collect_list,
    count,
    max,
    sum,
)
from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.stream import Stream

SCHEMA = "user bigint, at bigint, amount bigint"
KINDS = ("tumbling", "session", "lookback", "stages", "arrival")


def plan(stream: Stream, kind: str, late: LateEventHandler) -> AggregatedStream:
    """One windowed aggregation of each kind, and a chain of three; `late` takes the rows that are late in the first stage."""
    keyed = stream.watermark("at", 2_000).key_by("user").with_late_event_handler(late)
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


def main(kind: str, source: str, work: str) -> None:
    """Run, or go on."""
    settings = Session.builder().master("local[2]").profile("single-node-durable").config("spark.krishiv.chunkFileBytes", 2_000)
    with settings.get_or_create() as session:
        stream = session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1)
        late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
        query = plan(stream, kind, late).start(
            ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=Batches.available_now(flush=True)
        )
        query.await_termination()
        Path(work, "rows").write_text(f"{query.progress.rows} {query.progress.late['late']}")
    Path(work, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
