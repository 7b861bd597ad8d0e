"""The search for a pattern as the operation of a stage, and the values of matched rows that its expressions name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import ColumnError, ExpressionError, PlanError, shown, unknown_column
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.selections import First, Last
from krishiv_py.plan.durations import show_instant, show_us, time_point_us
from krishiv_py.plan.expressions.expr import Col, Expr, Field, columns_of, identity_of, replaced
from krishiv_py.plan.names import free
from krishiv_py.plan.operation import LateBy, Operation, OperationTraits, ResultTime, passing, refuse_firings
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.patterns import Chain, Frame, Pattern, Prev, Repetition, steps_of
from krishiv_py.plan.processing import AtEnd, waiting_rows

START, END, MATCHED, STEP, NUMBER = "match_start", "match_end", "matched_at", "step", "match_number"
LIMIT, TIMED_OUT = "pattern_limit", "no_match"
"""Reasons in the late output: of a row that was given up as a start, and of the rows of a start whose time is over."""
SkipTo: TypeAlias = Literal["past_last", "next_row", "first", "last"]
RowsOf: TypeAlias = Literal["one", "all"]
Timeouts: TypeAlias = Literal["count", "side_output"]


@attrs.frozen(eq=False)
class MatchValue:
    """A value of rows that a match has so far.

    Attributes
    ----------
    name : str
        The hidden column that an expression reads it from.
    call : AggCall
        What is computed, over the columns of the rows.
    step : str or None
        The step of which rows count; None for all rows of the match.
    running : bool
        Whether rows count up to the row that the value is shown with, where each row is a result.
    """

    name: str
    call: AggCall
    step: str | None
    running: bool = False


@attrs.frozen(eq=False)
class MatchExpr:
    """An expression over a row, rows before it, and rows of a match.

    Attributes
    ----------
    expr : Expr
        It, with hidden columns in the place of what is not of the row.
    values : tuple of MatchValue
        Those of rows of the match.
    """

    expr: Expr
    values: tuple[MatchValue, ...] = ()


@attrs.define(eq=False)
class ExprReader:
    """Reads expressions that name steps: ``first("placed.amount")``.

    Attributes
    ----------
    steps : collection of str
        The names of steps.
    columns : collection of str
        The columns of rows.
    before : list of (str, Prev)
        The values of rows before that were read, each with its hidden column.
    """

    steps: Collection[str]
    columns: Collection[str]
    before: list[tuple[str, Prev]] = attrs.field(factory=list)

    def condition(self, expr: Expr, where: str, own: str | None) -> MatchExpr:
        """Return a condition of a row; `own` is its step, under which it counts itself."""
        return self._read(expr, where, lambda step, call: step in (own, None) and _is_this_row(call) and bool(own), own)

    def measure(self, expr: Expr, *, running: bool = False) -> MatchExpr:
        """Return a measure of a match; a column by itself is that of the last row that counts."""
        return self._read(expr, "measures", lambda step, call: False, None, of_last=True, running=running)

    def _read(
        self,
        expr: Expr,
        where: str,
        plain: Callable[[str | None, AggCall], bool],
        own: str | None,
        *,
        of_last: bool = False,
        running: bool = False,
    ) -> MatchExpr:
        values: dict[object, MatchValue] = {}

        def value(call: AggCall, step: str | None, framed: bool) -> Expr:
            if plain(step, call):
                return call.arg
            identity = (step, identity_of(call), framed)
            if identity not in values:
                taken = {*self.columns, *(known.name for known in values.values())}
                text = f"{call.func}({'' if step is None else step + '.'}{'*' if call._counts_rows else call.arg!r})"
                values[identity] = MatchValue(free(text.replace("`", ""), taken), call, step, framed)
            return Col(values[identity].name)

        def read(part: Expr, framed: bool) -> Expr:
            def swap(node: Expr) -> Expr:
                if isinstance(node, Frame):
                    return read(node.arg, node.running)
                if isinstance(node, AggCall):
                    return value(*self._of_step(node, where), framed)
                if isinstance(node, Prev):
                    step, name = self._before(node, where)
                elif (named := self._of_text(node)) is not None:
                    step, name = self._column(named, where)
                elif isinstance(node, Col) and node.name not in {known.name for known in values.values()}:
                    step, name = self._column(node.name, where)
                else:
                    return node
                if (step is not None and step != own) or of_last:
                    return value(Last(Col(name)), step, framed)
                return Col(name)

            return replaced(part, swap)

        return MatchExpr(read(expr, running), tuple(values.values()))

    def _before(self, node: Prev, where: str) -> tuple[str | None, str]:
        """Return the step whose row a value is before, and the hidden column of it."""
        if node.rows < 0 and self.steps:
            hint = "name the row that comes after as a step of its own, and write the condition there"
            raise ExpressionError(f"{where}: a pattern looks at rows up to its last one", got=repr(node), hint=hint)
        found = {self._column(name, where) for name in columns_of(node.arg)}
        if len({step for step, _ in found}) > 1:
            raise ExpressionError(f"{where}: prev over rows of several steps", got=repr(node), hint="name columns of one step")
        read = Prev(replaced(node.arg, lambda p: Col(self._column(p.name, where)[1]) if isinstance(p, Col) else p), node.rows)
        step = next((step for step, _ in found), None)
        for name, known in self.before:
            if identity_of(known) == identity_of(read):
                return step, name
        self.before.append((free(repr(read).replace("`", ""), {*self.columns, *(known for known, _ in self.before)}), read))
        return step, self.before[-1][0]

    def _of_text(self, node: Expr) -> str | None:
        """Return the name that SQL text means by ``A.price``, which is a field of a column elsewhere."""
        if isinstance(node, Field) and isinstance(node.arg, Col) and node.arg.name in self.steps:
            return f"{node.arg.name}.{node.name}"
        return None

    def _column(self, name: str, where: str) -> tuple[str | None, str]:
        """Return the step and the column that a name means."""
        step, _, column = name.partition(".")
        if name in self.columns or name == "*":
            return None, name
        if step in self.steps and column in self.columns:
            return step, column
        if column and column in self.columns:
            raise unknown_step(step, self.steps, where)
        raise unknown_column(column if step in self.steps and column else name, list(self.columns), where)

    def _of_step(self, call: AggCall, where: str) -> tuple[AggCall, str | None]:
        """Return a call over the columns of rows, and the step whose rows it is over."""
        call = attrs.evolve(call, name=None)
        if call.over_us is not None:
            raise ExpressionError(f"{where}: a pattern has no range to look back", got=repr(call), hint="leave .over(...) out")
        if (
            isinstance(call.arg, Col)
            and call.func == "count"
            and call.arg.name in self.steps
            and call.arg.name not in self.columns
        ):
            return attrs.evolve(call, arg=Col("*")), call.arg.name
        parts = [part for part in (call.arg, call.where) if part is not None]
        found = {self._column(name, where) for part in parts for name in columns_of(part)}
        named = {step for step, _ in found if step is not None}
        if len(named) > 1:
            hint = "name columns of one step in one call"
            raise ExpressionError(f"{where}: {call.func} over rows of several steps", got=repr(call), hint=hint)

        def plain(part: Expr) -> Expr:
            return replaced(part, lambda node: Col(self._column(node.name, where)[1]) if isinstance(node, Col) else node)

        condition = None if call.where is None else plain(call.where)
        return attrs.evolve(call, arg=plain(call.arg), where=condition), next(iter(named), None)


def _is_this_row(call: AggCall) -> bool:
    return isinstance(call, Last) and call.offset == 0 and call.where is None


def is_positional(call: AggCall) -> bool:
    """Return whether a call gives the value of one row by its place."""
    return isinstance(call, (First, Last)) and call.where is None


@attrs.frozen(eq=False)
class Matching(Operation):
    """Every key's rows are searched for a pattern, in event time.

    Attributes
    ----------
    pattern : Chain
        The pattern.
    conditions : tuple of (str, MatchExpr or None)
        The condition of each step, by its name.
    absences : tuple of MatchExpr
        The conditions of rows that may not come, in the order in which the pattern names them.
    before : tuple of (str, Prev)
        Values of rows before that are read.
    measures : tuple of (str, MatchExpr)
        What results say of a match.
    fields : pyarrow.Schema
        The columns of measures.
    within_us : int or None
        How long a match may take, µs.
    skip : (SkipTo, str)
        Where the search goes on after a match: with the step, for ``first`` and ``last``.
    rows : {"one", "all"}
        Whether a match is one result, or one for each row.
    timeouts : {"count", "side_output"}
        Whether rows of a start whose time is over go to the late output.
    at_end : {"fire", "seen"}
        Whether absence beyond the largest event time counts when the input ends.
    most_rows : int
        How many rows a start may look at.
    time : str
        The column of the event time.
    """

    kind: ClassVar[str] = "match"
    nature: ClassVar[OperationTraits] = OperationTraits("Match")
    remembers: ClassVar[bool] = True
    by_clock: ClassVar[bool] = True
    waiting: ClassVar[tuple[str, str]] = (
        "nothing waits: no row that a match could begin with is undecided",
        "starts of matches wait for more rows, or for the watermark",
    )
    late_by: ClassVar[LateBy] = "time"
    pattern: Chain
    conditions: tuple[tuple[str, MatchExpr | None], ...]
    absences: tuple[MatchExpr, ...]
    before: tuple[tuple[str, Prev], ...]
    measures: tuple[tuple[str, MatchExpr], ...]
    fields: pa.Schema
    within_us: int | None = None
    skip: tuple[SkipTo, str] = ("past_last", "")
    rows: RowsOf = "one"
    timeouts: Timeouts = "count"
    at_end: AtEnd = "fire"
    most_rows: int = 100_000
    order_by: tuple[str, ...] = ()
    time: str = ""

    @property
    def steps(self) -> dict[str, MatchExpr | None]:
        """Return the condition of each step."""
        return dict(self.conditions)

    def identity(self) -> dict[str, str]:
        steps = {one.name: repr(one.condition) for one in steps_of(self.pattern)}
        of_pattern = {"pattern": repr(self.pattern), "steps": repr(steps), "before": repr([repr(p) for _, p in self.before])}
        return of_pattern | {"within_us": repr(self.within_us), "rows": self.rows, "order_by": repr(self.order_by)}

    def describe(self) -> str:
        within = "" if self.within_us is None else f", within {show_us(self.within_us)}"
        kind, name = self.skip
        places = {"past_last": "", "next_row": "the next row"}
        goes_on = places.get(kind, f"the {kind} row of {name}")
        after = f", the next one from {goes_on} on" if goes_on else ""
        return f"{self.pattern!r}{within}{after}"

    def warnings(self) -> tuple[str, ...]:
        if self.within_us is not None or not _is_unbounded(self.pattern):
            return ()
        return (
            "the pattern has no end: rows of a key wait for ever for one that fits, up to max_rows_per_key; "
            'write .match(..., within="1 h") to bound how long',
        )

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("row", MATCHED)

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "a pattern", "a match is given once, and is never taken back")

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        names = {name: f"state_{name}" if f"state_{name}" in row else name for name in ("start", "due", "held_rows")}
        start, due = row[names["start"]], row[names["due"]]
        parts = []
        if start is not None:
            parts.append(f"a match that begins at {show_instant(time_point_us(start, 'start'))} is not decided")
        if due is not None:
            parts.append(f"it is decided at {show_instant(time_point_us(due, 'due'))} at the latest")
        held = row[names["held_rows"]]
        return "; ".join([*parts, waiting_rows(held)] if held or not parts else parts)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return tuple(f.name for f in passing(row) if f.name not in self.keys or pa.types.is_floating(f.type))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        at = pa.field(MATCHED, bound)
        if self.rows == "one":
            return [*(row.field(k) for k in self.keys), pa.field(START, bound), pa.field(END, bound), at, *self.fields]
        return [*passing(row), pa.field(STEP, pa.string()), pa.field(NUMBER, pa.int64()), at, *self.fields]


def _is_unbounded(pattern: Pattern) -> bool:
    """Return whether a match may wait for ever: a part passes rows over, or is repeated without an end."""
    if isinstance(pattern, Chain) and any(link.relaxed for link in pattern.links):
        return True
    return (isinstance(pattern, Repetition) and pattern.most is None) or any(map(_is_unbounded, pattern._children()))


def unknown_step(name: str, steps: Collection[str], where: str) -> ColumnError:
    """Return the error for a step that a pattern does not have."""
    return ColumnError(f"{where}: the pattern has no step {name!r}", got=shown(name), hint=f"its steps are {', '.join(steps)}")


def skip_of(text: object, steps: Collection[str]) -> tuple[SkipTo, str]:
    """Return where the search goes on after a match, of a text such as ``"past_last"`` and ``"last up"``."""
    hint = 'write skip="past_last", "next_row", to_first("a") or to_last("a")'
    if not isinstance(text, str):
        raise PlanError("`skip` is one text", got=shown(text), hint=hint)
    if text in ("past_last", "next_row"):
        return ("past_last", "") if text == "past_last" else ("next_row", "")
    kind, _, name = text.partition(" ")
    if kind not in ("first", "last"):
        raise PlanError("`skip` says where the search goes on", got=shown(text), hint=hint)
    if name not in steps:
        raise unknown_step(name, steps, "skip")
    return ("first", name) if kind == "first" else ("last", name)


def to_first(name: str) -> str:
    """Return the `skip` that goes on at the first row of the step `name`.

    Examples
    --------
    >>> from krishiv_py import col, prev, step, to_first
    >>> from krishiv_py.testing import stream_of
    >>> prices = stream_of("symbol string, price bigint, at bigint").watermark("at", 0).key_by("symbol")
    >>> up = step("up", col("price") > prev("price")).one_or_more()
    >>> prices.match(step("low").then(up), skip=to_first("up")).schema.names
    ['symbol', 'match_start', 'match_end', 'matched_at']
    """
    return f"first {name}"


def to_last(name: str) -> str:
    """Return the `skip` that goes on at the last row of the step `name`.

    Examples
    --------
    >>> from krishiv_py import col, prev, step, to_last
    >>> from krishiv_py.testing import stream_of
    >>> prices = stream_of("symbol string, price bigint, at bigint").watermark("at", 0).key_by("symbol")
    >>> up = step("up", col("price") > prev("price")).one_or_more()
    >>> prices.match(step("low").then(up), skip=to_last("up")).schema.names
    ['symbol', 'match_start', 'match_end', 'matched_at']
    """
    return f"last {name}"
