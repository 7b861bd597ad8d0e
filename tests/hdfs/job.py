"""The job that is killed: ``python -m tests.hdfs.job hdfs://host:port/work``. Runs to the end of ``work/in``."""

from __future__ import annotations

import sys

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler
from krishiv_py.storage.files import store_at
from tests.crash.job import SCHEMA, plan


def main(work: str) -> None:
    """Run, or go on."""
    settings = Session.builder().master("local[2]").config("spark.sql.shuffle.partitions", 1).profile("single-node-durable")
    with settings.config("spark.krishiv.chunkFileBytes", 2_000).get_or_create() as session:
        late = SideOutputLateEventHandler(ParquetSink(f"{work}/late"))
        read = session.read_parquet(f"{work}/in", SCHEMA, streaming=True, max_files_per_batch=1)
        actual = plan(lambda: read, "tumbling", late)
        batches = Batches.available_now(flush=True)
        actual.start(ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=batches).await_termination()
    store, root = store_at(work)
    store.put(f"{root}/done", b"")


if __name__ == "__main__":
    main(*sys.argv[1:])
