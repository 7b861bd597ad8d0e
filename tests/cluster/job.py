"""A job on a cluster, run in its work folder: ``python -m tests.cluster.job MASTER KIND INPUT``. All its paths are relative."""

from __future__ import annotations

import sys
from pathlib import Path

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler
from krishiv_py.api.stages.stream import Stream
from tests.crash.job import SCHEMA, outputs, plan


def main(master: str, kind: str, source: str) -> None:
    """Run, or go on from the checkpoint."""
    builder = Session.builder().master(master).profile("distributed-durable").config("spark.krishiv.sharedFolders", True)
    small: dict[str, str | int] = {"spark.executor.memory": "512m", "spark.krishiv.chunkFileBytes": 2_000, "spark.cores.max": 2}
    for name, value in {**small, "spark.sql.shuffle.partitions": 2}.items():
        builder = builder.config(name, value)
    with builder.get_or_create() as session:
        late = SideOutputLateEventHandler(ParquetSink("late"))

        def read() -> Stream:
            return session.read_parquet(source, SCHEMA, streaming=True, max_files_per_batch=1)

        batches = Batches.available_now(flush=True)
        if kind == "outputs":
            query = session.start(outputs(read, late, "."), checkpoint="checkpoint", batches=batches)
        else:
            query = plan(read, kind, late).start(ParquetSink("out"), checkpoint="checkpoint", batches=batches)
        query.await_termination()
        Path("rows").write_text(f"{query.progress.rows} {query.progress.late['late']}")
    Path("done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
