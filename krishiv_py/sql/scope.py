"""The rows a query reads: which columns can be named, and what they are in the stream below."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import PlanError, unknown_column
from krishiv_py.plan.expressions.expr import Col, Expr, name_of
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.expressions.sqltext import is_doubled
from krishiv_py.plan.options.query import StateTtlConfig
from krishiv_py.plan.schema import text_or_column, unknown_field
from krishiv_py.sql.catalog import RegisteredStream, StaticTable
from krishiv_py.sql.statements import TTL_OF_SIDES, Query
from krishiv_py.sql.windows import WINDOW_FUNCTIONS, WindowCall

Role: TypeAlias = Literal["start", "end", "time", "rank"]
_PARTS: Final = ("catalog", "db", "table", "this")
PANES: Final = ("pane_timing", "pane_index")
_MARK: Final = "\0bound"
"""A function no text can name: a bound of windows that rows are not in yet."""


@attrs.frozen
class Column:
    """A column that a query can name.

    Attributes
    ----------
    table : str or None
        The table, or its alias.
    name : str
        As it is named.
    actual : str or None
        The column of the stream; None for bounds of windows, and ranks, that are known after the next stage only.
    role : str or None
        ``start`` and ``end`` of a window, event ``time``, ``rank``.
    hidden : bool
        Whether ``*`` leaves it out.
    sure : bool
        Whether it is never null.
    bound : str or None
        The bound of a window that it is in rows where it is not null: of one side of a join of windows.
    """

    table: str | None
    name: str
    actual: str | None
    role: Role | None = None
    hidden: bool = False
    sure: bool = False
    bound: Role | None = None


@attrs.frozen(eq=False)
class Ranking:
    """Ranks that a query asks for, which another one has to bound.

    Attributes
    ----------
    node : Window
        ``ROW_NUMBER() OVER (...)``.
    name : str
        The column.
    tree : Select
        The query that asks, with the column in the place of ROW_NUMBER.
    rows : Rows
        What that query reads, with the column.
    """

    node: sg.Window
    name: str
    tree: sg.Select
    rows: Relation

    def unbounded(self) -> PlanError:
        """Return the error where nobody bounds them."""
        return PlanError(
            "ranks have no bound",
            got=self.node.sql("spark"),
            then="every row would have to be kept",
            hint="write QUALIFY ROW_NUMBER() OVER (...) <= 3, or a query around it: "
            f"SELECT * FROM (SELECT ..., ROW_NUMBER() ... AS {self.name}) WHERE {self.name} <= 3",
        )


@attrs.frozen(eq=False)
class Relation:
    """Holds what FROM, or a query in brackets, gives.

    Attributes
    ----------
    stream : Stream or ResultStream
        The rows.
    columns : tuple of Column
        What can be named.
    table : Registered or None
        What gives rows of a source their watermark; None for results of a stage, which have one.
    window : WindowCall or None
        The windows whose bounds the columns with such a role are.
    partition : tuple of str or None
        Columns by which a window function divides rows.
    ranking : Ranking or None
        Ranks that were asked for and are not bounded yet.
    """

    stream: Stream | ResultStream
    columns: tuple[Column, ...]
    table: RegisteredStream | None = None
    window: WindowCall | None = None
    partition: tuple[str, ...] | None = None
    ranking: Ranking | None = None

    @property
    def schema(self) -> pa.Schema:
        """Of the stream below."""
        return self.stream.schema

    @property
    def visible(self) -> tuple[Column, ...]:
        """Return the columns of ``*``."""
        return tuple(c for c in self.columns if not c.hidden)

    @property
    def event_time(self) -> str | None:
        """The column of the stream with the event time; None where a query left it out."""
        return next(iter(self.times), None)

    @property
    def times(self) -> tuple[str, ...]:
        """The columns with the event time, :attr:`event_time` first: a query may select it under several names."""
        return tuple(dict.fromkeys(c.actual for c in self.columns if c.role == "time" and c.actual))

    @property
    def panes(self) -> tuple[Column, ...]:
        """The columns of :meth:`~krishiv_py.WindowedStream.with_pane`, which go along next to those that are selected."""
        return tuple(c for c in self.columns if c.hidden and c.actual in PANES)

    @property
    def pending(self) -> bool:
        """Return whether rows are still to be put into their windows."""
        return self.window is not None and any(c.actual is None and c.role == "end" for c in self.columns)

    def named(self, alias: str) -> Relation:
        """As the table `alias`."""
        return attrs.evolve(self, columns=tuple(attrs.evolve(c, table=alias) for c in self.columns))

    def role_of(self, actual: str) -> Role | None:
        """Return the role of a column of the stream."""
        return next((c.role for c in self.columns if c.actual == actual and c.role is not None), None)

    def label(self, expr: Expr) -> str:
        """Return what a column of the stream is called in the query; the name of another expression."""
        if not isinstance(expr, Col):
            return name_of(expr)
        return next((c.name for c in self.columns if c.actual == expr.name), expr.name)

    def timed(self, stream: Stream | ResultStream, lag_us: int | None) -> TimedStream:
        """Return the `stream`, made of these rows, with event time; `lag_us` is what SET said."""
        if isinstance(stream, ResultStream):
            return stream
        time = self.event_time
        if self.table is None or time is None:
            hint = "select the event time of the table in the inner query, too"
            raise PlanError("the rows have no event time", got=f"columns {', '.join(c.name for c in self.visible)}", hint=hint)
        return attrs.evolve(self.table, event_time=time).timed(stream, lag_us)

    def of_all_time(self, stream: Stream | ResultStream, lag_us: int | None) -> Stream | TimedStream | ResultStream:
        """Return the `stream`, made of these rows, for what needs no watermark, but goes by event time where that is known."""
        table = self.table
        if isinstance(stream, ResultStream) or table is None:
            return stream
        if self.event_time is not None:
            return self.timed(stream, 0 if table.spec is None and lag_us is None else lag_us)
        return stream if table.late_handler is None else stream.with_late_event_handler(table.late_handler)

    def find(self, node: sg.Column) -> tuple[Column, list[str]]:
        """Return the meaning of a name, and the names of fields below it.

        Raises
        ------
        PlanError
            For a qualifier that is not a table, and for a name that several tables have.
        ColumnError
            For a name that no table has.
        """
        parts = [node.args[p].name for p in _PARTS if node.args.get(p) is not None]
        head = parts[0].lower()
        plain = [c for c in self.columns if c.name.lower() == head]
        if len(parts) > 1:
            of_table = [c for c in self.columns if c.table is not None and c.table.lower() == head]
            inner = [c for c in of_table if c.name.lower() == parts[1].lower()]
            if inner:
                return _only(inner, node), parts[2:]
            if of_table and not plain:
                raise unknown_column(parts[1], [c.name for c in of_table if not c.hidden], "sql")
            if not plain:
                raise self._of_no_table(node)
        if not plain:
            raise unknown_column(parts[0], [c.name for c in self.visible], "sql")
        return _only(plain, node), parts[1:]

    def _of_no_table(self, node: sg.Column) -> PlanError:
        tables = sorted({c.table for c in self.columns if c.table is not None})
        known = f"the table is {tables[0]!r}" if len(tables) == 1 else f"the tables are: {', '.join(tables) or '(unnamed)'}"
        hint = f"{known}; a field of a struct is named by its column: column.field"
        return PlanError("this column belongs to no table of the query", got=node.sql("spark"), hint=hint)

    def check_quotes(self, tree: sg.Expression, also: Iterable[str] = ()) -> None:
        """Refuse texts in double quotes that have the name of a column, or of `also`, aliases; not in queries inside of `tree`.

        Raises
        ------
        ExpressionError
            With both ways to write what may be meant.
        """
        known = {name.lower(): name for name in (*also, *(c.name for c in self.columns))}
        tables = {c.table.lower(): c.table for c in self.columns if c.table is not None}
        for node in tree.walk(prune=lambda n: n is not tree and isinstance(n, sg.Query)):
            if is_doubled(node):
                text = node.name
                qualifies = isinstance(node.parent, sg.Dot) and node.parent.this is node
                relation = known.get(text.lower()) or (tables.get(text.lower()) if qualifies else None)
                if relation is not None:
                    raise text_or_column(text, relation, "sql")

    def resolved(self, node: sg.Expression, *, bounds: bool = False) -> sg.Expression:
        """Return a copy with the columns of the stream; bounds that are not known yet become marks, or are refused."""

        def step(part: sg.Expression) -> sg.Expression:
            if isinstance(part, sg.Coalesce) and (both := self.bound_of_both(part)) is not None:
                return dotted([str(both.actual)])
            if not isinstance(part, sg.Column) or isinstance(part.this, sg.Star):
                return part
            column, fields = self.find(part)
            if column.actual is None:
                if not bounds or column.role is None or fields:
                    raise _not_yet(part, column)
                return mark(column.role)
            return self._spelled(column.actual, fields)

        return node.transform(step)

    def bound_of_both(self, node: sg.Expression) -> Column | None:
        """Return the column of ``COALESCE(l.window_start, r.window_start)`` after a join of windows: one side has a row."""
        if not isinstance(node, sg.Coalesce):
            return None
        columns = [self.find(n)[0] for n in (node.this, *node.expressions) if isinstance(n, sg.Column)]
        bounds = {column.bound for column in columns}
        if len(columns) != len(node.expressions) + 1 or len(bounds) > 1 or len({column.table for column in columns}) < 2:
            return None
        return next((c for c in self.columns if c.role is not None and c.role in bounds), None)

    def _spelled(self, actual: str, fields: list[str]) -> sg.Expression:
        names, type_ = [actual], self._type(actual)
        for name in fields:
            known = {f.name.lower(): f for f in type_} if type_ is not None and pa.types.is_struct(type_) else {}
            if name.lower() not in known:
                raise unknown_field(name, type_ or pa.null(), f"sql: {'.'.join(names)}")
            names.append(known[name.lower()].name)
            type_ = known[name.lower()].type
        return dotted(names)

    def _type(self, actual: str) -> pa.DataType | None:
        return self.schema.field(actual).type if actual in self.schema.names else None

    def expr(self, node: sg.Expression) -> Expr:
        """Return the expression of a `node` over the stream.

        Raises
        ------
        PlanError
            For a window function: a row has no window before it is grouped.
        """
        for call in node.find_all(sg.Anonymous):
            if call.name.lower() in WINDOW_FUNCTIONS:
                then = "a row has no window before it is grouped"
                hint = "write it in GROUP BY too, or date_trunc('minute', ts) for a time of each row"
                raise PlanError("a window function without GROUP BY", got=call.sql("spark"), then=then, hint=hint)
        return expr_of(self.resolved(node))


def dotted(names: list[str]) -> sg.Expression:
    """Return a column, or a column and fields below it."""
    identifiers = [sg.to_identifier(n, quoted=True) for n in names]
    expression: sg.Expression = sg.Column(**dict(zip(_PARTS[-len(names) :], identifiers[: len(_PARTS)], strict=False)))
    for more in identifiers[len(_PARTS) :]:
        expression = sg.Dot(this=expression, expression=more)
    return expression


def mark(role: str) -> sg.Expression:
    """Stands for a bound that the next stage gives."""
    return sg.Anonymous(this=_MARK, expressions=[sg.Literal.string(role)])


def role_of_mark(node: object) -> Role | None:
    """Return the role a mark stands for; None for other nodes."""
    if not isinstance(node, sg.Anonymous) or node.name != _MARK:
        return None
    role: Role = node.expressions[0].name
    return role


def _only(columns: list[Column], node: sg.Column) -> Column:
    shown = [c for c in columns if not c.hidden] or columns
    if len({(c.actual, c.role) for c in shown}) > 1:
        tables = sorted({c.table for c in shown if c.table is not None})
        hint = f"write {tables[0]}.{shown[0].name}" if tables else "name columns of the inner query apart with AS"
        raise PlanError("several tables have a column of this name", got=node.sql("spark"), hint=hint)
    return shown[0]


def _not_yet(node: sg.Column, column: Column) -> PlanError:
    if column.role == "rank":
        then = "ranks without a bound would keep every row"
        hint = f"bound it in WHERE, and by AND only: WHERE {column.name} <= 3"
        return PlanError("a rank is known only of the rows that are kept", got=node.sql("spark"), then=then, hint=hint)
    hint = "use them in GROUP BY, SELECT and HAVING of a query that groups by window_start, window_end"
    return PlanError("bounds of windows are known only after grouping", got=node.sql("spark"), hint=hint)


def computed_bound(clause: str, role: Role) -> PlanError:
    """Return the error for a bound of windows that a clause computes with."""
    hint = f"write window_start, window_end in {clause}, and compute with them in SELECT or HAVING"
    return PlanError(f"{clause} computes with a bound of windows", got=f"window_{role}", hint=hint)


@attrs.frozen(eq=False)
class Env:
    """Holds what a query can name, and what was set for it.

    Attributes
    ----------
    tables : mapping of str to Registered or Static
        By name in small letters.
    lag_us, within_us, ttl_us : int or None
        What SET said of the watermark, of deduplication, and of how long keys of tables that change stay without a row.
    sides_us : (int or None, int or None)
        The same of how long rows of both sides of a join of tables stay.
    queries : mapping of str to Rows
        The queries of WITH, by name in small letters.
    used : list of str
        Settings that have had an effect.
    """

    tables: Mapping[str, RegisteredStream | StaticTable]
    lag_us: int | None = None
    within_us: int | None = None
    ttl_us: int | None = None
    sides_us: tuple[int | None, int | None] = (None, None)
    queries: Mapping[str, Relation] = attrs.field(factory=dict)
    used: list[str] = attrs.field(factory=list)

    def knowing(self, name: str, rows: Relation) -> Env:
        """With one more query."""
        return attrs.evolve(self, queries={**self.queries, name.lower(): rows})

    def ttl_of_sides(self) -> tuple[dt.timedelta | None, dt.timedelta | None] | None:
        """Return how long rows of both sides of a join of tables stay; None where SET said nothing of sides."""
        if self.sides_us == (None, None):
            return None
        self.used.extend(("state.ttl", *TTL_OF_SIDES))
        given = (self.ttl_us if us is None else us for us in self.sides_us)
        left, right = (None if us is None else dt.timedelta(microseconds=us) for us in given)
        return left, right

    def with_ttl(self, table: ResultStream) -> ResultStream:
        """Return a table that changes, whose keys are forgotten after what SET said: by event time where rows have one."""
        if self.ttl_us is None:
            return table
        self.used.append("state.ttl")
        clock: Literal["event", "processing"] = "event" if table._stage.input.column else "processing"
        return table.with_state_ttl(StateTtlConfig(dt.timedelta(microseconds=self.ttl_us), clock))


Inner: TypeAlias = "Callable[[Query, Env], Relation]"
"""A function that gives the rows of a query in brackets."""


def conjuncts(node: sg.Expression | None) -> list[sg.Expression]:
    """Return the parts that AND joins, in order and without recursion; none of None."""
    if node is None:
        return []
    parts: list[sg.Expression] = []
    open_ = [node]
    while open_:
        part = open_.pop()
        if isinstance(part, sg.And):
            open_ += [part.expression, part.this]
        elif isinstance(part, sg.Paren) and isinstance(part.this, (sg.And, sg.Paren)):
            open_.append(part.this)
        else:
            parts.append(part)
    return parts
