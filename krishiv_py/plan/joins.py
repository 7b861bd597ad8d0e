"""Joins of two streams (SEMANTICS §9): what they share, then each kind. Rows of both sides with equal keys meet.

Interval joins (§9.1) join rows whose times are close::

                     lower            upper
    left     ──────────┊────────●───────┊──────      l.t + lower <= r.t <= l.t + upper, both inclusive
    right    ──○───────●──────────●─────●───○──      ● meet, ○ do not

As-of joins (§9.2) give each left row the right row of its key that is nearest in time::

    right          ──r1────r2───────────r3──
    left           ─────────────l───────────
    backward       r2: the newest at or before l          given when W - L > l.t
    forward        r3: the oldest at or after l           given when W - L > l.t + tolerance
    nearest        the closer one, of two equally close ones the earlier       likewise

Versioned joins (§16.7) are backward ones whose right rows are the changes of a table: a deletion ends a version::

    right          ──v1────v2──────×────
    left           ─────────────l1────l2      l1: v2, l2: nothing

Window joins (§9.3) join rows of one window, tumbling or hopping::

    left     ──●1───●2──┊───●3──────┊──     results   1a, 2a  │  3b, 3c
    right    ────●a─────┊──●b──●c───┊──
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.operation import LATER, LateBy, Operation, OperationTraits, ResultTime, WindowExtent
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.sides import JOIN_TYPES as JOIN_TYPES
from krishiv_py.plan.sides import RIGHT, AsOf, JoinColumns
from krishiv_py.plan.sides import JoinType as JoinType
from krishiv_py.plan.windows.fixed import HoppingWindow


@attrs.frozen
class Join(Operation):
    """Two streams in one layout, whose rows meet.

    Attributes
    ----------
    sides : JoinColumns
        Where the columns of each side are.
    how : str
        Which rows are given.
    """

    nature: ClassVar[OperationTraits] = OperationTraits("Join", joins=True)
    sides: JoinColumns
    how: JoinType

    @property
    def left_only(self) -> bool:
        """Return whether results are rows of the left side alone."""
        return self.how in ("semi", "anti")

    @property
    def has_time(self) -> bool:
        """Return whether results have a column for the time of both rows."""
        return not self.left_only

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")  # what is given never changes

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
        if options.emit_mode != "final" or fires:
            then = "a result of a join is given once, and never changes"
            hint = "leave .trigger, .accumulation, .with_pane and .emit out"
            raise PlanError("joins know neither triggers nor emit modes", got=options.describe(), then=then, hint=hint)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (self.sides.side, *self.sides.left, *(() if self.left_only else self.sides.right))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        fields = [*map(row.field, self.keys), *map(row.field, self.sides.left)]
        if self.left_only:
            return fields
        fields += map(row.field, self.sides.right)
        return [*fields, pa.field(self.sides.time, bound)] if self.has_time else fields

    def result_time(self, time_column: str) -> ResultTime | None:
        """Return the result column with the event time of a result (SEMANTICS §9.1)."""
        return ResultTime("row", self.sides.time if self.has_time else self.sides.left_time)


@attrs.frozen
class IntervalJoin(Join):
    """Rows meet when ``l.t + lower <= r.t <= l.t + upper``; `how` says what is given of rows that met, or did not."""

    kind: ClassVar[str] = "interval join"
    lower_us: int
    upper_us: int
    max_rows_per_key: int | None = attrs.field(default=None, metadata=LATER)

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(max(self.upper_us, 0) - min(self.lower_us, 0))

    def describe(self) -> str:
        lower, upper = (f"{'-' if us < 0 else '+'} {show_us(abs(us))}" for us in (self.lower_us, self.upper_us))
        limit = f", at most {self.max_rows_per_key} rows a key and side" if self.max_rows_per_key else ""
        return f"{self.how} interval join, left {lower} <= right <= left {upper}{limit}"

    def unwaiting(self) -> str | None:
        return (
            "a join does not wait for an end: a pair is given in the batch in which the later of its rows arrives, a row "
            "without a partner once the watermark says that none can come"
        )

    def hold_back_us(self, options: QueryOptions) -> int:
        """Return how far the watermark of results is behind that of the rows: by what an unmatched row waits for
        (SEMANTICS §9.1).
        """
        after, before = max(self.upper_us, 0), max(-self.lower_us, 0)
        waits = {"inner": 0, "right": before, "full": max(after, before)}.get(self.how, after)
        return options.allowed_lateness_us + waits


Direction: TypeAlias = Literal["backward", "forward", "nearest"]
AsofType: TypeAlias = Literal["left", "inner"]
LookupType: TypeAlias = Literal["left", "inner", "semi", "anti"]
"""The rows that are given: all, those that find something once for each row of the table or once, those that find nothing."""
DIRECTIONS: Final[tuple[Direction, ...]] = ("backward", "forward", "nearest")
ASOF_TYPES: Final[tuple[AsofType, ...]] = ("left", "inner")


@attrs.frozen
class AsofJoin(Join):
    """Every left row meets at most one right row, at most `tolerance_us` away."""

    has_time: ClassVar[bool] = False  # a result has the time of its left row
    kind: ClassVar[str] = "as-of join"
    remembers: ClassVar[bool] = True
    direction: Direction
    tolerance_us: int | None
    allow_exact: bool = attrs.field(default=True, metadata=LATER)

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.tolerance_us or 0)

    @property
    def ahead_us(self) -> int:
        """Return how far ahead of a left row its partner may be."""
        return 0 if self.direction == "backward" else self.tolerance_us or 0

    def describe(self) -> str:
        within = "" if self.tolerance_us is None else f", at most {show_us(self.tolerance_us)} away"
        exact = "" if self.allow_exact else ", not of the same time"
        return f"{self.how} as-of join, {self.direction}{within}{exact}"

    def unwaiting(self) -> str | None:
        return "a join does not wait for an end: a left row is given once the watermark says that no nearer partner can come"

    def hold_back_us(self, options: QueryOptions) -> int:
        """Return how far the watermark of results is behind that of the rows (SEMANTICS §9.2)."""
        return options.allowed_lateness_us + self.ahead_us

    def warnings(self) -> tuple[str, ...]:
        if self.tolerance_us is not None:
            return ()
        return ("without a tolerance the newest right row of every key stays in state for ever: set one, or a state TTL",)


@attrs.frozen
class VersionedJoin(AsofJoin):
    """Every left row meets the version of a table that was valid at its time: the newest change of its key, unless it deletes.

    Attributes
    ----------
    change : str
        The column of right rows that is false for a deletion, in the common layout.
    sequence : tuple of str
        Those that say which change of one time counts, the largest; without any it is the last to arrive.
    """

    kind: ClassVar[str] = "versioned join"
    change: str = ""
    sequence: tuple[str, ...] = ()

    @property
    def unshown(self) -> tuple[str, ...]:
        """Return the columns of right rows that are not columns of results."""
        return (self.change, *self.sequence)

    def identity(self) -> dict[str, str]:
        return {"how": repr(self.how), "sequence": repr(bool(self.sequence))}

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (*super().carried(row), *self.unshown)

    def describe(self) -> str:
        by = ", of one time the largest sequence" if self.sequence else ""
        return f"{self.how} versioned join, the row of the table valid at the time of the left row{by}"

    def unwaiting(self) -> str | None:
        return "a join does not wait for an end: a left row is given once the watermark says that no change before it can come"

    def warnings(self) -> tuple[str, ...]:
        return ("the last version of every key of the table stays in state: set a state TTL where keys go out of use",)


@attrs.frozen
class FeatureJoin(AsofJoin):
    """Every label meets the newest feature row of its key that it may have (SEMANTICS §17.3).

    The last column of right rows that results have is the event time of a feature. `tolerance_us` is the greatest age.

    Attributes
    ----------
    as_of : str
        Which rows a label may have: all ("event"), or those that were published by its time ("served").
    unshown : tuple of str
        The columns of right rows that results do not have: when a row was published, and its batch.
    """

    kind: ClassVar[str] = "features"
    as_of: AsOf = "served"
    unshown: tuple[str, ...] = ()

    def identity(self) -> dict[str, str]:
        return {name: repr(getattr(self, name)) for name in ("as_of", "allow_exact", "tolerance_us")}

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (*super().carried(row), *self.unshown)

    def describe(self) -> str:
        younger = "" if self.tolerance_us is None else f", younger than {show_us(self.tolerance_us + 1)}"
        exact = "at or before" if self.allow_exact else "before"
        served = " of those that were published by then" if self.as_of == "served" else ""
        return f"newest feature {exact} the time of the label{served}{younger}"

    def unwaiting(self) -> str | None:
        return "a training set does not wait for an end: a label is given once the watermark of labels and log has passed it"

    def warnings(self) -> tuple[str, ...]:
        if self.tolerance_us is not None:
            return ()
        return ("without max_age the newest feature of every key stays in state for ever: set one, or a state TTL",)


RULE: Final = "rule"
"""The name by which a condition calls the columns of its rule: ``rule.limit``."""
BAD_RULE: Final = "bad_rule"
"""The reason of rules among late rows whose condition cannot be read, or is none over the rows."""


@attrs.frozen
class RulesJoin(VersionedJoin):
    """Every left row meets the versions of rules that were valid at its time, and whose condition holds (SEMANTICS §16.10).

    Attributes
    ----------
    rules : tuple of (str, str)
        The columns of a rule, as its condition calls them, and in the common layout.
    key : tuple of str
        Those that tell rules apart, in the common layout.
    condition_column : str
        The column that holds the condition of a rule, as a text.
    """

    kind: ClassVar[str] = "rules"
    late_side: ClassVar[str | None] = RIGHT
    rules: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    condition_column: str = ""

    @property
    def unshown(self) -> tuple[str, ...]:
        """Return the columns of right rows that are not columns of results."""
        others = (inside for _, inside in self.rules if inside not in self.sides.right)
        return (*others, self.change, *self.sequence)

    def identity(self) -> dict[str, str]:
        return {"how": repr(self.how), "sequence": repr(bool(self.sequence)), "condition": repr(self.condition_column)}

    def describe(self) -> str:
        by = ", of one time the largest sequence" if self.sequence else ""
        return f"{self.how} join with the rules that are valid at the time of a row, by their {self.condition_column}{by}"

    def warnings(self) -> tuple[str, ...]:
        return ("the last version of every rule stays in state, and all rows go through one bucket",)


@attrs.frozen
class WindowJoin(Join):
    """Rows of equal key and equal window meet once the window is final."""

    has_time: ClassVar[bool] = False  # a result has the time of its window
    kind: ClassVar[str] = "window join"
    nature: ClassVar[OperationTraits] = attrs.evolve(Join.nature, opens_windows=True)
    late_by: ClassVar[LateBy] = "windows"
    window: HoppingWindow

    @property
    def extent(self) -> WindowExtent:
        return self.window.extent

    def describe(self) -> str:
        return f"{self.how} join in windows, {self.window.describe()}"

    def no_end(self, end_us: int) -> str | None:
        return self.window.no_end(end_us)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        plain, n = super().result_fields(row, bound) or [], len(self.keys)
        bounds = [pa.field("window_start", bound), pa.field("window_end", bound)]
        return [*plain[:n], *bounds, *plain[n:]]

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("before_end")

    def warnings(self) -> tuple[str, ...]:
        return self.window.warnings()
