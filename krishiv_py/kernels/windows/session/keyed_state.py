"""Entries of a log by key, for sessions with triggers: what is held of a window, results that stand, and one mark a key.

============  ==========  =========================================================================================
kind ``z``    ``__t, b``  meaning
============  ==========  =========================================================================================
HELD          bounds      a row, or a session with its totals, numbered ``n``
STANDING      bounds      a result that was written and not withdrawn: number ``i``, in the order in which they were written
MARK          q, q        the key is looked at again when the watermark reaches ``q``
============  ==========  =========================================================================================

A key that is looked at is written again, so of its entries only those of the last step (``s``) count.

The change log of sessions: what was there is withdrawn, then the new result is written (SEMANTICS §5.4).

Determine which spans of time the open sessions of a key cover: a compact side table of key hashes and bounds, no
keys or values.

Every stored row has an entry ``(h, a, b)``, and the entries of a session that end after the point up to which sessions
were closed cover all of it. So whether a row that is due belongs to a session that goes on is answered without reading
what is open: by looking its hash up here. Two keys with one 64-bit hash can only make a session fire later than its due
watermark, never with wrong contents, for rows are merged by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import Components, components
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.results import Emitter, compose
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH, KeyedLog
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ, START
from krishiv_py.plan.durations import END_OF_TIME
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
        last = np.zeros(keys.n, np.int64)
        np.maximum.at(last, keys.ids, seqs)
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


class Skeleton:
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
        entries = self.of(rows.hashes, after)
        parts = self.merged(
            KeySpans(
                *(
                    np.concatenate(pair)
                    for pair in ((rows.hashes, entries.hashes), (rows.starts, entries.starts), (rows.ends, entries.ends))
                )
            )
        )
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
        of_part = np.empty(parts.n, np.int64)
        of_part[parts.ids] = hashes
        return pa.Table.from_arrays([pa.array(of_part), pa.array(parts.starts), pa.array(parts.ends)], schema=_SCHEMA)
