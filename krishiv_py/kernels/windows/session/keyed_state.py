"""State of sessions by key: their entries in a log, when a key is looked at again, and which spans of time are covered.

With triggers the entries are what is held of a window, results that stand, and one mark a key:

============  ==========  =========================================================================================
kind ``z``    ``__t, b``  meaning
============  ==========  =========================================================================================
HELD          bounds      a row, or a session with its totals, numbered ``n``
STANDING      bounds      a result that was written and not withdrawn: number ``i``, in the order in which they were written
MARK          q, q        the key is looked at again when the watermark reaches ``q``
============  ==========  =========================================================================================

A key that is looked at is written again, so of its entries only those of the last step (``s``) count.

The spans of time that the open sessions of a key cover are a compact side table of key hashes and bounds, without keys and
values. Every stored row has an entry ``(h, a, b)``, and the entries of a session that end after the point up to which sessions
were closed cover all of it. So whether a row that is due belongs to a session that goes on is answered without reading
what is open: by looking its hash up here. Two keys with one 64-bit hash can only make a session fire later than its due
watermark, never with wrong contents, for rows are merged by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows, key_hashes
from krishiv_py.arrays.ranges import Components, components
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, largest_of, last_rows, least_of, pick, values_at
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.firing import FiringOperator, IntervalGate, TriggerContext, custom_trigger_of
from krishiv_py.kernels.results import Emitter, StepResult, compose, counted, split_late
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, KeyedLog
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ, START, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.query import EmitMode

HELD, STANDING, MARK = 0, 1, 2
NUMBER: Final = "n"
OFTEN: Final = "o"
UNDER: Final = "i"
DONE: Final = "d"


@attrs.frozen(eq=False)
class KeyEntries:
    """Living entries of some keys: what is held and results that stand, both by number, and a mark a key."""

    held: pa.Table
    standing: pa.Table
    marks: pa.Table


class EntryLog:
    """Makes, sifts and merges entries.

    Parameters
    ----------
    layout : Layout
        Names the keys.
    plain : dict
        The columns of numbers and flags, in the order in which they are stored, with what is in entries that say nothing.
    content : sequence of pyarrow.Field
        The columns after the keys; null in entries that say nothing.
    """

    def __init__(self, layout: Layout, plain: Mapping[str, int | bool], content: list[pa.Field]) -> None:
        self.layout = layout
        self._plain = plain
        types = {name: pa.bool_() if isinstance(value, bool) else pa.int64() for name, value in plain.items()}
        types[KIND] = pa.int8()
        self.schema = pa.schema([*(pa.field(n, t) for n, t in types.items()), *layout.key_fields, *content])

    def entries(self, keys: pa.Table, columns: Mapping[str, Ints | pa.ChunkedArray], kind: int, seq: int) -> pa.Table:
        """Entries of a kind; `keys` has hash and key of each."""
        n = keys.num_rows
        filled = {name: keys[name] for name in (HASH, *self.layout.key_names)}
        filled |= {name: pa.array(given) if isinstance(given, np.ndarray) else given for name, given in columns.items()}
        plain = {**self._plain, SEQ: seq, KIND: kind}
        arrays = [
            filled[f.name] if f.name in filled else pa.repeat(pa.scalar(plain.get(f.name), f.type), n) for f in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def marks(self, keys: pa.Table, moments: Ints, seq: int) -> pa.Table:
        """Marks; `keys` has hash and key of each."""
        return self.entries(keys, {TIME: moments, END: moments}, MARK, seq)

    def page(self, entries: pa.Table) -> KeyEntries:
        """Sift the entries of some keys."""
        alive = entries.filter(pa.array(self._newest(entries)))
        kinds = alive[KIND].to_numpy()
        held, standing, marks = (alive.filter(pa.array(kinds == kind)) for kind in (HELD, STANDING, MARK))
        held = pick(held, stable_order(held[NUMBER].to_numpy()))
        return KeyEntries(held, pick(standing, stable_order(standing[UNDER].to_numpy())), marks)

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of the last step of each key; a bare mark goes when nothing older remains for it to replace."""
        kept = self._newest(entries)
        if oldest:
            kept &= (entries[KIND].to_numpy() != MARK) | (entries[TIME].to_numpy() != END_OF_TIME)
        return entries.filter(pa.array(kept))

    def _newest(self, entries: pa.Table) -> Mask:
        """Entries of the last step of their key."""
        keys = group_rows(self.layout.key_names, entries)
        seqs = entries[SEQ].to_numpy()
        last = largest_of(keys.ids, seqs, keys.n, 0)
        mask: Mask = seqs == last[keys.ids]
        return mask


@attrs.frozen(eq=False)
class Firing:
    """Sessions that fire, as stored rows, with the name of the pane and how often each fired before."""

    sessions: pa.Table
    pane: npt.NDArray[np.str_]
    index: Ints


def pane_names(mode: EmitMode, changed: Mask) -> npt.NDArray[np.str_]:
    """``final``; or ``late`` for sessions that rows of this batch changed after their end, ``on_time`` for the others."""
    if mode == "final":
        return np.full(len(changed), "final")
    return np.where(changed, "late", "on_time")


def change_log(emitter: Emitter, old: pa.Table, replaced_by: Ints, new: Firing) -> pa.Table:
    """Results in ascending end order, each after the withdrawal of those it replaces.

    A result with the bounds of the one it replaces is ``-U``, ``+U``. Where bounds changed the old one is ``-D``, for it is
    another window, and the new one ``+I``.

    Parameters
    ----------
    emitter : Emitter
        Makes the rows.
    old : pyarrow.Table
        Results that stand and are to be withdrawn, as stored rows.
    replaced_by : ndarray of int64
        For every old result the number of the session that takes its place.
    new : Firing
        The sessions that fire.
    """
    names = [*emitter.layout.key_names, START, END, *(f.name for f in emitter.layout.partial_fields)]
    both = new.sessions.select(names)
    if old.num_rows:
        both = pa.concat_tables([old.select(names), both])
    first = old.num_rows
    bounds = both[START].to_numpy(), both[END].to_numpy()
    changes = compose(np.arange(first, both.num_rows), np.arange(first), first + replaced_by, bounds, bounds)
    starts, ends = (b[changes.result] for b in bounds)
    by = changes.cause - first
    return emitter.rows(pick(both, changes.result), starts, ends, changes.op, new.pane[by], new.index[by])


_SCHEMA = pa.schema([pa.field(n, pa.int64()) for n in (HASH, START, END)])


@attrs.frozen(eq=False)
class KeySpans:
    """Bounds of intervals and the number of the key hash of each."""

    hashes: Ints
    starts: Ints
    ends: Ints

    def and_then(self, other: KeySpans) -> KeySpans:
        """Return these and others."""
        return KeySpans(*(np.concatenate([getattr(part, f.name) for part in (self, other)]) for f in attrs.fields(KeySpans)))


class SideTable:
    """The side table of one bucket; `closed_at` is the point up to which sessions were closed."""

    def __init__(self, bucket: Bucket, closed_at: int, *, touching: bool) -> None:
        self._closed_at = closed_at
        self._touching = touching
        self._log = KeyedLog(bucket, "k", _SCHEMA, self._compact)

    def append(self, hashes: Ints, starts: Ints, ends: Ints) -> None:
        """Enter intervals."""
        self._log.append(pa.Table.from_arrays([pa.array(hashes), pa.array(starts), pa.array(ends)], schema=_SCHEMA))

    def clear(self) -> None:
        """Nothing is open any more."""
        self._log.clear()

    def remove(self, hashes: Ints) -> None:
        """Forget the entries of these hashes (sorted, each once)."""
        self._log.remove(hashes, lambda rows: np.ones(rows.num_rows, np.bool_))

    def of(self, hashes: Ints, after: int) -> KeySpans:
        """Return the entries of these keys that end after a point in time."""
        rows = self._log.lookup(sorted_unique(hashes))
        ends = rows[END].to_numpy()
        kept = ends > after
        return KeySpans(rows[HASH].to_numpy()[kept], rows[START].to_numpy()[kept], ends[kept])

    def joined(self, rows: KeySpans, after: int) -> tuple[Components, Ints]:
        """These rows and all entries of their keys that end after `after`, merged; and the component of every row."""
        parts = self.merged(rows.and_then(self.of(rows.hashes, after)))
        return parts, parts.ids[: len(rows.starts)]

    def merged(self, spans: KeySpans) -> Components:
        """Spans of each key merged."""
        numbers = np.unique(spans.hashes, return_inverse=True)[1].astype(np.int64)
        return components(numbers, spans.starts, spans.ends, touching=self._touching)

    def _compact(self, rows: pa.Table, oldest: bool) -> pa.Table:
        ends = rows[END].to_numpy()
        kept = ends > self._closed_at
        hashes = rows[HASH].to_numpy()[kept]
        if not len(hashes):
            return _SCHEMA.empty_table()
        parts = self.merged(KeySpans(hashes, rows[START].to_numpy()[kept], ends[kept]))
        of_part = values_at(parts.ids, hashes, parts.n)
        return pa.Table.from_arrays([pa.array(of_part), pa.array(parts.starts), pa.array(parts.ends)], schema=_SCHEMA)


Early: TypeAlias = Literal["none", "came", "all"]
TIMERS: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])
CHANGED: Final = pa.schema([pa.field(HASH, pa.int64())])
FINEST_US: Final = 1 << 18


@attrs.define
class VisitNumbers(Section):
    """Says how many looks at keys, rows and results there have been: the next ones are numbered on from there."""

    seq: int = 0
    rows: int = 0
    results: int = 0


class VisitingOperator(FiringOperator):
    """Sessions with triggers: what their kinds share."""

    entries: EntryLog

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.rows = SessionRows(self.layout)
        self.trigger = spec.options.trigger
        self.custom_trigger = custom_trigger_of(self.trigger)
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = self.mode == "retractions" and not self.discarding

    def log(self, bucket: Bucket) -> KeyedLog:
        """Return the entries of a bucket."""
        return KeyedLog(bucket, "k", self.entries.schema, self.entries.compact)

    def moments(self, ends: Ints, waits: Mask, watermark_us: int) -> Ints:
        """Return when sessions with these ends are to be looked at again, and which of them wait for the watermark."""
        moments: Ints = ends + np.where(ends <= watermark_us, self.firing_delay.keep_us, 0)
        return np.where(waits, min(watermark_us + 1, END_OF_TIME), moments) if self.trigger.late == "watermark" else moments


class BucketVisit:
    """One bucket in one micro-batch."""

    def __init__(self, operator: VisitingOperator, bucket: Bucket, moment: Moment) -> None:
        self._visited = operator
        self.trigger = operator.trigger
        self.numbers, self.gate = VisitNumbers.of(bucket), IntervalGate.of(bucket)
        self.bucket, self.moment = bucket, moment
        self.question = (
            None if operator.custom_trigger is None else TriggerContext(operator.custom_trigger, operator.layout, moment)
        )
        self.watermark_us, self.classified_us = moment.watermark_us, moment.classified_us
        self.horizon = operator.firing_delay.over(self.classified_us)
        self.passed_us = max(self.watermark_us, self.horizon)
        self.log = operator.log(bucket)
        self.changed = KeyedLog(bucket, "i", CHANGED, each_once)
        self.timers = DueQueue(bucket, "w", FINEST_US)
        self.late: pa.Table | None = None

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, early: Early = "none") -> pa.Table:
        """Look at some keys: because rows of them came, because they are due, or because they changed. Returns results.

        `early` says which sessions fire early, or are asked about: those that rows of `chunk` came to, or all that changed.
        """
        raise NotImplementedError

    def closed(self, groups: Ints, starts: Ints, ends: Ints, n_held: int) -> Mask:
        """Rows after the held ones that end up in a session that is closed."""
        raise NotImplementedError

    def without_late(self, held: pa.Table, rows: pa.Table) -> pa.Table:
        """Rule "window": refuse rows that end up in a closed session, next to what is held of their keys."""
        times, of = rows[TIME].to_numpy(), self._visited
        if not of.rows.by_window or not (times < self.horizon).any():
            return rows
        keys = group_rows(of.layout.key_names, held, rows)
        starts = np.concatenate([held[TIME].to_numpy(), times])
        ends = np.concatenate([held[END].to_numpy(), of.rows.ends(rows)])
        split = split_late(of.layout, rows, times, self.closed(keys.ids, starts, ends, held.num_rows), self.classified_us)
        self.late = split.late
        return split.rows

    def coming(self, ends: Ints, waits: Mask, groups: Ints, n: int) -> Ints:
        """Return when each of `n` keys is to be looked at again, given its open sessions and which of them wait for the
        watermark.
        """
        return least_of(groups, self._visited.moments(ends, waits, self.watermark_us), n, END_OF_TIME)

    def run(self, chunk: pa.Table) -> StepResult:
        """Visit what the watermark makes due, then the rows that came, then what changed if the time has come.

        A row that comes alone makes its key due, and no other.
        """
        nothing, alone = chunk.slice(0, 0), self.moment.alone_us is not None and chunk.num_rows > 0
        if alone:
            due = sorted_unique(key_hashes([chunk[k] for k in self._visited.layout.key_names], chunk.num_rows))
        else:
            timers = pa.concat_tables([TIMERS.empty_table(), *self.timers.pop(self.watermark_us)])
            due = sorted_unique(timers[HASH].to_numpy())
        results = [self.visit(due, nothing, due=True)] if len(due) else []
        changed = len(self.changed) > 0 or chunk.num_rows > 0
        calls_triggers = not alone and (self.question is None or self.moment.calls_triggers)
        opens = calls_triggers and self.gate.opens(self.trigger, self.moment, changed=changed)
        if chunk.num_rows:
            hashes = sorted_unique(key_hashes([chunk[k] for k in self._visited.layout.key_names], chunk.num_rows))
            results.append(self.visit(hashes, chunk, early="none" if self.question is None or opens else "came"))
            if self.trigger._period_us is not None:
                self._note(hashes)
        if opens:
            hashes = sorted_unique(self.changed.everything()[HASH].to_numpy())
            self.changed.clear()
            left = set() if self.question is None else self.question.left
            left.clear()
            results.append(self.visit(hashes, nothing, early="all"))
            if left:
                self._note(np.array(sorted(left), np.int64))
        if not len(self.timers):
            self.log.clear()
        self.numbers.store(self.bucket)
        self.gate.store(self.bucket)
        table = self._visited.emitter.concat(results)
        return StepResult(
            table,
            self.timers.earliest,
            len(self.timers),
            len(self.log),
            table.num_rows,
            counted(self.late),
            self.late,
            self.gate.wakeup(self.trigger, changed=len(self.changed) > 0),
        )

    def _note(self, hashes: Ints) -> None:
        """Note that something of these keys waits for the clock."""
        self.changed.append(pa.Table.from_arrays([pa.array(hashes)], schema=CHANGED))

    def arm(self, marks: pa.Table, heads: pa.Table, coming: Ints) -> Ints:
        """See that keys are looked at when `coming` says, at the latest; `heads` has hash and key of each. Returns when."""
        armed = self._armed(marks, heads)
        sooner = coming < armed
        if sooner.any():
            timer = [heads[HASH].filter(pa.array(sooner)), pa.array(coming[sooner])]
            self.timers.insert(pa.Table.from_arrays(timer, schema=TIMERS), self.watermark_us)
        return np.minimum(armed, coming)

    def _armed(self, marks: pa.Table, heads: pa.Table) -> Ints:
        """Return when each key is looked at again by what was noted before; entries up to the watermark have left the queue."""
        names = self._visited.layout.key_names
        n = heads.num_rows
        keys = group_rows(names, heads, marks)
        place = last_rows(keys.ids[:n], keys.n)
        armed = values_at(place[keys.ids[n:]], marks[TIME].to_numpy(), n, END_OF_TIME)
        return np.where((armed <= self.watermark_us) & (self.watermark_us != UNSET), END_OF_TIME, armed)


def each_once(hashes: pa.Table, oldest: bool) -> pa.Table:
    """Return each hash once."""
    return pa.Table.from_arrays([pa.array(sorted_unique(hashes[HASH].to_numpy()))], schema=CHANGED)
