"""State in another number of buckets: the buckets of a stage become one, or one becomes several.

A checkpoint of Spark has a fixed number of buckets, a query in process has one. So what goes from one to the other is spread
by key: of each table the rows of a bucket are picked, and what the logs know of their tables is made again. Rows keep their
order within a key, which is all that results depend on::

    one bucket      a1 b1 c1 | a2 c2        two buckets     a1 c1 | a2 c2        one bucket     a1 c1 | a2 c2 | b1
                                                            b1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.ranges import split
from krishiv_py.kernels.state.store import Bucket, MemoryStore, Meta, Runs
from krishiv_py.kernels.state.time_log import SpanLog, TimeLog
from krishiv_py.kernels.state.timer_queue import DUE
from krishiv_py.kernels.state.window_log import HASH, KeyedLog

Parts: TypeAlias = Callable[[pa.Table], "list[pa.Table]"]
"""The rows of a table for each of the buckets."""

OF_ADAPTERS: Final = frozenset({"counters", "given", "timer", "bytes", "sizes", "files", "dropped", "moved"})
"""The entries that adapters keep in the dictionary of a bucket; they make it again."""
_OVER: Final = "sl over"
_PREFIX_OF: Final = {_OVER: "sl"}
"""Maps of runs that list tables of another prefix."""
_CHANGED: Final = "changed"
_MADE_AGAIN: Final = frozenset({"sums", "due", "log_next", "next"})
_ARRIVED: Final = {"left": "arrived_left", "right": "arrived_right"}
_SIDES: Final = {
    **dict.fromkeys(("jl", "jlm", "wl", "al"), "left"),
    **dict.fromkeys(("jr", "jrm", "wr", "ar", "as"), "right"),
}
"""Logs of joins, whose rows are numbered on each side."""
_MARKS: Final = frozenset({"jlm", "jrm"})
"""Logs of numbers of rows: a column that is a hash in others has them."""
_NUMBER: Final = "n"


def _latest(values: Sequence[Any]) -> Any:
    return max(values)


def _earliest(values: Sequence[Any]) -> Any:
    """Return the earliest; None, which is not yet, before any time."""
    return None if None in values else min(values)


def _begun(values: Sequence[Any]) -> Any:
    """Return the earliest of those that have begun."""
    return min((v for v in values if v is not None), default=None)


def _windows(values: Sequence[Any]) -> Any:
    """Of each window the latest time."""
    numbers: dict[str, int] = {}
    for windows in values:
        for name, number in windows.items():
            numbers[name] = max(numbers.get(name, number), number)
    return numbers


_MERGED: Final[dict[str, Callable[[Sequence[Any]], Any]]] = {
    **dict.fromkeys(
        ("fired_at", "closed_at", "joined_at", "dedup_at", "stepped_at", "stepped_late", "seq", "rows", "results"), _latest
    ),
    **dict.fromkeys(("arrived_left", "arrived_right", "rows_needed"), sum),
    **dict.fromkeys(("new_at", "late_at"), _windows),
    "shown_at": _begun,
    "ttl_checked": _earliest,
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


def spread(held: Iterable[BucketContent], n_keys: int, n_buckets: int) -> list[BucketContent]:
    """Return the state of a stage in another number of buckets.

    Parameters
    ----------
    held : iterable of Held
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
    targets, metas = [Bucket(MemoryStore()) for _ in range(n_buckets)], list[Meta]()
    parts = _parts([f"k{i}" for i in range(n_keys)], n_buckets)
    arrived = dict.fromkeys(_ARRIVED.values(), 0)
    every = list(held)
    over = {run for one in every for run in one.meta.get(f"runs:{_OVER}", ())}
    for one in every:
        bucket = one.bucket()
        for name in sorted(one.meta):  # "log:" and "runs:" say which tables there are
            kind, _, of = name.partition(":")
            if kind == "runs":
                _spread_runs(of, bucket, targets, parts, over)
            elif kind == "log":
                _spread_log(of, bucket, targets, parts, arrived)
            elif kind not in _MADE_AGAIN and name not in _MERGED and name != _CHANGED:
                raise KeyError(name)
        metas.append(one.meta)
        for name in arrived:
            arrived[name] += one.meta.get(name, 0)
    for target in targets:
        _finish(target, metas)
    return [BucketContent.of(target) for target in targets]


def _parts(keys: list[str], n_buckets: int) -> Parts:
    def of(table: pa.Table) -> list[pa.Table]:
        if n_buckets == 1:
            return [table]
        parts = [table.slice(0, 0)] * n_buckets
        if not keys:
            parts[0] = table
        elif HASH in table.column_names:  # the hash of the key, of which the bucket is the rest of a division
            hashes = table[HASH].to_numpy().view(np.uint64)
            parts = _split(table, (hashes % np.uint64(n_buckets)).astype(np.int64), parts)
        else:
            parts = _split(table, buckets([table[k] for k in keys], table.num_rows, n_buckets), parts)
        return parts

    return of


def _split(table: pa.Table, numbers: Any, parts: list[pa.Table]) -> list[pa.Table]:
    for number, part in split(table, numbers):
        parts[number] = part.combine_chunks()
    return parts


def _spread_runs(listed: str, bucket: Bucket, targets: list[Bucket], parts: Parts, over: set[str]) -> None:
    prefix = _PREFIX_OF.get(listed, listed)
    for run, table, written_ms in Runs(bucket, prefix, None, listed).held():
        to = _OVER if prefix == _PREFIX_OF[_OVER] and str(run) in over else listed
        for target, part in zip(targets, parts(table), strict=True):
            if part.num_rows:
                Runs(target, prefix, None, to).adopt(run, part, written_ms)


def _spread_log(name: str, bucket: Bucket, targets: list[Bucket], parts: Parts, arrived: dict[str, int]) -> None:
    entries = bucket.meta[f"log:{name}"]
    for target in targets:
        target.meta.setdefault(f"log:{name}", [])
    side = _ARRIVED.get(_SIDES.get(name, ""))
    base = 0 if side is None else arrived[side]
    column = HASH if name in _MARKS else _NUMBER

    def parts_of(table: pa.Table) -> list[pa.Table]:
        if base:
            index = table.column_names.index(column)
            table = table.set_column(index, table.schema.field(index), pc.add(table[column], pa.scalar(base, pa.int64())))
        return [table] * len(targets) if name in _MARKS else parts(table)

    if not entries:
        return
    if isinstance(entries[0][0], list):
        for rows, written_ms in KeyedLog.held(bucket, name):
            for target, part in zip(targets, parts_of(rows), strict=True):
                KeyedLog.adopt(target, name, part, written_ms, noted=len(entries[0]) > 2)
    elif isinstance(entries[0][-1], list):
        for rows in SpanLog(bucket, name).held():
            for target, part in zip(targets, parts_of(rows), strict=True):
                SpanLog(target, name).adopt(part)
    else:
        for rows, frontier, written_ms in TimeLog(bucket, name).held():
            for target, part in zip(targets, parts_of(rows), strict=True):
                TimeLog(target, name).adopt(part, frontier, written_ms)


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
