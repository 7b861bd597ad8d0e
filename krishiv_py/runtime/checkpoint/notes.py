"""Define what the library keeps next to Spark's own checkpoint: its format, the plan it belongs to, and counters by bucket.

It also keeps the past of a checkpoint: the savepoint that it began from, and where its query went on, so that no two go on from
one state. Spark numbers micro-batches from 0 and its state store begins empty. So micro-batch 0 reads no rows; it wakes all
buckets, and each takes what the savepoint in ``<checkpoint>/krishiv/savepoint`` has of it. Sinks are given numbers that go on.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import uuid
import warnings
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.errors import CheckpointError, KrishivError, failure_text, shown
from krishiv_py.plan.durations import UNSET
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.fingerprint import differences
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.sparklog import PROCESS_STATE, batches_of, numbered
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import missing, sealed
from krishiv_py.storage.files import read_at, store_at, write_at
from krishiv_py.storage.notes import in_shape, note_in, of_types, reading
from krishiv_py.storage.store import Store
from krishiv_py.version import __version__

FORMAT: Final = 2
"""Of the plan note, the ledger, the chunks of state and the names they have; raised when earlier versions cannot read it.

Format 2 keeps the newest event time of each source, where format 1 has its watermark.
"""
OLDEST: Final = 1
"""The oldest format that this version reads; a query that goes on from it writes the newest."""


def format_note(engine: str) -> dict[str, Any]:
    """Return what a plan note says of the format and of who wrote it: this version of the library, on an `engine`."""
    return {"format": FORMAT, "written by": ", ".join(filter(None, [f"krishiv_py {__version__}", engine]))}


def unnumbered(data: bytes) -> dict[str, Any] | None:
    """Return the plan note of a version that knew neither formats nor checksums; None if this is none."""
    try:
        note = json.loads(data)
    except (ValueError, RecursionError):
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
    if isinstance(number, int) and OLDEST <= number <= FORMAT:
        return
    got = "none, from before formats had numbers" if number is None else f"format {number!r}"
    by = f", written by {note['written by']}" if "written by" in note else ""
    hint = "go on with the version that wrote it, or start with a new checkpoint and output folder"
    if isinstance(number, int) and 0 < number < OLDEST:
        command = f"`krishiv savepoint {shlex.quote(checkpoint)} FOLDER`"
        hint = (
            f"write a savepoint with the version that wrote it, {command}, and start this version with savepoint=FOLDER and a "
            "new checkpoint"
        )
    got = f"{got}{by}; krishiv_py {__version__} reads formats {OLDEST} to {FORMAT}"
    raise CheckpointError(f"the checkpoint {checkpoint} has a format this version cannot read", got=got, hint=hint)


class _Aggregate(TypedDict):
    """An aggregate of a stage: its name and call, and the types of its partials."""

    name: str
    call: str
    parts: list[str]


StageShape = TypedDict(
    "StageShape",
    {
        "named": NotRequired[bool],
        "fixed": dict[str, str],
        "aggregates": list[_Aggregate],
        "inputs": list[str],
        "input types": NotRequired[list[str]],
        "own": list[str],
        "own types": NotRequired[list[str]],
        "keys": NotRequired[list[list[str]]],
        "carried": NotRequired[list[str]],
        "row": list[str],
        "lateness_us": int,
        "left_us": int,
        "emit": str,
        "ttl": "str | None",
        "late rule": NotRequired[str],
        "lag_us": NotRequired[int],
        "wholes": NotRequired[list[list[Any]]],
        "blind_us": NotRequired[int],
        "early_us": NotRequired[int],
        "given_us": NotRequired[int],
    },
)
"""The facts that decide how the state of a stage is read (:func:`krishiv_py.planner.explain.shape_of`).

Earlier versions note less.
"""


class _Stage(TypedDict):
    """A stage in an outline."""

    name: str
    keys: int
    state: bool
    times: list[list[int]]
    floor_us: NotRequired[int]
    columns: NotRequired[dict[str, str]]
    shape: NotRequired[StageShape]


class _ReadNote(TypedDict):
    """A stream that is read, in an outline."""

    name: str
    place: str
    source: str
    stage: int
    clock: int


class _ClockNote(TypedDict):
    """A clock in an outline: its stage, and how far it is behind each of its sources."""

    stage: int
    lags_us: dict[str, int]


class _Outline(TypedDict):
    """The stages and sources of a plan note (:func:`krishiv_py.planner.explain.outline_of`)."""

    stages: list[_Stage]
    sources: list[str]
    reads: NotRequired[list[_ReadNote]]
    clocks: NotRequired[list[_ClockNote]]
    last: NotRequired[int]
    tick_us: NotRequired[int]
    ledger: NotRequired[bool]


class _TrackerNote(TypedDict):
    """Facts of the sources of a clock, and its watermark (:class:`krishiv_py.kernels.watermark.WatermarkTracker`)."""

    current: int
    newest: NotRequired[dict[str, int]]
    advanced: NotRequired[dict[str, int]]
    spoke: NotRequired[dict[str, int]]
    reached: NotRequired[dict[str, int]]
    heard: NotRequired[int | None]
    ended: NotRequired[list[str]]


class ClocksNote(TypedDict):
    """The clocks of a query."""

    tracker: _TrackerNote
    others: NotRequired[list[_TrackerNote]]


class PlanNote(TypedDict):
    """The plan note."""

    plan: dict[str, str]
    buckets: int
    outputs: str
    outline: NotRequired[_Outline]
    tables: NotRequired[str]
    folders: NotRequired[list[str]]


_PLAN: Final = "krishiv/plan.json"
_METRICS: Final = "krishiv/metrics.json"


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
        return store_at(f"{self.checkpoint}/{name}")

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
        with reading(path, NEW_CHECKPOINT):
            data = store.read(path)
        if data is None:
            if batches_of(self.checkpoint) and not is_there(
                self.checkpoint, _MOVING
            ):  # else it is being made: the plan goes last
                raise missing(path, NEW_CHECKPOINT)
            return None
        stored: dict[str, Any] = unnumbered(data) or note_in(data, dict, path, NEW_CHECKPOINT)
        check_format(stored, self.checkpoint)
        with reading(path, NEW_CHECKPOINT):
            in_shape(stored, PlanNote)
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
        if (stored.get("outline"), stored["format"]) != ((outline := outline_of(plan)), FORMAT):
            self._write(_PLAN, {**stored, "outline": outline, "format": FORMAT})
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

    def folders(self) -> list[str]:
        """Return the folders that the query of this checkpoint has taken for its outputs; none of an earlier version's."""
        noted: list[str] = (self.plan() or {}).get("folders", [])
        return noted

    def note_folders(self, folders: list[str]) -> None:
        """Write down the folders that the query has taken for its outputs: one that is missing later on is away."""
        stored = self.plan()
        if stored is not None and stored.get("folders", []) != folders:
            self._write(_PLAN, {**stored, "folders": folders})

    def metrics(self) -> dict[str, Any]:
        """Return the last metrics by bucket; with a warning none, if they are damaged: every bucket tells its own again."""
        store, path = self._place(_METRICS)
        try:
            return store.read_note(path, dict[str, Any], "") or {}
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


Target: TypeAlias = Literal["spark", "in-process"]
STATE: Final = "krishiv/savepoint"
_NOTE: Final = "krishiv/begun.json"
_MOVED: Final = "krishiv/moved.json"
_MOVING: Final = "krishiv/moving.json"


@attrs.frozen
class CheckpointOrigin:
    """The past of a checkpoint, before the first micro-batch of a checkpoint.

    Attributes
    ----------
    batches : int
        How many batches were published.
    watermark_us : int
        The watermark that was in force, µs since the epoch.
    stepped_us : list of int
        The watermark of the last step of each stage, µs since the epoch; empty where an earlier version did not note it.
    """

    batches: int = 0
    watermark_us: int = UNSET
    stepped_us: list[int] = attrs.field(factory=list)

    @property
    def elsewhere(self) -> bool:
        """Return whether the query began in another checkpoint."""
        return self.batches > 0

    @classmethod
    def of(cls, checkpoint: str) -> CheckpointOrigin:
        """Return the note of a checkpoint.

        Raises
        ------
        CheckpointError
            When it is damaged, or missing while the state that it tells of is there.
        """
        path = f"{checkpoint}/{_NOTE}"
        with reading(path, NEW_CHECKPOINT):
            data = read_at(path)
            if data is not None:
                return of_types(cls, note_in(data, dict, path, NEW_CHECKPOINT))
        store, root = store_at(checkpoint)
        if store.entries(f"{root}/{STATE}"):
            raise missing(path, NEW_CHECKPOINT)
        return cls()

    def write(self, checkpoint: str) -> None:
        """Write the note."""
        write_at(f"{checkpoint}/{_NOTE}", sealed(json.dumps(attrs.asdict(self)).encode()), durable=True)


def forget_state(checkpoint: str) -> None:
    """Remove what the first micro-batch has taken over."""
    store, root = store_at(checkpoint)
    if numbered(store, f"{root}/commits") and store.exists(f"{root}/{STATE}"):
        store.delete_folder(f"{root}/{STATE}")


def begin_move(checkpoint: str) -> None:
    """Note in a folder that a checkpoint is being made there: what is not finished is not a checkpoint."""
    write_at(f"{checkpoint}/{_MOVING}", sealed(b"{}"), durable=True)


def note_moved(checkpoint: str, to: str) -> None:
    """Note in a checkpoint that its query goes on from another one, once that has its plan note."""
    write_at(f"{checkpoint}/{_MOVED}", sealed(json.dumps({"to": to}).encode()), durable=True)


def end_move(checkpoint: str) -> None:
    """Note that the checkpoint is made."""
    store, path = store_at(f"{checkpoint}/{_MOVING}")
    store.delete(path)


def moved_to(checkpoint: str) -> str | None:
    """Return where the query of a checkpoint goes on; None where it goes on here, as after a move that was broken off."""
    path = f"{checkpoint}/{_MOVED}"
    with reading(path, f"remove {path}"):
        data = read_at(path)
        to = None if data is None else note_in(data, dict[str, str], path, f"remove {path}")["to"]
    return to if to is not None and is_there(to, _PLAN) else None


def is_being_made(checkpoint: str) -> bool:
    """Return whether a move into a folder was broken off."""
    return is_there(checkpoint, _MOVING) and not is_there(checkpoint, _PLAN)


def is_free(checkpoint: str) -> bool:
    """Return whether nothing is in a folder, or only what a move left there that was broken off before its mark was written."""
    store, root = store_at(checkpoint)
    folder, name = _MOVING.split("/")
    if any(entry.base_name != folder for entry in store.entries(root)):
        return False
    return all(name in entry.base_name for entry in store.entries(f"{root}/{folder}"))


def forget_being_made(checkpoint: str) -> None:
    """Remove what is in a folder where a checkpoint was being made; the mark that says so goes last."""
    store, root = store_at(checkpoint)
    folder, name = _MOVING.split("/")
    for entry in (*store.entries(root), *store.entries(f"{root}/{folder}")):
        if entry.path == f"{root}/{folder}/{name}" or entry.path == f"{root}/{folder}":
            continue
        if entry.is_file:
            store.delete(entry.path)
        else:
            store.delete_folder(entry.path)
    store.delete(f"{root}/{folder}/{name}")
    store.delete_folder(root)


def check_goes_on(checkpoint: str) -> None:
    """See that a query can go on from a checkpoint: it was not moved to another one, and a move to it was not broken off.

    Raises
    ------
    CheckpointError
        When it was; says what to do.
    """
    to = moved_to(checkpoint)
    if to is not None:
        then = "from both, its outputs would be written twice"
        hint = f"start it with checkpoint={to!r}; to go back to the state before the move, remove {to}"
        raise CheckpointError(f"the query of {checkpoint} was moved", got=f"it goes on from {to}", then=then, hint=hint)
    if is_being_made(checkpoint):
        raise CheckpointError(
            f"the move to {checkpoint} was broken off",
            got="a checkpoint that is not finished",
            then="a part of the state would be missing",
            hint="move the checkpoint that it is made of again; until then that one is as it was",
        )


def engine_of(checkpoint: str) -> Target | None:
    """Return the engine whose query a checkpoint is of; None before a query has begun from it.

    Raises
    ------
    CheckpointError
        When it cannot be looked at.
    """
    if is_there(checkpoint, f"krishiv/{PROCESS_STATE}"):
        return "in-process"
    with looking_at(checkpoint):
        store, root = store_at(checkpoint)  # a start that was refused leaves an empty folder of state
        begun = any(is_there(checkpoint, name) for name in ("metadata", _NOTE)) or store.entries(f"{root}/state")
    return "spark" if begun else None


@contextlib.contextmanager
def looking_at(checkpoint: str) -> Iterator[None]:
    """Raise errors of the file system as ours.

    Raises
    ------
    CheckpointError
        When the folder cannot be looked at.
    """
    try:
        yield
    except KrishivError:
        raise
    except (OSError, ValueError, pa.ArrowException) as problem:
        raise CheckpointError(
            f"the folder {shown(checkpoint)} cannot be looked at",
            got=failure_text(problem),
            then="it is not known whether a query or savepoint is there",
            hint="pass the folder of a checkpoint or savepoint, from a machine that reaches it",
        ) from problem


def check_engine(checkpoint: str, here: Target) -> None:
    """See that no query of another engine than the one `here` began from a checkpoint.

    Raises
    ------
    CheckpointError
        When one did.
    """
    if engine_of(checkpoint) in (None, here):
        return
    if here == "spark":
        owner, got, then = "that runs in process", "a session on Spark", "its state is not in Spark's state store"
        way, own = "on Spark", "Session.in_process()"
    else:
        owner, got, then = "on Spark", "Session.in_process()", "its state is in Spark's state store"
        way, own = "in process", "Session.embedded()"
    hint = f"let it go on {way}: `krishiv move {shlex.quote(checkpoint)} --to {here}`; or start it with {own}"
    raise CheckpointError(f"the checkpoint {checkpoint} belongs to a query {owner}", got=got, then=then, hint=hint)


def is_there(folder: str, name: str) -> bool:
    """Return whether a folder has a file.

    Raises
    ------
    CheckpointError
        As :func:`looking_at`.
    """
    with looking_at(folder):
        store, path = store_at(f"{folder}/{name}")
        return store.exists(path)
