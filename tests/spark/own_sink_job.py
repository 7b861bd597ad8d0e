"""A query into SQLite that is killed: ``python -m tests.spark.own_sink_job INPUT WORK POINT BATCH``."""

from __future__ import annotations

import os
import signal
import sys

from krishiv_py import Batches, Session, SideOutputLateEventHandler, count
from tests.connectors.sinks import DyingSink


class KilledSink(DyingSink):
    """Takes the whole process with it."""

    def die(self) -> None:
        """As ``kill -9``."""
        os.kill(os.getpid(), signal.SIGKILL)


def main(source: str, work: str, point: str, batch: str) -> None:
    """Run, or go on."""
    sink = KilledSink(f"{work}/out.db", point, int(batch))
    with Session.builder().master("local[1]").get_or_create() as session:
        stream = session.read_parquet(source, "user string, n bigint", streaming=True, max_files_per_batch=1)
        plan = stream.watermark("n", 0).key_by("user").tumbling_window(10).agg(count())
        query = plan.with_late_event_handler(SideOutputLateEventHandler(sink)).start(
            sink, checkpoint=f"{work}/checkpoint", batches=Batches.available_now(flush=True)
        )
        query.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
