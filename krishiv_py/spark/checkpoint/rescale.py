"""Going on with more tasks, or fewer: the state of a checkpoint is spread again over partitions (docs/state.md).

A checkpoint has a fixed number of buckets, and every partition of Spark's state store holds some of them. Spark moves whole
buckets in a micro-batch of its own that reads nothing: after batch n it is batch n+1, and the query goes on with n+2. The
ledger, which has an entry for every micro-batch, is moved on by one: what batch n+1 would have gone by, n+2 goes by.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from krishiv_py.errors import CheckpointError, EnvironmentSetupError, PlanError
from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import numbered, planned
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT, plain_name
from krishiv_py.spark.setup.config import BUCKETS
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

_NOTE: Final = "krishiv/rescaling.json"
_AGAIN: Final = "call session.rescale(...) again, with the same number of tasks"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def rescale(spark: SparkSession, checkpoint: str, tasks: int, *, durable: bool) -> None:
    """Spread the state of a checkpoint over `tasks` partitions. May be broken off and repeated.

    Raises
    ------
    CheckpointError
        While a query runs from it, when no query has begun there, and when its last micro-batch is not finished.
    PlanError
        When it has no state, or fewer buckets than `tasks`.
    EnvironmentSetupError
        Before Spark 4.2.
    """
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        raise EnvironmentSetupError(
            "this Spark cannot spread state again",
            got=f"Spark {spark.version}",
            then="the checkpoint stays as it is",
            hint="use Spark 4.2 or newer",
        )
    work = Rescaling(checkpoint, tasks, durable=durable)
    work.check()
    lease = take(checkpoint, "session.rescale")
    try:
        work.run(manager)
    finally:
        lease.release()


def check_rescaled(checkpoint: str, *, durable: bool) -> None:
    """See that no rescaling was broken off, before a query goes on; what only the ledger lacks is done here.

    Raises
    ------
    CheckpointError
        When the state lies between two numbers of tasks.
    """
    store, root = store_at(checkpoint)
    note = _noted(store, root)
    if note is None:
        return
    batch = note["batch"]
    if batch in numbered(store, f"{root}/commits"):
        _moved_on(store, root, batch, durable=durable)
    elif batch in numbered(store, f"{root}/offsets"):
        raise CheckpointError(
            f"{checkpoint} is half spread over {note['tasks']} tasks",
            got="a rescaling that was broken off",
            then="its state cannot be read",
            hint=_AGAIN,
        )
    else:
        store.delete(f"{root}/{_NOTE}")


def _noted(store: Store, root: str) -> dict[str, Any] | None:
    data = store.read(f"{root}/{_NOTE}")
    if data is None:
        return None
    note: dict[str, Any] = json.loads(unsealed(data, f"{root}/{_NOTE}", NEW_CHECKPOINT))
    return note


def _ledger(root: str, batch: int) -> str:
    return f"{root}/krishiv/ledger/{batch:012d}.json"


def _moved_on(store: Store, root: str, batch: int, *, durable: bool) -> None:
    """The micro-batch that only moved state is classified, by stages that follow others, as the one before."""
    entry = store.read(_ledger(root, batch - 1))
    if entry is not None:
        store.write(_ledger(root, batch), entry, durable=durable)
    store.delete(f"{root}/{_NOTE}")


class Rescaling:
    """One call; `tasks` is the number wanted."""

    def __init__(self, checkpoint: str, tasks: int, *, durable: bool) -> None:
        self.checkpoint = checkpoint
        self.tasks = tasks
        self._durable = durable
        self._store, self._root = store_at(checkpoint)

    def check(self) -> None:
        """See that there is state, in buckets enough."""
        stored = CheckpointNotes(self.checkpoint).plan()
        if stored is None or not self._logged("offsets"):
            raise CheckpointError(
                "no query has kept its state here",
                got=self.checkpoint,
                hint="pass the folder of start(..., checkpoint=...), after a first micro-batch",
            )
        if not self._store.exists(f"{self._root}/state/0/_metadata"):
            raise PlanError(
                "the query of this checkpoint keeps no state",
                got=self.checkpoint,
                hint=f'set the session\'s "{_PARTITIONS}" instead',
            )
        if self.tasks > stored["buckets"]:
            raise PlanError(
                f"the state of this checkpoint has {stored['buckets']} buckets, each for one task",
                got=f"{self.tasks} tasks",
                then="the others would have nothing to do",
                hint=f'pass at most {stored["buckets"]}; a new checkpoint can have more: .config("{BUCKETS}", 64)',
            )

    def run(self, manager: Any) -> None:
        """Note what is about to happen, let Spark move the state, and move the ledger on."""
        batch = self._broken_off()
        if batch is None:
            batch = self._finished() + 1
            if int(planned(self.checkpoint, batch - 1)["conf"][_PARTITIONS]) == self.tasks:
                return
            self._announce(batch)
        if batch not in self._logged("commits"):
            with plain_name(self.checkpoint) as path:
                manager.repartition(path, self.tasks)
        _moved_on(self._store, self._root, batch, durable=self._durable)

    def _broken_off(self) -> int | None:
        """Return the micro-batch of an earlier call that did not end."""
        note = _noted(self._store, self._root)
        if note is not None and note["tasks"] == self.tasks and note["batch"] in self._logged("offsets"):
            return int(note["batch"])
        check_rescaled(self.checkpoint, durable=self._durable)
        return None

    def _finished(self) -> int:
        last = self._logged("offsets")[-1]
        if last not in self._logged("commits"):
            raise CheckpointError(
                "the last micro-batch of this checkpoint is not finished",
                got=f"batch {last}",
                hint="start the query once more, with available_now(), then call session.rescale(...)",
            )
        return last

    def _announce(self, batch: int) -> None:
        entry = self._store.read(_ledger(self._root, batch))
        if entry is not None:
            self._store.write(_ledger(self._root, batch + 1), entry, durable=self._durable)
        said = sealed(json.dumps({"batch": batch, "tasks": self.tasks}).encode())
        self._store.write(f"{self._root}/{_NOTE}", said, durable=self._durable)

    def _logged(self, what: str) -> list[int]:
        return numbered(self._store, f"{self._root}/{what}")
