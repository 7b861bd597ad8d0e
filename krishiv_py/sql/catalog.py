"""Registered streams, found by name as Spark does: whatever the case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream, only_time
from krishiv_py.connectors.frames import holds_arrow, in_turn
from krishiv_py.connectors.lookup_table import as_table, in_types_of_streams
from krishiv_py.errors import RAISED, PlanError, failure_text, shown
from krishiv_py.plan.checks import a_function
from krishiv_py.plan.durations import Duration, show_us
from krishiv_py.plan.nodes import filters_after
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, RowsClock, WatermarkSpec


@attrs.frozen(eq=False)
class RegisteredStream:
    """A stream under a name.

    Attributes
    ----------
    name : str
        As it was registered.
    stream : Stream or ResultStream
        The rows, below any watermark; or a table that changes, which has none.
    event_time : str
        The event-time column; empty for a table that changes.
    spec : WatermarkSpec or MultiSourceWatermarkSpec or None
        How the watermark follows it; None when a query needs ``SET watermark.lag`` before.
    source_column : str or None
        With several sources: the column that names them.
    explicit, late_handler
        Options, and who takes late rows, of the stream it was made of; without a handler every query counts its own.
    clock : {"batch", "row"} or None
        What ``SET watermark.clock`` said for the query.
    """

    name: str
    stream: Stream | ResultStream
    event_time: str
    spec: AnyWatermarkSpec | None
    source_column: str | None = None
    explicit: ExplicitOptions = attrs.field(factory=ExplicitOptions)
    late_handler: LateEventHandler | None = None
    clock: RowsClock | None = None

    def timed(self, stream: Stream, lag_us: int | None) -> TimedStream:
        """Return the `stream`, made of this one, with event time; `lag_us` is what SET said, and outweighs what is
        registered.
        """
        spec = self.spec if lag_us is None else _with_lag(self.spec, lag_us)
        if spec is None:
            raise PlanError(
                f"no watermark is known for table {self.name!r}",
                got="no lag",
                then="no window would ever end",
                hint="SET watermark.lag = INTERVAL '5' SECOND right before the query (it holds for one query), "
                f"or register({self.name!r}, ..., lag=5_000)",
            )
        if self.clock is not None:
            if spec._by_clock:
                hint = "leave SET watermark.clock out"
                raise PlanError(
                    "the table goes by the clock of the machine", got=f"watermark.clock = {self.clock!r}", hint=hint
                )
            spec = attrs.evolve(spec, clock=self.clock)
        node = stream._node if self.spec is None else filters_after(stream._node, self.stream._node)
        stream_timed = attrs.evolve(stream, node=node).with_watermark(spec, self.event_time, source_column=self.source_column)
        handler = self.late_handler or stream_timed.late_handler
        return attrs.evolve(stream_timed, draft=attrs.evolve(stream_timed._draft, explicit=self.explicit, late_handler=handler))


@attrs.frozen(eq=False)
class StaticTable:
    """A table that does not change while a query runs, for lookup joins: what ``lookup_join`` takes.

    Attributes
    ----------
    name : str
        As it was registered.
    table : Any
        The table, or a function that loads it.
    schema : pyarrow.Schema
        Its columns.
    """

    name: str
    table: Any
    schema: pa.Schema


def _with_lag(spec: AnyWatermarkSpec | None, lag_us: int) -> AnyWatermarkSpec:
    if spec is None:
        return WatermarkSpec(lag_us)
    if spec._by_clock:
        hint = "leave SET watermark.lag out"
        raise PlanError("the table goes by the clock, which has no lag", got=f"SET watermark.lag: {show_us(lag_us)}", hint=hint)
    if isinstance(spec, MultiSourceWatermarkSpec):
        return attrs.evolve(spec, sources=tuple((n, attrs.evolve(s, lag_us=lag_us)) for n, s in spec.sources))
    return attrs.evolve(spec, lag_us=lag_us)


def is_static(table: object) -> bool:
    """Return whether something is a table, or a function that loads one."""
    return holds_arrow(table) or in_turn(table) or hasattr(table, "toArrow") or callable(table)


def static(name: str, table: Any) -> StaticTable:
    """Return a checked :class:`StaticTable`."""
    a_name(name)
    if callable(table):
        a_function(table, "a table is loaded by a function", "")
    try:
        rows = as_table(table() if callable(table) and not hasattr(table, "toArrow") else table)
    except RAISED as problem:  # a user's function: whatever it raises is reported
        hint = "register a stream, a pyarrow.Table, a frame, a static Spark DataFrame, or a function that returns one of these"
        what = "not a stream or table that can be queried"
        raise PlanError(what, got=type(table).__name__, then=failure_text(problem), hint=hint) from problem
    kept = in_types_of_streams(rows)  # what can be read once is read here
    return StaticTable(name, table if callable(table) or hasattr(table, "toArrow") else kept, kept.schema)


def a_name(name: object) -> None:
    """Refuse what cannot name a table."""
    if not isinstance(name, str) or not name:
        raise PlanError("a table is named by a text", got=shown(name), hint='write register("events", stream)')


def registered(name: str, stream: Stream | TimedStream, event_time: str | None, lag: Duration | None) -> RegisteredStream:
    """Return a checked :class:`RegisteredStream`."""
    a_name(name)
    if isinstance(stream, ResultStream) and not stream._draft.input.column:
        return RegisteredStream(name, stream, "", None)
    if isinstance(stream, TimedStream):
        mark = stream._draft.input
        if lag is not None or event_time not in (None, mark.column):
            got = f"event_time={event_time!r}, lag={lag!r}"
            hint = f"register({name!r}, stream), or pass the stream as it was before .watermark(...)"
            raise PlanError("this stream has its event time and watermark already", got=got, hint=hint)
        below = Stream(mark.input, stream.schema, stream._runner)
        return RegisteredStream(
            name, below, mark.column, mark.spec, mark.source_column, stream._draft.explicit, stream.late_handler
        )
    if not isinstance(stream, Stream):
        hint = "register a Stream, or the stream that .watermark(...) returns"
        raise PlanError("not a stream that can be queried", got=type(stream).__name__, hint=hint)
    spec = None if lag is None else WatermarkSpec.fixed_lag(lag)
    column = only_time(stream.schema, "event_time") if event_time is None else event_time
    timed = stream.with_watermark(spec or WatermarkSpec(0), column)
    return RegisteredStream(name, stream, timed._draft.input.column, spec)


def unknown_table(name: str, known: Iterable[str]) -> PlanError:
    """Return the error for a table that is not there, with the nearest names."""
    names = list(known)
    hint = _known(name, names, "tables", f"register({name!r}, stream, event_time=..., lag=...) first")
    return PlanError(f"there is no table {name!r}", got=f"{len(names)} tables", hint=hint)


def unknown_sink(name: str, known: Iterable[str]) -> PlanError:
    """Return the error for a sink that is not there, with the nearest names."""
    names = list(known)
    hint = _known(name, names, "sinks", f"register_sink({name!r}, sink) first")
    return PlanError(f"there is no sink {name!r}", got=f"{len(names)} sinks", hint=hint)


def _known(name: str, names: list[str], what: str, first: str) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if near:
        return f"the nearest is {' or '.join(map(repr, near))}"
    return f"the {what} are: {', '.join(names)}" if names else first
