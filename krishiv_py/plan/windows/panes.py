"""Time-interval panes, SPL's event-time windows, and handlers of their events (SEMANTICS §3.6)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.plan.checks import a_function, one_of, plain_methods
from krishiv_py.plan.durations import MAX_TIME_US, Duration, show_us, to_us
from krishiv_py.plan.operation import LATER, Handled, OperationTraits
from krishiv_py.plan.options.late import OnError
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, HoppingWindow, check_overlap
from krishiv_py.plan.windows.window import Window

PaneState: TypeAlias = Literal["incomplete", "complete", "closed"]
PaneTiming: TypeAlias = Literal["early", "on_complete", "late"]
EVENTS: Final = ("before_tuple_insertion", "after_tuple_insertion", "window_initial_full", "window_trigger", "window_close")
Submitted: TypeAlias = "dict[str, Any] | list[dict[str, Any]] | None"
"""The tuples a handler submits."""
Handling: TypeAlias = Callable[..., Any]


@attrs.frozen(eq=False)
class Pane:
    """One partition of a pane, as a handler sees it.

    Attributes
    ----------
    key : dict
        The key columns; empty without a key.
    interval_start, interval_end
        The interval ``[start, end)``, in the type of the time column (``int`` milliseconds or ``datetime``).
    state : {"incomplete", "complete", "closed"}
        The state of the pane.
    timing : {"early", "on_complete", "late"} or None
        In :meth:`PaneHandler.window_trigger`: what kind of firing it is.
    index : int or None
        In :meth:`PaneHandler.window_trigger`: zero-based number of the firing of this partition.
    data : pyarrow.Table or None
        All tuples of the partition, by event time; with ``accumulation("discarding")`` those since its last firing. None
        around insertions.
    """

    key: dict[str, Any]
    interval_start: Any
    interval_end: Any
    state: PaneState
    timing: PaneTiming | None = None
    index: int | None = None
    data: pa.Table | None = attrs.field(default=None, repr=False)

    @property
    def window(self) -> Window:
        """The interval as a value, which can be compared and be a key of a dict."""
        return Window(self.interval_start, self.interval_end)


class PaneHandler:
    """Handles the events of panes, in SPL's order; override the methods you need.

    The first watermark at or past the end: :meth:`window_initial_full` for every partition of the pane, each followed by its
    :meth:`window_trigger`. Every larger watermark: :meth:`window_trigger` for partitions updated since. In the end
    :meth:`window_close`. On Spark, handlers run in the workers, on a copy: return results through the query, not
    through attributes. A handler must return None; any other value would be lost and raises an error. With
    ``on_events(..., submits=schema)`` the last three may return the tuples they submit: a dict, or several in a list.
    """

    def before_tuple_insertion(self, pane: Pane, row: dict[str, Any]) -> None:
        """Before the tuple `row` is assigned to `pane`."""

    def after_tuple_insertion(self, pane: Pane, row: dict[str, Any]) -> None:
        """After the tuple `row` was assigned to `pane`."""

    def window_initial_full(self, pane: Pane) -> Submitted:
        """`pane` went from incomplete to complete."""

    def window_trigger(self, pane: Pane) -> Submitted:
        """The partition `pane` fires; it carries its timing, index and data."""

    def window_close(self, pane: Pane) -> Submitted:
        """`pane` went from complete to closed and is about to be deleted."""


@attrs.frozen(eq=False)
class Handlers:
    """Holds what is called at each event, in order. When a checkpoint is compared with its plan, those of one name are
    the same.

    Attributes
    ----------
    names : tuple of str
        Classes of handlers, and functions.
    calls : dict
        Functions by event, each with the name it has in errors.
    on_error : {"fail", "side_output"}
        Whether the tuples that one of them raises for go to the late output.
    """

    names: tuple[str, ...]
    calls: dict[str, tuple[tuple[str, Handling], ...]]
    on_error: OnError = "fail"

    def __repr__(self) -> str:
        return ", ".join(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handlers)  # as handlers may hold anything, a checkpoint goes by their names

    def __hash__(self) -> int:
        return hash(Handlers)

    @property
    def wants_insertions(self) -> bool:
        """Return whether single insertions are looked at."""
        return bool(self.calls[EVENTS[0]] or self.calls[EVENTS[1]])


def handlers_of(objects: tuple[PaneHandler, ...], functions: Mapping[str, Handling | None], on_error: OnError) -> Handlers:
    """Checked handlers: of every object the events it overrides, then the single functions.

    Raises
    ------
    PlanError
        For a value that is not a handler, and for none at all.
    """
    one_of(on_error, "on_error", ("fail", "side_output"))
    calls: dict[str, list[tuple[str, Handling]]] = {event: [] for event in EVENTS}
    names: list[str] = []
    for handler in objects:
        if isinstance(handler, type) or not isinstance(handler, PaneHandler):
            raise PlanError("not a PaneHandler", got=shown(handler), hint="pass an instance of a subclass")
        plain_methods(handler, PaneHandler)
        names.append(type(handler).__qualname__)
        for event in EVENTS:
            if getattr(type(handler), event) is not getattr(PaneHandler, event) or event in vars(handler):
                calls[event].append((f"{type(handler).__name__}.{event}", getattr(handler, event)))
    for event, function in functions.items():
        if function is None:
            continue
        a_function(function, f"`{event}` takes a function", "pass a function of a Pane")
        names.append(getattr(function, "__name__", type(function).__name__))
        calls[event].append((names[-1], function))
    if not objects and not any(calls.values()):
        hint = "pass a PaneHandler, or a function such as window_trigger=print"
        raise PlanError("on_events needs a handler", got="none", hint=hint)
    return Handlers(tuple(names), {event: tuple(called) for event, called in calls.items()}, on_error)


Seconds: TypeAlias = "float | Duration"
"""Seconds as ``float`` (SPL's own unit), or any duration of SEMANTICS §1.1."""


def _us(value: Seconds, name: str, *, zero: bool = False, negative: bool = False) -> int:
    if not isinstance(value, float):
        return to_us(value, name, allow_zero=zero, allow_negative=negative)
    us = round(value * 1_000_000) if abs(value) < MAX_TIME_US / 1_000_000 else None  # neither NaN nor infinite
    if us is None or abs(value * 1_000_000 - us) > 1e-4:
        then = "it is not a whole number of microseconds, or out of range"
        hint = 'pass seconds as a float, or a duration such as "10 s"'
        raise DurationError(f"`{name}` is not a legal duration", got=shown(value), then=then, hint=hint)
    return to_us(dt.timedelta(microseconds=us), name, allow_zero=zero, allow_negative=negative)


@attrs.frozen
class TimeIntervalWindowOptions:
    """The options of SPL's ``timeInterval`` window, under their names.

    Attributes
    ----------
    interval_duration : float, int, timedelta or str
        Length of a pane. A ``float`` is seconds, as in SPL: ``10.0``. An ``int`` is milliseconds, as everywhere else in the
        library: ``10`` is a hundredth of a second, and the plan warns about it. Do not mix the two in one object.
    creation_period : float, int, timedelta or str, optional
        Distance of the starts of panes; the duration unless given. Shorter: panes overlap; longer: rows between panes are
        counted as ``unassigned``.
    discard_age : float, int, timedelta or str
        How long a complete pane is kept for late rows.
    interval_offset : float, int, timedelta or str
        Shift of all starts from the epoch; may be negative.
    max_overlap : int
        How many panes a tuple may be in, 100 000 by default (docs/costs.md).

    Examples
    --------
    >>> TimeIntervalWindowOptions(10.0, creation_period=5.0, discard_age=15.0)._window().describe()
    'time intervals of 10 s every 5 s, discarded after 15 s'
    """

    interval_duration: Seconds
    creation_period: Seconds | None = None
    discard_age: Seconds = 0
    interval_offset: Seconds = 0
    max_overlap: int = MAX_OVERLAP

    def __attrs_post_init__(self) -> None:
        self._window()
        lengths = {name: getattr(self, name) for name in attrs.fields_dict(type(self)) if name != "max_overlap"}
        floats = [n for n, v in lengths.items() if isinstance(v, float)]
        ints = [n for n, v in lengths.items() if isinstance(v, int) and v]
        if floats and ints:
            got = ", ".join(f"{n}={lengths[n]!r}" for n in (*floats, *ints))
            hint = 'write all of them as floats, or as texts such as "10 s"'
            raise DurationError("floats are seconds and ints are milliseconds", got=got, hint=hint)

    def _window(self) -> PaneWindow:
        """Return the checked window."""
        size = _us(self.interval_duration, "interval_duration")
        period = size if self.creation_period is None else _us(self.creation_period, "creation_period")
        got = f"`interval_duration` {show_us(size)}, `creation_period` {show_us(period)}"
        check_overlap(size, period, got, self.max_overlap)
        age = _us(self.discard_age, "discard_age", zero=True)
        return PaneWindow(size, period, _us(self.interval_offset, "interval_offset", zero=True, negative=True) % period, age)


@attrs.frozen
class PaneWindow(HoppingWindow):
    """Pane N covers ``[N*period + offset, + duration)``."""

    route: ClassVar[str] = "panes"
    kind: ClassVar[str] = "time_interval"
    nature: ClassVar[OperationTraits] = attrs.evolve(HoppingWindow.nature, fires_anyway=True)
    discard_age_us: int = 0
    handler: Handlers | None = None
    submits: pa.Schema | None = attrs.field(default=None, metadata=LATER)

    @property
    def takes_changes(self) -> bool:
        return False  # handlers get rows, which nobody could take back from them

    @property
    def handled(self) -> Handled:  # type: ignore[override]
        return "results" if self.submits is not None else "" if self.handler is None else "events"

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        """Keys, bounds and what a handler submits; see :class:`~krishiv_py.plan.operation.Operation`."""
        if self.submits is None:
            return None
        return [*map(row.field, self.keys), pa.field("window_start", bound), pa.field("window_end", bound), *self.submits]

    def check_options(self, options: QueryOptions) -> None:
        """Refuse retractions of what a handler submits: nobody knows what it submitted before."""
        if self.submits is not None and options.emit_mode == "retractions":
            then = "what a handler submitted at an earlier firing is not kept"
            hint = "leave emit(...) out"
            raise PlanError("submitted tuples are not retracted", got='emit("retractions")', then=then, hint=hint)

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """Return what was given, as SPL has it: a row is late by its own time, a pane lives for its discard age, fires
        as W grows.
        """
        lateness_us = explicit.allowed_lateness_us
        if lateness_us not in (None, self.discard_age_us):
            got = f"allowed_lateness({show_us(lateness_us)}) and discard_age={show_us(self.discard_age_us)}"
            hint = "leave allowed_lateness out, and set discard_age in TimeIntervalWindowOptions"
            raise PlanError("panes take late rows for their discard age", got=got, hint=hint)
        if explicit.late_rule not in (None, "event"):
            got = f"late_rule({explicit.late_rule!r})"
            then = "it is late when t < W - discard_age, whatever its panes"
            raise PlanError("a row of panes is late by its own time", got=got, then=then, hint="leave late_rule out")
        given = explicit.trigger or Trigger()
        if not given.on_time or given.late is None:
            hint = "set early firings only: Trigger.on_count(100)"
            raise PlanError("panes fire when they are complete, and when the watermark grows", got=given._describe(), hint=hint)
        filled = explicit.filled(allowed_lateness_us=self.discard_age_us, late_rule="event", emit="updates", pane=True)
        return attrs.evolve(filled, trigger=Trigger(early=given.early, late="watermark"))

    def warnings(self) -> tuple[str, ...]:
        """Panes shorter than a second may be meant as seconds."""
        short = (
            (
                f"panes of {show_us(self.size_us)}: an int is milliseconds; seconds are a float, as in 10.0, or a text, as in "
                '"10 s"',
            )
            if self.size_us < 1_000_000
            else ()
        )
        return (*super().warnings(), *short)

    def describe(self) -> str:
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        every = f" every {show_us(self.slide_us)}" if self.slide_us != self.size_us else ""
        events = f", events to {self.handler}" if self.handler is not None else ""
        events += ", tuples submitted" * (self.submits is not None)
        return (
            f"time intervals of {show_us(self.size_us)}{every}{offset}, discarded after {show_us(self.discard_age_us)}{events}"
        )
