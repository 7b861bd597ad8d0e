"""Tables that rows are looked up in: as they are, or loaded again now and then (SEMANTICS §9.3).

In a query all tasks of a micro-batch see one version of a table: its driver loads it and says which
(runtime/tables.py). A test driver goes by its clock; a task for which nobody says it, as in a frame that goes on in
plain Spark, by the machine's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

import attrs
import pyarrow as pa

from krishiv_py.connectors import fit
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import RAISED, SourceError, failure_text
from krishiv_py.plan.running import TableVersion
from krishiv_py.plan.schema import checked
from krishiv_py.storage.checksums import decode, encode
from krishiv_py.types import type_text


@attrs.frozen
class _LoadedTable:
    """A table that this process has: when it was loaded, in seconds of a clock, its version."""

    at: float
    version: int | str
    table: pa.Table


class Versions(Protocol):
    """Says which version of each table is in force."""

    def name(self, token: str) -> str:
        """Return what tells the version of a table from every other, of any query."""

    def table(self, token: str) -> pa.Table:
        """Return what it holds."""


_held: dict[str, _LoadedTable] = {}
_by_clock: WeakKeyDictionary[object, dict[str, _LoadedTable]] = WeakKeyDictionary()
"""The tables of queries that go by a clock of their own: several may use one table."""
_versions: ContextVar[Versions | None] = ContextVar("lookup_versions", default=None)
_clock: ContextVar[tuple[object, float] | None] = ContextVar("lookup_clock", default=None)
_standing: ContextVar[Mapping[str, LookupTable]] = ContextVar("lookup_standing", default=MappingProxyType({}))


@contextmanager
def tables_age_by(clock: object, now_us: int) -> Iterator[None]:
    """Inside, tables are as old as the time `now_us` of a clock says, not as the machine's; each clock has its own versions."""
    token = _clock.set((clock, now_us / 1e6))
    try:
        yield
    finally:
        _clock.reset(token)


@contextmanager
def tables_are(versions: Versions | None) -> Iterator[None]:
    """Inside, tables are of these versions."""
    token = _versions.set(versions)
    try:
        yield
    finally:
        _versions.reset(token)


@attrs.define(eq=False)
class LookupTable:
    """A table, whole or by a function that loads it.

    Attributes
    ----------
    schema : pyarrow.Schema
        Its columns.
    table : pyarrow.Table or None
        A table that does not change.
    load : callable or None
        Loads it; None where it does not change.
    reload_us : int or None
        How old it gets before it is loaded again, µs.
    driver_only : bool
        Whether only the driver can load it: through Spark, or by a function that cannot be sent to tasks.
    what : str
        The table for people, in errors.
    token : str
        Tells tables apart, in every process.
    """

    schema: pa.Schema
    table: pa.Table | None = None
    load: Callable[[], Any] | None = None
    reload_us: int | None = None
    driver_only: bool = False
    what: str = "the table of a lookup_join"
    token: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    def __attrs_post_init__(self) -> None:
        finalize(self, _held.pop, self.token, None).atexit = False  # copies that tasks get stay for the next task

    @property
    def name(self) -> str:
        """Return what it is called in progress: as its function."""
        named = getattr(self.load, "__name__", "table")
        return "table" if named == "<lambda>" else str(named)

    def current(self) -> tuple[int | str, pa.Table]:
        """Return the table as it is, and a number that changes with it.

        Raises
        ------
        SourceError
            When it cannot be loaded, or has other columns than at the start.
        """
        if self.table is not None:
            return 0, self.table
        held, versions = _held.get(self.token), _versions.get()
        if versions is not None:
            wanted = versions.name(self.token)
            if held is None or held.version != wanted:
                held = _held[self.token] = _LoadedTable(0.0, wanted, versions.table(self.token))
            return held.version, held.table
        clock, now = _clock.get() or (None, time.monotonic())
        mine = self._of(clock)
        held = mine.get(self.token)
        if held is not None and (self.reload_us is None or now - held.at < self.reload_us / 1e6):
            return held.version, held.table
        version = 1 + (held.version if held is not None and isinstance(held.version, int) else 0)
        current = mine[self.token] = _LoadedTable(now, version, self.loaded())
        return current.version, current.table

    def _of(self, clock: object) -> dict[str, _LoadedTable]:
        """Return where the table is held for those who go by a clock; one that is loaded once is there for all."""
        return _held if clock is None or self.reload_us is None else _by_clock.setdefault(clock, {})

    def seen(self, clock: object) -> TableVersion | None:
        """Return the version that is in use where tables age by a clock; None before it is used."""
        held = self._of(clock).get(self.token)
        if held is None or not isinstance(held.version, int):
            return None
        return TableVersion(held.version, round(held.at * 1e6), held.table.num_rows)

    def is_old(self, loaded_us: int, now_us: int) -> bool:
        """Return whether it is to be loaded again."""
        return self.reload_us is not None and now_us - loaded_us >= self.reload_us

    def loaded(self) -> pa.Table:
        """Load it.

        Raises
        ------
        SourceError
            When it cannot be loaded, or has other columns or other types than at the start.
        """
        assert self.load is not None
        try:
            return fit.fit_table(as_table(self.load()), self.schema, fit.LOOKUP)
        except RAISED as problem:  # user code: whatever it raises is reported
            columns = ", ".join(f"{f.name} {type_text(f.type)}" for f in list(self.schema)[:20])
            hint = f"let it return a pyarrow.Table with the columns {columns}"
            reason = str(problem) if isinstance(problem, fit.MisfitError) else failure_text(problem)
            raise SourceError(f"{self.what} cannot be loaded", got=reason, hint=hint) from problem

    def __getstate__(self) -> dict[str, Any]:
        """As it travels to the tasks: the table as one Arrow stream."""
        standing = _standing.get().get(self.token)
        if standing is not None:
            return standing.__getstate__()
        state = {a.name: getattr(self, a.name) for a in attrs.fields(type(self))}
        if self.table is not None:
            state["table"] = encode(self.table)
        if self.driver_only:
            state["load"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The other way; a process keeps one copy, however many tasks it runs."""
        data, token = state["table"], state["token"]
        if data is not None:
            if token not in _held:
                _held[token] = _LoadedTable(0.0, 0, decode(data))
            state["table"] = _held[token].table
        for name, value in state.items():
            setattr(self, name, value)


@contextmanager
def as_they_stand(tables: Iterable[LookupTable]) -> Iterator[None]:
    """Load tables once; inside, what travels to tasks has them as they are now. Bounded runs of several threads share none."""
    loaded = {table.token: LookupTable(table.schema, table.loaded()) for table in tables if table.load is not None}
    before = _standing.set(loaded)
    try:
        yield
    finally:
        _standing.reset(before)


def as_table(given: Any) -> pa.Table:
    """Return an Arrow table from what holds Arrow data, or a static Spark DataFrame."""
    spark = callable(getattr(given, "toArrow", None))
    if spark and not getattr(given, "isStreaming", False):
        return given.toArrow()
    table = None if spark else arrow_table(given)
    if table is None:
        raise TypeError(f"a {type(given).__name__} is not a table")
    return table


def in_types_of_streams(rows: pa.Table) -> pa.Table:
    """Return a table in types of a stream, in memory that nobody else writes to.

    Raises
    ------
    SchemaError
        When a column has a type or values that no column of a stream has.
    """
    try:
        return fit.fit_table(rows, checked(rows.schema.remove_metadata()), fit.LOOKUP)
    except fit.MisfitError as problem:
        raise problem.error("no row can be looked up in the table") from None
