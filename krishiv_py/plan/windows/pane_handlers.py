"""Handlers of pane events inside a plan: one or several, classes or single functions (SEMANTICS §3.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.windows.value import Window

PaneState: TypeAlias = Literal["incomplete", "complete", "closed"]
PaneTiming: TypeAlias = Literal["early", "on_complete", "late"]

EVENTS: Final = (
    "before_tuple_insertion",
    "after_tuple_insertion",
    "window_initial_full",
    "window_trigger",
    "window_close",
)
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
        Where the pane stands.
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
    """

    names: tuple[str, ...]
    calls: dict[str, tuple[tuple[str, Handling], ...]]

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


def handlers_of(objects: tuple[PaneHandler, ...], functions: Mapping[str, Handling | None]) -> Handlers:
    """Checked handlers: of every object the events it overrides, then the single functions.

    Raises
    ------
    PlanError
        For a value that is not a handler, and for none at all.
    """
    calls: dict[str, list[tuple[str, Handling]]] = {event: [] for event in EVENTS}
    names: list[str] = []
    for handler in objects:
        if isinstance(handler, type) or not isinstance(handler, PaneHandler):
            raise PlanError("not a PaneHandler", got=shown(handler), hint="pass an instance of a subclass")
        names.append(type(handler).__qualname__)
        for event in EVENTS:
            if getattr(type(handler), event) is not getattr(PaneHandler, event) or event in vars(handler):
                calls[event].append((f"{type(handler).__name__}.{event}", getattr(handler, event)))
    for event, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise PlanError(f"`{event}` is not a function", got=shown(function), hint="pass a function of a Pane")
        names.append(getattr(function, "__name__", type(function).__name__))
        calls[event].append((names[-1], function))
    if not objects and not any(calls.values()):
        hint = "pass a PaneHandler, or a function such as window_trigger=print"
        raise PlanError("on_events needs a handler", got="none", hint=hint)
    return Handlers(tuple(names), {event: tuple(found) for event, found in calls.items()})
