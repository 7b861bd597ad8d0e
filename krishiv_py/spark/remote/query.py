"""The handle of a query that runs over Spark Connect."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException

from krishiv_py.plan.running.progress import Progress
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.query_metrics import Ledger
from krishiv_py.spark.remote.rows import Arrivals


class NotedLedger(Ledger):
    """What the server's process notes of the query beside the checkpoint."""

    def progress(self) -> Progress:
        """The sums over all buckets, as they were noted with the last batch."""
        self.restore()
        self.batch_id = max(self.batch_id, self.notes.metrics().get("batch", -1))
        return super().progress()


class RemoteQuery(StreamQuery):
    """As on a driver of this process; what is for the client comes in files."""

    arrivals: Arrivals
    _gone_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)
    _end_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)

    def _processed(self) -> None:
        super()._processed()
        self.arrivals.take()

    def _ended(self) -> None:
        super()._ended()
        self.arrivals.take()

    def _cancel_jobs(self) -> None:
        """Nothing: Spark ends the server's process, and with it what that waits for."""

    def results(self, output: str | None = None) -> pa.Table:
        """See StreamQuery."""
        self.arrivals.take()
        return super().results(output)

    def late_rows(self, stage: str | None = None) -> pa.Table:
        """See StreamQuery."""
        self.arrivals.take()
        return super().late_rows(stage)
