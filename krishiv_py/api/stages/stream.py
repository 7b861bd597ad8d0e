"""The first stage: rows, without event time or key yet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pyarrow as pa

from krishiv_py.api.computed import keys_of, unnested
from krishiv_py.api.joins import LookupKeys, looked_up
from krishiv_py.api.lateness import known_lag_us
from krishiv_py.api.planning import evaluate, steps
from krishiv_py.api.query import Runner
from krishiv_py.api.stages.changing import changelog_of, latest_of
from krishiv_py.api.stages.running import RunMethods, plan_of_rows
from krishiv_py.api.stages.shown import ShownInALine, some
from krishiv_py.api.stages.timed import KeyedUntimedStream, TimedStream, by_clock, only_time, partitions_of, timed, untimed
from krishiv_py.connectors.sinks.known import given_handler
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.changes import ChangelogFormat, Stale
from krishiv_py.plan.checks import a_function, a_text, column_name, expression, known_column, one_of
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr, coalesce, col, lit, name_of
from krishiv_py.plan.joins import LookupType
from krishiv_py.plan.nodes import BatchFunction, Expect, Filter, MapBatches, Node, OnFail, Prefix, Project, root_of
from krishiv_py.plan.options.late import DefaultLateEventHandler, LateColumns, LateEventHandler, OnError
from krishiv_py.plan.options.watermarks import (
    PARTITION_IDLE,
    AnyWatermarkSpec,
    MultiSourceWatermarkSpec,
    RowsClock,
    WatermarkSpec,
)
from krishiv_py.plan.schema import SchemaLike, as_schema, checked, left_out, require_columns

if TYPE_CHECKING:
    from krishiv_py.api.joins import On, Suffixes
    from krishiv_py.api.stages.changing import TableSide, Ttl
    from krishiv_py.api.stages.keyed import KeyedStream
    from krishiv_py.api.stages.results import ResultStream
    from krishiv_py.plan.sides import JoinType
    from krishiv_py.planner.physical import Engine, PhysicalPlan


@attrs.frozen(eq=False, repr=False)
class Stream(RunMethods, ShownInALine):
    """Rows of a source, and stateless steps over them. Immutable: every step returns a new stream.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns.
    late_handler : LateEventHandler
        The handler of malformed input.

    Examples
    --------
    >>> from krishiv_py import col
    >>> from krishiv_py.testing import Driver, stream_of
    >>> sold = stream_of("item string, price double, pieces bigint, at bigint")
    >>> big = sold.with_column("total", col("price") * col("pieces")).filter("total >= 100").select("item", "total")
    >>> driver = Driver(big)
    >>> rows = [{"item": "pen", "price": 2.0, "pieces": 70, "at": 1}, {"item": "cap", "price": 9.0, "pieces": 1, "at": 2}]
    >>> driver.send(rows).results.to_pylist()
    [{'item': 'pen', 'total': 140.0}]
    """

    _kind = "rows"

    _node: Node
    schema: pa.Schema
    _runner: Runner
    _own_late_handler: LateEventHandler | None = attrs.field(default=None, repr=False)
    late_handler: LateEventHandler = attrs.field(init=False)

    def _said(self) -> list[str]:
        return [some(self.schema.names), f"from {root_of(self._node).title}"]

    @late_handler.default
    def _counting(self) -> LateEventHandler:
        return DefaultLateEventHandler() if self._own_late_handler is None else self._own_late_handler

    def _plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """Return what an `engine` runs: the rows as they are. `late` overrides what the handler wants of malformed input."""
        return plan_of_rows(self._node, self.late_handler, engine, late)

    def with_late_event_handler(self, handler: LateEventHandler, *, on_error: OnError = "fail") -> Stream:
        r"""Pass malformed input, and late rows of a window after it, to `handler` instead of only counting them (§4.3).

        Parameters
        ----------
        handler : LateEventHandler
            Who takes them.
        on_error : {"fail", "side_output"}
            What becomes of rows for which it raises: they stop the query (default), or the query goes on. Then they are
            counted as ``failed_handler:`` and the name of its class in ``progress.counters``, ``progress.doubts`` says what it
            raised, and ``query.late_rows()`` has the last 1 000 of them, with the text of the exception as their reason.
            All this is of one query in this process: a restart begins without it. After a bounded run it is in ``late_handler``
            of the stream.

        Examples
        --------
        >>> import pathlib
        >>> from krishiv_py import MemorySink, Session, SideOutputLateEventHandler
        >>> with Session.in_process() as session:
        ...     folder = pathlib.Path(session.temporary_folder())
        ...     _ = (folder / "a.json").write_text('{"n": 1}\n{"n": "one"}\n')
        ...     rows = session.read_json(folder, "n bigint", on_malformed="side_output")
        ...     result = rows.with_late_event_handler(SideOutputLateEventHandler(MemorySink())).run()
        >>> result.table.to_pylist()
        [{'n': 1}]
        >>> result.late.select(["reason", "malformed_line", "malformed_problem"]).to_pylist()
        [{'reason': 'malformed', 'malformed_line': 2, 'malformed_problem': "column 'n': a text is not a bigint"}]
        """
        return attrs.evolve(self, own_late_handler=given_handler(handler, on_error))

    def _then(self, step: Prefix) -> Stream:
        kept = None if isinstance(step, MapBatches) or (isinstance(step, Project) and step.picks) else self.schema.metadata
        return Stream(
            step, checked(steps.step_schema(step, self.schema).with_metadata(kept)), self._runner, self._own_late_handler
        )

    def select(self, *columns: str | Expr, **named: Expr | str) -> Stream:
        """Keep and compute columns: ``select("a", col("b").alias("x"), total=col("a") * 2)``.

        Parameters
        ----------
        *columns : str or Expr
            Column names, or expressions under the name of their alias or column.
        **named : Expr or str
            Expressions, or SQL text, by output name.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion.
        ExpressionError
            For SQL that cannot be read, and types that do not fit.

        Examples
        --------
        >>> from krishiv_py import col
        >>> from krishiv_py.testing import Driver, stream_of
        >>> picked = stream_of("a bigint, b string").select("b", (col("a") * 2).alias("twice"), half="a / 2")
        >>> Driver(picked).send([{"a": 5, "b": "x"}]).results.to_pylist()
        [{'b': 'x', 'twice': 10, 'half': 2.5}]
        """
        picked: list[tuple[str, Expr]] = []
        for item in columns:
            expr = col(item) if isinstance(item, str) else expression(item, "select")
            picked.append((name_of(expr), expr))
        picked += [(name, expression(value, f"select({name})")) for name, value in named.items()]
        for name, expr in picked:
            column_name(name, "select")
            require_columns(expr, self.schema, f"select({name})")
        return self._then(Project(self._node, tuple(picked), picks=True))

    def filter(self, condition: Expr | str) -> Stream:
        """Keep rows for which `condition` (an expression or SQL text) is true; null is not true.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> big = stream_of("amount bigint").filter("amount > 100")
        >>> Driver(big).send([{"amount": 500}, {"amount": 5}, {"amount": None}]).results.to_pylist()
        [{'amount': 500}]
        """
        expr = expression(condition, "filter")
        require_columns(expr, self.schema, "filter")
        evaluate.expr_type(expr, self.schema)
        return self._then(Filter(self._node, expr))

    def expect(self, condition: Expr | str, on_fail: OnFail = "fail", *, name: str | None = None) -> Stream:
        """Keep rows for which `condition` is true, and say what becomes of the others; null is not true.

        A row that fails is taken out before later steps see it, and moves no watermark. ``progress.late`` counts such rows by
        the name of the expectation.

        Parameters
        ----------
        condition : Expr or str
            An expression, or SQL text.
        on_fail : {"fail", "drop", "side_output"}
            Stop the query with an error that names the expectation (default), drop and count the row, or pass it to the late
            handler with the name as its reason. Columns that later steps add are null there.
        name : str, optional
            The name of the expectation; by default the text of the condition.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion.
        ExpressionError
            For SQL that cannot be read, and what is neither true nor false.
        PlanError
            For another action, and a name that is not a text.

        Examples
        --------
        >>> from krishiv_py import MemorySink, SideOutputLateEventHandler, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> sales = stream_of("amount bigint, at bigint").expect("amount > 0", "side_output", name="positive amount")
        >>> aside = SideOutputLateEventHandler(MemorySink())
        >>> driver = Driver(sales.watermark("at", 0).with_late_event_handler(aside).tumbling_window(10).agg(count()))
        >>> out = driver.send([{"amount": 5, "at": 1}, {"amount": -5, "at": 2}])
        >>> out.late.select(["amount", "at", "reason"]).to_pylist()
        [{'amount': -5, 'at': 2, 'reason': 'positive amount'}]
        >>> driver.progress.late["positive amount"]
        1
        """
        given = expression(condition, "expect")
        require_columns(given, self.schema, "expect")
        evaluate.require_condition(given, self.schema, "expect()")
        one_of(on_fail, "on_fail", ("fail", "drop", "side_output"))
        title = str(condition) if isinstance(condition, str) else repr(given)
        title = title if name is None else a_text(name, "name", 'write name="positive amount", or leave it out')
        return self._then(Expect(self._node, given, name=title, on_fail=on_fail))

    def split(self, *conditions: Expr | str) -> tuple[Stream, ...]:
        """Part the rows: a stream for each condition, and one for the rest. Every row is in exactly one of them.

        A row goes to the first condition that is true for it; null is not true. The parts can be outputs of one query:
        see :meth:`Session.start`.

        Parameters
        ----------
        *conditions : Expr or str
            Expressions or SQL texts, at least one.

        Returns
        -------
        tuple of Stream
            One more than there are conditions.

        Examples
        --------
        >>> from krishiv_py import col
        >>> from krishiv_py.testing import Driver, stream_of
        >>> big, rest = stream_of("at bigint, amount bigint").split(col("amount") > 100)
        >>> Driver(rest).send([{"at": 1, "amount": 500}, {"at": 2, "amount": None}]).results.to_pylist()
        [{'at': 2, 'amount': None}]
        """
        if not conditions:
            raise PlanError("split() got no condition", got="0 conditions", hint='write .split("amount > 100")')
        parts: list[Stream] = []
        rest = self
        for condition in conditions:
            given = expression(condition, "split")
            require_columns(given, self.schema, "split")
            evaluate.require_condition(given, self.schema, "split()")
            holds = coalesce(given, lit(False))
            parts.append(rest.filter(holds))
            rest = rest.filter(~holds)
        return (*parts, rest)

    def with_column(self, name: str, value: Expr | str) -> Stream:
        """Add, or replace, a column.

        Parameters
        ----------
        name : str
            The column; one that exists keeps its place.
        value : Expr or str
            An expression, or SQL text.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> Driver(stream_of("n bigint").with_column("square", "n * n")).send([{"n": 3}]).results.to_pylist()
        [{'n': 3, 'square': 9}]
        """
        column_name(name, "with_column")
        expr = expression(value, f"with_column({name})")
        require_columns(expr, self.schema, f"with_column({name})")
        kept = [(n, expr if n == name else col(n)) for n in self.schema.names]
        return self._then(Project(self._node, tuple(kept if name in self.schema.names else [*kept, (name, expr)])))

    def rename(self, **names: str) -> Stream:
        """Rename columns; `names` are old names with the new ones as values: ``rename(old="new")``.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("a bigint, b string").rename(a="id").schema.names
        ['id', 'b']
        """
        for old, new in names.items():
            known_column(old, self.schema.names, "rename")
            column_name(new, f"rename({old}=...)")
        return self._then(Project(self._node, tuple((names.get(n, n), col(n)) for n in self.schema.names)))

    def drop(self, *columns: str) -> Stream:
        """Leave `columns` out.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("a bigint, b string, c string").drop("b", "c").schema.names
        ['a']
        """
        for name in columns:
            if column_name(name, "drop") not in left_out(self.schema):
                known_column(name, self.schema.names, "drop")
        return self._then(Project(self._node, tuple((n, col(n)) for n in self.schema.names if n not in columns)))

    def map_batches(self, function: BatchFunction, schema: SchemaLike | None = None, *, on_error: OnError = "fail") -> Stream:
        """Apply a function to every Arrow batch, of any length.

        Parameters
        ----------
        function : callable
            ``RecordBatch -> RecordBatch`` (or a ``Table``, or a frame of pandas, Polars or DuckDB); it is pickled to the
            workers.
        schema : pyarrow.Schema or str, optional
            Schema of what it returns; by default that of what it gets. What it returns must have these columns and no others,
            and their structs these fields (docs/types.md).
        on_error : {"fail", "side_output"}
            Stop the query when the function raises (default), or pass the rows for which it does to the late handler, with the
            text of the exception as the reason, counted under the name of the function. The batch is then cut in halves until
            these rows are found, so the function sees smaller batches, and may see a row several times.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from krishiv_py.testing import Driver, stream_of
        >>> def first_words(batch):
        ...     return pa.record_batch({"word": pc.list_element(pc.utf8_split_whitespace(batch["text"]), 0)})
        >>> words = stream_of("text string").map_batches(first_words, "word string")
        >>> Driver(words).send([{"text": "hello world"}]).results.to_pylist()
        [{'word': 'hello'}]
        """
        one_of(on_error, "on_error", ("fail", "side_output"))
        a_function(function, "map_batches takes a function", "pass a function RecordBatch -> RecordBatch")
        return self._then(MapBatches(self._node, function, self.schema if schema is None else as_schema(schema), on_error))

    def unnest(self, column: str, *, rank: str | None = None, outer: bool = False) -> Stream:
        """Give one row for each item of a list; the other columns are repeated.

        Parameters
        ----------
        column : str
            A column of lists. The fields of structs become columns, other items keep its name.
        rank : str, optional
            A column for the place of an item in its list, ``int64``, from 1 on.
        outer : bool, default False
            Keep a row whose list is empty or null, with nulls.

        Raises
        ------
        ColumnError
            For a column that does not exist, or has no lists.
        SchemaError
            For columns of one name.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> tags = stream_of("id bigint, tags array<string>").unnest("tags", rank="place")
        >>> Driver(tags).send([{"id": 1, "tags": ["x", "y"]}]).results.to_pylist()
        [{'id': 1, 'tags': 'x', 'place': 1}, {'id': 1, 'tags': 'y', 'place': 2}]
        """
        return self._unnested(column, rank, outer)

    def _unnested(self, column: str, rank: str | None, outer: bool, spread: bool = True) -> Stream:
        step, schema = unnested(self.schema, column, rank, outer, spread)
        return self._then(MapBatches(self._node, step, schema))

    def lookup_join(
        self,
        table: Any,
        on: LookupKeys,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        how: LookupType = "left",
        validity: tuple[str, str] | None = None,
        at: str | None = None,
        reload: Duration | None = None,
    ) -> Stream:
        """Add columns of a table to rows: a step without state (SEMANTICS §9.3).

        Parameters
        ----------
        table : pyarrow.Table or frame or callable
            The table, a static Spark DataFrame such as ``spark.table("db.shops")`` (read now), or a function without arguments
            that returns either. The driver of a query calls it when the query starts, and again as `reload` says, before a
            batch: all rows of a batch see one version, also when it is repeated after a crash. A bounded run calls it once.
        on : str or Expr or list or dict
            The keys: columns of one name, names of rows with those of the table, or expressions: ``col("shop").lower()`` of
            both, or pairs ``[(col("shop").lower(), "shop")]`` of rows and table. Null keys find nothing.
        columns : list of str or dict, optional
            Columns of the table to add, or their names with new ones; all besides keys and `validity` by default.
        how : {"left", "inner", "semi", "anti"}
            Whether rows that find nothing stay, with nulls; a row that finds several rows comes once for each. ``semi`` gives
            rows that find something, once, and ``anti`` those that find nothing; both add no columns.
        validity : (str, str), optional
            Columns of the table from when on and until before when a row of it is valid; null is not a bound.
        at : str, optional
            The time of rows that `validity` is held against.
        reload : int or timedelta or str, optional
            How old a table may become (processing time) before its function is called again. ``progress.tables`` has the
            version a batch has seen.

        Raises
        ------
        PlanError
            For a value that is not a table.
        ColumnError
            For columns that do not exist, and keys of other types.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> shops = pa.table({"shop": ["a", "b"], "city": ["Ulm", "Rom"]})
        >>> sold = stream_of("shop string, at bigint").lookup_join(shops, "shop")
        >>> driver = Driver(sold.watermark("at", 0).key_by("city").tumbling_window(10).agg(count()))
        >>> _ = driver.send([{"shop": "a", "at": 1}, {"shop": "c", "at": 2}])
        >>> [(row["city"], row["count"]) for row in driver.close().results.to_pylist()]
        [('Ulm', 1), (None, 1)]
        """
        step, schema = looked_up(self.schema, table, on, columns, how, validity, at, reload)
        return self._then(MapBatches(self._node, step, schema))

    def agg(self, *aggs: Expr | Sequence[Expr], changes: Literal["net", "each"] = "net", **named: Expr) -> ResultStream:
        """Aggregate all rows so far, `aggs` and `named` ones, to one row, with `changes`: see :meth:`KeyedStream.agg`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> Driver(stream_of("n bigint").agg(count())).send([{"n": 1}, {"n": 2}]).results.to_pylist()
        [{'count': 2, 'op': '+I'}]
        """
        return untimed(self).agg(*aggs, changes=changes, **named)

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
        >>> orders, customers = stream_of("order bigint, id bigint"), stream_of("id bigint, city string")
        >>> driver = Driver(orders.join(customers.from_changelog("upsert", key="id"), on="id"))
        >>> driver.send({"left": [{"order": 7, "id": 1}], "right": [{"id": 1, "city": "Ulm"}]}).results.to_pylist()
        [{'id': 1, 'order': 7, 'city': 'Ulm', 'op': '+I'}]
        """
        return untimed(self).join(right, on, how=how, ttl=ttl, suffixes=suffixes)

    def top_rows(
        self, n: int, by: str | Expr | Sequence[str | Expr], *, smallest: bool = False, rank: str | None = None
    ) -> ResultStream:
        """Give the first `n` of all rows `by` a value, with `smallest` and `rank`: see :meth:`KeyedStream.top_rows`.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> largest = stream_of("id bigint, size bigint").top_rows(2, by="size", rank="rank")
        >>> driver = Driver(largest)
        >>> [(row["id"], row["rank"]) for row in driver.send([{"id": 1, "size": 5}, {"id": 2, "size": 7}]).results.to_pylist()]
        [(2, 1), (1, 2)]
        """
        return untimed(self).top_rows(n, by, smallest=smallest, rank=rank)

    def _as_table(self) -> KeyedStream:
        """Return the rows as those of a table, which need no event time."""
        return untimed(self)

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
        """Read rows as changes of a table: its rows by key, which stages and sinks after it follow (SEMANTICS §16.2).

        State has the last row of each key. What a change says of the row before it is not trusted: a row that is equal to the
        last one gives nothing (``unchanged``), a deletion of a key without a row neither (``unknown_delete``). Changes whose
        operation is not known go to the late handler with the reason ``bad_op``.

        Parameters
        ----------
        format : {"log", "upsert", "debezium", "cdf"}
            How a change is written. ``"log"``: a column says what it does, ``+I``, ``+U``, ``-U`` or ``-D``. ``"upsert"``: a
            row takes the place of the last one of its key, and deletes it where all its columns but key and sequence are null.
            ``"debezium"``: columns ``op``, ``before`` and ``after``, or a column ``payload`` with these; the table has the
            columns of ``after``. Tombstones, in which all of them are null, are passed over. ``"cdf"``: the change feed of a
            table, as ``read_delta(changes=True)`` and ``read_iceberg(changes=True)`` give it; it has its own `sequence`.
        key : str or sequence of str, optional
            The columns of the key. A log may have none: each row is then there as often as it was added and not taken back, and
            a withdrawal of a row that is not there goes to the late handler with the reason ``unmatched``.
        sequence : str or Expr or sequence, optional
            What orders the changes of a key, such as a log position: a change at or below the last one of its key is stale. So
            the table depends neither on the order of arrival nor on changes that come twice. By default the last to arrive
            counts.
        tombstones : int or timedelta or str, optional
            How long the sequence of a deleted key is kept, by the clock; for ever by default. An older change that comes after
            that would bring the row back: choose it above the disorder.
        op : str
            The column of the operation, in a log.
        ops : dict, optional
            The operations of a log by their names there: ``{"ins": "+I", "del": "-D"}``.
        stale : {"count", "side_output"}
            Only count stale changes, or also hand them to the late handler with the reason ``stale``.
        changes : {"net", "each"}
            Give the net change of each key in a batch, or every change.

        Returns
        -------
        ResultStream
            The rows, and ``op``: ``+I`` for a new row, ``-U`` and ``+U`` for one that changes, ``-D`` for one that is gone.

        Raises
        ------
        ColumnError
            For columns that do not exist.
        ExpressionError
            For a sequence whose values have no order.
        SchemaError
            For changes without the columns of their format.
        PlanError
            For another format, and without a key where the format needs one.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> changes = stream_of("op string, id bigint, city string")
        >>> customers = changes.from_changelog("log", key="id")
        >>> driver = Driver(customers.key_by("city").agg(count()))
        >>> _ = driver.send([{"op": "+I", "id": 1, "city": "Ulm"}, {"op": "+I", "id": 2, "city": "Ulm"}])
        >>> driver.send([{"op": "+U", "id": 2, "city": "Rom"}]).results.to_pylist()[-1]
        {'city': 'Rom', 'count': 1, 'op': '+I'}
        """
        return changelog_of(
            self, None, format, key, sequence, tombstones=tombstones, op=op, ops=ops, stale=stale, changes=changes
        )

    def latest(self, key: str | Sequence[str], by: str | Expr | Sequence[str | Expr]) -> ResultStream:
        """Give the row of each `key` that is the largest in `by`, as a table: the newest of every key (SEMANTICS §16.8).

        Of rows that are equal in `by` the largest in their other columns counts, from left to right, so the order of arrival
        makes no difference. Rows whose `by` is null are put aside, with the reason ``bad_sequence``.

        Parameters
        ----------
        key : str or sequence of str
            The columns of the key.
        by : str or Expr or sequence
            What says which row is the newest, such as an event time.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> prices = stream_of("item string, at bigint, price bigint").latest("item", by="at")
        >>> driver = Driver(prices)
        >>> driver.send([{"item": "pen", "at": 2, "price": 7}, {"item": "pen", "at": 1, "price": 5}]).results.to_pylist()
        [{'item': 'pen', 'at': 2, 'price': 7, 'op': '+I'}]
        """
        return latest_of(self, None, key, by)

    def watermark(
        self, column: str, lag: Duration | None = None, *, idle_advance: Duration | None = None, clock: RowsClock | None = None
    ) -> TimedStream:
        """Declare event time: no row older than the newest minus `lag` is expected any more (SEMANTICS §2).

        Where a source names its partitions (``read_kafka(partitions_as_sources=True)``, `watermark_sources` of an own source),
        each has a watermark with this lag, and the stream that of the slowest one. A partition without rows for 30 seconds
        (processing time) is left out until its next row, and new ones take part from their first row on.

        Parameters
        ----------
        column : str
            A ``timestamp``, ``timestamp_ntz`` or ``bigint`` (milliseconds) column.
        lag : int or timedelta or str
            How far rows may be out of order; ``int`` is milliseconds; 0 is legal. It can be left out for a column of a
            DataFrame that has it from ``withWatermark``.
        idle_advance : int or timedelta or str, optional
            When no row has come for this long (processing time), let the watermark go on at the speed of the clock from where
            it was, until a row comes, so that a quiet stream closes its windows (SEMANTICS §10).
        clock : {"batch", "row"}, optional
            What a row is classified by: the watermark in force in its batch, or that of the rows before it in its lane, so that
            neither late rows nor results depend on how rows are cut into batches (SEMANTICS §2.8). A lane is what the source
            gives in an order: a partition of Kafka, a memory stream, a folder in the order of its files. By default what the
            session says, which is ``"batch"`` where it says nothing.

        Raises
        ------
        ColumnError
            For a column that does not exist or cannot be a time.
        DurationError
            For a negative, float or boolean lag, and without one where none is known.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "2 s").tumbling_window("10 s").agg(count()))
        >>> [driver.send([{"at": at}]).results.num_rows for at in (1_000, 11_000, 9_000, 12_000)]
        [0, 0, 0, 1]
        """
        if lag is None:
            lag = dt.timedelta(microseconds=known_lag_us(self._node, column))
        each = WatermarkSpec.fixed_lag(lag, idle_advance=idle_advance, clock=clock)
        parts = partitions_of(self._node)
        if parts is None:
            return self.with_watermark(each, column=column)
        spec = MultiSourceWatermarkSpec.new(idle_timeout=PARTITION_IDLE, idle_advance=idle_advance, clock=clock)
        one = WatermarkSpec.fixed_lag(lag)
        for name in parts[1]:
            spec = spec.source(name, one)
        return self.with_watermark(spec.unknown("register", one), column=column, source_column=parts[0])

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> TimedStream:
        """:meth:`watermark` with a specification object.

        Parameters
        ----------
        spec : WatermarkSpec or MultiSourceWatermarkSpec
            One lag, or a lag by source.
        column : str, optional
            The event-time column; may be left out if only one column is a timestamp.
        source_column : str, optional
            For several sources: the text column that names the source of every row.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec
        >>> from krishiv_py.testing import stream_of
        >>> second, minute = WatermarkSpec.fixed_lag("1 s"), WatermarkSpec.fixed_lag("1 min")
        >>> by_site = MultiSourceWatermarkSpec.new().source("north", second).source("south", minute)
        >>> stream_of("site string, at bigint").with_watermark(by_site, "at", source_column="site")
        <TimedStream site, at; event time at, watermark min over north - 1 s, south - 1 min; ...>
        """
        if not isinstance(spec, (WatermarkSpec, MultiSourceWatermarkSpec)):
            raise PlanError("not a WatermarkSpec", got=shown(spec), hint="pass WatermarkSpec.fixed_lag(5_000)")
        if column is None:
            column = only_time(self.schema, "column")
        return timed(self._node, self.schema, column, spec, source_column, self._runner, self._own_late_handler)

    def processing_time(self, name: str = "processing_time") -> TimedStream:
        """Let rows go by the clock of the machine instead of an event time (SEMANTICS §10); no row is late.

        Parameters
        ----------
        name : str
            The column, added to the rows, with the time at which their micro-batch began, which is recorded with it. A window
            fires when the clock has passed its end, whether rows come or not. A bounded run has one clock for all rows;
            those of a memory stream have the time they were sent.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, ManualClock, stream_of
        >>> clock = ManualClock()
        >>> driver = Driver(stream_of("n bigint").processing_time().tumbling_window("1 min").agg(count()), clock=clock)
        >>> _ = driver.send([{"n": 1}])
        >>> _ = clock.advance("2 min")
        >>> driver.tick().results.column("count").to_pylist()
        [1]
        """
        return by_clock(self._node, self.schema, name, self._runner, self._own_late_handler)

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedUntimedStream:
        """Group by `keys`, columns or expressions, and `named` ones, before the watermark: the two may come in either order.

        Examples
        --------
        >>> from krishiv_py import col
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string, at bigint").key_by(name=col("user").lower()).watermark("at", 0).keys
        ('name',)
        """
        names, computed = keys_of(keys, self.schema, "key_by", named)
        return KeyedUntimedStream(self, names, computed)
