"""Define what the library keeps next to Spark's own checkpoint: its format, the plan it belongs to, and counters by bucket."""

from __future__ import annotations

import json
import uuid
import warnings
from typing import Any, Final

import attrs

from krishiv_py.errors import CheckpointError
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.fingerprint import differences
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.sparklog import batches_of
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import missing, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store
from krishiv_py.version import __version__

FORMAT: Final = 1
"""Of the plan note, the ledger, the chunks of state and the names they have; raised when an older one cannot be read."""


def format_note(engine: str) -> dict[str, Any]:
    """Return what a plan note says of the format and of who wrote it: this version of the library, on an `engine`."""
    return {"format": FORMAT, "written by": ", ".join(filter(None, [f"krishiv_py {__version__}", engine]))}


def unnumbered(data: bytes) -> dict[str, Any] | None:
    """Return the plan note of a version that knew neither formats nor checksums; None if this is none."""
    try:
        note = json.loads(data)
    except ValueError:
        return None
    return note if isinstance(note, dict) and {"plan", "buckets"} <= note.keys() else None


def check_format(note: dict[str, Any], checkpoint: str) -> None:
    """See that this version of the library can read a checkpoint, by its plan note.

    Raises
    ------
    CheckpointError
        When it has another format, or none; names it, and which version wrote it if that is known.
    """
    number = note.get("format")
    if number == FORMAT:
        return
    got = "none, from before formats had numbers" if number is None else f"format {number!r}"
    by = f", written by {note['written by']}" if "written by" in note else ""
    hint = "go on with the version that wrote it, or start with a new checkpoint and output folder"
    if isinstance(number, int) and 0 < number < FORMAT:
        hint = (
            f"write a savepoint with the version that wrote it, krishiv savepoint {checkpoint} FOLDER, and start this version "
            "with savepoint=FOLDER and a new checkpoint"
        )
    got = f"{got}{by}; krishiv_py {__version__} reads format {FORMAT}"
    raise CheckpointError(f"the checkpoint {checkpoint} has a format this version cannot read", got=got, hint=hint)


_PLAN: Final = "plan.json"
_METRICS: Final = "metrics.json"


@attrs.frozen
class Claim:
    """Holds what a checkpoint fixes for all runs from it.

    Attributes
    ----------
    buckets : int
        How many buckets, and so partitions, its state has.
    outputs : str
        The mark its output files carry in their names, so that only they are replaced when a batch is repeated.
    """

    buckets: int
    outputs: str


@attrs.frozen
class CheckpointNotes:
    """The folder ``<checkpoint>/krishiv``.

    Attributes
    ----------
    checkpoint : str
        The query's checkpoint.
    durable : bool
        Whether what is noted must survive a loss of power.
    """

    checkpoint: str
    durable: bool = False

    def _place(self, name: str) -> tuple[Store, str]:
        return store_at(f"{self.checkpoint}/krishiv/{name}")

    def _write(self, name: str, value: dict[str, Any]) -> None:
        store, path = self._place(name)
        store.write(path, sealed(json.dumps(value, indent=1).encode()), durable=self.durable)

    def plan(self) -> dict[str, Any] | None:
        """Return the note of the plan it belongs to; None before a query has begun from it.

        Raises
        ------
        CheckpointError
            When it is of another format than this version reads, damaged or missing.
        """
        store, path = self._place(_PLAN)
        data = store.read(path)
        if data is None:
            if batches_of(self.checkpoint):
                raise missing(path, NEW_CHECKPOINT)
            return None
        stored: dict[str, Any] = unnumbered(data) or json.loads(unsealed(data, path, NEW_CHECKPOINT))
        check_format(stored, self.checkpoint)
        return stored

    def claim(self, plan: PhysicalPlan, buckets: int, engine: str = "") -> Claim:
        """Take the checkpoint for a plan; the note says which `engine` wrote it first.

        Raises
        ------
        CheckpointError
            When it belongs to a plan whose state this one cannot follow, naming what changed; when its note of the plan is
            of another format, damaged or missing.
        """
        stored = self.plan()
        if stored is None:
            claim = Claim(buckets, uuid.uuid4().hex[:8])
            self._write(
                _PLAN, {**format_note(engine), "plan": plan.fingerprint, **attrs.asdict(claim), "outline": outline_of(plan)}
            )
            return claim
        changed = differences(stored["plan"], plan.fingerprint)
        if changed:
            hint = f"use a new checkpoint folder instead of {self.checkpoint}"
            raise CheckpointError("the checkpoint belongs to another plan", got="; ".join(changed), hint=hint)
        if stored.get("outline") != (outline := outline_of(plan)):
            self._write(_PLAN, {**stored, "outline": outline})
        return Claim(stored["buckets"], stored["outputs"])

    def begin(self, note: dict[str, Any], buckets: int, engine: str) -> None:
        """Write the plan note of another checkpoint, whose query goes on from this one."""
        self._write(_PLAN, {**note, **format_note(engine), "buckets": buckets})

    def change(self, note: dict[str, Any]) -> None:
        """Write the plan note again, in one step."""
        self._write(_PLAN, note)

    def check(self, plan: PhysicalPlan) -> None:
        """See that the state of a query of this plan is here to be read.

        Raises
        ------
        CheckpointError
            When there is none, or it belongs to another plan; names what differs.
        """
        stored = self.plan()
        if stored is None:
            hint = "pass the folder of start(..., checkpoint=...); without one, state goes when the query is stopped"
            raise CheckpointError("no query has kept its state here", got=self.checkpoint, hint=hint)
        changed = differences(stored["plan"], plan.fingerprint)
        if changed:
            hint = f"pass the stream whose query was started with {self.checkpoint}"
            raise CheckpointError("the state is of another plan", got="; ".join(changed), hint=hint)

    def has_tables(self) -> bool:
        """Return whether a note of the tables of lookup joins was written: it is lost if it is not there."""
        return "tables" in (self.plan() or {})

    def note_tables(self) -> None:
        """Write down that there is a note of the tables of lookup joins."""
        stored = self.plan()
        if stored is not None and "tables" not in stored:
            self._write(_PLAN, {**stored, "tables": "noted"})

    def metrics(self) -> dict[str, Any]:
        """Return the last metrics by bucket; with a warning none, if they are damaged: every bucket tells its own again."""
        store, path = self._place(_METRICS)
        data = store.read(path)
        if data is None:
            return {}
        try:
            metrics: dict[str, Any] = json.loads(unsealed(data, path, ""))
            return metrics
        except CheckpointError:
            warnings.warn(
                f"the counters noted in {self.checkpoint}/krishiv/{_METRICS} are damaged and left aside: results are right, "
                "and counters are kept with the state too. Hint: they are whole again once every bucket has had a row",
                RuntimeWarning,
                stacklevel=2,
            )
            return {}

    def keep_metrics(self, metrics: dict[str, Any]) -> None:
        """Write the metrics by bucket. They are for people, so they need not survive a loss of power."""
        store, path = self._place(_METRICS)
        store.write(path, sealed(json.dumps(metrics, indent=1).encode()))
