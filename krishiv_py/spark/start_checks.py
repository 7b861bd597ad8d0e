"""Define what is settled before a query begins: its folders, its right to its checkpoint, how long what it writes must last."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.errors import KrishivError
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.planner.places import check_places
from krishiv_py.runtime.checkpoint.begun import check_engine, check_goes_on
from krishiv_py.runtime.checkpoint.lease import (
    Lease,
    OpenedCheckpoint,
    make_private,
    take,
    writable_checkpoint,
)
from krishiv_py.spark.checkpoint.cluster import check_cluster, check_reach
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.setup.config import FSYNC
from krishiv_py.spark.setup.stores import check_stores
from krishiv_py.storage.files import arrow_reads
from krishiv_py.storage.local import absolute

_SPARKS: tuple[str, ...] = ("offsets", "commits", "sources", "state")


def open_checkpoint(
    spark: SparkSession,
    title: str,
    checkpoint: str | None,
    temporary: Callable[[], str],
    results: tuple[Sink, ...],
    late: tuple[Sink | None, ...],
    source: SourceNode,
) -> OpenedCheckpoint:
    """Take the checkpoint of a query, or a temporary one.

    Raises
    ------
    PlanError
        When folders of the query are one, or lie in each other, or where not every task finds them.
    CheckpointError
        While another query runs from the checkpoint.
    EnvironmentSetupError
        When an object store or HDFS does not answer.
    """
    home = absolute(checkpoint).rstrip("/") if checkpoint is not None else None
    check_cluster(spark, home, [*results, *late], source)
    check_places(results[0], late[-1], source, home, late[:-1], results[1:])
    written = [folder for folder in map(folder_of, (*results, *late)) if folder is not None]
    check_stores(spark, [home], written=True)
    check_stores(spark, written, by_spark=False, written=True)
    where = home if home is not None else temporary()
    with writable_checkpoint(where):
        make_private(where)
    check_goes_on(where)
    check_engine(where, "spark")
    with writable_checkpoint(where):
        make_private(where, _SPARKS)
    outputs = [folder for folder in written if arrow_reads(folder)]
    places = [path for _, path in source.places if arrow_reads(path)]
    check_reach(spark, [*([where] if arrow_reads(where) else []), *outputs], places)
    durable = home is not None and str(spark.conf.get(FSYNC, "false")).lower() == "true"
    with writable_checkpoint(where):
        lease = take(where, title)
    return OpenedCheckpoint(where, lease, durable)


def release_at_end(lease: Lease, query: StreamQuery) -> None:
    """Let others run from the checkpoint once the query has ended, in whatever way; end it when its lease is lost."""
    lease.running = lambda: query.status == "running"
    lease.on_lost = query._fail

    def wait() -> None:
        with contextlib.suppress(KrishivError, Py4JError):  # what ended it is reported to whoever asks the query
            query.await_termination()
        lease.release()

    threading.Thread(target=wait, name="krishiv-lease", daemon=True).start()
