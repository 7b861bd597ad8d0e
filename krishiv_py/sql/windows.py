"""Window functions and lengths of time: ``tumble_start(ts, INTERVAL '1' MINUTE)``, ``hop_end(ts, slide, size)``."""

from __future__ import annotations

import datetime as dt
import difflib
from typing import Final, Literal, TypeAlias

import attrs
from sqlglot import expressions as sg

from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import DurationError, PlanError, message
from krishiv_py.plan.durations import show_us, to_us

Kind: TypeAlias = Literal["tumble", "hop", "cumulate", "session"]
Bound: TypeAlias = Literal["start", "end"]

_LENGTHS: Final[dict[Kind, tuple[str, ...]]] = {
    "tumble": ("interval",),
    "hop": ("slide", "size"),
    "cumulate": ("step", "size"),
    "session": ("gap",),
}
_CALLS: Final[dict[str, tuple[Kind, Bound]]] = {
    "tumble_start": ("tumble", "start"),
    "tumble_end": ("tumble", "end"),
    "hop_start": ("hop", "start"),
    "hop_end": ("hop", "end"),
    "cumulate_start": ("cumulate", "start"),
    "cumulate_end": ("cumulate", "end"),
    "session_start": ("session", "start"),
    "session_end": ("session", "end"),
}
WINDOW_CALLS: Final = tuple(_CALLS)


@attrs.frozen
class WindowCall:
    """The window a query groups by; lengths in µs, in the order of the call."""

    kind: Kind
    lengths: tuple[int, ...]

    def over(self, stream: KeyedStream) -> WindowedStream:
        """The builder's window."""
        lengths = [dt.timedelta(microseconds=us) for us in self.lengths]
        if self.kind == "tumble":
            return stream.tumbling_window(lengths[0])
        if self.kind == "hop":
            return stream.hopping_window(lengths[1], lengths[0])
        if self.kind == "cumulate":
            return stream.cumulate_window(lengths[0], lengths[1])
        return stream.session_window(lengths[0])

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(show_us, self.lengths))})"


def window_call(node: sg.Expression, event_time: str) -> tuple[WindowCall, Bound] | None:
    """What a window function asks for; None for any other expression."""
    if not isinstance(node, sg.Anonymous):
        return None
    name = node.name.lower()
    if name not in _CALLS:
        near = difflib.get_close_matches(name, WINDOW_CALLS, n=1, cutoff=0.75)
        if near:
            raise PlanError(
                message("unknown function", node.sql("spark"), "it cannot be evaluated", f"the nearest is {near[0]}")
            )
        return None
    kind, bound = _CALLS[name]
    names = _LENGTHS[kind]
    if len(node.expressions) != 1 + len(names):
        wanted = f"{name}({event_time}, {', '.join(names)})"
        raise PlanError(
            message(f"{name} takes {1 + len(names)} arguments", node.sql("spark"), "the window is not known", f"write {wanted}")
        )
    column, *lengths = node.expressions
    if not isinstance(column, sg.Column) or column.table or column.name != event_time:  # with a table: a field of a struct
        raise PlanError(
            message(
                f"{name} is not over the event time",
                column.sql("spark"),
                "the watermark says nothing of it, so windows would never end",
                f"the declared event time is {event_time!r}",
            )
        )
    return WindowCall(kind, tuple(interval_us(node, name) for node, name in zip(lengths, names, strict=True))), bound


def interval_us(node: sg.Expression, name: str, *, allow_zero: bool = False) -> int:
    """A length of time in µs: ``INTERVAL '1 minute'``, ``INTERVAL '1' MINUTE``, or the plain text ``'1 minute'``."""
    if isinstance(node, sg.Add):
        return interval_us(node.this, name) + interval_us(node.expression, name)
    value = node.this if isinstance(node, sg.Interval) else node
    if not isinstance(value, sg.Literal) or not (value.is_string or isinstance(node, sg.Interval)):
        raise DurationError(
            message(
                f"`{name}` is not a legal duration",
                node.sql("spark"),
                "its unit or length is not known",
                "write for instance INTERVAL '5' SECOND",
            )
        )
    unit = node.args.get("unit") if isinstance(node, sg.Interval) else None
    text = value.name if unit is None else f"{value.name} {unit.sql('spark')}"
    return to_us(text, name, allow_zero=allow_zero)
