"""Absence: keys of which no row has come for a length of time (SEMANTICS §14.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import DurationError, PlanError
from krishiv_py.plan.checks import a_switch, one_of
from krishiv_py.plan.durations import Duration, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.operation import LateBy, Operation, OperationTraits, ResultTime, refuse_firings
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.processing import AtEnd, waiting_rows

STATE, SINCE, LAST_SEEN, MISSING = "state", "since", "last_seen", "missing"
COLUMNS: Final = (STATE, SINCE, LAST_SEEN, MISSING)
"""The columns of results besides those of the key and the time."""


@attrs.frozen
class Absence(Operation):
    """A key is absent from `after_us` after its last row until the next one.

    ::

        rows        ●    ●                          ●
        after            ├──────────┤
        results                     absent  absent  recovered
                                    ├───────┤ repeat

    Attributes
    ----------
    after_us : int
        How long without a row, µs.
    repeat_us : int or None
        How long after that a key is reported again.
    forget_us : int or None
        How long after its last row a key is dropped.
    recovered : bool
        Whether the row that ends an absence is reported.
    at_end : {"fire", "seen"}
        Whether keys are reported when the input ends, for deadlines beyond the largest event time.
    time : str
        The column of the event time.
    """

    kind: ClassVar[str] = "absence"
    nature: ClassVar[OperationTraits] = OperationTraits("Absence", keeps_carried=False)
    remembers: ClassVar[bool] = True
    by_clock: ClassVar[bool] = True
    late_by: ClassVar[LateBy] = "time"
    waiting: ClassVar[tuple[str, str]] = (
        "nothing waits: no key was seen",
        "keys are reported once the watermark reaches their deadline",
    )
    after_us: int
    repeat_us: int | None = None
    forget_us: int | None = None
    recovered: bool = True
    at_end: AtEnd = "seen"
    time: str = ""

    def identity(self) -> dict[str, str]:
        lengths = (self.after_us, self.repeat_us, self.forget_us)  # deadlines that are set follow from them
        return {name: repr(us) for name, us in zip(("after_us", "repeat_us", "forget_us"), lengths, strict=True)}

    def describe(self) -> str:
        again = "" if self.repeat_us is None else f", again every {show_us(self.repeat_us)}"
        gone = "" if self.forget_us is None else f", forgotten after {show_us(self.forget_us)}"
        return f"keys without a row for {show_us(self.after_us)}{again}{gone}"

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("row", self.time)

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "absence", "a result is given once, and is never taken back")
        if options.ttl is not None:
            hint = 'write .absent(..., forget_after="7 days")'
            raise PlanError("absence says itself how long a key is remembered", got=options.describe(), hint=hint)

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        names = {name: f"state_{name}" if f"state_{name}" in row else name for name in (STATE, SINCE, LAST_SEEN)}
        if row[names[LAST_SEEN]] is None:
            return waiting_rows(row.get("state_held_rows", row.get("held_rows")))
        seen_us = time_point_us(row[names[LAST_SEEN]], LAST_SEEN)
        if row[names[STATE]] == "absent":
            since = show_instant(time_point_us(row[names[SINCE]], SINCE))
            return f"it is absent since {since}: its last row is of {show_instant(seen_us)}"
        return f"its last row is of {show_instant(seen_us)}: it is absent at {show_instant(seen_us + self.after_us)}"

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        length = pa.int64() if pa.types.is_integer(bound) else pa.duration("us")
        times = [pa.field(SINCE, bound), pa.field(LAST_SEEN, bound), pa.field(MISSING, length)]
        return [*(row.field(k) for k in self.keys), pa.field(self.time, bound), pa.field(STATE, pa.string()), *times]


def absence(
    after: Duration, *, repeat: Duration | None, forget_after: Duration | None, recovered: bool, at_end: AtEnd, time: str
) -> Absence:
    """Return a checked :class:`Absence`."""
    one_of(at_end, "at_end", ("fire", "seen"))
    a_switch(recovered, "recovered")
    after_us = to_us(after, "after")
    repeat_us, forget_us = (
        None if length is None else to_us(length, name) for length, name in ((repeat, "repeat"), (forget_after, "forget_after"))
    )
    if forget_us is not None and forget_us < after_us:
        then = "a key would be forgotten before it is absent"
        hint = f'write forget_after="{show_us(after_us)}", or longer'
        raise DurationError("`forget_after` is shorter than `after`", got=show_us(forget_us), then=then, hint=hint)
    return Absence(after_us, repeat_us, forget_us, recovered, at_end, time)
