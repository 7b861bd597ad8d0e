"""Late rows and their handlers (SEMANTICS §4.3), and input that is not a row."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.errors import RAISED, OperatorError, PlanError, failure_text, shown
from krishiv_py.plan.checks import a_number, call_plainly, one_of, plain_methods

OnMalformed: TypeAlias = Literal["fail", "side_output"]
AfterRead: TypeAlias = Literal["keep", "archive", "delete"]
"""The treatment of a file when the batch that read it is committed."""
MissingColumns: TypeAlias = Literal["fail", "null"]
Nanoseconds: TypeAlias = Literal["fail", "cut"]
Fields: TypeAlias = tuple[tuple[str, pa.DataType], ...]

OF_FILES: Final[Fields] = (("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("problem", pa.string()))
"""The columns that late rows have for a malformed line or file."""
OF_RECORDS: Final[Fields] = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("problem", pa.string()),
)
"""The columns that late rows have for a malformed record of a topic."""


LateWanted: TypeAlias = Literal["rows", "keys", "count"]
OnError: TypeAlias = Literal["fail", "side_output"]
"""The treatment of rows for which a function or a handler raises."""
LateColumns: TypeAlias = Literal["rows", "keys", "count", "shown"]
"""The part of a late row that a plan gives: what is wanted, or what the test driver shows."""


@attrs.frozen(eq=False)
class LateRows(ArrowRows):
    """Late rows of one micro-batch.

    Attributes
    ----------
    table : pyarrow.Table
        The requested columns of the rows, then ``reason`` (``late``, ``null_time``, ``null_key``, ``time_out_of_range``,
        ``future``, ``unknown_source``, and on request ``duplicate``), ``watermark`` (type of the time column, null while
        unset) and ``lateness`` (int64 in the unit of the time column: ms for ``bigint``, µs for timestamps; null unless the
        reason is ``late``). They are always the last three columns. ``late_`` is added to a name until it is free.
    operator : str
        Name of the operator that refused them.
    batch_id : int
        The micro-batch. After a crash a handler may get a batch again, with the same number and the same rows.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> class Show:
    ...     wants = "keys"
    ...
    ...     def handle(self, late):
    ...         print(late.operator, late.batch_id, late.table.to_pylist())
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).with_late_event_handler(Show()).key_by("user")
    >>> driver = Driver(keyed.tumbling_window("10 s").agg(count()))
    >>> _ = driver.send([{"user": "ann", "at": 12_000}])
    >>> _ = driver.send([{"user": "ann", "at": 1_000}])
    window-aggregate 1 [{'user': 'ann', 'reason': 'late', 'watermark': 12000, 'lateness': 11000}]
    """

    table: pa.Table
    operator: str
    batch_id: int

    def _arrow(self) -> pa.Table:
        return self.table


@runtime_checkable
class LateEventHandler(Protocol):
    """Takes the late rows of a query on the driver, once per micro-batch with late rows.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> class Alert:
    ...     wants = "rows"
    ...
    ...     def handle(self, late):
    ...         print("late:", late.table.column("user").to_pylist())
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).with_late_event_handler(Alert()).key_by("user")
    >>> driver = Driver(keyed.tumbling_window("10 s").agg(count()))
    >>> _ = driver.send([{"user": "ann", "at": 12_000}])
    >>> _ = driver.send([{"user": "bob", "at": 1_000}])
    late: ['bob']
    """

    @property
    def wants(self) -> str:
        """Whole ``"rows"``, their ``"keys"``, or only their ``"count"``: asking for less is cheaper."""

    def handle(self, late: LateRows) -> None:
        """Take the rows of one batch, `late`."""


def wanted_of(handler: LateEventHandler) -> LateWanted:
    """Return what a `handler` wants, which is typed as a text: type checkers take ``wants = "rows"`` in a class for one."""
    return cast(LateWanted, handler.wants)


def a_late_handler(handler: object) -> LateEventHandler:
    """`handler`, which must be one."""
    if isinstance(handler, type) or not isinstance(handler, LateEventHandler):
        raise PlanError(
            "not a LateEventHandler",
            got=shown(handler),
            then="late rows would be lost",
            hint=f"write SideOutputLateEventHandler({shown(handler)})"
            if hasattr(handler, "delivery")
            else "pass an instance with `wants` and `handle(late)`",
        )
    one_of(handler.wants, "wants", ("rows", "keys", "count"))
    plain_methods(handler, LateEventHandler)
    return handler


@attrs.define(eq=False)
class CountingLateEventHandler:
    """Counts late rows, in total, by operator and by reason; the default.

    Attributes
    ----------
    by_operator : Counter
        The late rows of each operator, by its name.
    by_reason : Counter
        The late rows of each reason.

    Examples
    --------
    >>> from krishiv_py import CountingLateEventHandler, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> late = CountingLateEventHandler()
    >>> counts = stream_of("at bigint").watermark("at", 0).with_late_event_handler(late).tumbling_window("10 s").agg(count())
    >>> driver = Driver(counts)
    >>> for at in (12_000, 1_000, None):
    ...     _ = driver.send([{"at": at}])
    >>> late.total, dict(late.by_reason), dict(late.by_operator), late.wants
    (2, {'late': 1, 'null_time': 1}, {'window-aggregate': 2}, 'count')
    """

    by_operator: Counter[str] = attrs.field(factory=Counter)
    by_reason: Counter[str] = attrs.field(factory=Counter)
    _lock: Any = attrs.field(factory=threading.Lock, repr=False)

    @property
    def wants(self) -> LateWanted:
        """Only the count."""
        return "count"

    @property
    def total(self) -> int:
        """All late rows so far."""
        return self.by_operator.total()

    def record_late_drop(self, rows: int = 1, *, operator: str = "", reason: str = "late") -> None:
        """Count rows that were dropped elsewhere, for instance by a handler of your own that asks this one to count.

        Parameters
        ----------
        rows : int
            How many, at least 1.
        operator, reason : str
            What they are counted under.

        Raises
        ------
        PlanError
            For a value that is not a number of rows.

        Examples
        --------
        >>> from krishiv_py import CountingLateEventHandler
        >>> late = CountingLateEventHandler()
        >>> late.record_late_drop(3, reason="too old")
        >>> late.by_reason
        Counter({'too old': 3})
        """
        n = a_number(rows, "rows", 1, "pass how many rows were dropped")
        if not isinstance(operator, str) or not isinstance(reason, str):
            got = f"{shown(operator)}, {shown(reason)}"
            raise PlanError("operator and reason are texts", got=got, hint="pass two texts")
        with self._lock:
            self.by_operator[operator] += n
            self.by_reason[reason] += n

    def handle(self, late: LateRows) -> None:
        """Count the rows of `late`."""
        with self._lock:
            self.by_operator[late.operator] += late.table.num_rows
            self.by_reason.update(_tally(late.table.column(late.table.num_columns - 3)))


@attrs.define(eq=False)
class DefaultLateEventHandler(CountingLateEventHandler):
    """Counts late rows where nobody has named a handler."""


@attrs.define(eq=False)
class CountByKeyLateEventHandler:
    """Counts late rows by key.

    Attributes
    ----------
    by_key : Counter
        The late rows of each key, a tuple of its columns.

    Examples
    --------
    >>> from krishiv_py import CountByKeyLateEventHandler, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> late = CountByKeyLateEventHandler()
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).with_late_event_handler(late).key_by("user")
    >>> driver = Driver(keyed.tumbling_window("10 s").agg(count()))
    >>> for at in (12_000, 1_000, 2_000):
    ...     _ = driver.send([{"user": "ann", "at": at}])
    >>> late.by_key, late.total, late.wants
    (Counter({('ann',): 2}), 2, 'keys')
    """

    by_key: Counter[tuple[Any, ...]] = attrs.field(factory=Counter)
    _lock: Any = attrs.field(factory=threading.Lock, repr=False)

    @property
    def wants(self) -> LateWanted:
        """The key columns."""
        return "keys"

    @property
    def total(self) -> int:
        """All late rows so far."""
        return self.by_key.total()

    def handle(self, late: LateRows) -> None:
        """Count the rows of `late`."""
        keys = late.table.select(range(late.table.num_columns - 3))
        names = [f"k{i}" for i in range(keys.num_columns)]  # Arrow takes a dot in a name for the way to a field
        counted = keys.rename_columns(names).group_by(names).aggregate([([], "count_all")]) if names else None
        with self._lock:
            if counted is None:
                self.by_key[()] += late.table.num_rows
                return
            for row in counted.to_pylist():
                self.by_key[tuple(row[n] for n in names)] += row["count_all"]


_KEPT: Final = 1_000


@attrs.define(eq=False)
class SparedLateEventHandler:
    """Calls another handler; the rows that it raises for are counted, the last ones kept, and the query goes on.

    Attributes
    ----------
    handler : LateEventHandler
        The other one.
    failed, calls : int
        For how many rows it has raised in this process, and how often.
    problem : str
        What it said the last time.
    """

    handler: LateEventHandler
    failed: int = attrs.field(default=0, repr=False)
    calls: int = attrs.field(default=0, repr=False)
    problem: str = attrs.field(default="", repr=False)
    _rows: dict[tuple[pa.Field, ...], pa.Table] = attrs.field(factory=dict, repr=False)
    """The rows that are kept, by their columns, as stages of one query may share its handler; the last at the end."""
    _lock: Any = attrs.field(factory=threading.Lock, repr=False)

    def fresh(self) -> SparedLateEventHandler:
        """Return one for another query: the other handler, and nothing counted or kept."""
        return SparedLateEventHandler(self.handler)

    @property
    def wants(self) -> LateWanted:
        """Return what the other one wants."""
        return wanted_of(self.handler)

    @property
    def name(self) -> str:
        """Return the name that its rows are counted by."""
        return type(self.handler).__name__

    def handle(self, late: LateRows) -> None:
        """Give `late` to the other one."""
        try:
            call_plainly(self.handler.handle, late)
        except RAISED as problem:  # user code: whatever it raises is the reason of its rows
            self._take(late.table, failure_text(problem, placed=False))

    def _take(self, rows: pa.Table, problem: str) -> None:
        place = rows.num_columns - 3
        reasons = pa.repeat(pa.scalar(problem), rows.num_rows)
        rows = rows.set_column(place, rows.schema.field(place).with_type(pa.string()), reasons)
        with self._lock:
            self.failed, self.calls, self.problem = self.failed + rows.num_rows, self.calls + 1, problem
            columns = tuple(rows.schema)
            before = self._rows.pop(columns, None)
            kept = rows if before is None else pa.concat_tables([before, rows])
            self._rows[columns] = kept.slice(max(kept.num_rows - _KEPT, 0)).combine_chunks()

    def table(self, schema: pa.Schema | None = None) -> pa.Table | None:
        """Return the last 1 000 rows that it raised for, with what it said as their reason; None without any.

        Rows of other columns than those of `schema` are left out; without it they have the columns of the last row.
        """
        with self._lock:
            return next((t for t in reversed(self._rows.values()) if schema is None or t.schema.names == schema.names), None)

    @property
    def doubt(self) -> str | None:
        """Return what progress says of it; None while nothing was raised."""
        with self._lock:
            if not self.calls:
                return None
            times = "once" if self.calls == 1 else f"{self.calls} times"
            return (
                f"late handler {self.name} raised {times}, for {self.failed} rows, the last time {self.problem}. "
                f"Hint: fix {self.name}.handle; the last of these rows are in query.late_rows()"
            )


def one_handler(handlers: Iterable[LateEventHandler | None], where: str, hint: str) -> LateEventHandler | None:
    """Return the one of the `handlers` of several streams that somebody has named; None where nobody has.

    Raises
    ------
    PlanError
        For different ones: a stage has one handler, and the others would get nothing.
    """
    given = [h for h in handlers if h is not None and not isinstance(h, DefaultLateEventHandler)]
    if any(_of_user(h) != _of_user(given[0]) for h in given):
        got = ", ".join(shown(h) for h in given)
        raise PlanError(f"{where} have different late handlers", got=got, then="all but one would get no late rows", hint=hint)
    return given[0] if given else None


def _of_user(handler: LateEventHandler) -> tuple[bool, int]:
    """Return what two handlers share only if a user gave one object for both, with one `on_error`."""
    if isinstance(handler, SparedLateEventHandler):
        return True, id(handler.handler)
    return False, id(handler)


def hand_over(handler: LateEventHandler, late: LateRows) -> None:
    """Give `late` rows to a `handler`.

    Raises
    ------
    OperatorError
        When the handler fails; names its class, the operator and the micro-batch.
    """
    try:
        call_plainly(handler.handle, late)
    except RAISED as problem:  # user code: whatever it raises is reported with what it was given
        got = f"{late.table.num_rows} late rows of operator {late.operator}, batch {late.batch_id}"
        name = type(handler).__name__
        hint = f"fix {name}.handle"
        raise OperatorError(f"late handler {name} failed", got=got, then=failure_text(problem), hint=hint) from problem


def _tally(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}
