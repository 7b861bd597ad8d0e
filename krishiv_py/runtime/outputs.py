"""Outputs of a query: the files that tasks write for them, and whose a folder or a sink is.

The driver publishes them once all tasks are done (krishiv_py/connectors/publish.py). Spark marks the batch as done only after
that, so a crash at any moment leads to the same batch being run, and its files replaced, again.
"""

from __future__ import annotations

import json
import os
import shlex
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

import attrs
import pyarrow as pa
from typing_extensions import TypedDict

from krishiv_py.api.query import QueryStatus
from krishiv_py.connectors.publish import STAGING, check_sink, writable, write_staged
from krishiv_py.connectors.sink import FileSink, FolderSink, OutputName, Sink
from krishiv_py.connectors.sinks.known import ReadableSink, described, side_output
from krishiv_py.connectors.tables.delta.place import write_file
from krishiv_py.connectors.tables.delta.sink import DeltaSink
from krishiv_py.errors import CheckpointError, PlanError, users_line
from krishiv_py.kernels.prepare import late_output_schema
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.places import LATE, RESULTS, place_of
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, CheckpointOrigin, moved_to
from krishiv_py.runtime.checkpoint.sparklog import batches_of, planned
from krishiv_py.runtime.clocks import planned_us
from krishiv_py.storage.checksums import sealed
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.local import absolute
from krishiv_py.storage.store import Stores

_NOTES: Final = "_krishiv_outputs"
_NOTE: Final = ".json"
_WAY_OUT: Final = "remove it: the query that wrote it makes it again"
Written: TypeAlias = dict[str, Any]
_PEOPLE: Final[dict[OutputName, str]] = {"results": RESULTS, "late_rows": LATE}


class _OutputNote(TypedDict):
    """The owner of the files of an output: its rows, and its checkpoint."""

    rows: str
    checkpoint: str | None


def claim_folder(sink: FolderSink, rows: str, mark: str, checkpoint: str | None) -> None:
    """Note next to the files of an output whose they are: which `rows`, and by which checkpoint (None for a bounded run).

    Raises
    ------
    PlanError
        Where the folder holds rows of another kind.
    CheckpointError
        When the checkpoint is a copy of one that is still there: they would replace each other's files.
    """
    folder = absolute(sink.path)
    store, root = store_at(folder)
    notes = f"{root}/{_NOTES}"
    if checkpoint is not None and is_local_path(checkpoint):
        checkpoint = os.path.realpath(store_at(checkpoint)[1])
    with writable(folder):
        there = store.entries(notes)
    for entry in there:
        if not entry.base_name.endswith(_NOTE):
            continue
        note = store.read_note(entry.path, _OutputNote, _WAY_OUT)
        if note is None:  # its query has just removed it
            continue
        if note["rows"] != rows:
            then = "whoever reads the folder would take the one for the other"
            hint = f"use another folder, or remove {notes} with all that is in {folder}"
            raise PlanError(f"{folder} holds the {note['rows']} of another query", got=f"{rows} for it", then=then, hint=hint)
        other = note["checkpoint"]
        if entry.base_name == f"{mark}{_NOTE}" and checkpoint is not None and _is_copy(other, checkpoint):
            raise CheckpointError(
                "the checkpoint is a copy of another one that is still there",
                got=f"{checkpoint}, of {other}",
                then=f"both would replace each other's files in {folder}",
                hint=f"give the copy another output folder, or remove {other} if it was moved",
            )
    with writable(folder):
        store.write_note(f"{notes}/{mark}{_NOTE}", {"rows": rows, "checkpoint": checkpoint})
        if store.needs_folders:
            store.add_folder(f"{root}/{STAGING}")  # no batch makes it, so that none is written below the place of a mount


def _is_copy(other: str | None, checkpoint: str) -> bool:
    if other is None or place_of(other) == place_of(checkpoint) or moved_to(other) is not None or _goes_on(other, checkpoint):
        return False
    store, root = store_at(other)
    return store.is_file(f"{root}/krishiv/plan.json")


def _goes_on(other: str, checkpoint: str) -> bool:
    """Return whether a checkpoint began from a savepoint of another one, whose query has run no batch since."""
    begun = (CheckpointNotes(checkpoint).plan() or {}).get("begun from", {})
    if begun.get("checkpoint") is None or place_of(begun["checkpoint"]) != place_of(other):
        return False
    return CheckpointOrigin.of(other).batches + max(batches_of(other), default=-1) + 1 == int(begun["batches"])


@attrs.frozen
class TaskOutput:
    """Says where tasks write: folder and sink by kind of row (``result``, ``late``); kinds without one go to the driver.

    `checkpoint` is that of the query, by which tasks know the number of the batch.
    """

    sinks: dict[str, tuple[str, FileSink]]
    mark: str
    durable: bool = False
    checkpoint: str = ""
    first: int = 0
    """The number that batch 0 has for sinks."""
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def write(self, kind: str, bucket: int, table: pa.Table, batch_id: int) -> Written | None:
        """Write one table of a micro-batch; returns what the driver must publish, or None when this kind has no folder."""
        if kind not in self.sinks:
            return None
        folder, sink = self.sinks[kind]
        table = sink.in_batch(table, self.first + batch_id, lambda: planned_us(planned(self.checkpoint, batch_id)))
        names = write_staged(sink, folder, self.mark, self.first + batch_id, bucket, table, durable=self.durable, claimed=True)
        return {"kind": kind, "names": names, "rows": table.num_rows}


def late_sinks(plan: PhysicalPlan) -> list[Sink | None]:
    """Return where the late rows of each stage go, if they go to a sink."""
    return [side_output(stage.late) for stage in plan.stages]


def check_outputs(plan: PhysicalPlan, sinks: tuple[Sink, ...]) -> None:
    """Let each sink refuse what it cannot take, and refuse keys that do not fit the results."""
    if sinks:
        check_keys(plan, sinks)
    for output, sink in zip(plan.outputs, sinks, strict=bool(sinks)):
        check_sink(sink, "results", output.schema)
    for stage, late in zip(plan.stages, late_sinks(plan), strict=True):
        if late is not None:
            check_sink(late, "late_rows", late_output_schema(stage.layout))


def described_outputs(plan: PhysicalPlan, sinks: tuple[Sink, ...]) -> str:
    """One line for ``explain()`` of a running query."""
    several = len(plan.stages) > 1
    aside = "".join(
        f"; late rows{f' of {stage.spec.name}' if several else ''} to {described(late)}"
        for stage, late in zip(plan.stages, late_sinks(plan), strict=True)
        if late is not None
    )
    results = "; ".join(f"{o.name} to {described(sink)}" for o, sink in zip(plan.outputs, sinks, strict=True))
    return f"outputs: {results}{aside}"


def claim_outputs(plan: PhysicalPlan, sinks: tuple[Sink, ...], mark: str, notes: CheckpointNotes) -> None:
    """Note next to files of which query they are, and in its checkpoint which folders it has taken."""
    named: list[tuple[OutputName, Sink | None]] = [("results", sink) for sink in sinks]
    named += [("late_rows", late) for late in late_sinks(plan)]
    named = [(name, None if output is None else output._storage_sink) for name, output in named]
    for name, output in named:
        if isinstance(output, FolderSink):
            claim_folder(output, _PEOPLE[name], mark, notes.checkpoint)
        elif isinstance(output, DeltaSink):
            _claim_table(output, _PEOPLE[name], mark, notes.checkpoint)
    notes.note_folders([absolute(output.path) for _, output in named if _has_folder(output)])


def _claim_table(sink: DeltaSink, rows: str, mark: str, checkpoint: str | None) -> None:
    """Note in the folder of a table, before its first commit too, that a query writes there; its own log says the rest."""
    name, note = f"{_NOTES}/{mark}{_NOTE}", {"rows": rows, "checkpoint": checkpoint}
    if not is_local_path(sink.path):
        write_file(sink.path, sink.storage_options, name, sealed(json.dumps(note).encode()))
        return
    store, root = store_at(absolute(sink.path))
    with writable(root):
        store.write_note(f"{root}/{name}", note)
    sink._held.note = f"{root}/{name}"


def _has_folder(sink: Sink | None) -> TypeGuard[FolderSink | DeltaSink]:
    """Return whether a sink writes into a folder that its query takes, and misses when it is away."""
    return isinstance(sink, FolderSink) or (isinstance(sink, DeltaSink) and is_local_path(sink.path))


def check_there(checkpoint: str, outputs: Iterable[Sink | None], *, is_new: bool = False) -> None:
    """See that a query finds what it left, before anything is made: where a mount is missing, its place is an empty folder.

    Parameters
    ----------
    checkpoint : str
        The checkpoint of the query.
    outputs : iterable of Sink or None
        Where its results and late rows go.
    is_new : bool
        Whether a checkpoint that is not there is made of a savepoint.

    Raises
    ------
    CheckpointError
        When an output folder is gone that the query of the checkpoint has taken, or the checkpoint of an output folder.
    """
    taken = [sink for output in outputs if output is not None and _has_folder(sink := output._storage_sink)]
    if not taken:
        return
    notes = CheckpointNotes(checkpoint)
    if notes.plan() is None:
        for sink in () if is_new else taken:
            if isinstance(sink, FolderSink):
                _check_not_lost(checkpoint, absolute(sink.path), "another output folder, or remove those files with")
            elif not sink.key:  # with one, results take the place of those that are there
                _check_not_lost(checkpoint, absolute(sink.path), "another table, or, to have rows twice, remove")
        return
    before = notes.folders()
    for folder in (absolute(sink.path) for sink in taken):
        store, root = store_at(folder)
        if folder in before and store.local and _is_gone(root):
            made = shlex.quote(f"{root}/{_NOTES}")
            raise CheckpointError(
                f"the output folder {folder} is gone",
                got=f"no {_NOTES} in it, which the query of the checkpoint {checkpoint} has made",
                then="results would be written below the place of a mount, and hidden when that is back",
                hint=f"mount it or put it back; if it was removed on purpose, write `mkdir -p {made}`",
                transient=True,
            )


def _is_gone(folder: str) -> bool:
    """Return whether a folder lacks the mark of its query; where it is a file, or closed to this user, its sink says so."""
    try:
        os.stat(f"{folder}/{_NOTES}")
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _check_not_lost(checkpoint: str, folder: str, instead: str) -> None:
    """See that no query has written into an output folder whose checkpoint was at the place of this new one."""
    store, root = store_at(folder)
    try:
        entries = [*store.entries(f"{root}/{_NOTES}")]
    except PermissionError:  # its sink says so
        return
    for entry in entries:
        note = store.read_note(entry.path, _OutputNote, _WAY_OUT) if entry.base_name.endswith(_NOTE) else None
        if note is not None and note["checkpoint"] is not None and place_of(note["checkpoint"]) == place_of(checkpoint):
            raise CheckpointError(
                f"the checkpoint {checkpoint} is gone",
                got=f"{folder} has files of its query",
                then="the query would begin again, and write its results a second time",
                hint=f"mount it or put it back; if it was removed on purpose, use {instead} {entry.path}",
                transient=True if is_local_path(checkpoint) else None,
            )


_HINT: Final = "pass a new {}() to each query"


class _HasStatus(Protocol):
    """A query that says whether it runs."""

    @property
    def status(self) -> QueryStatus:
        """Return it."""


@attrs.define(eq=False)
class Owner:
    """A query that writes into exclusive sinks: its name, the mark of its checkpoint, and whether it runs still."""

    query: str
    mark: str
    running: Callable[[], bool] = lambda: True

    def of(self, query: _HasStatus) -> None:
        """Ask its `query` from now on, which lives no longer for that."""
        there = weakref.ref(query)
        self.running = lambda: (one := there()) is not None and one.status == "running"


_owners: Final[dict[int, Owner]] = {}
"""By identity of the sink, for its class may compare by value; an entry goes with its sink."""
_taking: Final = threading.Lock()


def check_free(sink: Sink | None) -> None:
    """Refuse an exclusive sink that a running query writes into.

    Raises
    ------
    PlanError
        Naming that query.
    """
    owner = _owners.get(id(sink)) if sink is not None and sink.exclusive else None
    if sink is not None and owner is not None and owner.running():
        then = "batches of the same number would replace each other's rows"
        hint = f"{_HINT.format(sink.title)}, or stop that one first: Session.all_queries() has it"
        raise PlanError(f"the {sink.title} is taken by a running query", got=f"query {owner.query!r}", then=then, hint=hint)


def take_sinks(owner: Owner, *sinks: Sink | None) -> None:
    """Let a query that begins own its exclusive sinks.

    It warns where one holds rows of another checkpoint's query, which has ended; a restarted query goes on with its own.

    Raises
    ------
    PlanError
        Where another query that runs owns one.
    """
    with _taking:
        for sink in sinks:
            check_free(sink)
        for sink in sinks:
            if sink is not None and sink.exclusive:
                before = _owners.get(id(sink))
                if before is not None and before.mark != owner.mark and _holds_rows(sink):
                    warnings.warn(
                        f"the {sink.title} of query {owner.query!r} holds rows of query {before.query!r}, which has ended: "
                        f"batches of the same number replace them. Hint: {_HINT.format(sink.title)}",
                        RuntimeWarning,
                        stacklevel=users_line(),
                    )
                if before is None:
                    weakref.finalize(sink, _owners.pop, id(sink), None)
                _owners[id(sink)] = owner


def pass_on(mark: str, to: str) -> None:
    """Let the query of a checkpoint have the sinks of another one's, which has ended: its batches have other numbers."""
    with _taking:
        for owner in _owners.values():
            if owner.mark == mark:
                owner.mark = to


def _holds_rows(sink: Sink) -> bool:
    return isinstance(sink, ReadableSink) and sink.table() is not None
