"""Joins of a stream with event time, and lookup joins of any stream (SEMANTICS §9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.computed import keys_of, visible, with_computed
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import check, evaluate, lookup
from krishiv_py.connectors.lookup_table import LookupTable, as_table, in_types_of_streams
from krishiv_py.errors import RAISED, ColumnError, OrderError, PlanError, SchemaError, SourceError, failure_text, shown
from krishiv_py.plan.checks import a_function, a_number, a_switch, column_name, is_collection, known_column, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Col, Expr, col, columns_of, python_text, unnamed
from krishiv_py.plan.joins import (
    ASOF_TYPES,
    DIRECTIONS,
    JOIN_TYPES,
    RULE,
    AsofJoin,
    AsofType,
    Direction,
    FeatureJoin,
    IntervalJoin,
    Join,
    JoinType,
    LookupType,
    RulesJoin,
    VersionedJoin,
    WindowJoin,
)
from krishiv_py.plan.nodes import BatchFunction, MapBatches, Node, Stage, StageDraft, names_time, source_of
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.schema import RESERVED, check_key_type, is_key_type, key_hint, require_columns, time_kind
from krishiv_py.plan.sides import RIGHT, AsOf, JoinColumns, Side, both, check_keys, named
from krishiv_py.plan.windows.fixed import HoppingWindow
from krishiv_py.plan.windows.window import finer_than_ms
from krishiv_py.types import key_type, type_text

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream
    from krishiv_py.api.stages.timed import TimedStream


Key: TypeAlias = "str | Expr"
On: TypeAlias = "str | Expr | Sequence[Key | tuple[Key, Key]] | Mapping[str, str]"
Sides: TypeAlias = "tuple[Side, Side]"


def _joins(stream: object) -> bool:
    return isinstance(stream, OptionMethods) and stream._draft.operation is None


def sides_of(left: OptionMethods, right: object, on: On | None, where: str, *, left_time: bool = False) -> Sides:
    """Return the checked sides of the join called `where`; `left_time`: results have the time of left rows.

    Raises
    ------
    OrderError
        For a right side without watermark.
    PlanError
        For keys that are missing, given twice or do not fit.
    """
    if not _joins(right):
        if isinstance(right, OptionMethods) and right._draft.operation is not None:
            hint = f"write left.{where}(right.key_by(...).tumbling_window(...).agg(count()), ...), or leave the window out"
            raise OrderError("the right side of a join has a window, but no aggregates", got=type(right).__name__, hint=hint)
        if hasattr(right, "watermark"):
            hint = f'write left.{where}(right.watermark("event_time", "5 seconds"), ...)'
            raise OrderError("the right side of a join has no watermark", got=type(right).__name__, hint=hint)
        hint = "pass a stream with .watermark(...); tables are joined with .lookup_join(table, ...)"
        raise PlanError("the right side of a join is not a stream with event time", got=shown(right), hint=hint)
    assert isinstance(right, OptionMethods)
    return _keyed_sides(left, right, [_side(left, shows_time=left_time), _side(right)], on, where)


def _keyed_sides(left: OptionMethods, right: OptionMethods, sides: list[Side], on: On | None, where: str) -> Sides:
    if not isinstance(on, (str, Mapping)) and on is not None:
        on = _computed(sides, on, where)
    names = _keys(left, right, on, (sides[0].schema, sides[1].schema), where)
    one, other = (attrs.evolve(side, keys=keys) for side, keys in zip(sides, names, strict=True))
    check_keys(one, other)
    return one, other


def table_sides(left: OptionMethods, right: OptionMethods, on: On | None, where: str) -> Sides:
    """Return the checked sides of a join of tables, which need no event time.

    Raises
    ------
    PlanError, ColumnError
        For keys that are missing, given twice or do not fit.
    """
    sides = []
    for stream in (left, right):
        mark = stream._draft.input
        sides.append(Side(mark, stream._row_schema(), stream._draft.keys, source_of(mark).envelope))
    return _keyed_sides(left, right, sides, on, where)


def _side(stream: OptionMethods, *, shows_time: bool = False) -> Side:
    mark, schema = stream._draft.input, stream._row_schema()
    source = source_of(mark)
    if not isinstance(source, Stage):
        return Side(mark, schema, stream._draft.keys)
    check.check_followed(source)
    own = shows_time or names_time(mark.input)
    return Side(mark, schema, stream._draft.keys, () if own else (source.time_column,))


def _computed(sides: list[Side], on: object, where: str) -> On:
    """Return the names of keys that may be expressions; `sides` get the columns of those."""
    items = _pairs(on)
    if not any(isinstance(e, Expr) for item in items for e in item):
        return [(str(ours), str(theirs)) for ours, theirs in items]
    names = []
    for side_number, word in enumerate(("left", "right")):
        side = sides[side_number]
        key_columns, computed = keys_of(
            [item[side_number] for item in items], visible(side.schema), f"{where}(on), {word} side"
        )
        mark = with_computed(side.mark, side.schema, computed)
        schema = pa.schema([*side.schema, *((n, evaluate.expr_type(e, side.schema)) for n, e in computed)])
        sides[side_number] = attrs.evolve(side, mark=mark, schema=schema)
        names.append(key_columns)
    return list(zip(*names, strict=True))


def _keys(
    left: OptionMethods, right: OptionMethods, on: On | None, schemas: tuple[pa.Schema, pa.Schema], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    keyed_by = left._draft.keys, right._draft.keys
    if on is None:
        if not (keyed_by[0] and keyed_by[1]):
            got = f"left {list(keyed_by[0])}, right {list(keyed_by[1])}"
            hint = 'write on="user", or .key_by("user") on both streams'
            raise PlanError(f"{where} has no key", got=got, then="every row would meet every other", hint=hint)
        return keyed_by
    pairs = _pairs(on)
    for ours, theirs in pairs:
        known_column(ours, schemas[0].names, f"{where}(on), left side")
        known_column(theirs, schemas[1].names, f"{where}(on), right side")
    names = tuple(str(ours) for ours, _ in pairs), tuple(str(theirs) for _, theirs in pairs)
    for side, keys in zip(("left", "right"), names, strict=True):
        twice = sorted({k for k in keys if keys.count(k) > 1})
        if twice:
            raise PlanError(f"a key of the {side} side is named twice", got=twice, hint="name it once")
    for side, keyed, keys in zip(("left", "right"), keyed_by, names, strict=True):
        if keyed and keyed != keys:
            what = f"the {side} stream is keyed by other columns than it is joined on"
            raise PlanError(what, got=f"key_by {list(keyed)}, on {list(keys)}", hint="leave `on` out, or leave .key_by out")
    return names


def _pairs(on: object) -> list[tuple[Key, Key]]:
    """Return the keys of both sides: two expressions are one of each side."""
    listed: list[Any] = list(on.items()) if isinstance(on, Mapping) else [on] if isinstance(on, (str, Expr)) else _items(on)
    if len(listed) == 2 and all(isinstance(e, Expr) for e in listed):
        return [(listed[0], listed[1])]
    return [e if isinstance(e, tuple) else (e, e) for e in listed]


def _items(on: object) -> list[Any]:
    def names(e: object) -> bool:
        return isinstance(e, (str, Expr)) or (
            isinstance(e, tuple) and len(e) == 2 and all(isinstance(n, (str, Expr)) for n in e)
        )

    if isinstance(on, Sequence) and all(map(names, on)):
        return list(on)
    hint = 'write on="user", on=["user", "shop"], on={"user": "customer"}, or on=[(col("user").lower(), "customer")]'
    raise PlanError("`on` names no columns", got=shown(on), hint=hint)


def checked_suffixes(suffixes: object) -> tuple[str, str] | None:
    """Two `suffixes`, or None."""
    if suffixes is None:
        return None
    if isinstance(suffixes, (tuple, list)) and len(suffixes) == 2 and all(isinstance(s, str) for s in suffixes):
        return suffixes[0], suffixes[1]
    raise PlanError("`suffixes` are two texts", got=shown(suffixes), hint='write suffixes=("", "_right")')


def whole_ticks(sides: Sides, name: str, bound_us: int) -> None:
    """Refuse a length that the time columns of both sides cannot have."""
    types = [s.schema.field(s.mark.column).type for s in sides]
    if all(pa.types.is_int64(t) for t in types) and bound_us % 1_000:
        then = "both have whole milliseconds"
        hint = "use bounds of whole milliseconds"
        raise PlanError(f"`{name}` is finer than the time columns", got=f"{bound_us} µs", then=then, hint=hint)


def merged_draft(left: StageDraft, right: StageDraft) -> StageDraft:
    """Return what was set before the join, of either side; it may be set after it as well."""
    explicit = left.explicit if right.explicit == ExplicitOptions() else right.explicit
    hint = "name one after the join instead, .interval_join(...).with_late_event_handler(...): its rows have a column `side`"
    late = one_handler((left.late_handler, right.late_handler), "the sides of a join", hint)
    if ExplicitOptions() not in (left.explicit, right.explicit) and left.explicit != right.explicit:
        raise PlanError(
            "both sides of a join have options, and they differ",
            got=f"left {left.explicit}, right {right.explicit}",
            then="a join has one lateness and one set of options",
            hint="set them after the join: .interval_join(...).allowed_lateness(...)",
        )
    return attrs.evolve(left, explicit=explicit, late_handler=late or left.late_handler)


LookupKeys: TypeAlias = "str | Expr | Sequence[str | Expr | tuple[str | Expr, str | Expr]] | Mapping[str, str]"
"""The parts of a row and of a table that are equal: columns, or expressions."""


def looked_up(
    schema: pa.Schema,
    table: Any,
    on: LookupKeys,
    columns: Sequence[str] | Mapping[str, str] | None,
    how: LookupType,
    validity: tuple[str, str] | None,
    at: str | None,
    reload: Duration | None,
) -> tuple[BatchFunction, pa.Schema]:
    """Return the step over rows of `schema`, and the schema it makes."""
    one_of(how, "how", ("left", "inner", "semi", "anti"))
    static = _table(table, reload)
    keys = _lookup_keys(on, schema, static.schema)
    valid = _validity(validity, at, schema, static.schema)
    if how in ("semi", "anti"):
        if columns is not None:
            raise PlanError(f"a {how} lookup adds no columns", got=shown(columns), hint="leave `columns` out")
        columns = ()
    picked = _picked(columns, static.schema, keys, () if valid is None else (valid.starts, valid.ends))
    taken = {n.lower() for n in schema.names}
    twice = [name for _, name in picked if name.lower() in taken]
    if twice:
        hint = f'name them otherwise: columns={{"{twice[0]}": "{twice[0]}_found"}}'
        raise SchemaError("rows have columns of these names already", got=", ".join(twice), hint=hint)
    step = lookup.Lookup(static.current, keys, picked, how, valid)
    fields = [static.schema.field(column).with_name(name).with_nullable(True) for column, name in picked]
    return step, pa.schema([*schema, *fields])


def reloads(step: Node) -> bool:
    """Return whether a step looks rows up in a table that changes."""
    function = step.function if isinstance(step, MapBatches) else None
    table = getattr(function.current, "__self__", None) if isinstance(function, lookup.Lookup) else None
    return isinstance(table, LookupTable) and table.reload_us is not None


def _table(table: Any, reload: Duration | None) -> LookupTable:
    load: Callable[[], Any] | None = table if callable(table) and not hasattr(table, "toArrow") else None
    if load is not None:
        a_function(load, "lookup_join takes a table, or a function that loads it", "")
    reload_us = None if reload is None else to_us(reload, "reload")
    if reload_us is not None and load is None:
        hint = "pass a function that returns a pyarrow.Table, or leave `reload` out"
        raise PlanError("a table that is loaded again needs a function that loads it", got=shown(table), hint=hint)
    try:
        given = table if load is None else _first(load)
        driver_only = load is not None and hasattr(given, "toArrow")  # a Spark session is not there in the tasks
        if driver_only and reload_us is None:
            load = None
        rows = as_table(given)
    except TypeError as problem:
        raise PlanError(
            "lookup_join takes a table",
            got=str(problem),
            hint="pass a pyarrow.Table, a frame of pandas, Polars or DuckDB, a static Spark DataFrame, or a function that "
            "returns one; streams are joined with .interval_join, .asof_join or .window_join",
        ) from problem
    whole = in_types_of_streams(rows)
    return LookupTable(whole.schema, None if load is not None else whole, load, reload_us, driver_only)


def _first(load: Callable[[], Any]) -> Any:
    """Return what a function loads now, for its columns."""
    try:
        return load()
    except RAISED as problem:  # user code: whatever it raises is reported
        hint = "let it return a pyarrow.Table: it is called here for the columns of the table"
        raise SourceError("the table of a lookup_join cannot be loaded", got=failure_text(problem), hint=hint) from problem


def _lookup_keys(on: object, rows: pa.Schema, table: pa.Schema) -> tuple[tuple[Expr, Expr], ...]:
    """Return what of a row is equal to what of the table, checked."""
    keys, pairs = [], _pairs(on)
    if not pairs:
        hint = 'write on="user"'
        raise PlanError("lookup_join has no key", got=shown(on), then="every row would find the whole table", hint=hint)
    for ours, theirs in pairs:
        pair = _key(ours, rows, "lookup_join(on)"), _key(theirs, table, "lookup_join(on), table")
        one, other = evaluate.expr_type(pair[0], rows), evaluate.expr_type(pair[1], table)
        if one != other:
            got = f"{_named(pair[0])} is {type_text(one)}, {_named(pair[1])} is {type_text(other)}"
            both = key_type(one, other)
            cast = [
                _named(key) if both in (None, t) else f'{_written(key)}.cast("{type_text(both)}")'
                for key, t in zip(pair, (one, other), strict=True)
            ]
            hint = "give both one type" if both is None else f"write on=[({cast[0]}, {cast[1]})]"
            raise ColumnError("the key of rows and table has other types", got=got, hint=hint)
        keys.append(pair)
    return tuple(keys)


def _key(key: object, schema: pa.Schema, where: str) -> Expr:
    """Return a key of one side, of columns it has and a type that can be compared."""
    if isinstance(key, str):
        if key not in schema.names and "." in key:
            require_columns(col(key), schema, where)  # says what is written for a field
        name = known_column(key, schema.names, where)
        check_key_type(name, schema.field(name).type, meant="compared")
        return Col(name)
    if isinstance(key, Expr):
        key = unnamed(key)
    if not isinstance(key, Expr) or not columns_of(key) or "*" in columns_of(key):
        raise PlanError(f"{where}: a constant is not a key", got=repr(key), hint="leave it out")
    require_columns(key, schema, where)
    type_ = evaluate.expr_type(key, schema)
    if not is_key_type(type_):
        hint = key_hint(python_text(key), type_)
        what, consequence = f"{where}: {key!r} cannot be a key", "only plain values can be compared"
        raise ColumnError(what, got=type_text(type_), then=consequence, hint=hint)
    return key


def _named(key: Expr) -> str:
    """Return a key in an error."""
    return repr(key.name) if isinstance(key, Col) else repr(key)


def _written(key: Expr) -> str:
    return f'col("{key.name}")' if isinstance(key, Col) else f"({key!r})"


def _listed_columns(names: object) -> list[str]:
    if isinstance(names, Sequence) and all(isinstance(n, str) for n in names):
        return list(names)
    hint = 'write "user", ["user", "shop"], or {"user": "customer"} where the table has other names'
    raise PlanError("columns are named by texts", got=shown(names), hint=hint)


def _picked(
    columns: object, table: pa.Schema, keys: tuple[tuple[Expr, Expr], ...], bounds: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    if columns is None:
        left_out = set(bounds).union(*(columns_of(theirs) for _, theirs in keys))
        return tuple((n, n) for n in table.names if n not in left_out)
    pairs = list(columns.items()) if isinstance(columns, Mapping) else [(n, n) for n in _listed_columns(columns)]
    for column, name in pairs:
        known_column(column, table.names, "lookup_join(columns), table")
        column_name(name, "lookup_join(columns)")
    return tuple(pairs)


def _validity(validity: object, at: str | None, rows: pa.Schema, table: pa.Schema) -> Any:
    if validity is None and at is None:
        return None
    if not isinstance(validity, (tuple, list)) or len(validity) != 2 or at is None:
        got = f"at={shown(at)}, validity={shown(validity)}"
        hint = 'write at="event_time", validity=("valid_from", "valid_to")'
        raise PlanError("a lookup by time needs the time of rows, and two columns of the table", got=got, hint=hint)
    starts, ends = (known_column(name, table.names, "lookup_join(validity), table") for name in validity)
    kinds = time_kind(rows, at), time_kind(table, starts), time_kind(table, ends)
    if kinds[1] != kinds[2]:
        got = f"{starts!r} is {kinds[1]}, {ends!r} is {kinds[2]}"
        raise ColumnError("the bounds of validity have other types", got=got, hint="cast one of them")
    return lookup.Validity(at, kinds[0], starts, ends, kinds[1])


def _operation(stage: StageDraft) -> Operation:
    assert stage.operation is not None
    return stage.operation


Suffixes: TypeAlias = "tuple[str, str]"
TableClock: TypeAlias = Literal["both", "left"]
JoinSide: TypeAlias = "JoinMethods"
"""The types that the right side of a join may have."""


@attrs.frozen(eq=False, repr=False)
class JoinMethods(OptionMethods):
    """A stage that can be joined with another stream."""

    def interval_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        lower: Duration,
        upper: Duration,
        how: JoinType = "inner",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
        max_rows_per_key: int | None = None,
    ) -> ResultStream:
        """Join with another stream: rows of equal key meet when ``left + lower <= right <= left + upper`` (SEMANTICS §9.1).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or Expr or list or dict, optional
            The key columns: of one name on both sides, or left names with right ones. Or expressions: one for both sides, or
            pairs with one for each, ``on=[(col("a").lower(), "b")]``; results have the left one's alias or text.
            May be left out if both streams are keyed; the keys then go together in their order.
        lower, upper : int or timedelta or str
            How far the time of a right row may be from that of a left one, both bounds inclusive; ``int`` is milliseconds,
            negative is before.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            Whether rows without a partner are given with nulls, once none can come; or left rows alone that have one
            (``"semi"``, at its arrival) or none (``"anti"``).
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).
        max_rows_per_key : int, optional
            How many rows of a key each side keeps, the first to arrive of those whose event times are as close as rows can
            stay (docs/joins.md). A row beyond that takes part in no pair, is not kept, and is counted (``limited``). No limit
            by default.

        Returns
        -------
        ResultStream
            Results have the keys, the columns of the left and of the right side, and ``join_time``, the later of both times.
            ``"semi"`` and ``"anti"`` give keys and left columns only.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, ``lower > upper``, and columns of one name.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> shown = stream_of("ad string, at bigint").watermark("at", 0)
        >>> clicked = stream_of("ad string, clicked bigint").watermark("clicked", 0)
        >>> driver = Driver(shown.interval_join(clicked, "ad", lower=0, upper="10 s"))
        >>> _ = driver.send({"left": [{"ad": "x", "at": 1_000}, {"ad": "y", "at": 2_000}]})
        >>> driver.send({"right": [{"ad": "x", "clicked": 4_000}, {"ad": "y", "clicked": 13_000}]}).results.to_pylist()
        [{'ad': 'x', 'at': 1000, 'clicked': 4000, 'join_time': 4000}]
        """
        bounds = (
            to_us(lower, "lower", allow_zero=True, allow_negative=True),
            to_us(upper, "upper", allow_zero=True, allow_negative=True),
        )
        one_of(how, "how", JOIN_TYPES)
        if bounds[0] > bounds[1]:
            hint = 'write for instance lower="-10 minutes", upper="5 minutes": both are added to the time of the left row'
            raise PlanError("`lower` is beyond `upper`", got=f"lower={shown(lower)}, upper={shown(upper)}", hint=hint)
        sides = sides_of(self, right, on, "interval_join", left_time=how in ("semi", "anti"))
        for name, bound in zip(("lower", "upper"), bounds, strict=True):
            whole_ticks(sides, name, bound)
        columns = named(*sides, checked_suffixes(suffixes))
        if max_rows_per_key is not None:
            a_number(max_rows_per_key, "max_rows_per_key", 1, "pass a positive whole number, or None for no limit")
        return self._joined(right, sides, IntervalJoin(columns, how, *bounds, max_rows_per_key), idle_timeout)

    def asof_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        direction: Direction = "backward",
        tolerance: Duration | None = None,
        how: AsofType = "left",
        allow_exact: bool = True,
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
    ) -> ResultStream:
        """Join every row with the row of another stream that is nearest in time (SEMANTICS §9.2).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or list of str or dict, optional
            The key columns, as in :meth:`interval_join`.
        direction : {"backward", "forward", "nearest"}
            Take the newest row at or before the time of the left row, the oldest at or after it, or the closer one of both (of
            two equally close ones the earlier). Of rows of equal time the latest arrival is taken.
        tolerance : int or timedelta or str, optional
            How far away it may be at the most; ``int`` is milliseconds. Forward and nearest need it. Without it the newest
            row of every key stays in state for ever, unless a TTL is set.
        how : {"left", "inner"}
            Whether left rows without a partner are given with nulls, or only counted (``unmatched``).
        allow_exact : bool
            Whether a row of exactly the same time counts, the default; without it only rows before, or after, do.
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).

        Returns
        -------
        ResultStream
            Results have the keys and the columns of the left and of the right side. Their event time is that of the left row.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, a missing tolerance, and columns of one name.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> trades = stream_of("stock string, at bigint").watermark("at", 0)
        >>> quotes = stream_of("stock string, quoted bigint, price double").watermark("quoted", 0)
        >>> driver = Driver(trades.asof_join(quotes, "stock", tolerance="1 min"))
        >>> old, new = [{"stock": "x", "quoted": t, "price": p} for t, p in ((1_000, 5.0), (3_000, 6.0))]
        >>> _ = driver.send({"left": [{"stock": "x", "at": 2_000}], "right": [old, new]})
        >>> driver.close().results.to_pylist()
        [{'stock': 'x', 'at': 2000, 'quoted': 1000, 'price': 5.0}]
        """
        one_of(direction, "direction", DIRECTIONS)
        one_of(how, "how", ASOF_TYPES)
        a_switch(allow_exact, "allow_exact")
        if tolerance is None and direction != "backward":
            then = "a left row would wait for ever for a partner that may still come"
            hint = 'write tolerance="10 seconds"'
            raise PlanError(f'direction="{direction}" needs a tolerance', got="None", then=then, hint=hint)
        tolerance_us = None if tolerance is None else to_us(tolerance, "tolerance", allow_zero=True)
        sides = sides_of(self, right, on, "asof_join", left_time=True)
        if tolerance_us is not None:
            whole_ticks(sides, "tolerance", tolerance_us)
        columns = named(*sides, checked_suffixes(suffixes))
        return self._joined(right, sides, AsofJoin(columns, how, direction, tolerance_us, allow_exact), idle_timeout)

    def window_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        window: HoppingWindow,
        how: JoinType = "inner",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
    ) -> ResultStream:
        """Join with another stream: rows of equal key meet in every window that holds both (SEMANTICS §9.3).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or list of str or dict, optional
            The key columns, as in :meth:`interval_join`.
        window : TumblingWindow or HoppingWindow
            The windows: ``krishiv_py.windows.tumbling("1 min")`` or ``hopping(...)``.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            Whether rows without a partner in a window are given with nulls; or left rows alone that have one (``"semi"``) or
            none (``"anti"``).
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys, and for ``window_start`` and ``window_end`` of a side. By
            default those of the right side get ``_right``, and the bounds of a left side ``_left``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).

        Returns
        -------
        ResultStream
            Results have the keys, ``window_start`` and ``window_end``, and the columns of the left and of the right side
            (``"semi"`` and ``"anti"``: of the left one). They come once their window is final.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, other windows, and columns of one name.

        Examples
        --------
        >>> from krishiv_py import windows
        >>> from krishiv_py.testing import Driver, stream_of
        >>> asked = stream_of("user string, at bigint").watermark("at", 0)
        >>> bought = stream_of("user string, paid bigint").watermark("paid", 0)
        >>> driver = Driver(asked.window_join(bought, "user", window=windows.tumbling("10 s")))
        >>> _ = driver.send({"left": [{"user": "ann", "at": 1_000}], "right": [{"user": "ann", "paid": 9_000}]})
        >>> driver.close().results.to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 10000, 'at': 1000, 'paid': 9000}]
        """
        one_of(how, "how", JOIN_TYPES)
        if not isinstance(window, HoppingWindow):
            hint = 'write window=krishiv_py.windows.tumbling("1 min")'
            raise PlanError("a window join takes tumbling or hopping windows", got=shown(window), hint=hint)
        sides = sides_of(self, right, on, "window_join")
        for name, length in finer_than_ms(window).items():
            whole_ticks(sides, name, length)
        bounds = ("window_start", "window_end")
        columns = named(*sides, checked_suffixes(suffixes), taken=bounds)
        return self._joined(right, sides, WindowJoin(columns, how, window), idle_timeout)

    def versioned_join(
        self,
        table: ResultStream,
        on: On | None = None,
        *,
        how: AsofType = "left",
        table_clock: TableClock = "both",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
    ) -> ResultStream:
        """Join every row with the row that a table had for its key at the time of that row (SEMANTICS §16.7).

        A version is valid from its event time on, until before that of the next one of its key; a deletion ends it. A result is
        given once the watermark has passed its left row, and never changes.

        Parameters
        ----------
        table : ResultStream
            A table whose changes have event time: ``changes.watermark("at", "5 s").from_changelog(...)``, or
            ``.latest(...)``; without steps after it.
        on : str or list of str or dict, optional
            The columns of rows that are equal to the key of the table, as in :meth:`interval_join`.
        how : {"left", "inner"}
            Whether rows for which no version was valid are given with nulls, or only counted (``unmatched``).
        table_clock : {"both", "left"}
            What the watermark follows: the slower of rows and table, or the rows alone. With ``"left"`` a quiet table holds
            nobody up, and what the table has given by then is taken as complete.
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).

        Returns
        -------
        ResultStream
            The keys, the columns of rows, and those of the table. Their event time is that of the row. A change that comes when
            rows of its time were decided is late, and goes to the late handler with its ``side``; it is not taken.

        Raises
        ------
        PlanError
            For another table than one of changes with event time, steps after it, and other columns than its key.
        OrderError
            For rows without watermark.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> changes = stream_of("id bigint, city string, since bigint").watermark("since", 0)
        >>> people = changes.from_changelog("upsert", key="id")
        >>> buys = stream_of("buy bigint, id bigint, at bigint").watermark("at", 0)
        >>> driver = Driver(buys.versioned_join(people, "id"))
        >>> moves = [{"id": 7, "city": city, "since": at} for city, at in [("Ulm", 10), ("Rom", 20), (None, 30)]]
        >>> sent = {"left": [{"buy": n, "id": 7, "at": at} for n, at in [(1, 19), (2, 20), (3, 30)]], "right": moves}
        >>> given = [driver.send(sent), driver.close()]
        >>> [(row["buy"], row["city"]) for step in given for row in step.results.to_pylist()]
        [(1, 'Ulm'), (2, 'Rom'), (3, None)]
        """
        one_of(how, "how", ASOF_TYPES)
        one_of(table_clock, "table_clock", ("both", "left"))
        stage = self._changes_of(table)
        right = attrs.evolve(self, draft=attrs.evolve(stage, keys=() if on is not None else stage.keys, operation=None))
        sides = sides_of(self, right, on, "versioned_join", left_time=True)
        if set(sides[1].keys) != set(stage.keys):
            pairs = dict(zip(sides[0].keys, stage.keys, strict=False)) if len(sides[0].keys) == len(stage.keys) else {}
            hint = f"write on={pairs}" if pairs else f"name a column of the rows for each of {', '.join(stage.keys)} in `on`"
            raise PlanError("a version is found by the key of its table", got=f"right side {list(sides[1].keys)}", hint=hint)
        every, n = named(*sides, checked_suffixes(suffixes)), len(_operation(stage).changes_rows)
        change, *sequence = every.right[-n:]
        columns = attrs.evolve(every, right=every.right[:-n])
        join = VersionedJoin(columns, how, "backward", None, change=change, sequence=tuple(sequence))
        passive = (RIGHT,) if table_clock == "left" else ()
        return self._joined(right, sides, join, idle_timeout, every, passive)

    def with_rules(
        self, rules: ResultStream, condition: str = "condition", *, how: AsofType = "inner", columns: Sequence[str] = ()
    ) -> ResultStream:
        """Give every row once for each rule that is valid at its time, and whose condition holds (SEMANTICS §16.10).

        A rule is a row of a table of changes. Its condition is a text, such as ``"amount > 100 AND country = rule.country"``,
        over the columns of rows, and those of the rule as ``rule.x``. It is read and checked when it comes: one that cannot be
        read, or is none over these columns, goes to the late handler with the reason ``bad_rule``, and the version before it
        stays. A null condition holds for no row.

        A version is valid from its event time on, until before that of the next one of its rule; a deletion ends it. A result
        is given once the watermark of the rows has passed its row, and never changes: rules are taken as complete up to there.
        A rule that comes later goes to the late handler, too, and counts for rows that are not decided.

        Parameters
        ----------
        rules : ResultStream
            A table whose changes have event time, without steps after it:
            ``changes.watermark("since", "5 s").from_changelog("upsert", key="rule_id")``.
        condition : str
            The column of rules that holds the condition.
        how : {"inner", "left"}
            Whether rows for which no rule holds are only counted (``unmatched``), or given once with nulls.
        columns : sequence of str
            Columns of rules that results have besides their key.

        Returns
        -------
        ResultStream
            The columns of rows, the key of the rule, and `columns`. Their event time is that of the row.

        Raises
        ------
        PlanError
            For another table than one of changes with event time, steps after it, and rows with a column ``rule``.
        ColumnError
            For columns that rules do not have, and conditions that are no texts.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> changes = stream_of("rule_id string, condition string, most bigint, since bigint").watermark("since", 0)
        >>> rules = changes.from_changelog("upsert", key="rule_id")
        >>> payments = stream_of("payer string, amount bigint, at bigint").watermark("at", 0)
        >>> driver = Driver(payments.with_rules(rules))
        >>> large = {"rule_id": "large", "condition": "amount > rule.most", "most": 100, "since": 10}
        >>> sent = [{"payer": "ann", "amount": 500, "at": at} for at in (9, 10)]
        >>> _ = driver.send({"right": [large], "left": sent})
        >>> driver.close().results.to_pylist()
        [{'payer': 'ann', 'amount': 500, 'at': 10, 'rule_id': 'large'}]
        """
        one_of(how, "how", ASOF_TYPES)
        stage = self._changes_of(rules)
        right = attrs.evolve(self, draft=attrs.evolve(stage, keys=(), operation=None))
        one, other = (attrs.evolve(side, keys=()) for side in (_side(self, shows_time=True), _side(right)))
        own = [name for name in other.shown if not name.startswith(RESERVED)]
        known_column(condition, own, "with_rules(condition)")
        if not pa.types.is_string(type_ := other.schema.field(condition).type):
            hint = 'write conditions as texts: "amount > 100"'
            raise ColumnError("conditions of rules are texts", got=f"{condition!r} of type {type_text(type_)}", hint=hint)
        if any(name.lower() == RULE for name in one.shown):
            hint = f'give it another name before: .rename({RULE}="rule_name")'
            raise PlanError(
                "the columns of a rule are called rule.x in conditions", got=f"rows with a column {RULE!r}", hint=hint
            )
        if not is_collection(columns):
            hint = 'write columns=["most"], the columns of rules that results have'
            raise PlanError("with_rules(columns) takes a list of columns", got=shown(columns), hint=hint)
        wanted = [known_column(name, own, "with_rules(columns)") for name in columns]
        every, n = named(one, other, None), len(_operation(stage).changes_rows)
        inside = dict(zip(other.others, every.right, strict=True))
        given = tuple(inside[name] for name in dict.fromkeys((*stage.keys, *wanted)))
        change, *sequence = every.right[-n:]
        join = RulesJoin(
            attrs.evolve(every, right=given),
            how,
            "backward",
            None,
            change=change,
            sequence=tuple(sequence),
            rules=tuple((name, inside[name]) for name in own),
            key=tuple(inside[name] for name in stage.keys),
            condition_column=condition,
        )
        return self._joined(right, (one, other), join, None, every, (RIGHT,))

    def _features_join(
        self,
        features: TimedStream,
        on: Mapping[str, str],
        *,
        as_of: AsOf,
        max_age_us: int | None,
        allow_exact: bool,
        idle_timeout: Duration | None,
    ) -> ResultStream:
        """Join labels with features; the last three columns of these are event time, when published, and batch."""
        sides = sides_of(self, features, on, "training_set", left_time=True)
        every = named(*sides, None)
        columns = attrs.evolve(every, right=every.right[:-2])
        most_us = None if max_age_us is None else max_age_us - 1
        join = FeatureJoin(columns, "left", "backward", most_us, allow_exact, as_of, every.right[-2:])
        return self._joined(features, sides, join, idle_timeout, every)

    def _changes_of(self, table: object) -> StageDraft:
        """Return the stage that reads the changes of a table, which have event time."""
        stage = getattr(table, "_stage", None) if isinstance(table, OptionMethods) else None
        if stage is None or not _operation(stage).changes_rows:
            hint = 'pass a table of changes: changes.watermark("at", "5 s").from_changelog("upsert", key="id")'
            raise PlanError("the right side of a versioned join is not a table of changes", got=shown(table), hint=hint)
        if table._steps:  # type: ignore[attr-defined]
            hint = "write steps after the join: .versioned_join(table, ...).filter(...)"
            raise PlanError("steps follow the table of a versioned join", got=shown(table), hint=hint)
        if not stage.input.column:
            hint = 'write .watermark("at", "5 s") before .from_changelog(...)'
            raise OrderError("the changes of the table have no event time", got=shown(table), hint=hint)
        assert isinstance(stage, StageDraft)
        return stage

    def _joined(
        self,
        right: object,
        sides: Sides,
        join: Join,
        idle_timeout: Duration | None,
        columns: JoinColumns | None = None,
        passive: tuple[str, ...] = (),
    ) -> ResultStream:
        """Return the results of a join; `columns` of both sides are more than results have, and `passive` sides hold nobody."""
        idle_us = None if idle_timeout is None else to_us(idle_timeout, "idle_timeout")
        merged = both(*sides, columns or join.sides, idle_us, passive=passive)
        if passive and merged.input.spec.by_row:
            hint, got = 'leave table_clock out, or write clock="batch" in .watermark(...)', 'table_clock="left", clock="row"'
            if isinstance(join, RulesJoin):
                hint, got = 'write clock="batch" in .watermark(...) of both', 'with_rules(...), clock="row"'
            raise PlanError("rows of a table have lanes of their own", got=got, hint=hint)
        assert isinstance(right, OptionMethods)
        draft = merged_draft(self._draft, right._draft)
        return self._results(attrs.evolve(draft, input=merged.input, keys=merged.keys).doing(join))
