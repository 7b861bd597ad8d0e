"""Streams with event time and a watermark, and streams that have keys and no event time yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.computed import Named, keys_of, with_computed
from krishiv_py.api.query import Runner
from krishiv_py.api.stages import changing, stream
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.running import RunMethods, plan_of_rows
from krishiv_py.api.stages.shown import ShownInALine, some
from krishiv_py.errors import ColumnError, DurationError, OrderError, PlanError, shown
from krishiv_py.plan.checks import column_name, known_column
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Col, Expr, col
from krishiv_py.plan.nodes import (
    Expect,
    Filter,
    FilterAfter,
    Node,
    OnFail,
    Project,
    SourceNode,
    StageDraft,
    UnionSource,
    Watermark,
    prefix_of,
    source_of,
)
from krishiv_py.plan.options.late import DefaultLateEventHandler, LateColumns, LateEventHandler
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, RowsClock, WatermarkSpec
from krishiv_py.plan.running import BatchTime, ProcessingTime
from krishiv_py.plan.schema import time_kind
from krishiv_py.plan.steps import traced
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from krishiv_py.api.joins import On, Suffixes
    from krishiv_py.api.stages.changing import TableSide, Ttl
    from krishiv_py.api.stages.results import ResultStream
    from krishiv_py.api.stages.stream import Stream
    from krishiv_py.plan.changes import ChangelogFormat, Stale
    from krishiv_py.plan.sides import JoinType
    from krishiv_py.planner.physical import Engine, PhysicalPlan


@attrs.frozen(eq=False, repr=False)
class TimedStream(RunMethods, KeyedStream):
    """Rows with event time; without :meth:`key_by` all rows share one global key (SEMANTICS §3.8).

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns, without those that only the library uses.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> rows = stream_of("at bigint").watermark("at", "1 s")
    >>> driver = Driver(rows.tumbling_window("10 s").agg(count()))
    >>> driver.send([{"at": 1_000}, {"at": 12_000}]).results.to_pylist()
    [{'window_start': 0, 'window_end': 10000, 'count': 1}]
    """

    schema: pa.Schema

    def _plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """Return what an `engine` runs: the rows as they are, none of which is late, for no window follows.

        `late` overrides what the late handler wants of malformed input.
        """
        self._check_options()
        return plan_of_rows(self._draft.input.input, self.late_handler, engine, late)

    def filter(self, condition: Expr | str) -> Self:
        """Keep rows for which `condition` (an expression or SQL text) is true; null is not true (SEMANTICS §2.7).

        A row that is left out here still moves the watermark; later steps do not see it, and nothing judges or counts it.
        Before :meth:`Stream.watermark` it would never have been there. Over results it is HAVING in SQL.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> events = stream_of("kind string, at bigint").watermark("at", 0)
        >>> driver = Driver(events.filter("kind = 'buy'").tumbling_window(60_000).agg(count()))
        >>> driver.send([{"kind": "buy", "at": 1_000}, {"kind": "view", "at": 120_000}]).results.to_pylist()
        [{'window_start': 0, 'window_end': 60000, 'count': 1}]
        """
        return self._then(lambda rows: rows.filter(condition))

    def expect(self, condition: Expr | str, on_fail: OnFail = "fail", *, name: str | None = None) -> Self:
        """Keep rows for which `condition` is true, and say what becomes of the others, as :meth:`Stream.expect` does.

        A row that fails is not a row: unlike one that :meth:`filter` leaves out it does not move the watermark. See there for
        `on_fail` and `name`. Over results `on_fail` is ``"fail"``, for a result has been taken out of the state already.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> rows = stream_of("n bigint, at bigint").watermark("at", 0).expect("n > 0", "drop", name="positive")
        >>> driver = Driver(rows.tumbling_window(10).agg(count()))
        >>> _ = driver.send([{"n": 5, "at": 1}, {"n": -5, "at": 90}])
        >>> driver.watermark, driver.progress.late["positive"]
        ('1970-01-01T00:00:00.001000Z', 1)
        """
        return self._then(lambda rows: rows.expect(condition, on_fail, name=name))

    def with_column(self, name: str, value: Expr | str) -> Self:
        """Add, or replace, a column called `name`: an expression, or SQL text, as `value`; not the event time.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> rows = stream_of("n bigint, at bigint").watermark("at", 0).with_column("twice", "n * 2")
        >>> Driver(rows).send([{"n": 3, "at": 1}]).results.to_pylist()
        [{'n': 3, 'at': 1, 'twice': 6}]
        """
        return self._then(lambda rows: rows.with_column(name, value))

    def select(self, *columns: str | Expr, **named: Expr | str) -> Self:
        """Keep and compute `columns`, and `named` ones, as :meth:`Stream.select` does; the event time is among them.

        The event time of results need not be named: it goes along.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("a bigint, b bigint, at bigint").watermark("at", 0).select("at", total="a + b").schema.names
        ['at', 'total']
        """
        return self._then(lambda rows: rows.select(*columns, **named))

    def rename(self, **names: str) -> Self:
        """Rename columns as :meth:`Stream.rename` does, by `names`; not the event time.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("a bigint, at bigint").watermark("at", 0).rename(a="id").schema.names
        ['id', 'at']
        """
        return self._then(lambda rows: rows.rename(**names))

    def drop(self, *columns: str) -> Self:
        """Leave `columns` out; not the event time.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("a bigint, b bigint, at bigint").watermark("at", 0).drop("b").schema.names
        ['a', 'at']
        """
        return self._then(lambda rows: rows.drop(*columns))

    def _then(self, change: Callable[[stream.Stream], stream.Stream]) -> Self:
        """Return the stream after a step, which `change` makes of its rows."""
        mark = self._draft.input
        made = change(stream.Stream(mark.input, self.schema, self._runner))
        node = made._node
        if isinstance(node, Filter) and not isinstance(node, Expect):
            node = FilterAfter(node.input, node.condition)
        computed = dict(node.columns) if isinstance(node, Project) else {}
        for column in filter(None, (mark.column, mark.source_column)) if computed else ():
            was = computed.get(column)
            if not isinstance(was, Col) or was.name != column:
                got = "a step after .watermark(...) that changes it or leaves it out"
                hint = "keep it as it is, or write the step before .watermark(...)"
                raise OrderError(f"{column!r} is what the watermark follows", got=got, hint=hint)
        draft = attrs.evolve(self._draft, input=attrs.evolve(mark, input=node))
        return attrs.evolve(self, draft=draft, schema=made.schema)

    def from_changelog(
        self,
        format: ChangelogFormat,  # noqa: A002  # the word for it everywhere
        key: str | Sequence[str] | None = None,
        *,
        sequence: str | Expr | Sequence[str | Expr] | None = None,
        tombstones: Duration | None = None,
        op: str = "op",
        ops: Mapping[str, str] | None = None,
        stale: Stale = "count",
        changes: Literal["net", "each"] = "net",
    ) -> ResultStream:
        """Read rows as changes of a table that have event time (SEMANTICS §16.2).

        See :meth:`Stream.from_changelog` for `format`, `key`, `sequence`, `tombstones`, `op`, `ops`, `stale` and `changes`.

        The event time is a column of the table. A deletion has one, too: in the format ``"upsert"`` all columns but the key and
        the event time are null. :meth:`versioned_join` then meets the version that was valid at a time.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> changes = stream_of("id bigint, city string, at bigint").watermark("at", 0)
        >>> cities = changes.from_changelog("upsert", key="id")
        >>> driver = Driver(cities)
        >>> driver.send([{"id": 1, "city": "Ulm", "at": 5}, {"id": 1, "city": None, "at": 7}]).results.to_pylist()
        []
        """
        rows, mark = self._changes_read()
        return changing.changelog_of(
            rows, mark, format, key, sequence, tombstones=tombstones, op=op, ops=ops, stale=stale, changes=changes
        )

    def latest(self, key: str | Sequence[str], by: str | Expr | Sequence[str | Expr]) -> ResultStream:
        """Give the row of each `key` that is the largest in `by`, as a table whose changes have event time.

        See :meth:`Stream.latest`.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> prices = stream_of("item string, at bigint, price bigint").watermark("at", 0).latest("item", by="at")
        >>> Driver(prices).send([{"item": "pen", "at": 2, "price": 7}]).results.to_pylist()
        [{'item': 'pen', 'at': 2, 'price': 7, 'op': '+I'}]
        """
        rows, mark = self._changes_read()
        return changing.latest_of(rows, mark, key, by)

    def _changes_read(self) -> tuple[stream.Stream, Watermark | None]:
        """Return the rows, and what their event time is, where it is a column of theirs."""
        self._check_options()
        mark = self._draft.input
        rows = stream.Stream(mark.input, self.schema, self._runner, self.late_handler)
        return rows, mark if mark.column in self.schema.names else None

    def _check_options(self) -> None:
        """Refuse options that nothing follows which has any."""
        if self._draft.explicit != ExplicitOptions():
            what = "options were set, and neither window nor .drop_duplicates follows"
            hint = "leave them out, or add the window they are for"
            raise OrderError(what, got="options after .watermark", then="they would have no effect", hint=hint)

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedStream:
        """Group by columns, or by expressions over them; types are kept, null is a key of its own.

        Parameters
        ----------
        *keys : str or Expr
            Column names, and expressions: ``key_by(col("url").split("/")[0].alias("site"), "user")``. A key is called by its
            alias, or by the text of its expression. The aggregates see the columns as they are.
        **named : Expr or str
            More keys by their names: expressions, or SQL text.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion; for a key that has the name of a column; and for values that
            cannot be grouped: lists, structs, maps.
        ExpressionError
            For SQL that cannot be read, and types that do not fit.
        PlanError
            For two keys of one name, and for constants.

        Examples
        --------
        >>> from krishiv_py import col, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("url string, at bigint").watermark("at", 0)
        >>> driver = Driver(visits.key_by(col("url").split("/")[0].alias("site")).tumbling_window(10).agg(count()))
        >>> _ = driver.send([{"url": "a.org/x", "at": 1}, {"url": "a.org/y", "at": 2}, {"url": "b.org/", "at": 3}])
        >>> [(row["site"], row["count"]) for row in driver.close().results.to_pylist()]
        [('a.org', 2), ('b.org', 1)]
        """
        names, computed = keys_of(keys, self.schema, "key_by", named)
        mark = with_computed(self._draft.input, self._row_schema(), computed)
        return KeyedStream(attrs.evolve(self._draft, input=mark, keys=names), self._runner)


def timed(
    node: Node,
    schema: pa.Schema,
    column: str,
    spec: AnyWatermarkSpec,
    source_column: str | None,
    runner: Runner,
    late: LateEventHandler | None,
) -> TimedStream:
    """Return a stream with checked event time."""
    kind = time_kind(schema, column)
    if spec.clock is None and not spec._by_clock and runner.rows_clock != "batch":
        spec = attrs.evolve(spec, clock=runner.rows_clock)
    if spec.by_row:
        _check_lanes(node)
    lags = [spec.lag_us] if isinstance(spec, WatermarkSpec) else [s.lag_us for _, s in spec.sources]
    if kind == "bigint_ms" and any(lag % 1_000 for lag in lags):
        then = f"{column!r} has whole milliseconds"
        hint = "use a lag of whole milliseconds"
        raise DurationError("`lag` is finer than the time column", got=f"{lags} µs", then=then, hint=hint)
    if isinstance(spec, MultiSourceWatermarkSpec):
        _check_sources(spec, schema, source_column)
        if spec.max_drift_us is not None:
            _check_drift(node, str(source_column))
        _check_union(spec, node, source_column)
    elif source_column is not None:
        hint = "pass a MultiSourceWatermarkSpec"
        raise PlanError("`source_column` without several sources", got=shown(source_column), hint=hint)
    assigned = Watermark(node, column, spec, source_column)
    return TimedStream(StageDraft(assigned, DefaultLateEventHandler() if late is None else late), runner, schema)


def by_clock(node: Node, schema: pa.Schema, name: str, runner: Runner, late: LateEventHandler | None) -> TimedStream:
    """Return a stream whose rows go by the clock, which is added to them as a column called `name`."""
    column_name(name, "processing_time")
    taken = next((n for n in schema.names if n.lower() == name.lower()), None)
    if taken is not None:
        then = "it would hide the time of the clock, or be hidden by it"
        hint = 'name it otherwise: .processing_time("arrived"), or write .watermark(...) to go by that column'
        raise ColumnError("the stream has a column of this name", got=shown(taken), then=then, hint=hint)
    step = Project(node, (*((n, col(n)) for n in schema.names), (name, BatchTime())))
    timed_schema = schema.append(pa.field(name, pa.timestamp("us", "UTC")))
    return timed(step, timed_schema, name, ProcessingTime(), None, runner, late)


def only_time(schema: pa.Schema, argument: str) -> str:
    """Return the only column of timestamps.

    Raises
    ------
    PlanError
        Where there is none, or are several: `argument` of the call says which it is.
    """
    fitting: list[str] = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    if len(fitting) == 1:
        return fitting[0]
    possible = fitting or [field.name for field in schema if pa.types.is_int64(field.type)]
    hint = f'pass {argument}="event_time"' if not possible else f"pass {argument}=..., one of {', '.join(map(repr, possible))}"
    raise PlanError("which column is the event time?", got=fitting or "no timestamp column", hint=hint)


def _check_sources(spec: MultiSourceWatermarkSpec, schema: pa.Schema, source_column: str | None) -> None:
    if not spec.sources and spec.unknown_action != "register":
        hint = 'add .source("a", WatermarkSpec.fixed_lag(5_000))'
        raise PlanError("a MultiSourceWatermarkSpec without sources", got="0 sources", hint=hint)
    if source_column is None:
        raise PlanError("which column names the source?", got="None", hint='pass source_column="source"')
    known_column(source_column, schema.names, "with_watermark(source_column)")
    if not pa.types.is_string(schema.field(source_column).type):
        type_ = schema.field(source_column).type
        hint = f'write .with_column({source_column!r}, col({source_column!r}).cast("string")) before'
        if pa.types.is_nested(type_) or pa.types.is_duration(type_):
            hint = "name a column of texts"
        raise ColumnError(f"column {source_column!r} cannot name sources", got=type_text(type_), hint=hint)


def _check_lanes(node: Node) -> None:
    """See that the rows of a source come in an order, by which each can be classified by those before it."""
    for source in _sources_below(node):
        why = source.lacks_order
        if why is not None:
            hint = 'leave clock="row" out, or name the columns of an order: read_delta(path, lane="partition", order="offset")'
            raise PlanError(f'clock="row" judges each row by those before it, and {why}', got=source.title, hint=hint)


def _sources_below(node: Node) -> Iterator[SourceNode]:
    source = source_of(node)
    if isinstance(source, UnionSource):
        for _, part in source.parts:
            yield from _sources_below(part)
    elif isinstance(source, SourceNode):
        yield source


def _check_drift(node: Node, source_column: str) -> None:
    """See that the sources of a watermark are the streams of a union, which can be held back."""
    source = source_of(node)
    if not isinstance(source, UnionSource):
        hint = 'leave it out, or write session.union({"a": ..., "b": ...})'
        raise PlanError("max_drift holds streams of a union back", got=f"{source.title} {source.detail()}", hint=hint)
    if traced(prefix_of(node), source_column) != source.source_column:
        hint = f"leave it out, or write source_column={source.source_column!r}, and declare {_names(source)}"
        raise PlanError("max_drift holds streams of a union back", got=f"source_column={source_column!r}", hint=hint)


def _names(union: UnionSource) -> str:
    return ", ".join(repr(name) for name, _ in union.parts)


def partitions_of(node: Node) -> tuple[str, tuple[str, ...]] | None:
    """Return the column that names the partitions of a source, and their names; None where they are one source."""
    source = source_of(node)
    named = None if isinstance(source, UnionSource) else source.named_sources
    return named if named is not None and traced(prefix_of(node), named[0]) == named[0] else None


def _check_union(spec: MultiSourceWatermarkSpec, node: Node, source_column: str | None) -> None:
    """Names that a source states are known before any row: one that nobody declared, or that nobody sends, is a mistake."""
    source = source_of(node)
    named = source.named_sources
    if named is None or source_column is None or traced(prefix_of(node), source_column) != named[0]:
        return
    what = "stream of the union" if isinstance(source, UnionSource) else "watermark source"
    sent, declared = named[1], [name for name, _ in spec.sources]
    missing, extra = [n for n in declared if n not in sent], [n for n in sent if n not in declared]
    if missing:
        then = "it would hold the watermark for ever"
        hint = f"the names are {', '.join(map(repr, sent))}"
        raise PlanError(f"no {what} has the name of a declared source", got=", ".join(map(repr, missing)), then=then, hint=hint)
    if extra and spec.unknown_action != "register":
        hint = f'add .source({extra[0]!r}, WatermarkSpec.fixed_lag("5 s"))'
        raise PlanError(f"a {what} is not a declared source", got=", ".join(map(repr, extra)), hint=hint)


def untimed(rows: Stream) -> KeyedStream:
    """Return rows that need no event time, for operations whose results are tables."""
    draft = StageDraft(Watermark(rows._node, "", WatermarkSpec(0)), rows.late_handler)
    return KeyedStream(draft, rows._runner)


@attrs.frozen(eq=False, repr=False)
class KeyedUntimedStream(ShownInALine):
    """A keyed stream that still needs its event time.

    Attributes
    ----------
    keys : tuple of str
        The names of the key columns.

    Examples
    --------
    >>> from krishiv_py.testing import stream_of
    >>> keyed = stream_of("user string, at bigint").key_by("user")
    >>> keyed.watermark("at", "5 s")
    <KeyedStream user, at; event time at, watermark max(event time) - 5 s; by user>
    """

    _kind = "keyed rows"

    _stream: Stream
    keys: tuple[str, ...]
    _computed: tuple[Named, ...] = attrs.field(default=(), repr=False)

    def _said(self) -> list[str]:
        return [*self._stream._said(), f"by {some(self.keys)}"]

    def agg(self, *aggs: Expr | Sequence[Expr], changes: Literal["net", "each"] = "net", **named: Expr) -> ResultStream:
        """Aggregate all rows of each key so far, `aggs` and `named` ones, with `changes`: see :meth:`KeyedStream.agg`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("user string").key_by("user").agg(count())
        >>> Driver(visits).send([{"user": "ann"}, {"user": "ann"}]).results.to_pylist()
        [{'user': 'ann', 'count': 2, 'op': '+I'}]
        """
        return self._as_table().agg(*aggs, changes=changes, **named)

    def join(
        self,
        right: TableSide,
        on: On | None = None,
        *,
        how: JoinType = "inner",
        ttl: Ttl | None = None,
        suffixes: Suffixes | None = None,
    ) -> ResultStream:
        """Join all rows with another table, `right`, by `on`, `how`, `ttl` and `suffixes`: see :meth:`KeyedStream.join`.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> orders, paid = stream_of("order bigint").key_by("order"), stream_of("order bigint, sum bigint").key_by("order")
        >>> driver = Driver(orders.join(paid))
        >>> driver.send({"left": [{"order": 7}], "right": [{"order": 7, "sum": 5}]}).results.to_pylist()
        [{'order': 7, 'sum': 5, 'op': '+I'}]
        """
        return self._as_table().join(right, on, how=how, ttl=ttl, suffixes=suffixes)

    def top_rows(
        self, n: int, by: str | Expr | Sequence[str | Expr], *, smallest: bool = False, rank: str | None = None
    ) -> ResultStream:
        """Give the first `n` rows of each key `by` a value, with `smallest` and `rank`: see :meth:`KeyedStream.top_rows`.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> cheapest = stream_of("item string, price bigint").key_by("item").top_rows(1, by="price", smallest=True, rank="rank")
        >>> Driver(cheapest).send([{"item": "pen", "price": 5}, {"item": "pen", "price": 3}]).results.to_pylist()
        [{'item': 'pen', 'price': 3, 'rank': 1, 'op': '+I'}]
        """
        return self._as_table().top_rows(n, by, smallest=smallest, rank=rank)

    def _as_table(self) -> KeyedStream:
        """Return the rows as those of a table, which need no event time."""
        rows = untimed(self._stream)
        mark = with_computed(rows._draft.input, self._stream.schema, self._computed)
        return KeyedStream(attrs.evolve(rows._draft, input=mark, keys=self.keys), rows._runner)

    def _keyed(self, stream: TimedStream) -> KeyedStream:
        made = dict(self._computed)
        return stream.key_by(*(made[key].alias(key) if key in made else key for key in self.keys))

    def watermark(
        self, column: str, lag: Duration | None = None, *, idle_advance: Duration | None = None, clock: RowsClock | None = None
    ) -> KeyedStream:
        """See :meth:`Stream.watermark`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> keyed = stream_of("user string, at bigint").key_by("user").watermark("at", "5 s")
        >>> driver = Driver(keyed.tumbling_window("1 min").agg(count()))
        >>> driver.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}]).results.to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 1}]
        """
        return self._keyed(self._stream.watermark(column, lag, idle_advance=idle_advance, clock=clock))

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> KeyedStream:
        """See :meth:`Stream.with_watermark`.

        Examples
        --------
        >>> from krishiv_py import WatermarkSpec
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string, at timestamp").key_by("user").with_watermark(WatermarkSpec.fixed_lag("5 s"))
        <KeyedStream user, at; event time at, watermark max(event time) - 5 s; by user>
        """
        return self._keyed(self._stream.with_watermark(spec, column, source_column=source_column))

    def processing_time(self, name: str = "processing_time") -> KeyedStream:
        """See :meth:`Stream.processing_time`.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string").key_by("user").processing_time()
        <KeyedStream user, processing_time; event time processing_time, watermark the clock...; by user>
        """
        return self._keyed(self._stream.processing_time(name))
