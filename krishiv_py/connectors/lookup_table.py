"""Tables that rows are looked up in: as they are, or loaded anew now and then."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.errors import RAISED, SourceError, message, told


@attrs.frozen
class _Held:
    """A table that this process has: by which clock it was loaded and when, in seconds, its version."""

    clock: int | None
    at: float
    version: int
    table: pa.Table


_held: dict[str, _Held] = {}
_clock: ContextVar[tuple[int, float] | None] = ContextVar("lookup_clock", default=None)


@contextmanager
def tables_age_by(clock: int, now_us: int) -> Iterator[None]:
    """Inside, tables are as old as the time `now_us` of a clock says, which is told apart by a number; not as the machine's."""
    token = _clock.set((clock, now_us / 1e6))
    try:
        yield
    finally:
        _clock.reset(token)


@attrs.frozen(eq=False)
class LookupTable:
    """A table, whole or by a function that loads it; a process loads it again when it is `reload_us` old."""

    schema: pa.Schema
    table: pa.Table | None = None
    load: Callable[[], Any] | None = None
    reload_us: int | None = None
    token: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    def current(self) -> tuple[int, pa.Table]:
        """The table as it stands, and a number that changes with it.

        Raises
        ------
        SourceError
            When it cannot be loaded, or has other columns than at the start.
        """
        if self.table is not None:
            return 0, self.table
        held = _held.get(self.token)
        clock, now = _clock.get() or (None, time.monotonic())
        if held is not None and (self.reload_us is None or (held.clock == clock and now - held.at < self.reload_us / 1e6)):
            return held.version, held.table
        found = _Held(clock, now, 0 if held is None else held.version + 1, self._loaded())
        _held[self.token] = found
        return found.version, found.table

    def _loaded(self) -> pa.Table:
        assert self.load is not None
        try:
            return as_table(self.load()).select(self.schema.names).cast(self.schema)
        except RAISED as problem:  # user code: whatever it raises is reported
            hint = f"let it return a pyarrow.Table with the columns {', '.join(self.schema.names[:20])}"
            raise SourceError(
                message("the table of a lookup_join cannot be loaded", told(problem), "no row can be looked up", hint)
            ) from problem

    def __getstate__(self) -> dict[str, Any]:
        """As it travels to the tasks: the table as one Arrow stream."""
        state = {a.name: getattr(self, a.name) for a in attrs.fields(type(self))}
        if self.table is not None:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, self.schema) as writer:
                writer.write_table(self.table)
            state["table"] = sink.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The other way; a process keeps one copy, however many tasks it runs."""
        data = state["table"]
        if data is not None:
            token = state["token"]
            if token not in _held:
                _held[token] = _Held(None, 0.0, 0, pa.ipc.open_stream(pa.py_buffer(data)).read_all())
            state["table"] = _held[token].table
        for name, value in state.items():
            object.__setattr__(self, name, value)


def as_table(found: Any) -> pa.Table:
    """An Arrow table from a table, a batch, or a static Spark DataFrame."""
    if isinstance(found, pa.RecordBatch):
        return pa.Table.from_batches([found])
    if isinstance(found, pa.Table):
        return found
    if hasattr(found, "toArrow") and not getattr(found, "isStreaming", False):
        return found.toArrow()
    raise TypeError(f"a {type(found).__name__} is no table")
