"""Time-interval panes, SPL's event-time windows (SEMANTICS §3.6)."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import DurationError, PlanError, message, shown
from krishiv_py.plan.durations import MAX_TIME_US, Duration, show_us, to_us
from krishiv_py.plan.windows.fixed import HoppingWindow

Seconds: TypeAlias = "float | Duration"
"""Seconds as ``float`` (SPL's own unit), or any duration of SEMANTICS §1.1."""
PaneState: TypeAlias = Literal["incomplete", "complete", "closed"]
PaneTiming: TypeAlias = Literal["early", "on_complete", "late"]


def _us(value: Seconds, name: str, *, zero: bool = False, negative: bool = False) -> int:
    if not isinstance(value, float):
        return to_us(value, name, allow_zero=zero, allow_negative=negative)
    us = round(value * 1_000_000) if abs(value) < MAX_TIME_US / 1_000_000 else None  # neither NaN nor infinite
    if us is None or abs(value * 1_000_000 - us) > 1e-4:
        raise DurationError(message(f"`{name}` is not a legal duration", shown(value), "it is no whole number of microseconds, "
                                    "or out of range", "pass seconds as a float, or a duration such as \"10 s\""))
    return to_us(dt.timedelta(microseconds=us), name, allow_zero=zero, allow_negative=negative)


@attrs.frozen
class TimeIntervalWindowOptions:
    """The options of SPL's ``timeInterval`` window, under their names.

    Attributes
    ----------
    interval_duration : float, int, timedelta or str
        Length of a pane; ``float`` is seconds, ``int`` milliseconds.
    creation_period : float, int, timedelta or str, optional
        Distance of the starts of panes; the duration unless given. Shorter: panes overlap; longer: rows between panes are
        counted as ``unassigned``.
    discard_age : float, int, timedelta or str
        How long a complete pane is kept for late rows.
    interval_offset : float, int, timedelta or str
        Shift of all starts from the epoch; may be negative.

    Examples
    --------
    >>> TimeIntervalWindowOptions(10.0, creation_period=5.0, discard_age=15.0).window().describe()
    'time intervals of 10 s every 5 s, discarded after 15 s'
    """

    interval_duration: Seconds
    creation_period: Seconds | None = None
    discard_age: Seconds = 0
    interval_offset: Seconds = 0

    def __attrs_post_init__(self) -> None:
        self.window()

    def window(self) -> PaneWindow:
        """The checked window."""
        size = _us(self.interval_duration, "interval_duration")
        period = size if self.creation_period is None else _us(self.creation_period, "creation_period")
        age = _us(self.discard_age, "discard_age", zero=True)
        return PaneWindow(size, period, _us(self.interval_offset, "interval_offset", zero=True, negative=True) % period, age)


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
        Where the pane stands.
    timing : {"early", "on_complete", "late"} or None
        In :meth:`PaneHandler.window_trigger`: what kind of firing it is.
    index : int or None
        In :meth:`PaneHandler.window_trigger`: zero-based number of the firing of this partition.
    data : pyarrow.Table or None
        All tuples of the partition, by event time; None around insertions.
    """

    key: dict[str, Any]
    interval_start: Any
    interval_end: Any
    state: PaneState
    timing: PaneTiming | None = None
    index: int | None = None
    data: pa.Table | None = attrs.field(default=None, repr=False)


class PaneHandler:
    """What happens to panes, in SPL's order; override what you need.

    The first watermark at or past the end: :meth:`window_initial_full` for every partition of the pane, each followed by its
    :meth:`window_trigger`. Every larger watermark: :meth:`window_trigger` for partitions updated since. In the end
    :meth:`window_close`. On Spark handlers run in the workers, on a copy: hand results on through the query, not through
    attributes.
    """

    def before_tuple_insertion(self, pane: Pane, row: dict[str, Any]) -> None:
        """Before the tuple `row` is assigned to `pane`."""

    def after_tuple_insertion(self, pane: Pane, row: dict[str, Any]) -> None:
        """After the tuple `row` was assigned to `pane`."""

    def window_initial_full(self, pane: Pane) -> None:
        """`pane` went from incomplete to complete."""

    def window_trigger(self, pane: Pane) -> None:
        """The partition `pane` fires; it carries its timing, index and data."""

    def window_close(self, pane: Pane) -> None:
        """`pane` went from complete to closed and is about to be deleted."""


@attrs.frozen
class HandlerRef:
    """A handler inside a plan; two of one class count as the same when a checkpoint is compared with its plan."""

    handler: PaneHandler = attrs.field(eq=False)

    def __repr__(self) -> str:
        return type(self.handler).__qualname__

    @property
    def wants_insertions(self) -> bool:
        """Whether the handler looks at single insertions."""
        names = ("before_tuple_insertion", "after_tuple_insertion")
        return any(getattr(type(self.handler), n) is not getattr(PaneHandler, n) for n in names)


def handler_ref(handler: PaneHandler) -> HandlerRef:
    """A checked handler."""
    if isinstance(handler, type) or not isinstance(handler, PaneHandler):
        raise PlanError(message("not a PaneHandler", shown(handler), "no event is told", "pass an instance of a subclass"))
    return HandlerRef(handler)


@attrs.frozen
class PaneWindow(HoppingWindow):
    """Pane N covers ``[N*period + offset, + duration)``."""

    kind: ClassVar[str] = "time_interval"
    discard_age_us: int = 0
    handler: HandlerRef | None = None

    def describe(self) -> str:
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        every = f" every {show_us(self.slide_us)}" if self.slide_us != self.size_us else ""
        told = f", events to {self.handler}" if self.handler is not None else ""
        return f"time intervals of {show_us(self.size_us)}{every}{offset}, discarded after {show_us(self.discard_age_us)}{told}"
