"""Tables that change: aggregates without a window, over rows that are added or changed (SEMANTICS §16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output, identity_of_aggs, identity_of_columns
from krishiv_py.plan.operation import GROUPING, Apart, LateBy, Operation, OperationTraits, ResultTime, passing, refuse_firings
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.schema import RESERVED
from krishiv_py.plan.sides import OP as OP
from krishiv_py.plan.sides import JoinColumns, JoinType

INSERT, BEFORE, AFTER, DELETE = "+I", "-U", "+U", "-D"
Stale: TypeAlias = Literal["count", "side_output"]
ChangelogFormat: TypeAlias = Literal["log", "upsert", "debezium", "cdf"]
FEED_KIND, FEED_VERSION, FEED_TIME = "_change_type", "_commit_version", "_commit_timestamp"
"""The columns of a change feed of a table, as Delta names them: what a change does, in which commit, and when that was."""
CHANGE: Final = f"{RESERVED}change"
"""The column that is true for a row that its key has from now on, false for a deletion, and null for neither."""
BAD_OP, BAD_SEQUENCE, STALE, UNMATCHED = "bad_op", "bad_sequence", "stale", "unmatched"
"""The reasons of changes among late rows."""


def sequence_name(number: int) -> str:
    """Return the name of a column of what orders the changes of a key."""
    return f"{RESERVED}sequence_{number}"


@attrs.frozen
class ChangeOperation(Operation):
    """Base of the operations that take changes: no row is late for them, and their results have no event time."""

    late_by: ClassVar[LateBy] = "never"

    @property
    def takes_late(self) -> bool:
        return True

    @property
    def takes_changes(self) -> bool:
        return True

    def result_time(self, time_column: str) -> ResultTime | None:
        return None

    def hold_back_us(self, options: QueryOptions) -> int:
        return 0


@attrs.frozen
class TableOperation(ChangeOperation):
    """Base of the operations whose results are a table: a batch hands on the net change of each key (SEMANTICS §16.3)."""

    @property
    def gives_table(self) -> bool:
        return True

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="retractions")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
        if fires or options.emit_mode == "final":
            hint = 'leave .trigger, .accumulation, .with_pane and .emit("final") out, and presets that set them'
            then = "its results change with every row, and are never final"
            raise PlanError(f"{self.describe()} has no windows that fire", got=options.describe(), then=then, hint=hint)


@attrs.frozen
class Changelog(TableOperation):
    """Changes of rows by key as a table: the last row of each key (SEMANTICS §16.2).

    ::

        changes    a: 1    a: 2             b: deleted    a: deleted
        results    +I 1    -U 1, +U 2       nothing       -D 2

    Attributes
    ----------
    ordered_by : tuple of str
        The texts of what orders the changes of a key; none for the order of arrival.
    tombstones_us : int or None
        How long the sequence of a deleted key is kept, µs of the clock; None for ever.
    stale : {"count", "side_output"}
        Whether changes at or below the last one of their key are only counted.
    each : bool
        Whether every change is given, and not the net change of a batch.
    """

    kind: ClassVar[str] = "changelog"
    nature: ClassVar[OperationTraits] = OperationTraits("Changelog")
    by_clock: ClassVar[bool] = True
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no key has a row", "changes are given in the batch that brings them")
    ordered_by: tuple[str, ...] = ()
    tombstones_us: int | None = None
    stale: Stale = "count"
    each: bool = False

    def identity(self) -> dict[str, str]:
        return {"sequence": repr(bool(self.ordered_by))}

    @property
    def takes_changes(self) -> bool:
        return False  # it reads what a row says

    @property
    def changes_rows(self) -> tuple[str, ...]:
        return (CHANGE, *self.sequence)

    def change_time(self, time_column: str) -> str | None:
        return time_column or None

    @property
    def sequence(self) -> tuple[str, ...]:
        """Return the columns of what orders the changes of a key."""
        return tuple(sequence_name(number) for number in range(len(self.ordered_by)))

    @property
    def apart_by(self) -> Apart | None:
        """Return no bound: the key alone tells rows apart."""
        return ((),)

    def describe(self) -> str:
        by = f", the largest {', '.join(self.ordered_by)} counts" if self.ordered_by else ", the last to arrive counts"
        return f"the row of each key{by}"

    def unwaiting(self) -> str | None:
        return "changes do not wait for a watermark: they are given in the batch that brings them"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return "its row is in the table"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        own = [f.name for f in passing(row) if f.name not in self.keys or pa.types.is_floating(f.type)]
        return (*own, CHANGE, *self.sequence)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return passing(row)


@attrs.frozen
class RowLog(TableOperation):
    """A log of rows without a key as a table: each row as often as it was added and not taken back (SEMANTICS §16.2).

    ::

        changes    +I a    +I a         -D b                    -D a
        results    +I a    +I a         nothing: aside          -D a
    """

    kind: ClassVar[str] = "row log"
    nature: ClassVar[OperationTraits] = OperationTraits("Changelog")
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no row is there", "changes are given in the batch that brings them")

    @property
    def takes_changes(self) -> bool:
        return False  # it reads what a row says

    def change_time(self, time_column: str) -> str | None:
        return time_column or None

    def describe(self) -> str:
        return "each row as often as it was added and not taken back"

    def unwaiting(self) -> str | None:
        return "changes do not wait for a watermark: they are given in the batch that brings them"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return "its rows are in the table"

    def warnings(self) -> tuple[str, ...]:
        return ("every row that is there stays in state, each once with its number",)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (CHANGE,)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return passing(row)


@attrs.frozen
class History(TableOperation):
    """All versions of the rows of a table, with their bounds (SEMANTICS §16.8).

    Attributes
    ----------
    sequence : tuple of str
        The columns of what says which change of one time counts, the largest.
    begins : str
        The column of when a change begins.
    left_out : str or None
        The column of rows that `valid_from` takes the place of.
    valid_from, valid_to : str
        The names of the bounds.
    """

    kind: ClassVar[str] = "history"
    nature: ClassVar[OperationTraits] = OperationTraits("History")
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no key has a version", "versions change with what comes")
    sequence: tuple[str, ...]
    begins: str
    left_out: str | None
    valid_from: str
    valid_to: str

    def identity(self) -> dict[str, str]:
        return {"sequence": repr(bool(self.sequence)), "begins": repr(self.begins)}

    @property
    def takes_changes(self) -> bool:
        return False  # it reads what a row says

    @property
    def apart_by(self) -> Apart | None:
        return ((self.valid_from,),)

    def describe(self) -> str:
        return f"all versions of each key, from {self.valid_from} until before {self.valid_to}"

    def unwaiting(self) -> str | None:
        return "versions do not wait for a watermark: they change in the batch that brings a change"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return "its versions are in the table"

    def warnings(self) -> tuple[str, ...]:
        return ("every version of every key stays in state",)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        own = [f.name for f in passing(row) if f.name not in self.keys or pa.types.is_floating(f.type)]
        return (*own, CHANGE, *dict.fromkeys((*self.sequence, *([] if self.begins in own else [self.begins]))))

    def row_fields(self, row: pa.Schema) -> list[pa.Field]:
        """Return the columns of a `row` that a version has."""
        return [f for f in passing(row) if f.name != self.left_out]

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        begins = row.field(self.begins).type
        return [*self.row_fields(row), pa.field(self.valid_from, begins), pa.field(self.valid_to, begins)]


@attrs.frozen
class TopRows(TableOperation):
    """The first rows of each key, as a table (SEMANTICS §16.8).

    Attributes
    ----------
    n : int
        How many rows.
    ordered_by : tuple of (str, bool)
        The texts of what ranks rows, and whether the largest comes first; after these the other columns of rows count.
    ties : tuple of str
        Columns that rank rows which are equal in that, the smallest first.
    rank : str or None
        The column with the rank.
    """

    kind: ClassVar[str] = "first rows"
    nature: ClassVar[OperationTraits] = OperationTraits("TopRows")
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no key has a row", "changes are given in the batch that brings them")
    n: int
    ordered_by: tuple[tuple[str, bool], ...]
    ties: tuple[str, ...] = ()
    rank: str | None = None

    def identity(self) -> dict[str, str]:
        return {"n": repr(self.n), "ordered_by": repr(self.ordered_by)}

    @property
    def order_columns(self) -> tuple[tuple[str, bool], ...]:
        """Return the columns that rank rows, and whether the largest comes first."""
        by = tuple((sequence_name(number), largest) for number, (_, largest) in enumerate(self.ordered_by))
        return (*by, *((name, False) for name in self.ties))

    def describe(self) -> str:
        by = ", ".join(f"{'largest' if largest else 'smallest'} {text}" for text, largest in self.ordered_by)
        return f"the first {self.n} rows of each key by {by}"

    def unwaiting(self) -> str | None:
        return "first rows do not wait for a watermark: they change in the batch that brings rows"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return "its rows are in the table"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        own = [f.name for f in self.row_fields(row) if f.name not in self.keys or pa.types.is_floating(f.type)]
        return (*own, *(name for name, _ in self.order_columns if name not in own and name not in self.keys))

    @property
    def apart_by(self) -> Apart | None:
        """Return the rank where there is one, and no bound for single rows: their key alone tells them apart."""
        if self.rank is not None:
            return ((self.rank,),)
        return ((),) if self.n == 1 else None

    def row_fields(self, row: pa.Schema) -> list[pa.Field]:
        """Return the columns of a `row` that are given."""
        return [f for f in passing(row) if f.name != OP]

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return [*self.row_fields(row), *([] if self.rank is None else [pa.field(self.rank, pa.int64())])]

    def warnings(self) -> tuple[str, ...]:
        return ()


@attrs.frozen
class RegularJoin(TableOperation):
    """Rows of two tables with equal keys meet: the result is a table as well (SEMANTICS §16.7).

    Attributes
    ----------
    sides : JoinColumns
        Where the columns of each side are.
    how : str
        Which rows are given.
    ids : tuple of (tuple of str or None)
        The columns that tell the rows of each side apart, in the common layout; None where nothing known does.
    """

    kind: ClassVar[str] = "regular join"
    nature: ClassVar[OperationTraits] = OperationTraits("Join", joins=True)
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no side has rows", "results come in the batch that changes them")
    sides: JoinColumns
    how: JoinType
    ids: tuple[tuple[str, ...] | None, tuple[str, ...] | None] = (None, None)

    def identity(self) -> dict[str, str]:
        return {"how": repr(self.how)}

    @property
    def left_only(self) -> bool:
        """Return whether results are rows of the left side alone."""
        return self.how in ("semi", "anti")

    @property
    def row_key(self) -> tuple[str, ...] | None:
        """Return the columns that tell pairs apart: of both sides, or of one where its row has one partner at the most."""
        left, right = self.ids
        if left is None or (right is None and not self.left_only):
            return None
        one_right = self.left_only or set(right or ()) <= set(self.keys)
        if one_right and self.how not in ("right", "full"):
            return left
        if set(left) <= set(self.keys) and self.how in ("inner", "right"):
            return right
        return tuple(dict.fromkeys((*left, *(right or ()))))

    def describe(self) -> str:
        return f"{self.how} join of tables"

    def unwaiting(self) -> str | None:
        return "a join of tables does not wait for a watermark: results come in the batch that changes them"

    def warnings(self) -> tuple[str, ...]:
        return ("every row of both sides stays in state",)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (self.sides.side, *self.sides.left, *self.sides.right)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return [
            *map(row.field, self.keys),
            *map(row.field, self.sides.left),
            *(() if self.left_only else map(row.field, self.sides.right)),
        ]


@attrs.frozen
class RunningAggregation(TableOperation):
    """Aggregates of all rows of a key so far: a row for each key that has rows.

    ::

        rows       a: 5     b: 1     a: 2
        results    +I a 5   +I b 1   -U a 5, +U a 7

    Attributes
    ----------
    each : bool
        Whether every change of a result is given, as if rows came one by one, and not the net change of a batch.
    """

    kind: ClassVar[str] = "running aggregate"
    nature: ClassVar[OperationTraits] = OperationTraits("Aggregate", gives_rows=False)
    waiting: ClassVar[tuple[str, str]] = ("nothing waits: no key has rows", "results come in the batch that changes them")
    each: bool = False
    aggs: tuple[AggCall, ...] = attrs.field(default=(), kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_aggs)
    result_columns: Output | None = attrs.field(
        default=None, kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_columns
    )

    def identity(self) -> dict[str, str]:
        return {}  # what is handed on of a batch may change

    @property
    def apart_by(self) -> Apart | None:
        """Return no bound: the key alone tells results apart."""
        return ((),)

    def describe(self) -> str:
        return "all rows so far"

    def unwaiting(self) -> str | None:
        return "results without a window do not wait for a watermark: they come in the batch that changes them"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return "its result is in the table: it changes with every batch that has rows of it"

    def warnings(self) -> tuple[str, ...]:
        return ("every key that had a row stays in state",)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return ()


@attrs.frozen
class ChangeRows(ChangeOperation):
    """Changes as rows that are only added, with their kind as a column (SEMANTICS §16.1).

    Attributes
    ----------
    columns : tuple of str
        The columns of rows that are given.
    op : str
        The name of the column of the kind.
    """

    kind: ClassVar[str] = "changes as rows"
    nature: ClassVar[OperationTraits] = OperationTraits("Changes", keeps_carried=False)
    columns: tuple[str, ...]
    op: str

    def identity(self) -> dict[str, str]:
        return {}  # nothing is kept

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")  # a change is given once

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "to_changelog()", "a change is given once, and is no result that changes itself")

    def describe(self) -> str:
        return f"each change, its kind in {self.op}"

    def unwaiting(self) -> str | None:
        return "changes do not wait for a watermark: they are given in the batch that brings them"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (*self.columns, OP)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return [*map(row.field, self.columns), pa.field(self.op, pa.string())]


@attrs.frozen
class TableUnion(TableOperation):
    """The rows of two tables as one, each as often as both have it (SEMANTICS §16.8); nothing is kept.

    Attributes
    ----------
    columns : tuple of str
        The columns of rows.
    """

    kind: ClassVar[str] = "union of tables"
    nature: ClassVar[OperationTraits] = OperationTraits("Union", joins=True, keeps_carried=False)
    columns: tuple[str, ...]

    def identity(self) -> dict[str, str]:
        return {}

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        super().check_options(options)
        if options.emit_mode != "retractions" or options.ttl is not None:
            then = "it hands changes on, and keeps nothing"
            hint = "leave .emit and .with_state_ttl out after .union(...)"
            raise PlanError("a union of tables has no options", got=options.describe(), then=then, hint=hint)

    def describe(self) -> str:
        return "union of tables"

    def unwaiting(self) -> str | None:
        return "a union of tables does not wait for a watermark: changes are given in the batch that brings them"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (*self.columns, OP)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return [*map(row.field, self.columns)]
