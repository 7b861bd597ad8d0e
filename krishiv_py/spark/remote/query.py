"""The handle of a query that runs over Spark Connect."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException

from krishiv_py.connectors.ranges import Backlog
from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import PathLike
from krishiv_py.plan.running import Progress
from krishiv_py.runtime.query import BucketMetrics
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.remote.rows import Arrivals, noted_failure


@attrs.define(eq=False)
class NotedLedger(BucketMetrics):
    """Holds what the server's process notes of the query next to the checkpoint."""

    held: dict[str, int] = attrs.field(factory=dict)
    """How often each source was held back there."""
    waits: list[str] = attrs.field(factory=list)
    waiting_rows: dict[str, Backlog] = attrs.field(factory=dict)

    def progress(self) -> Progress:
        """Return the sums over all buckets, as they were noted with the last batch."""
        self.look()
        self.backlog = lambda: self.waiting_rows
        return super().progress()

    def _held(self) -> dict[str, int]:
        return self.held

    def waiting(self) -> list[str]:
        """Return which sources the server's process holds back, as it noted them last."""
        return self.waits

    def look(self) -> None:
        """Read what is noted; where that is gone, a temporary folder with its query, what was read last still holds."""
        noted = self.notes.metrics()
        if noted:
            self._take_noted(noted)
            self.held, self.waits = noted.get("held", {}), noted.get("waiting", [])
            self.waiting_rows = noted.get("backlog", {})


class RemoteQuery(StreamQuery):
    """As on a driver of this process; what is for the client comes in files."""

    arrivals: Arrivals
    _gone_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)
    _end_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)

    def savepoint(self, path: PathLike) -> str:
        """Refuse: the server's process plans batches meanwhile.

        Raises
        ------
        PlanError
            Always; says what to do.
        """
        raise PlanError(
            "query.savepoint() needs the driver in this process",
            got=f"{self.name} over Spark Connect",
            then="batches would begin while the state is read",
            hint="stop() it, and call session.savepoint(checkpoint, path) of a session with a driver of its own",
        )

    def _processed(self) -> None:
        super()._processed()
        self.arrivals.take()

    def _ended(self) -> None:
        super()._ended()
        self.arrivals.take()

    def _problem(self) -> BaseException | None:
        """Return what Spark tells of, or what the server's process noted that ended it between two batches."""
        failure = super()._problem()
        if failure is None and self._end != "stopped":
            self._failure = failure = noted_failure(self._ledger.notes.checkpoint)
        return failure

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
