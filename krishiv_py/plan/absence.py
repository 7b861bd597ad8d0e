"""Absence: keys of which no row has come for a length of time (SEMANTICS §14.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import DurationError, PlanError, SchemaError, failure_text
from krishiv_py.plan.checks import a_switch, one_of
from krishiv_py.plan.durations import Duration, TimePoint, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.operation import LateBy, Operation, OperationTraits, ResultTime, refuse_firings
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.processing import AtEnd, waiting_rows
from krishiv_py.plan.row_classes import stored_value
from krishiv_py.plan.schema import RESERVED

AbsenceClock: TypeAlias = Literal["event", "processing", "both"]

STATE, SINCE, LAST_SEEN, MISSING = "state", "since", "last_seen", "missing"
COLUMNS: Final = (STATE, SINCE, LAST_SEEN, MISSING)
"""The columns of results besides those of the key and the time."""
ANNOUNCED: Final = f"{RESERVED}announced"
"""The column that says which rows change the list of keys: 1 for a new key, 0 for one that is gone, 2 for what is neither."""
ExpectedKeys: TypeAlias = "Callable[[], tuple[object, pa.Table]]"
"""Gives a version of a list of keys, and its rows."""
EXPECTED: Final = "expected"
"""The state of a key of which no row has come, and that is not absent yet."""


@attrs.frozen(eq=False)
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
    expected : callable or None
        Gives the keys that are watched although no row of them has come.
    expected_text : str
        These keys for people.
    announced : str or None
        The column that says which rows change the list of keys, and show no life.
    start_us : int or None
        Since when these keys are watched, µs; None: the first finite watermark, or the clock when the query begins.
    clock : {"event", "processing", "both"}
        By which time a key is absent; with both, a source that is silent as a whole is reported by the clock.
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
    expected: ExpectedKeys | None = None
    expected_text: str = ""
    announced: str | None = None
    start_us: int | None = None
    clock: AbsenceClock = "event"

    @property
    def begins_everywhere(self) -> bool:
        return self.expected is not None

    @property
    def tables(self) -> tuple[Callable[[], object], ...]:
        return () if self.expected is None else (self.expected,)

    @property
    def has_clock_deadlines(self) -> bool:
        return self.clock != "event"

    def identity(self) -> dict[str, str]:
        lengths = (self.after_us, self.repeat_us, self.forget_us)  # deadlines that are set follow from them
        parts = {name: repr(us) for name, us in zip(("after_us", "repeat_us", "forget_us"), lengths, strict=True)}
        by_clock = {} if self.clock == "event" else {"clock": self.clock}
        return parts | by_clock | ({} if self.expected is None else {"expected": "keys"})  # which ones may change

    def describe(self) -> str:
        again = "" if self.repeat_us is None else f", again every {show_us(self.repeat_us)}"
        gone = "" if self.forget_us is None else f", forgotten after {show_us(self.forget_us)}"
        clock = {"event": "", "processing": " of the clock", "both": ", or no input for so long"}[self.clock]
        known = "" if self.expected is None else f", {self.expected_text} expected"
        return f"keys without a row for {show_us(self.after_us)}{clock}{again}{gone}{known}"

    def warnings(self) -> tuple[str, ...]:
        texts = []
        if self.expected is not None and self.start_us is None and self.clock != "processing":
            what = "expected keys without a row are watched from the first watermark on, which depends on the first batch"
            texts.append(f'{what}; start="2024-01-31T00:00:00Z" says since when')
        if self.clock != "event":
            texts.append(f'with clock="{self.clock}" results depend on when rows come')
        return tuple(texts)

    def row_by_row(self, options: QueryOptions) -> Operation:
        if self.clock == "processing":
            hint = 'write clock="event" of .absent(...), or leave clock="row" of the watermark out'
            raise PlanError("absence by the clock goes by batches", got='clock="processing"', hint=hint)
        return self

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return () if self.announced is None else (self.announced,)

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
        if row[names[STATE]] == EXPECTED:
            return "it is expected, and no row of it has come"
        if row[names[LAST_SEEN]] is None and row[names[STATE]] == "absent":
            since = show_instant(time_point_us(row[names[SINCE]], SINCE))
            return f"it is absent since {since}: no row of it has come"
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
    after: Duration,
    *,
    repeat: Duration | None,
    forget_after: Duration | None,
    recovered: bool,
    at_end: AtEnd,
    time: str,
    expected: ExpectedKeys | None = None,
    expected_text: str = "",
    announced: str | None = None,
    start: TimePoint | None = None,
    clock: AbsenceClock = "event",
) -> Absence:
    """Return a checked :class:`Absence`."""
    one_of(clock, "clock", ("event", "processing", "both"))
    if start is not None and (expected is None or clock == "processing"):
        got = "start= without a list of keys" if expected is None else 'start= with clock="processing"'
        hint = "leave start out: it says since when expected keys are watched, by event time"
        raise PlanError("`start` has nothing to say", got=got, hint=hint)
    start_us = None if start is None else time_point_us(start, "start")
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
    return Absence(after_us, repeat_us, forget_us, recovered, at_end, time, expected, expected_text, announced, start_us, clock)


def expected_keys(given: Mapping[str, Sequence[Any]], keys: Sequence[pa.Field]) -> pa.Table:
    """Return keys that are expected in the types of the key.

    Raises
    ------
    SchemaError
        For a column that is missing, or has values that its type does not hold.
    """
    check_keys_there(list(given), keys)
    columns = []
    for field in keys:
        try:
            columns.append(pa.array([stored_value(value, field.type) for value in given[field.name]], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as problem:
            hint = f"give {field.name} as {field.type}"
            raise SchemaError("expected keys do not fit", got=failure_text(problem), hint=hint) from problem
    return pa.Table.from_arrays(columns, names=[field.name for field in keys])


def check_keys_there(names: Sequence[str], keys: Sequence[pa.Field]) -> None:
    """Refuse columns of expected keys among which one of the key is missing."""
    for field in keys:
        if field.name not in names:
            hint = f"give {', '.join(field.name for field in keys)} of each key"
            raise SchemaError("expected keys lack a column of the key", got=f"no column {field.name}", hint=hint)
