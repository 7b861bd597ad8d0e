"""The state a kernel works on: named Arrow tables, and typed sections of one small dictionary that indexes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.kernels.state.sorted_map import K, Pages, SortedMap
from krishiv_py.plan.durations import UNSET

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
        ...

    def put(self, name: str, table: pa.Table) -> None:
        """Write, or replace, a table."""
        ...

    def delete(self, name: str) -> None:
        """Remove a table."""
        ...


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
    """

    store: ChunkStore
    meta: Meta = attrs.field(factory=dict)
    now_ms: int | None = None
    pages: Pages | None = None

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
        return self.tables[name]

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
class Fired(Section):
    """Up to which watermark windows have fired."""

    fired_at: int = UNSET
