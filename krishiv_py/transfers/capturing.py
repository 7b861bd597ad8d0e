"""Makes a capture of a checkpoint of any engine: the state before some batches, and the rows that they read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import CheckpointError, KrishivError, PlanError
from krishiv_py.in_process.checkpoint import StateLog
from krishiv_py.in_process.savepoints import save
from krishiv_py.in_process.sources import in_process
from krishiv_py.plan.expressions.expr import Col, columns_of
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.history import names_of
from krishiv_py.planner.lineage import needed
from krishiv_py.planner.physical import PhysicalPlan, SourceRead, lookup_tables, lookups, table_names
from krishiv_py.runtime.beginning import with_carried
from krishiv_py.runtime.capture import (
    CapturedBatch,
    FileNote,
    HiddenColumns,
    OpenCapture,
    begin_capture,
    write_read,
    write_table,
)
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, CheckpointOrigin, engine_of
from krishiv_py.runtime.checkpoint.sparklog import PROCESS_STATE, entries_of, last_finished, numbered, offsets_of, planned
from krishiv_py.runtime.closings import closed_in
from krishiv_py.runtime.ranges.log import RangeLog, RangeReader
from krishiv_py.runtime.ranges.sent import scanned_of
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.runtime.savepoints import Savepoint
from krishiv_py.runtime.session import SessionRunner
from krishiv_py.runtime.tables import read_version, versions_at
from krishiv_py.storage.files import read_at, store_at, write_at
from krishiv_py.storage.local import absolute
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.types import type_text

_WAY_OUT: Final = (
    "start the query with keep_batches=50 and capture once it has run, or write a savepoint now (session.savepoint, or "
    "query.savepoint) and capture later with savepoint=..."
)
_ATTEMPTS: Final = 10
"""The number of times that is tried what a query that runs has removed meanwhile."""


@attrs.frozen
class CaptureOptions:
    """Says what is captured.

    Attributes
    ----------
    last : int or None
        The last so many batches; None for all that are still known.
    savepoint : str or None
        The batches after this savepoint.
    leave_out, hashes : tuple of str
        Columns of sources that are null, or hashed.
    """

    last: int | None = None
    savepoint: str | None = None
    leave_out: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()


SaveState: TypeAlias = Callable[[str, str, int], Savepoint]


def capture(runner: SessionRunner[Any], plan: PhysicalPlan, checkpoint: str, path: str, wanted: CaptureOptions) -> str:
    """Write a capture of a checkpoint, whose query may run; gives its folder.

    Parameters
    ----------
    runner : SessionRunner
        What runs the session; it reads the state of its engine.
    plan : PhysicalPlan
        The plan of its query, which says how sources are read.
    checkpoint : str
        The checkpoint.
    path : str
        A new folder.
    wanted : CaptureOptions
        What is captured.

    Raises
    ------
    CheckpointError
        When no query has begun there, it has another plan, or state or inputs are gone.
    PlanError
        For columns that cannot be hidden.
    """
    runner._alive("capture()")
    home = absolute(checkpoint).rstrip("/")
    runner.check_reachable([home, absolute(path)])
    plan = with_carried(plan if runner.engine is None else attrs.evolve(plan, engine=runner.engine), home)
    with runner.as_own("session.capture()"):
        return _tried(plan, home, path, wanted, runner.save_for_spark if engine_of(home) == "spark" else None)


def _tried(plan: PhysicalPlan, checkpoint: str, path: str, wanted: CaptureOptions, on_spark: SaveState | None) -> str:
    """Write a capture, again where the query removes meanwhile what is read; `on_spark` saves the state of Spark's."""
    notes = CheckpointNotes(checkpoint)
    notes.check(plan)
    note, store = notes.plan() or {}, store_at(checkpoint)
    begun = CheckpointOrigin.of(checkpoint).batches if engine_of(checkpoint) == "spark" else 0
    for attempt in range(_ATTEMPTS):
        done = last_finished(*store)
        finished = [number for number in numbered(store[0], f"{store[1]}/offsets") if number <= done]
        if not finished:
            raise CheckpointError("the query has finished no batch", got=checkpoint, hint="capture it once it has")
        try:
            return _written(plan, checkpoint, path, wanted, on_spark, finished, begun, "begun from" in note or begun > 0)
        except CheckpointError:
            if attempt == _ATTEMPTS - 1 or last_finished(*store) == done:
                raise
    raise AssertionError("unreachable")


def _written(
    plan: PhysicalPlan,
    checkpoint: str,
    path: str,
    wanted: CaptureOptions,
    on_spark: SaveState | None,
    finished: list[int],
    begun: int,
    has_past: bool,
) -> str:
    """Write a capture of `finished` batches; gives its folder. See :func:`capture`."""
    states = StateLog(f"{checkpoint}/krishiv/{PROCESS_STATE}").whole() if on_spark is None else finished
    first, begins = _first(finished, wanted, begun, has_past, states)
    hide = HiddenColumns(frozenset(wanted.leave_out), frozenset(wanted.hashes), os.urandom(16))
    _check_hidden(plan, hide, begins)
    folder = begin_capture(path, checkpoint)
    if wanted.savepoint is not None:
        _copy(absolute(wanted.savepoint).rstrip("/"), f"{folder}/savepoint")
    elif not begins:
        save_state = on_spark or (lambda checkpoint, folder, after: save(checkpoint, folder, after=after))
        save_state(checkpoint, f"{folder}/savepoint", first - 1)
    batches = [_captured(plan, checkpoint, number, number + begun, folder, hide) for number in finished if number >= first]
    tables = _tables(plan, checkpoint, begun, batches, folder, hide)
    hidden = dict.fromkeys(wanted.leave_out, "left out") | dict.fromkeys(wanted.hashes, "hashed")
    sources = [names_of(read) for read in plan.reads]
    OpenCapture(folder, plan.fingerprint, sources, batches, hidden, begins, checkpoint, tables).close()
    return folder


def _tables(
    plan: PhysicalPlan, checkpoint: str, begun: int, batches: list[CapturedBatch], folder: str, hide: HiddenColumns
) -> dict[str, FileNote]:
    """Write the versions of lookup tables that batches had, and note with each batch which it had; gives the notes of files.

    Raises
    ------
    CheckpointError
        For a version that is not kept.
    """
    names, written, files = table_names(lookup_tables(plan)), dict[str, FileNote](), dict[str, str]()
    for batch in batches if names else ():
        for name, entry in zip(names, versions_at(checkpoint, batch.number - begun), strict=True):
            if entry is None:
                raise CheckpointError(
                    f"the lookup table {name!r} has changed since batch {batch.number}",
                    got="its version of that time is not in the checkpoint",
                    then="a capture would give other results",
                    hint="capture fewer batches with last=..., or start the query with keep_batches=50 from now on",
                )
            if entry["file"] not in files:
                file = files[entry["file"]] = f"{len(files)}.arrow"
                written[file] = write_table(folder, file, read_version(checkpoint, entry), hide)
            batch.tables[name] = files[entry["file"]]
    return written


def _first(finished: list[int], wanted: CaptureOptions, begun: int, has_past: bool, states: list[int]) -> tuple[int, bool]:
    """Return the first batch of a capture, and whether the query begins with it; `states` are batches whose state is kept.

    Raises
    ------
    CheckpointError
        When the state before it, or what it read, is not kept.
    """
    whole = not has_past and finished[0] == 0
    if wanted.savepoint is not None:
        first = Savepoint.open(absolute(wanted.savepoint).rstrip("/")).batches - begun
        if first < finished[0] or first > finished[-1] + 1:
            got = f"it ends before batch {first}, and batches {finished[0]} to {finished[-1]} are known"
            raise CheckpointError("the batches after this savepoint are not known", got=got, hint=_WAY_OUT)
        return first, False
    wanted_first = finished[0] if wanted.last is None else max(finished[0], finished[-1] + 1 - wanted.last)
    possible = [number + 1 for number in states if number in finished and wanted_first <= number + 1 <= finished[-1]]
    if whole and (wanted_first == 0 or possible[:1] != [wanted_first]):
        return 0, True
    if possible:
        return possible[0], False
    got = f"batches {finished[0]} to {finished[-1]} are known, and of their states those after {_listed(states)}"
    raise CheckpointError("the state before these batches is not kept", got=got, hint=_WAY_OUT)


def _listed(states: list[int]) -> str:
    return ", ".join(map(str, states[-3:])) or "none"


def _captured(plan: PhysicalPlan, checkpoint: str, number: int, named: int, folder: str, hide: HiddenColumns) -> CapturedBatch:
    store, root = store_at(checkpoint)
    taken = offsets_of(store, f"{root}/offsets/{number}")
    earlier = f"{root}/offsets/{number - 1}"
    last = offsets_of(store, earlier) if number and store.exists(earlier) else {}
    head = planned(checkpoint, number)
    ours = head.get("krishiv")
    now_us = int(head["batchTimestampMs"]) * 1_000 if ours is None else int(ours["now_us"])
    reads, partitions = {}, dict[str, list[str]]()
    for source, read in enumerate(plan.reads):
        if source in plan.in_lanes and taken.get(source, -1) >= 0:
            partitions[str(source)] = _partitions(read, source, checkpoint, taken[source])
        entries = range(last.get(source, -1) + 1, taken.get(source, -1) + 1)
        try:
            rows = [one for entry in entries for one in _read(read, source, checkpoint, entry)]
        except (KrishivError, OSError, pa.ArrowException) as problem:
            raise CheckpointError(
                f"what batch {named} read of {names_of(read)[0]!r} is gone",
                got=f"{type(problem).__name__}: {getattr(problem, 'what', '') or 'it cannot be read'}",
                then="a capture would lack rows",
                hint="capture fewer batches with last=..., and keep files and topics for as long as you may want to look back",
            ) from problem
        if rows:
            reads[str(source)] = write_read(folder, named, source, rows, hide)
    flags = ours or {"ended": False, "snapshot": False}
    closed = closed_in(checkpoint, number)
    hidden = [key for stage in closed for key in plan.stages[int(stage)].spec.keys if key in hide.hashed]
    if hidden:
        what = "a key that is to be hashed was closed in these batches"
        hint = "capture the batches after that one, or do not hash this column"
        raise PlanError(what, got=f"{hidden[0]!r} in batch {named}", then="the capture would hold the key as it is", hint=hint)
    return CapturedBatch(
        named, now_us, ours is not None, flags["ended"], flags["snapshot"], reads, closed, partitions=partitions
    )


def _partitions(read: SourceRead, source: int, checkpoint: str, entry: int) -> list[str]:
    """Return the partitions that a source knew of with an entry of its log."""
    log = RangeLog(f"{checkpoint}/krishiv/ranges/{source}", durable=False)
    log.look_back()
    position = log.position_of(entry) if read.source.partitioned and entry in log.numbers() else None
    node = in_process(read.source, checkpoint, source)
    return [] if position is None else list(node.source.partitions_at(json.loads(position)))


def _read(read: SourceRead, source: int, checkpoint: str, entry: int) -> Iterator[ScannedRows]:
    """Yield what an entry of the log of a source gives, with all columns."""
    schema = read.source.schema
    log = RangeLog(f"{checkpoint}/krishiv/ranges/{source}", durable=False)
    log.look_back()
    if isinstance(read.source, MemorySource) and not log.numbers():  # Spark itself reads the sends
        sends = ReplayLog(read.source.spool)
        for path, entries in entries_of(*store_at(checkpoint)):
            if int(path.rsplit("/", 2)[-2]) == source:
                for each in entries:
                    if int(each["batchId"]) == entry:
                        send = sends.read(int(each["path"].rpartition("/")[2][:12]))
                        if send is not None:
                            yield from scanned_of(send, schema)
        return
    if entry not in log.numbers():
        raise CheckpointError("the log of this source does not go back so far", got=f"entry {entry}", hint=_WAY_OUT)
    node = in_process(read.source, checkpoint, source)
    ranges, control = log.entry(entry)
    if control is not None:
        yield ScannedRows(None, control, control.now_us)
    yield from RangeReader(schema, node.source, node.name, 1).rows_of(ranges)


_BY_EQUALITY: Final = ("IDENTITY", "GROUP_BY", "JOIN")
"""The ways in which a hashed column may go into results: equal values have equal hashes, and nothing else is known of them."""


def _check_hidden(plan: PhysicalPlan, hide: HiddenColumns, begins: bool) -> None:
    """See that results do not need what is left out, and that state does not hold what is hidden.

    Raises
    ------
    PlanError
        Naming the column.
    """
    names = {name for read in plan.reads for name in read.source.schema.names}
    for name in sorted(hide.left_out | hide.hashed):
        if name not in names:
            hint = f"the columns are {', '.join(sorted(names))}"
            raise PlanError("a source has no such column", got=repr(name), hint=hint)
    for read in plan.reads:
        for name in hide.hashed & set(read.source.schema.names):
            type_ = read.source.schema.field(name).type
            if not (pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_int64(type_)):
                hint = "leave it out instead, or cast it to string before"
                raise PlanError("a column of this type cannot be hashed", got=f"{name}: {type_text(type_)}", hint=hint)
    for lookup in lookups(plan):
        for ours, theirs in lookup.keys:
            same = isinstance(ours, Col) and isinstance(theirs, Col) and ours.name == theirs.name
            if columns_of(ours) & hide.hashed and not same:
                hint = "let the column of the table have the name of the stream's, or do not hash it"
                got = ", ".join(sorted(columns_of(ours) & hide.hashed))
                raise PlanError("rows are looked up by a column that is to be hashed", got=got, hint=hint)
    origins = needed(plan)
    for name in sorted(hide.left_out & {origin.column for origin in origins}):
        hint = "hash a key, and keep what results are computed of"
        raise PlanError("results need a column that is to be left out", got=repr(name), hint=hint)
    computed = {origin.column: origin.how for origin in origins if origin.how not in _BY_EQUALITY}
    for name in sorted(hide.hashed & computed.keys()):
        raise PlanError(
            "results are computed of a column that is to be hashed",
            got=f"{name!r}, which goes into them as {computed[name]}",
            then="the capture would give other results",
            hint="hash keys and columns that results show as they are; keep what filters, functions and aggregates read",
        )
    held = [] if begins else [json.dumps(stage.get("columns", {})) for stage in outline_of(plan)["stages"]]
    for name in sorted(hide.left_out | hide.hashed):
        if any(re.search(rf"\b{re.escape(name)}\b", text) for text in held):
            hint = "capture a query from its first batch, or leave the column out of the plan"
            raise PlanError("a column that is to be hidden is in the state", got=repr(name), hint=hint)


def _copy(source: str, to: str) -> None:
    """Copy the files of a folder."""
    store, root = store_at(source)
    for entry in store.entries(root, recursive=True):
        if entry.is_file:
            name = entry.path.removeprefix(root).lstrip("/")
            write_at(f"{to}/{name}", read_at(f"{source}/{name}") or b"")
