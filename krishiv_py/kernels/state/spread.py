"""State in another number of buckets: the buckets of a stage become one, or one becomes several.

A checkpoint of Spark has a fixed number of buckets, a query in process has one. So what goes from one to the other is spread
by key: of each table the rows of a bucket are picked, and what the logs know of their tables is made again. Rows keep their
order within a key, which is all that results depend on::

    one bucket      a1 b1 c1 | a2 c2        two buckets     a1 c1 | a2 c2        one bucket     a1 c1 | a2 c2 | b1
                                                            b1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.types import pick, with_column
from krishiv_py.kernels.state.store import Bucket, MemoryStore, Meta, Runs
from krishiv_py.kernels.state.time_log import SpanLog, TimeLog
from krishiv_py.kernels.state.timer_queue import DUE
from krishiv_py.kernels.state.window_log import BOUNDS_IN_KEY, HASH, KeyedLog

OF_ADAPTERS: Final = frozenset({"counters", "given", "timer", "bytes", "sizes", "files", "dropped", "moved"})
"""The entries that adapters keep in the dictionary of a bucket; they make it again."""
_OVER: Final = "sl over"
_PREFIX_OF: Final = {_OVER: "sl"}
"""Maps of runs that list tables of another prefix."""
_CHANGED: Final = "changed"
_AT_ONCE: Final = 1 << 18
"""Rows whose buckets are worked out at a time."""
_MADE_AGAIN: Final = frozenset({"sums", "due", "log_next", "next"})
_ARRIVED: Final = {"left": "arrived_left", "right": "arrived_right"}
_SIDES: Final = {**dict.fromkeys(("jl", "jlm", "wl", "al"), "left"), **dict.fromkeys(("jr", "jrm", "wr", "ar", "as"), "right")}
"""Logs of joins, whose rows are numbered on each side."""
_MARKS: Final = frozenset({"jlm", "jrm"})
"""Logs of numbers of rows: a column that is a hash in others has them."""
_NUMBER: Final = "n"
_OF_SESSIONS: Final = "k"
_NUMBERED: Final = {_NUMBER: "rows", "i": "results"}
"""Columns of the log of sessions that fire by their rows, with the field that counts the rows, or results, numbered so far."""


def _earliest(values: Sequence[Any]) -> Any:
    """Return the earliest; None, which is not yet, before any time."""
    return None if None in values else min(values)


def _begun(values: Sequence[Any]) -> Any:
    """Return the earliest of those that have begun."""
    return min((v for v in values if v is not None), default=None)


def _common(values: Sequence[Any]) -> Any:
    """Return what all say; nothing where they differ, which is made again."""
    return values[0] if len(set(values)) == 1 else None


def _last_moved(values: Sequence[Any]) -> Any:
    """Return the one of the clock that moved last, its second number."""
    return max(values, key=lambda value: value[1])


def _windows(values: Sequence[Any]) -> Any:
    """Of each window the latest time."""
    numbers: dict[str, int] = {}
    for windows in values:
        for name, number in windows.items():
            numbers[name] = max(numbers.get(name, number), number)
    return numbers


_MERGED: Final[dict[str, Callable[[Sequence[Any]], Any]]] = {
    **dict.fromkeys(
        (
            "fired_at",
            "closed_at",
            "joined_at",
            "given_at",
            "dedup_at",
            "newest_us",
            "stepped_at",
            "stepped_late",
            "seq",
            "rows_arrived",
        ),
        max,
    ),
    **dict.fromkeys(("arrived_left", "arrived_right", "rows_needed", *_NUMBERED.values()), sum),
    **dict.fromkeys(("new_at", "late_at"), _windows),
    **dict.fromkeys(("shown_at", "clock_due"), _begun),
    **dict.fromkeys(("ttl_checked", "ttl_checked_left", "ttl_checked_right"), _earliest),
    "waits_us": max,
    "expected_keys": _common,
    "input_silence": _last_moved,
}
"""The rules by which a field of a section is made of those of several buckets."""


@attrs.frozen(eq=False)
class BucketContent:
    """The content of one bucket, as values: `meta` is what JSON can say, with whole maps."""

    meta: Meta
    tables: Mapping[str, pa.Table]

    @classmethod
    def of(cls, bucket: Bucket) -> BucketContent:
        """Return what a bucket in memory holds; the pages of its maps are read."""
        assert isinstance(bucket.store, MemoryStore)
        kept = {name: value for name, value in bucket.meta.items() if name not in OF_ADAPTERS}
        for name in kept:
            if name.startswith("runs:") or name == _CHANGED:
                content = bucket.map(name, int)
                kept[name] = {str(k): v for k, v in zip(content, content.values(), strict=True)}
        return cls(kept, dict(bucket.store.tables))

    def bucket(self) -> Bucket:
        """Return a bucket in memory that holds it."""
        return Bucket(MemoryStore(dict(self.tables)), dict(self.meta))


def is_of_numbers(table: str) -> bool:
    """Return whether the hashes of a table are numbers of rows, by its name."""
    return table.partition("/")[0] in _MARKS


def side_of(table: str) -> str | None:
    """Return the side of a join whose rows a table has, by its name."""
    return _SIDES.get(table.partition("/")[0])


def spread(held: Iterable[BucketContent], n_keys: int, n_buckets: int) -> Iterator[BucketContent]:
    """Yield the state of a stage in another number of buckets, one after the other.

    Parameters
    ----------
    held : iterable of BucketContent
        Its buckets now.
    n_keys : int
        How many key columns the stage has.
    n_buckets : int
        How many buckets there are to be.

    Raises
    ------
    KeyError
        For a part of the state that is not known here.
    """
    every = list(held)
    buckets_now, metas = [one.bucket() for one in every], [one.meta for one in every]
    for name in {name for meta in metas for name in meta}:
        kind = name.partition(":")[0]
        if kind not in ("runs", "log", *_MADE_AGAIN) and name not in _MERGED and name != _CHANGED:
            raise KeyError(name)
    over = {run for meta in metas for run in meta.get(f"runs:{_OVER}", ())}
    rows = _Rows([f"k{i}" for i in range(n_keys)], n_buckets)
    for number in range(n_buckets):
        target, arrived = Bucket(MemoryStore()), dict.fromkeys((*_ARRIVED.values(), *_NUMBERED.values()), 0)
        for place, (bucket, meta) in enumerate(zip(buckets_now, metas, strict=True)):
            part = partial(rows.of, number, place)
            for name in sorted(meta):  # "log:" and "runs:" say which tables there are
                kind, _, of = name.partition(":")
                if kind == "runs":
                    _spread_runs(of, bucket, target, part, over)
                elif kind == "log":
                    _spread_log(of, bucket, target, part, arrived)
            for counted in arrived:
                arrived[counted] += meta.get(counted, 0)
        _finish(target, metas)
        yield BucketContent.of(target)


Part: TypeAlias = Callable[[pa.Table, str], pa.Table]
"""Picks the rows of a bucket from a table that a text names."""


class _Rows:
    """Picks the rows of a bucket; which bucket each row of a table goes to is worked out once."""

    def __init__(self, keys: list[str], n_buckets: int) -> None:
        self._keys, self._n_buckets = keys, n_buckets
        self._numbers: dict[tuple[int, str], npt.NDArray[np.uint16]] = {}

    def of(self, number: int, place: int, table: pa.Table, name: str) -> pa.Table:
        """Return the rows that go to bucket `number`, of a table that `name` names in the bucket `place` of before."""
        where = place, name
        if self._n_buckets == 1:
            return table
        if not self._keys:
            return table if number == 0 else table.slice(0, 0)
        if where not in self._numbers:
            stretches = [table.slice(begin, _AT_ONCE) for begin in range(0, table.num_rows, _AT_ONCE)]
            numbers = [np.empty(0, np.uint16), *map(self._buckets_of, stretches)]
            self._numbers[where] = np.concatenate(numbers)
        return pick(table, np.flatnonzero(self._numbers[where] == number))

    def _buckets_of(self, rows: pa.Table) -> npt.NDArray[np.uint16]:
        if (
            HASH in rows.column_names and BOUNDS_IN_KEY[0] not in rows.column_names
        ):  # the hash of the key, of which the bucket is the rest of a division
            numbers = rows[HASH].to_numpy().view(np.uint64) % np.uint64(self._n_buckets)
        else:
            numbers = buckets([rows[k] for k in self._keys], rows.num_rows, self._n_buckets)
        return np.asarray(numbers, np.uint16)


def _spread_runs(listed: str, bucket: Bucket, target: Bucket, part_of: Part, over: set[str]) -> None:
    prefix = _PREFIX_OF.get(listed, listed)
    for place, (run, table, written_ms) in enumerate(Runs(bucket, prefix, None, listed).held()):
        part = part_of(table, f"runs {listed} {place}")
        if part.num_rows:
            to = _OVER if prefix == _PREFIX_OF[_OVER] and str(run) in over else listed
            Runs(target, prefix, None, to).adopt(run, part, written_ms)


def _spread_log(name: str, bucket: Bucket, target: Bucket, part_of: Part, arrived: dict[str, int]) -> None:
    entries = bucket.meta[f"log:{name}"]
    target.meta.setdefault(f"log:{name}", [])
    side = _ARRIVED.get(_SIDES.get(name, ""))
    bases = {} if side is None else {HASH if name in _MARKS else _NUMBER: arrived[side]}
    if name == _OF_SESSIONS and set(_NUMBERED.values()) <= bucket.meta.keys():
        bases = {column: arrived[counted] for column, counted in _NUMBERED.items()}

    def numbered(table: pa.Table, place: int) -> pa.Table:
        part = table if name in _MARKS else part_of(table, f"log {name} {place}")
        for column, base in bases.items():
            if base:
                number = part[column]
                numbers = pc.if_else(pc.less(number, 0), number, pc.add(number, base))  # -1: it has none
                part = with_column(part, column, numbers)
        return part

    if not entries:
        return
    if isinstance(entries[0][0], list):
        for place, (table, written_ms) in enumerate(KeyedLog.held(bucket, name)):
            KeyedLog.adopt(target, name, numbered(table, place), written_ms, noted=len(entries[0]) > 2)
    elif isinstance(entries[0][-1], list):
        for place, table in enumerate(SpanLog(bucket, name).held()):
            SpanLog(target, name).adopt(numbered(table, place))
    else:
        for place, (table, frontier, written_ms) in enumerate(TimeLog(bucket, name).held()):
            TimeLog(target, name).adopt(numbered(table, place), frontier, written_ms)


def _finish(target: Bucket, metas: Sequence[Meta]) -> None:
    """Make what is known of all logs together."""
    meta = target.meta
    for name, merged in _MERGED.items():
        values = [m[name] for m in metas if name in m]
        if values:
            meta[name] = merged(values)
    for name in {name for m in metas for name in m if name.partition(":")[0] in ("runs", "due") or name == _CHANGED}:
        kind, _, of = name.partition(":")
        if kind == "due":
            runs = Runs(target, of, None)
            meta[name] = {str(run): min(int(t[DUE].to_numpy().min()) for t in runs.load(run)) for run in runs.names()}
        elif kind == "runs":
            Runs(target, _PREFIX_OF.get(of, of), None, of)
    windows = meta.get("runs:w", {})
    held = {str(run) for run in windows}
    for name in ("new_at", "late_at"):
        if name in meta:
            meta[name] = {w: number for w, number in meta[name].items() if w in held}
    if any(_CHANGED in m for m in metas):
        meta[_CHANGED] = {w: 1 for m in metas for w in m.get(_CHANGED, ()) if w in held}
