"""The state of a bucket: Arrow tables by name, sections that index them, sorted maps in pages, and runs of chunks.

A sorted map is a B+ tree: a step reads and writes the pages of the keys it touches, and no other. What an operator knows of
its chunks grows with what is open, so it must not travel as a whole in each micro-batch. A page is a note of the adapter
(:class:`Pages`). The root lies in the dictionary of the bucket; while all keys fit into it, it is stored as a plain
dictionary, as it always was::

    bucket.meta["runs:s"]   root    0 ....... 5000 ....... 9000
                                    |         |            |
                            pages   0 1 2 ... 5000 5001 .. 9000 9001 ..

Runs of chunks are log-structured: batches append, readers concatenate, full tiers are merged. A *run* is a list of chunks
under one name. Appending writes one chunk and touches no other. When eight neighbouring chunks have grown to the same tier
(powers of eight rows) they are merged into one, so a run that took n chunks holds O(log n) of them, and every row is
rewritten O(log n) times.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.durations import UNSET

K = TypeVar("K", int, str)

MOST: Final = 256
"""So many entries has a page at the most."""
_FULL: Final = 224
_PAGED: Final = ""
"""The one name in what is stored of a map whose root has pages below it; no key is empty."""


class Pages(Protocol):
    """Notes by name, which are lists of what JSON can say."""

    def read(self, name: str) -> Any:
        """Return the note of that name; it must exist."""

    def write(self, name: str, note: Any) -> None:
        """Write, or replace, a note."""

    def remove(self, name: str) -> None:
        """Remove a note."""


@attrs.define(eq=False)
class _Node:
    """A page: keys with values, or the first keys of the pages below it with these, or their numbers while they are unread."""

    keys: list[Any]
    items: list[Any]
    leaf: bool
    page: int | None = None
    changed: bool = True


class SortedMap(Generic[K]):
    """See the module's docstring. A value that was changed in place must be set again.

    Parameters
    ----------
    name : str
        What its pages are called.
    key : type
        ``int`` or ``str``.
    pages : Pages, optional
        Where its pages are; without it all of them are in memory.
    stored : dict or list
        What :meth:`stored` gave; or keys alone, which have the value 1.
    """

    def __init__(self, name: str, key: Callable[[Any], K], pages: Pages | None = None, stored: Any = ()) -> None:
        self._name = name
        self._pages = pages
        self._gone: list[int] = []
        self._next: int = 0
        self._len: int = 0
        if isinstance(stored, dict) and _PAGED in stored:
            keys: list[Any]
            numbers: list[Any]
            self._len, self._next, keys, numbers = stored[_PAGED]
            self._root = _Node(keys, numbers, leaf=False)
        else:
            entries = {key(k): v for k, v in (stored.items() if isinstance(stored, dict) else ((k, 1) for k in stored))}
            self._len = len(entries)
            order = sorted(entries)
            self._root = _built(order, [entries[k] for k in order])

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: K) -> bool:
        return self.get(key, self) is not self

    def __iter__(self) -> Iterator[K]:
        for node, start, stop in self._leaves(None, None):
            yield from node.keys[start:stop]

    def __getitem__(self, key: K) -> Any:
        value = self.get(key, self)
        if value is self:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or what is given for one that is not there."""
        node = self._root
        while not node.leaf:
            i = bisect_right(node.keys, key) - 1
            if i < 0:
                return default
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        return node.items[i] if i < len(node.keys) and node.keys[i] == key else default

    def __setitem__(self, key: K, value: Any) -> None:
        node, path = self._root, []
        while not node.leaf:
            i = max(bisect_right(node.keys, key) - 1, 0)
            if key < node.keys[i]:
                node.keys[i], node.changed = key, True
            path.append((node, i))
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        node.changed = True
        if i < len(node.keys) and node.keys[i] == key:
            node.items[i] = value
            return
        last = i == len(node.keys)
        node.keys.insert(i, key)
        node.items.insert(i, value)
        self._len += 1
        while len(node.keys) > MOST:
            cut = _FULL if last else len(node.keys) // 2
            right = _Node(node.keys[cut:], node.items[cut:], node.leaf)
            del node.keys[cut:], node.items[cut:]
            node.changed = True
            if not path:
                self._root = _Node([node.keys[0], right.keys[0]], [node, right], leaf=False)
                break
            node, i = path.pop()
            last = i == len(node.keys) - 1
            node.keys.insert(i + 1, right.keys[0])
            node.items.insert(i + 1, right)
            node.changed = True

    def __delitem__(self, key: K) -> None:
        node, path = self._root, []
        while not node.leaf:
            i = bisect_right(node.keys, key) - 1
            if i < 0:
                raise KeyError(key)
            path.append((node, i))
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        if i == len(node.keys) or node.keys[i] != key:
            raise KeyError(key)
        del node.keys[i], node.items[i]
        node.changed = True
        self._len -= 1
        while not node.keys and path:
            self._let_go(node)
            node, i = path.pop()
            del node.keys[i], node.items[i]
            node.changed = True
        while not self._root.leaf and len(self._root.keys) < 2:
            self._root = self._below(self._root, 0) if self._root.keys else _Node([], [], leaf=True)
            self._let_go(self._root)
            self._root.page = None

    def pop(self, key: K, default: Any = None) -> Any:
        """Take a key out; gives its value, or what is given for one that is not there."""
        value = self.get(key, self)
        if value is self:
            return default
        del self[key]
        return value

    def remove(self, keys: Iterable[K]) -> None:
        """Take some keys out, which must be there."""
        for key in keys:
            del self[key]

    def values(self) -> Iterator[Any]:
        """Yield all values, in order of their keys."""
        for node, start, stop in self._leaves(None, None):
            yield from node.items[start:stop]

    def between(self, low: K | None, high: K | None, most: int | None = None) -> list[K]:
        """Return the keys from `low` to before `high`, ascending, or the first `most` of them; None is without a bound."""
        keys: list[K] = []
        for node, start, stop in self._leaves(low, high):
            keys += node.keys[start:stop]
            if most is not None and len(keys) >= most:
                return keys[:most]
        return keys

    def before(self, key: K) -> K | None:
        """Return the largest key below another one."""
        return self._before(self._root, key)

    def after(self, key: K) -> K | None:
        """Return the smallest key above another one."""
        return next((k for node, start, stop in self._leaves(key, None) for k in node.keys[start:stop] if k > key), None)

    def stored(self) -> dict[str, Any]:
        """Write the pages that have changed; gives what is to be kept of the map itself."""
        if self._pages is None or self._root.leaf:
            kept = {str(k): v for k, v in zip(self, self.values(), strict=True)}
        else:
            self._write(self._root, self._pages)
            kept = {_PAGED: [self._len, self._next, self._root.keys, [_number(child) for child in self._root.items]]}
        if self._pages is not None:
            for number in self._gone:
                self._pages.remove(self._page(number))
        self._gone.clear()
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> SortedMap[K]:
        """Return a copy that reads the same pages; it is not to be stored."""
        copied = copy.copy(self)
        copied._root, copied._gone = copy.deepcopy(self._root, memo), []
        return copied

    def _write(self, node: _Node, pages: Pages) -> None:
        if not node.leaf:
            for child in node.items:
                if isinstance(child, _Node):
                    if child.page is None:
                        child.page, node.changed = self._next, True
                        self._next += 1
                    self._write(child, pages)
        if node.changed and node.page is not None:
            items = node.items if node.leaf else [_number(child) for child in node.items]
            pages.write(self._page(node.page), [int(node.leaf), node.keys, items])
        node.changed = False

    def _below(self, node: _Node, i: int) -> _Node:
        child = node.items[i]
        if isinstance(child, _Node):
            return child
        assert self._pages is not None
        leaf, keys, items = self._pages.read(self._page(child))
        below = node.items[i] = _Node(keys, items, bool(leaf), child, changed=False)
        return below

    def _before(self, node: _Node, key: K) -> K | None:
        for i in range(bisect_left(node.keys, key) - 1, -1, -1):
            key_before: K | None = node.keys[i] if node.leaf else self._before(self._below(node, i), key)
            if key_before is not None:
                return key_before
        return None

    def _leaves(self, low: K | None, high: K | None, within: _Node | None = None) -> Iterator[tuple[_Node, int, int]]:
        """Pages with keys from `low` to before `high`, and where these begin and end in them."""
        node = self._root if within is None else within
        stop = len(node.keys) if high is None else bisect_left(node.keys, high)
        if node.leaf:
            start = 0 if low is None else bisect_left(node.keys, low)
            if start < stop:
                yield node, start, stop
            return
        for i in range(0 if low is None else max(bisect_right(node.keys, low) - 1, 0), stop):
            yield from self._leaves(low, high, self._below(node, i))

    def _let_go(self, node: _Node) -> None:
        if node.page is not None:
            self._gone.append(node.page)

    def _page(self, number: int) -> str:
        return f"{self._name}/{number}"


def _number(child: _Node | int) -> int:
    if isinstance(child, int):
        return child
    assert child.page is not None
    return child.page


def _built(keys: list[Any], items: list[Any], *, leaf: bool = True) -> _Node:
    """Return the root of a tree over all of these."""
    if len(keys) <= MOST:
        return _Node(keys, items, leaf)
    starts = range(0, len(keys), _FULL)
    nodes = [_Node(keys[begin : begin + _FULL], items[begin : begin + _FULL], leaf) for begin in starts]
    return _built([node.keys[0] for node in nodes], nodes, leaf=False)


Meta: TypeAlias = dict[str, Any]
"""Numbers, texts, lists and dictionaries, which adapters store as JSON, and maps: see :func:`stored`."""


PAGE: Final = "page:"
"""With this the names of pages begin, which adapters may keep among their tables."""
WRITTEN: Final = "__at"
"""Working column: when the chunk of a row was written (µs since the epoch, processing time); ``UNSET`` if it was not noted."""


def with_written(table: pa.Table, at_ms: int | None) -> pa.Table:
    """Return the rows of a chunk with the time it was written at."""
    at_us = UNSET if at_ms is None else at_ms * 1_000
    return table.append_column(WRITTEN, pa.repeat(pa.scalar(at_us, pa.int64()), table.num_rows))


class ChunkStore(Protocol):
    """Arrow tables by name. Adapters keep them as IPC blobs in Spark's state store, the driver in a dictionary."""

    def get(self, name: str) -> pa.Table:
        """Return the table of that name; it must exist."""

    def put(self, name: str, table: pa.Table) -> None:
        """Write, or replace, a table."""

    def delete(self, name: str) -> None:
        """Remove a table."""


@attrs.frozen(eq=False)
class Bucket:
    """The state of one bucket, changed in place.

    Attributes
    ----------
    store : ChunkStore
        Its tables.
    meta : dict
        What its owners keep next to tables.
    now_ms : int or None
        Processing time, ms since the epoch, that logs note with what they write; None: nothing is noted.
    pages : Pages or None
        Where pages of large maps are kept; None: in memory.
    share : tuple of (int, int)
        Which bucket of how many it is, for keys that no row has brought here.
    """

    store: ChunkStore
    meta: Meta = attrs.field(factory=dict)
    now_ms: int | None = None
    pages: Pages | None = None
    share: tuple[int, int] = (0, 1)

    def has(self, hashes: npt.NDArray[np.int64], *, keyed: bool) -> npt.NDArray[np.bool_]:
        """Return which keys are of this bucket, by their hashes; without a key column all are of the first one."""
        number, count = self.share
        mine: npt.NDArray[np.bool_] = hashes.view(np.uint64) % np.uint64(count if keyed else 1) == np.uint64(number)
        return mine

    def map(self, name: str, key: Callable[[Any], K]) -> SortedMap[K]:
        """Return the map of that name in ``meta``; its keys are ``int`` or ``str``."""
        return mapped(self.meta, name, key, self.pages)


def mapped(meta: Meta, name: str, key: Callable[[Any], K], pages: Pages | None) -> SortedMap[K]:
    """Return a map in what owners keep: the one that earlier steps left there, or one made of what was stored."""
    stored_pages = meta.get(name)
    if not isinstance(stored_pages, SortedMap):
        stored_pages = meta[name] = SortedMap(f"{PAGE}{name}", key, pages, () if stored_pages is None else stored_pages)
    return stored_pages


def stored(meta: Meta) -> Meta:
    """Return what owners keep as plain data; pages of maps that have changed are written."""
    return {name: value.stored() if isinstance(value, SortedMap) else value for name, value in meta.items()}


@attrs.define
class MemoryStore:
    """Tables in a dictionary, for the JVM-free driver and the bounded route."""

    tables: dict[str, pa.Table] = attrs.field(factory=dict)
    _sizes: dict[str, int] = attrs.field(factory=dict, init=False)
    _put: set[str] = attrs.field(factory=set, init=False)
    _nbytes: int = attrs.field(default=0, init=False)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the tables take that were put; those that are new since the last time are looked at."""
        for name in self._put:
            size = self.tables[name].nbytes
            self._nbytes += size - self._sizes.get(name, 0)
            self._sizes[name] = size
        self._put.clear()
        return self._nbytes

    def get(self, name: str) -> pa.Table:
        """See :class:`ChunkStore`."""
        try:
            return self.tables[name]
        except KeyError:
            then, hint = "what is known of state names it", "begin from another savepoint, or with a new checkpoint folder"
            raise CheckpointError("a table of state is not there", got=name, then=then, hint=hint) from None

    def put(self, name: str, table: pa.Table) -> None:
        """See :class:`ChunkStore`."""
        self.tables[name] = table
        self._put.add(name)

    def delete(self, name: str) -> None:
        """See :class:`ChunkStore`."""
        del self.tables[name]
        self._put.discard(name)
        self._nbytes -= self._sizes.pop(name, 0)


S = TypeVar("S", bound="Section")


@attrs.define
class Section:
    """A few numbers, lists or dictionaries of one owner; each is stored under the name of its field.

    The names are part of the format of checkpoints. Owners that meet in a chain of operators share no name.
    """

    @classmethod
    def of(cls: type[S], bucket: Bucket) -> S:
        """Return what a bucket has of it; defaults for what was never stored."""
        meta = bucket.meta
        return cls(**{name: meta[name] for name in _names(cls) if name in meta})

    def store(self, bucket: Bucket) -> None:
        """Write it back; call it at the end of a step."""
        for name in _names(type(self)):
            bucket.meta[name] = getattr(self, name)


_NAMES: Final[dict[type, tuple[str, ...]]] = {}


def _names(section: type[Section]) -> tuple[str, ...]:
    """Return the fields of a section, looked up once: each step reads and writes some."""
    if section not in _NAMES:
        _NAMES[section] = tuple(field.name for field in attrs.fields(section))
    return _NAMES[section]


@attrs.define
class FiringProgress(Section):
    """Up to which watermark windows have fired."""

    fired_at: int = UNSET


@attrs.define
class ClockDeadline(Section):
    """The processing time at which something is due in a bucket, µs; None: nothing is."""

    clock_due: int | None = None


FAN: Final = 8


def tier(rows: int, fan: int = FAN) -> int:
    """Return which power of `fan` so many rows have come to; neighbours of one tier are merged."""
    return max(rows - 1, 0).bit_length() // (fan.bit_length() - 1)


class Runs:
    """The runs of one operator. `meta` maps run name → list of ``[chunk number, rows, when written]``, the last if known.

    Parameters
    ----------
    bucket : Bucket
        Where they are.
    prefix : str
        What the names of their tables begin with.
    merge : callable, optional
        Reduces chunks that are merged, oldest first.
    listed : str, optional
        The name of the map in `meta`, where tables of one prefix are listed in two: see :meth:`hand_over`.
    """

    def __init__(
        self, bucket: Bucket, prefix: str, merge: Callable[[pa.Table], pa.Table] | None, listed: str | None = None
    ) -> None:
        self._store = bucket.store
        listed = prefix if listed is None else listed
        self._index = bucket.map(f"runs:{listed}", int)
        sums = bucket.meta.get(f"sums:{listed}")
        if sums is None:
            sums = bucket.meta[f"sums:{listed}"] = [_rows_of(self._index), None]
        self._sums: list[Any] = sums
        """Rows of all runs, and what :meth:`counted` gave unless runs have come or gone since then."""
        self._known: int | None = None
        self._came: set[int] = set()
        self._went: set[int] = set()
        self._prefix = prefix
        self._merge = merge
        self._now: int | None = bucket.now_ms

    def __contains__(self, run: int) -> bool:
        return run in self._index

    def __len__(self) -> int:
        return len(self._index)

    def names(self) -> list[int]:
        """Return all runs, in ascending order."""
        return list(self._index)

    def between(self, low: int | None, high: int | None, most: int | None = None) -> list[int]:
        """Return the runs from `low` to before `high`, in ascending order, or the first `most` of them; None is without a
        bound.
        """
        return self._index.between(low, high, most)

    def counted(self, count: Callable[[list[int]], int]) -> int:
        """Return how many windows all runs lie in; `count` says it of some runs, which are sorted.

        It is called only for the runs that have come or gone, and their neighbours: windows of a run that lies between two
        others are those of one of these, or of no other run at all.
        """
        if self._sums[1] is not None:
            return int(self._sums[1])
        known, came, went = self._known, self._came, self._went
        if known is None or 4 * (len(came) + len(went)) > len(self._index):
            known = count(self.names())
        else:
            others = self._neighbours(came, went)
            known += count(sorted(others | came)) - count(sorted(others | went))
        self._sums[1] = known
        self._came, self._went = set(), set()
        return known

    def _changed(self, run: int, back: set[int], now: set[int]) -> None:
        """Note that a run has come or gone."""
        if self._sums[1] is not None:
            self._known, self._sums[1] = self._sums[1], None
        if run in back:
            back.discard(run)
        else:
            now.add(run)

    def _neighbours(self, came: set[int], went: set[int]) -> set[int]:
        """Of each of these the next runs on both sides that have neither come nor gone."""
        every = sorted(came | went)
        neighbours = set[int | None]()
        for ordered, next_of in ((every, self._index.before), (every[::-1], self._index.after)):
            beyond: dict[int, int | None] = {}
            for run in ordered:
                run_next = next_of(run)
                beyond[run] = beyond[run_next] if run_next in came else run_next
            neighbours.update(beyond.values())
        return {run for run in neighbours if run is not None}

    def rows(self, run: int) -> int:
        """Return how many (partial) rows the run holds."""
        return sum(c[1] for c in self._index[run])

    def total_rows(self) -> int:
        """Rows of all runs."""
        return int(self._sums[0])

    def append(self, run: int, table: pa.Table, compact: bool = True) -> None:
        """Add a chunk, merging full tiers unless `compact` says not to."""
        chunks: list[list[int]] = self._index.get(run) or []
        if not chunks:
            self._changed(run, self._went, self._came)
        number = chunks[-1][0] + 1 if chunks else 0
        if self._merge is not None and compact:
            while len(chunks) >= FAN - 1 and tier(chunks[-FAN + 1][1]) <= tier(table.num_rows):
                olds = chunks[-FAN + 1 :]
                table = self._merge(pa.concat_tables([self._store.get(self._name(run, c[0])) for c in olds] + [table]))
                for old in olds:
                    self._store.delete(self._name(run, old[0]))
                    self._sums[0] -= old[1]
                del chunks[-FAN + 1 :]
        self._store.put(self._name(run, number), table)
        self._sums[0] += table.num_rows
        chunks.append([number, table.num_rows] if self._now is None else [number, table.num_rows, self._now])
        self._index[run] = chunks

    def load(self, run: int) -> list[pa.Table]:
        """Return the chunks of a run, oldest first."""
        return [self._store.get(self._name(run, c[0])) for c in self._index.get(run, ())]

    def held(self) -> Iterator[tuple[int, pa.Table, int | None]]:
        """Every run's chunks, oldest first, with the time in ms each was written at, if that was noted."""
        for run in self.names():
            for chunk, table in zip(self._index[run], self.load(run), strict=True):
                yield run, table, chunk[2] if len(chunk) > 2 else None

    def adopt(self, run: int, table: pa.Table, written_ms: int | None) -> None:
        """Add a chunk as another log held it."""
        self._now = written_ms
        self.append(run, table, compact=False)

    def written(self, run: int) -> list[pa.Table]:
        """Return the chunks of a run as :meth:`load` gives them, with a column that says when each was written."""
        times = [c[2] if len(c) > 2 else None for c in self._index.get(run, ())]
        chunks = list(zip(self.load(run), times, strict=True))
        with_rows = [chunk for chunk in chunks if chunk[0].num_rows]  # a store of a few keys has nothing of many chunks
        return [with_written(*chunk) for chunk in with_rows or chunks[:1]]

    def chunks(self, run: int) -> int:
        """Return how many chunks the run has."""
        return len(self._index.get(run, ()))

    def drop(self, run: int) -> None:
        """Remove a run."""
        for chunk in self._index[run]:
            self._store.delete(self._name(run, chunk[0]))
            self._sums[0] -= chunk[1]
        del self._index[run]
        self._changed(run, self._came, self._went)

    def hand_over(self, run: int, to: Runs) -> None:
        """List a run among others of the same prefix, which must not have it; its tables stay as they are."""
        chunks = self._index[run]
        rows = sum(chunk[1] for chunk in chunks)
        del self._index[run]
        self._changed(run, self._came, self._went)
        to._index[run] = chunks
        to._changed(run, to._went, to._came)
        self._sums[0] -= rows
        to._sums[0] += rows

    def replace(self, run: int, table: pa.Table) -> None:
        """Put one chunk in place of all of a run (or remove it, when empty)."""
        if run in self._index:
            self.drop(run)
        if table.num_rows:
            self.append(run, table)

    def _name(self, run: int, number: int) -> str:
        return f"{self._prefix}/{run}/{number}"


def _rows_of(index: SortedMap[int]) -> int:
    return sum(chunk[1] for chunks in index.values() for chunk in chunks)


def remove_keys(runs: Runs, keys: list[str], dead: pa.Table, schema: pa.Schema, only: int | None = None) -> pa.Table:
    """Take the rows of these keys out of all runs, or of one; returns them. Runs that hold none stay as they are."""
    removed = [schema.empty_table()]
    for run in runs.names() if only is None else [only]:
        table = pa.concat_tables(runs.load(run))
        gone = among(table, dead, keys)
        removed.append(table.filter(pa.array(gone)))
        if gone.any():
            runs.replace(run, table.filter(pa.array(~gone)))
    return pa.concat_tables(removed)
