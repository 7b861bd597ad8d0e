"""Joins of two streams: by an interval, by windows, or with the version of the right side at a time."""

from __future__ import annotations

import datetime as dt
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import ColumnError, PlanError
from krishiv_py.plan.expressions.expr import Col, col
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.plan.schema import is_key_type
from krishiv_py.plan.windows.fixed import HoppingWindow, hopping, tumbling
from krishiv_py.sql.scope import Column, Env, Relation, Role
from krishiv_py.sql.sources.conditions import Conditions, Sorter
from krishiv_py.sql.text.statements import refused
from krishiv_py.sql.text.windows import WindowCall
from krishiv_py.types import type_text, wider

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]

_BOUND: Final = "write ON a.id = b.id AND b.ts BETWEEN a.ts - INTERVAL '5' MINUTE AND a.ts + INTERVAL '1' HOUR"
_WINDOWS: Final = "join windows: ON a.id = b.id AND a.window_start = b.window_start AND a.window_end = b.window_end"
_KINDS: Final[dict[str, How]] = {
    "": "inner",
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT": "left",
    "LEFT OUTER": "left",
    "RIGHT": "right",
    "RIGHT OUTER": "right",
    "FULL": "full",
    "FULL OUTER": "full",
    "SEMI": "semi",
    "LEFT SEMI": "semi",
    "ANTI": "anti",
    "LEFT ANTI": "anti",
}


def how_of(join: sg.Join) -> How:
    """Return which rows a JOIN gives."""
    words = " ".join(str(join.args.get(key) or "").upper() for key in ("method", "side", "kind")).strip()
    words = " ".join(words.split())
    if words not in _KINDS:
        raise refused(f"{words} JOIN", join.sql("spark"), f"joins are {', '.join(k for k in _KINDS if k)}")
    return _KINDS[words]


@attrs.frozen(eq=False)
class Sides:
    """Two sides whose columns have different names in their streams, and how they are joined.

    Attributes
    ----------
    left, right : Rows
        The sides.
    conditions : Conditions
        What joins them.
    how : str
        Which rows are given.
    version : Expression or None
        The time of AS OF.
    """

    left: Relation
    right: Relation
    conditions: Conditions
    how: How
    version: sg.Expression | None


def sides(left: Relation, right: Relation, parts: list[sg.Expression], how: How, version: sg.Expression | None) -> Sides:
    """Return the sides of a join, and its conditions sorted."""
    for rows in (left, right):
        if rows.ranking is not None:
            raise rows.ranking.unbounded()
    right = apart(right, [n.lower() for n in left.schema.names])
    both = attrs.evolve(left, columns=(*left.columns, *right.columns))
    return Sides(left, right, Sorter(left, right, both).sorted(parts), how, version)


def apart(rows: Relation, taken: list[str]) -> Relation:
    """Rows whose columns have other names than `taken`."""
    names: dict[str, str] = {}
    for name in rows.schema.names:
        if name.lower() in taken:
            names[name] = free(f"{name}_", [*taken, *rows.schema.names, *names.values()])
    if not names:
        return rows
    columns = tuple(attrs.evolve(c, actual=names.get(c.actual or "", c.actual)) for c in rows.columns)
    return attrs.evolve(rows, stream=rows.stream.rename(**names), columns=columns)


def joined(
    left: Relation, right: Relation, parts: list[sg.Expression], how: How, version: sg.Expression | None, env: Env
) -> Relation:
    """Return the rows of a join of two streams."""
    joined_sides = _filtered(sides(left, right, parts, how, version))
    conditions = joined_sides.conditions
    keys: list[tuple[str, str]] = []
    streams = [joined_sides.left.stream, joined_sides.right.stream]
    for pair in conditions.keys:
        names: list[str] = []
        for i, (rows, node) in enumerate(zip((joined_sides.left, joined_sides.right), pair, strict=True)):
            expr = expr_of(rows.resolved(node))
            taken = [*joined_sides.left.schema.names, *joined_sides.right.schema.names, *(n for k in keys for n in k), *names]
            names.append(expr.name if isinstance(expr, Col) else free("join_key", taken))
            if not isinstance(expr, Col):
                streams[i] = streams[i].with_column(names[i], expr)
        one, other = (s.schema.field(n).type for s, n in zip(streams, names, strict=True))
        if one != other and is_key_type(one) and is_key_type(other):
            raise _other_types(pair, one, other)
        keys.append((names[0], names[1]))
    if not keys:
        raise PlanError(
            "the join has no key",
            got=" AND ".join(p.sql("spark") for p in parts) or "no ON",
            then="every row would meet every other",
            hint=_BOUND,
        )
    shown = {c.actual for rows in (joined_sides.left, joined_sides.right) for c in rows.columns}
    renamed, streams = _copies([k for k in keys if shown & set(k)], streams, how)
    timed = [
        rows.timed(stream, env.lag_us) for rows, stream in zip((joined_sides.left, joined_sides.right), streams, strict=True)
    ]
    on = dict(keys)
    made, window = _made(timed[0], timed[1], on, joined_sides)
    stream = made.results()
    columns = _columns(joined_sides, keys, renamed, stream, window)
    rows = Relation(stream, columns, window=window)
    rest = conditions.rest
    if rest and how != "inner":
        hint = "write JOIN, which takes it, where rows without a partner are not needed; WHERE would drop those, too"
        if version is not None:
            hint = "select CASE WHEN ... THEN b.column END, or leave versions out: WITH b AS (SELECT * FROM ... WHERE ...)"
        raise refused(f"this condition of a {how} join", rest[0].sql("spark"), hint)
    for part in rest:
        rows = attrs.evolve(rows, stream=rows.stream.filter(rows.expr(part)))
    return rows


def _other_types(pair: tuple[sg.Expression, sg.Expression], one: pa.DataType, other: pa.DataType) -> ColumnError:
    """Return the error for sides of an equality that have other types."""
    both, texts = wider(one, other), [node.sql("spark") for node in pair]
    cast = [
        text if type_ == both or both is None else f"CAST({text} AS {type_text(both)})"
        for text, type_ in zip(texts, (one, other), strict=True)
    ]
    return ColumnError(
        "the keys of both sides have other types",
        got=f"{texts[0]} is {type_text(one)}, {texts[1]} is {type_text(other)}",
        hint="join on columns of one type" if both is None else f"write {cast[0]} = {cast[1]}",
    )


def _filtered(sides_found: Sides) -> Sides:
    """Return the sides with what is asked of one alone: rows that fail it are left out, or given as rows without a partner.

    For these the key is null, which never meets another.
    """
    conditions, how = sides_found.conditions, sides_found.how
    left, right = sides_found.left, sides_found.right
    keys = list(conditions.keys)
    if sides_found.version is not None:  # asked of the version that was valid; rows that fail it are versions all the same
        conditions.rest, conditions.right = [*conditions.right, *conditions.rest], []
    for part in conditions.left:
        if how not in ("left", "full", "anti"):
            left = attrs.evolve(left, stream=left.stream.filter(left.expr(part)))
        elif keys:
            keys[0] = (_where(part, keys[0][0]), keys[0][1])
    for part in conditions.right:
        if how not in ("right", "full"):
            right = attrs.evolve(right, stream=right.stream.filter(right.expr(part)))
        elif keys:
            keys[0] = (keys[0][0], _where(part, keys[0][1]))
    conditions.keys = keys
    return attrs.evolve(sides_found, left=left, right=right)


def _where(condition: sg.Expression, key: sg.Expression) -> sg.Expression:
    return sg.Case(ifs=[sg.If(this=condition.copy(), true=key.copy())])


_Streams: TypeAlias = "list[Stream | ResultStream]"


def _copies(keys: list[tuple[str, str]], streams: _Streams, how: How) -> tuple[dict[str, str], _Streams]:
    """Copies of keys that are null where their side has no row: results have the key columns once, and never null."""
    renamed: dict[str, str] = {}
    for i, outer in ((0, how in ("right", "full")), (1, how in ("left", "full"))):
        for key in (pair[i] for pair in keys) if outer else ():
            taken = [*streams[0].schema.names, *streams[1].schema.names]
            renamed[key] = free(f"{key}_key", taken)
            streams[i] = streams[i].with_column(renamed[key], col(key))
    return renamed, streams


def _made(
    left: TimedStream, right: TimedStream, on: dict[str, str], sides_found: Sides
) -> tuple[ResultStream, WindowCall | None]:
    conditions, how = sides_found.conditions, sides_found.how
    if sides_found.version is not None:
        return _as_of(left, right, on, sides_found, sides_found.version), None
    if not conditions.same and (sides_found.left.pending or sides_found.right.pending):
        raise PlanError(
            "rows of a window function are joined by something else than their windows",
            got=f"left {sides_found.left.window}, right {sides_found.right.window}",
            then="a row would meet others once for each of its windows",
            hint=f"{_WINDOWS}; or leave the window function out",
        )
    if conditions.same:
        window = _same_window(conditions, sides_found)
        return left.window_join(right, on, window=_value(window), how=how), window
    if not conditions.lower or not conditions.upper:
        missing = "no bound" if not conditions.lower and not conditions.upper else "a bound on one side only"
        raise PlanError(
            "the join has no interval of time",
            got=missing,
            then="rows would have to be kept for ever",
            hint=f"{_BOUND}; or {_WINDOWS}",
        )
    lower, upper = (dt.timedelta(microseconds=us) for us in (max(conditions.lower), min(conditions.upper)))
    return left.interval_join(right, on, lower=lower, upper=upper, how=how), None


def _as_of(
    left: TimedStream, right: TimedStream, on: dict[str, str], sides_found: Sides, version: sg.Expression
) -> ResultStream:
    conditions, how, text = sides_found.conditions, sides_found.how, version.sql("spark")
    time = sides_found.left.resolved(version)
    if not isinstance(time, sg.Column) or time.name not in sides_found.left.times:
        raise refused("AS OF another time", text, "name the event time of the left side: FOR SYSTEM_TIME AS OF a.ts")
    if how not in ("inner", "left"):
        raise refused(f"a {how} join AS OF", text, "write JOIN or LEFT JOIN")
    if [us for us in conditions.upper if us < 0] or [us for us in conditions.lower if us > 0] or conditions.same:
        raise refused("other bounds of a join AS OF", text, "the version at a time is the newest at or before it")
    tolerance = dt.timedelta(microseconds=-max(conditions.lower)) if conditions.lower else None
    return left.asof_join(right, on, tolerance=tolerance, how="left" if how == "left" else "inner")


def _same_window(conditions: Conditions, sides_found: Sides) -> WindowCall:
    if conditions.same != {"start", "end"} or conditions.lower or conditions.upper:
        raise PlanError(
            "a window join compares both bounds, and no times", got=", ".join(sorted(conditions.same)), hint=_WINDOWS
        )
    one, other = sides_found.left.window, sides_found.right.window
    if one is None or one != other:
        raise PlanError(
            "both sides of a window join have the same windows",
            got=f"left {one}, right {other}",
            hint="write the same window function on both sides",
        )
    return one


def _value(window: WindowCall) -> HoppingWindow:
    if not window.lengths:
        raise refused("a join of windows of the calendar", str(window), "join tumbling or hopping windows without a time zone")
    lengths = [dt.timedelta(microseconds=us) for us in window.lengths]
    offset = dt.timedelta(microseconds=window.offset_us)
    if window.kind == "tumble":
        return tumbling(lengths[0], offset)
    if window.kind == "hop":
        return hopping(lengths[1], lengths[0], offset)
    raise refused(f"a join of {window.kind} windows", str(window), "join tumbling or hopping windows")


def _columns(
    sides_found: Sides, keys: list[tuple[str, str]], renamed: dict[str, str], stream: ResultStream, window: WindowCall | None
) -> tuple[Column, ...]:
    """Return the columns of results, under the names they had before."""
    how = sides_found.how
    left_of = {right: left for left, right in keys}
    sides = (sides_found.left,) if how in ("semi", "anti") else (sides_found.left, sides_found.right)
    columns: list[Column] = []
    time = stream._draft.input.column
    for rows in sides:
        for column in rows.columns:
            actual = column.actual
            if actual is None:
                if window is not None and column.role in ("start", "end"):
                    columns.append(attrs.evolve(column, actual=f"window_{column.role}"))
                continue
            actual = renamed.get(actual) or left_of.get(actual, actual)
            outer = (
                how == "full" or (how == "left" and rows is sides_found.right) or (how == "right" and rows is sides_found.left)
            )
            role: Role | None = "time" if actual == time else None
            columns.append(attrs.evolve(column, actual=actual, role=role, sure=column.sure and not outer))
    if not any(c.role == "time" for c in columns):
        columns.append(Column(None, time, time, "time", hidden=True))
    return tuple(columns)
