"""Sources whose batches the library plans: over Spark Connect the server's process plans them, which needs no client for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Final, Literal

from krishiv_py.connectors.ranges import RangeSource, next_ranges
from krishiv_py.errors import CheckpointError, KrishivError
from krishiv_py.plan.options.query import Batches
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.sparklog import batches_of, offsets_of
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.log import RangeLog, names_of
from krishiv_py.runtime.ranges.planning import RangePlanner, logged
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.spark.remote.rows import note_failure
from krishiv_py.storage.files import store_at

Planning = Literal["one by one", "all there is", "no more"]
"""How the server's process plans: while the query runs, once before it, or not, as a run before has planned all."""
NO_MORE: Final = "no more"
_AGAIN_S: Final = 0.5


def planning_of(batches: Batches) -> Planning:
    """Return how the first run of a query plans."""
    return "all there is" if batches.kind == "available_now" else "one by one"


def open_logs(plan: PhysicalPlan, checkpoint: str, *, durable: bool) -> dict[int, RangeSource]:
    """In the client: the sources that have a log, which is there before Spark looks at it.

    Raises
    ------
    CheckpointError
        When one of the logs is damaged.
    """
    logs = {}
    for number, read in enumerate(plan.reads):
        source = logged(read.source, checkpoint, number, waits=plan.drift_us(read) is not None)
        if isinstance(source, RangeSource):
            RangeLog.open(source.log or "", durable=durable)
            logs[number] = source
    return logs


def is_behind_of(checkpoint: str, sources: dict[int, RangeSource]) -> Callable[[], bool]:
    """In the client: whether there are files or sends that no batch has taken."""
    sent = {streams: source for streams, source in sources.items() if isinstance(source.source, (SentSource, FolderSource))}

    def any_left() -> bool:
        if not sent:
            return False
        batches = batches_of(checkpoint)
        store, root = store_at(checkpoint)
        taken = offsets_of(store, f"{root}/offsets/{batches[-1]}") if batches else {}
        for number, source in sent.items():
            log = RangeLog.open(source.log or "", durable=False)
            if isinstance(source.source, FolderSource):
                try:
                    source.source.plans(names_of(log))
                except CheckpointError:  # the server's process merges parts at this moment
                    return True
                if log.last > taken.get(number, -1) or source.source.any_new():
                    return True
            elif log.last > taken.get(number, -1) or next_ranges(source.source, source.name, log.position) is not None:
                return True
        return False

    return any_left


def begin_planning(planners: Sequence[RangePlanner], how: Planning, checkpoint: str, stop: Callable[[], None]) -> None:
    """In the server's process, before the query begins.

    Raises
    ------
    SourceError
        When a source cannot plan.
    """

    def fail(problem: KrishivError) -> None:
        try:
            note_failure(checkpoint, problem)
        except OSError as unwritten:
            warnings.warn(f"the query ends, and why cannot be noted ({unwritten}): {problem}", RuntimeWarning, stacklevel=2)
        while True:  # until this process ends with the query, which may not have begun yet
            stop()
            time.sleep(_AGAIN_S)

    if how == NO_MORE:
        return
    for planner in planners:
        planner.begin(everything=how == "all there is")
    if how == "one by one":
        for planner in planners:
            planner.start(lambda: True, fail)
