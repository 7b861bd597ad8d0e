"""Results that are tables: aggregates without a window (SEMANTICS §16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.changelogs import order_of_feed, read_changes
from krishiv_py.api.computed import Named
from krishiv_py.api.joins import On, Suffixes, checked_suffixes, merged_draft, table_sides
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import evaluate, hidden
from krishiv_py.api.stages import results
from krishiv_py.api.stages.windowed import aggregated
from krishiv_py.errors import ColumnError, ExpressionError, PlanError, SchemaError, shown
from krishiv_py.plan.changes import (
    CHANGE,
    Changelog,
    ChangelogFormat,
    ChangeRows,
    History,
    RegularJoin,
    RowLog,
    RunningAggregation,
    Stale,
    TableUnion,
    TopRows,
    sequence_name,
)
from krishiv_py.plan.checks import a_number, a_switch, column_name, expression, is_collection, known_column, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Expr, col, lit, python_text
from krishiv_py.plan.nodes import Project, Stage, StageDraft, Watermark, prefix_of, source_of
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import ExplicitOptions, StateTtlConfig, TtlOfSides
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.schema import RESERVED, checked, require_columns
from krishiv_py.plan.sides import JOIN_TYPES, OP, JoinType, Side, named, tables_together, tables_united
from krishiv_py.plan.steps import traced
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from krishiv_py.api.query import Runner
    from krishiv_py.api.stages.results import ResultStream
    from krishiv_py.api.stages.stream import Stream
    from krishiv_py.api.stages.timed import KeyedUntimedStream

    TableSide: TypeAlias = "TableMethods | Stream | KeyedUntimedStream"
    Ttl: TypeAlias = "tuple[Duration | None, Duration | None]"


@attrs.frozen(eq=False, repr=False)
class TableMethods(OptionMethods):
    """A stage whose rows can be aggregated without a window."""

    def agg(self, *aggs: Expr | Sequence[Expr], changes: Literal["net", "each"] = "net", **named: Expr) -> ResultStream:
        """Aggregate all rows of each key so far, without a window (SEMANTICS §16.5).

        Results are a table with a row for each key. They change in the batch that brings a row of the key: the row of before is
        withdrawn, and the new one given. Sinks with a key hold the table. No watermark is needed, and no row is late. Without
        keys there is one row.

        Parameters
        ----------
        *aggs : Expr or sequence of Expr
            Aggregates, and what is computed of them and of keys, as in :meth:`WindowedStream.agg`.
        changes : {"net", "each"}
            Give the net change of each key in a batch, or every change, as if rows came one by one. The content is the same;
            with ``"each"`` a batch costs the more, the more rows one key has in it.
        **named : Expr
            More by the names of their columns: ``total=sum("amount")``.

        Returns
        -------
        ResultStream
            The keys, the aggregates, and ``op``: ``+I`` for a new row, ``-U`` and ``+U`` for one that changes.

        Raises
        ------
        PlanError
            For no aggregates, unknown columns, values an aggregate cannot take, names that clash, and options of windows.
        ColumnError
            For a column that is neither a key nor a part of an aggregate.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> totals = stream_of("user string, amount bigint").key_by("user").agg(count(), total=sum("amount"))
        >>> driver = Driver(totals)
        >>> driver.send([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 1}]).results.to_pylist()[0]
        {'user': 'ann', 'count': 1, 'total': 5, 'op': '+I'}
        >>> [(row["op"], row["total"]) for row in driver.send([{"user": "ann", "amount": 2}]).results.to_pylist()]
        [('-U', 5), ('+U', 7)]
        """
        one_of(changes, "changes", ("net", "each"))
        draft = self._draft.doing(RunningAggregation(each=changes == "each"))
        return self._results(aggregated(draft, self._row_schema(), aggs, named))

    def top_rows(
        self, n: int, by: str | Expr | Sequence[str | Expr], *, smallest: bool = False, rank: str | None = None
    ) -> ResultStream:
        """Give the first `n` rows of each key, without a window, as a table that changes (SEMANTICS §16.8).

        Parameters
        ----------
        n : int
            How many rows, 1 to 10 000.
        by : str or Expr or sequence
            What ranks rows, the largest first. Nulls come last, NaN is above all numbers. Rows that are equal in it go by their
            other columns, from left to right, the smallest first: the order of arrival makes no difference.
        smallest : bool
            Whether the smallest `by` comes first; nulls still come last.
        rank : str, optional
            A column with the rank, ``int64``, from 1 on. A row whose rank changes is withdrawn and given again.

        Returns
        -------
        ResultStream
            The rows, and ``op``. Rows of a stream are forgotten once they are not among the first; of a table that changes all
            rows stay in state, for one may be taken back.

        Raises
        ------
        PlanError
            For an `n` out of range.
        ExpressionError
            For values without an order.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> best = stream_of("item string, bid bigint").key_by("item").top_rows(1, by="bid")
        >>> driver = Driver(best)
        >>> driver.send([{"item": "pen", "bid": 5}, {"item": "pen", "bid": 3}]).results.to_pylist()
        [{'item': 'pen', 'bid': 5, 'op': '+I'}]
        >>> [(row["op"], row["bid"]) for row in driver.send([{"item": "pen", "bid": 9}]).results.to_pylist()]
        [('-D', 5), ('+I', 9)]
        """
        a_switch(smallest, "smallest")
        order = orders_of(by, self._ranked_schema(), "top_rows(by)")
        return self._top_rows(n, [(expr, not smallest) for expr in order], rank)

    def _ranked_schema(self) -> pa.Schema:
        """Return the schema of the rows that ranks are of."""
        rows = pa.schema([field for field in self._row_schema() if not field.name.startswith(RESERVED)])
        kinds = source_of(self._draft.input).envelope
        own = pa.schema([field for field in rows if field.name not in kinds])
        refuse_kind(own.names, "top_rows")
        return own

    def _top_rows(self, n: int, order: Sequence[tuple[Expr, bool]], rank: str | None) -> ResultStream:
        """Give the first rows by values, each with whether the largest comes first."""
        a_number(n, "n", 1, "pass how many rows, 1 to 10 000", most=10_000)
        own = self._ranked_schema()
        if not order:
            raise PlanError("top_rows() needs what ranks rows", got="no column", hint='write by="total"')
        if rank is not None:
            column_name(rank, "top_rows(rank)")
            if rank.lower() in {name.lower() for name in own.names}:
                raise ColumnError(
                    "the rows have a column of this name", got=shown(rank), hint='name the rank otherwise: rank="place"'
                )
        others = (field for field in own if field.name not in self._draft.keys and not pa.types.is_nested(field.type))
        ties = tuple(field.name for field in others if not pa.types.is_null(field.type))
        ranked = [(sequence_name(number), expr) for number, (expr, _) in enumerate(order)]
        names = [name for name in self._row_schema().names if not name.startswith(RESERVED)]
        node = Project(self._draft.input.input, (*((name, col(name)) for name in names), *ranked))
        texts = tuple((python_text(expr), largest) for expr, largest in order)
        draft = attrs.evolve(self._draft, input=attrs.evolve(self._draft.input, input=node))
        return self._results(draft.doing(TopRows(n, texts, ties, rank)))

    def join(
        self,
        right: TableSide,
        on: On | None = None,
        *,
        how: JoinType = "inner",
        ttl: Ttl | None = None,
        suffixes: Suffixes | None = None,
    ) -> ResultStream:
        """Join with another table, or with all rows of another stream: the result is their join as they are now (§16.7).

        Results change in the batch that changes one of the sides: a pair is withdrawn with one of its rows, and a row without a
        partner when one comes. Rows of a stream stay in state for ever, as those of a table. No watermark is needed. Null keys
        never meet.

        Parameters
        ----------
        right : Stream, TimedStream, KeyedStream, ResultStream
            The other side.
        on : str or Expr or list or dict, optional
            The key columns, as in :meth:`KeyedStream.interval_join`; may be left out if both are keyed.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            Whether rows without a partner are given with nulls; or left rows alone that have one (``"semi"``) or none
            (``"anti"``).
        ttl : (Duration or None, Duration or None), optional
            How long left and right rows stay when no further row of their side and key comes, by the clock; None for ever. The
            result is the join of the rows that are left. For both sides of a key together write
            ``.with_state_ttl(StateTtlConfig("1 day", clock="processing"))`` after the join.
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.

        Returns
        -------
        ResultStream
            The keys, the columns of the left and of the right side, and ``op``.

        Raises
        ------
        PlanError
            For missing keys, keys that do not fit, and columns of one name.
        ColumnError
            For columns that do not exist.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> customers = stream_of("id bigint, city string").from_changelog("upsert", key="id")
        >>> orders = stream_of("order bigint, id bigint")
        >>> driver = Driver(orders.join(customers, on="id", how="left"))
        >>> driver.send({"left": [{"order": 7, "id": 1}]}).results.to_pylist()
        [{'id': 1, 'order': 7, 'city': None, 'op': '+I'}]
        >>> [(row["op"], row["city"]) for row in driver.send({"right": [{"id": 1, "city": "Ulm"}]}).results.to_pylist()]
        [('-D', None), ('+I', 'Ulm')]
        """
        one_of(how, "how", JOIN_TYPES)
        of_sides = None if ttl is None else StateTtlConfig._of_sides(_ttl_of_sides(ttl))
        as_table = getattr(type(right), "_as_table", None)  # of the class: some objects have an attribute of any name
        if as_table is None:
            hint = "pass a stream, or a table of .from_changelog(...) or .agg(...); a fixed table is joined with .lookup_join"
            raise PlanError("the right side of a join is not a stream", got=shown(right), hint=hint)
        other: OptionMethods = as_table(right)
        sides = table_sides(self, other, on, "join")
        for side in sides:
            refuse_kind(side.shown, "join")
        columns = named(*sides, checked_suffixes(suffixes))
        merged = tables_together(*sides, columns)
        ids = tuple(_identifying_columns(side, names) for side, names in zip(sides, (columns.left, columns.right), strict=True))
        draft = merged_draft(
            attrs.evolve(self._draft, explicit=ExplicitOptions()), attrs.evolve(other._draft, explicit=ExplicitOptions())
        )
        draft = attrs.evolve(draft, explicit=attrs.evolve(draft.explicit, ttl=of_sides))
        join = RegularJoin(columns, how, (ids[0], ids[1]))
        return self._results(attrs.evolve(draft, input=merged.input, keys=merged.keys).doing(join))

    def _as_table(self) -> TableMethods:
        """Return the stream as a side of a join of tables."""
        return self


def _ttl_of_sides(ttl: object) -> TtlOfSides:
    """Return how long rows of both sides stay, µs.

    Raises
    ------
    PlanError
        For anything but two durations, of which one may be None.
    """
    if not isinstance(ttl, (tuple, list)) or len(ttl) != 2 or all(each is None for each in ttl):
        hint = 'write ttl=("1 day", "12 hours"), or ttl=("1 day", None) where right rows stay for ever'
        raise PlanError("a join has a time to live for each side", got=f"ttl={shown(ttl)}", hint=hint)
    left, right = (None if each is None else to_us(each, "ttl") for each in ttl)
    return left, right


def changes_of(mark: Watermark, names: Sequence[str], op: str, late: LateEventHandler, runner: Runner) -> ResultStream:
    """Return the changes of rows with these `names` as rows that are only added, with their kind in a column `op`."""
    source = source_of(mark)
    assert isinstance(source, Stage)
    column_name(op, "to_changelog(op)")
    columns = tuple(name for name in names if name != OP)
    taken = next((name for name in columns if name.lower() == op.lower()), None)
    if taken is not None:
        hint = 'name the kind otherwise: .to_changelog(op="kind_of_change")'
        raise ColumnError("the rows have a column of this name", got=shown(taken), hint=hint)
    steps = prefix_of(mark)
    keys = tuple(key for key in source.operation.keys if key in columns and traced(steps, key) == key)
    draft = StageDraft(Watermark(mark.input, "", WatermarkSpec(0)), late, keys)
    return results.results_of(draft.doing(ChangeRows(columns, op)), runner)


def by_change_time(mark: Watermark, before: Stage) -> Watermark:
    """Return the rows of the results of a stage `before` with the event time of changes, which windows go by (§16.6).

    Raises
    ------
    PlanError
        Where steps have left that column out, or computed it.
    """
    time = before.operation.change_time(before.input.column)
    if time is None:
        return mark
    if traced(prefix_of(mark), time) != time or time not in hidden.row_schema(mark).names:
        then = "nobody would know which window a row is in"
        hint = f"keep the column {time} as it is in the steps between"
        raise PlanError("the event time of changes is gone", got=f"no column {time!r}", then=then, hint=hint)
    return attrs.evolve(mark, column=time)


def _identifying_columns(side: Side, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the columns that tell the rows of a side apart, as a join calls them; None where nothing known does."""
    source = source_of(side.mark)
    if not isinstance(source, Stage) or source.operation.apart_by != ((),):
        return None  # else a key has one row
    called = dict(zip(side.others, names, strict=True)) | {key: key for key in side.keys}
    keys = [key if traced(prefix_of(side.mark), key) == key else None for key in source.operation.keys]
    return None if None in keys or not set(keys) <= called.keys() else tuple(called[str(key)] for key in keys)


def changelog_of(
    rows: Stream,
    mark: Watermark | None,
    written: ChangelogFormat,
    key: str | Sequence[str] | None,
    sequence: str | Expr | Sequence[str | Expr] | None,
    *,
    tombstones: Duration | None,
    op: str,
    ops: Mapping[str, str] | None,
    stale: Stale,
    changes: str,
) -> ResultStream:
    """Return the table that changes of a format make: see :meth:`Stream.from_changelog`. `mark`: they have event time."""
    one_of(written, "format", ("log", "upsert", "debezium", "cdf"))
    one_of(stale, "stale", ("count", "side_output"))
    one_of(changes, "changes", ("net", "each"))
    if key is None and written == "log":
        return _log_of_rows(rows, mark, sequence, tombstones, op, ops, stale, changes)
    keys = key_columns(key, None if written == "debezium" else rows.schema.names, "from_changelog")
    times = () if mark is None else tuple(filter(None, (mark.column, mark.source_column)))
    given = order_of_feed(rows.schema, sequence) if written == "cdf" else sequence
    order = orders_of(given, rows.schema, "from_changelog(sequence)")
    columns, change, wanted = read_changes(written, rows.schema, keys, op, ops, times, order)
    gone_us = None if tombstones is None else to_us(tombstones, "tombstones")
    operation = Changelog(tombstones_us=gone_us, stale=stale, each=changes == "each")
    return _table_of(rows if wanted is None else rows.filter(wanted), mark, columns, change, keys, operation, order)


def _log_of_rows(
    rows: Stream,
    mark: Watermark | None,
    sequence: object,
    tombstones: object,
    op: str,
    ops: Mapping[str, str] | None,
    stale: Stale,
    changes: str,
) -> ResultStream:
    """Return the table that a log without a key makes: each row as often as it was added and not taken back."""
    if sequence is not None or tombstones is not None or stale != "count" or changes != "net":
        got = f"key=None, sequence={shown(sequence)}, tombstones={shown(tombstones)}, stale={stale!r}, changes={changes!r}"
        hint = 'name the key: .from_changelog("log", key="id"), or leave these out'
        raise PlanError("a log without a key has no order of changes", got=got, then="no row has a change before it", hint=hint)
    columns, change, _ = read_changes("log", rows.schema, (), op, ops, (), ())
    names = tuple(name for name, _ in columns)
    nested = next((name for name in names if pa.types.is_nested(rows.schema.field(name).type)), None)
    if nested is not None:
        hint = 'name the key: .from_changelog("log", key="id")'
        got = f"{nested!r} of type {type_text(rows.schema.field(nested).type)}"
        raise PlanError("rows of a log without a key are found by their values", got=got, hint=hint)
    return _table_of(rows, mark, columns, change, names, RowLog(), ())


def latest_of(
    rows: Stream, mark: Watermark | None, key: str | Sequence[str], by: str | Expr | Sequence[str | Expr]
) -> ResultStream:
    """Return the newest row of each key as a table: see :meth:`Stream.latest`. `mark`: rows have event time."""
    keys = key_columns(key, rows.schema.names, "latest")
    order = orders_of(by, rows.schema, "latest(by)")
    if not order:
        raise PlanError("latest() needs what says which row is the newest", got="no column", hint='write by="at"')
    rest = (field for field in rows.schema if field.name not in keys and not pa.types.is_nested(field.type))
    ties = tuple(col(field.name) for field in rest if not pa.types.is_null(field.type))
    columns = [(name, col(name)) for name in rows.schema.names]
    return _table_of(rows, mark, columns, lit(True), keys, Changelog(), (*order, *ties))


def united(left: TableMethods, right: TableSide) -> ResultStream:
    """Return the rows of two tables as one: see :meth:`ResultStream.union`."""
    as_table = getattr(type(right), "_as_table", None)
    if as_table is None:
        hint = "pass a stream, or a table of .from_changelog(...) or .agg(...)"
        raise PlanError("union() takes another table", got=shown(right), hint=hint)
    other: OptionMethods = as_table(right)
    sides = []
    for stream in (left, other):
        mark = stream._draft.input
        sides.append(Side(mark, stream._row_schema(), (), source_of(mark).envelope))
        refuse_kind(sides[-1].shown, "union")
    ours, theirs = (pa.schema([side.schema.field(name) for name in side.shown]) for side in sides)
    if not ours.equals(theirs):
        hint = f"write .select({', '.join(map(repr, ours.names))}) on it, with columns of the same types"
        raise SchemaError("the tables of a union have other columns", got=", ".join(theirs.names), hint=hint)
    mark = tables_united(sides[0], sides[1], f"{RESERVED}side")
    named = [_identifying_columns(side, side.others) for side in sides]
    keys = named[0] if named[0] is not None and set(named[0]) == set(named[1] or ()) else ()  # changes of a row stay in order
    draft = attrs.evolve(left._draft, explicit=ExplicitOptions(), input=mark, keys=keys)
    return results.results_of(draft.doing(TableUnion(tuple(ours.names))), left._runner)


def history_of(stage: StageDraft, valid_from: str, valid_to: str, runner: Runner) -> ResultStream:
    """Return all versions of the table of a `stage` that reads changes: see :meth:`ResultStream.history`."""
    operation, mark = stage.operation, stage.input
    assert isinstance(operation, Changelog)
    rows = pa.schema([field for field in hidden.row_schema(mark) if not field.name.startswith(RESERVED)])
    if not mark.column and len(operation.sequence) != 1:
        hint = 'write .watermark("at", "5 s") before .from_changelog(...), or sequence="lsn"'
        got = f"{len(operation.sequence)} columns of a sequence, and no event time"
        raise PlanError("nothing says from when on a version is valid", got=got, hint=hint)
    begins = mark.column or operation.sequence[0]
    texts = {python_text(col(name)): name for name in rows.names}
    left_out = mark.column or texts.get(operation.ordered_by[0])
    column_name(valid_from, "history(valid_from)")
    column_name(valid_to, "history(valid_to)")
    for text in (valid_from, valid_to):
        taken = {other.lower() for other in rows.names if other != left_out} | {OP}
        if text.lower() in taken or valid_from.lower() == valid_to.lower():
            hint = 'name both bounds otherwise: .history(valid_from="begins", valid_to="ends")'
            raise ColumnError("a bound of versions has the name of another column", got=shown(text), hint=hint)
    if left_out in stage.keys:
        hint = "leave it out of the key"
        raise PlanError("the key of a table has the column that says when its rows change", got=shown(left_out), hint=hint)
    history = History(operation.sequence, begins, left_out, valid_from, valid_to)
    return results.results_of(attrs.evolve(stage, explicit=ExplicitOptions()).doing(history), runner)


def _table_of(
    rows: Stream,
    mark: Watermark | None,
    columns: Sequence[Named],
    change: Expr,
    keys: tuple[str, ...],
    operation: Changelog | RowLog,
    sequence: Sequence[Expr],
) -> ResultStream:
    """Return the table that changes by `keys` make: `columns` of `rows`, `change` says what happens to the row of a key."""
    refuse_kind([name for name, _ in columns], "from_changelog")
    ordered = [(sequence_name(number), expr) for number, expr in enumerate(sequence)]
    checked(pa.schema([pa.field(name, evaluate.expr_type(expr, rows.schema)) for name, expr in columns]))
    node = Project(rows._node, (*columns, (CHANGE, change), *ordered))
    mark = Watermark(node, "", WatermarkSpec(0)) if mark is None else attrs.evolve(mark, input=node)
    draft = StageDraft(mark, rows.late_handler, keys)
    if isinstance(operation, Changelog):
        operation = attrs.evolve(operation, ordered_by=tuple(map(python_text, sequence)))
    return results.results_of(draft.doing(operation), rows._runner)


def orders_of(items: object, rows: pa.Schema, where: str) -> tuple[Expr, ...]:
    """Return expressions over `rows` whose values have an order, one or several.

    Raises
    ------
    ColumnError
        For columns that do not exist.
    ExpressionError
        For values without an order.
    """
    given = () if items is None else tuple(items) if is_collection(items) else (items,)
    exprs = tuple(col(item) if isinstance(item, str) and item in rows.names else expression(item, where) for item in given)
    for expr in exprs:
        require_columns(expr, rows, where)
        type_ = evaluate.expr_type(expr, rows)
        if pa.types.is_nested(type_) or pa.types.is_null(type_):
            hint = "name a number, a text or a time, such as a log position"
            raise ExpressionError(f"{where}: values without an order", got=f"{expr!r} of type {type_text(type_)}", hint=hint)
    return exprs


def refuse_kind(names: Iterable[str], where: str) -> None:
    """Refuse a column of rows that is called as the change kind of results."""
    taken = next((name for name in names if name.lower() == OP), None)
    if taken is not None:
        hint = f'give it another name before: .rename({taken}="kind")'
        raise ColumnError(f"{where}: a column has the name of the change kind of results", got=shown(taken), hint=hint)


def key_columns(key: object, names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the columns of a key, of those with these `names`, where they are known."""
    given = (key,) if isinstance(key, str) else tuple(key) if is_collection(key) else ()
    if not given:
        raise PlanError(
            f"{where} needs the columns of the key", got=f"key={shown(key)}", hint='write key="id", or a list of columns'
        )
    return tuple(given if names is None else (known_column(name, names, f"{where}(key)") for name in given))
