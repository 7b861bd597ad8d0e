"""Two streams as one: rows of both sides in one layout, distinguished by a column that names the side.

::

    left    user, at, price                    user │ at    price   seen  │ side    time
    right   user, seen           →       left  a    │ 10:00 5       null  │ left    10:00
                                         right a    │ null  null    10:02 │ right   10:02
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import ColumnError, PlanError, SchemaError
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.expressions.expr import Cast, Col, Expr, Lit
from krishiv_py.plan.nodes import Node, Project, Stage, UnionSource, Watermark, source_of, stages_read
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, RowsClock, WatermarkSpec, most_lag_us
from krishiv_py.plan.schema import RESERVED, check_key_type, in_order_of, order_name, time_kind
from krishiv_py.types import key_type, type_text

JoinType: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_TYPES: Final[tuple[JoinType, ...]] = ("inner", "left", "right", "full", "semi", "anti")
AsOf: TypeAlias = Literal["served", "event"]
"""The feature rows that a label may have: those that were published by its time, or all."""
LEFT, RIGHT = "left", "right"
OP: Final = "op"
"""The column of the change kind of a row."""
TIME: Final = f"{RESERVED}time"
"""The event time of both sides in the common layout."""
JOIN_TIME: Final = "join_time"
"""The event time of a result, unless a column has that name: ``_`` is appended until it is free."""


@attrs.frozen
class Side:
    """One stream of a join: its watermark, its rows, and the columns it is joined on."""

    mark: Watermark
    schema: pa.Schema = attrs.field(eq=str)
    keys: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    """Columns that results of a stage bring along, which results of the join do not have."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Its columns that results have."""
        return tuple(n for n in self.schema.names if n not in self.hidden)

    @property
    def others(self) -> tuple[str, ...]:
        """Those of them that are not keys."""
        return tuple(n for n in self.shown if n not in self.keys)


@attrs.frozen
class JoinColumns:
    """Says where the columns of both sides are in the common layout, besides the keys.

    Attributes
    ----------
    left, right : tuple of str
        Their names there.
    side : str
        The column that names the side.
    left_time : str
        The event time of left rows, as the user knows it.
    time : str
        The event time of a result that is made of both.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    side: str
    left_time: str
    time: str


@attrs.frozen(eq=False)
class JoinInput:
    """Two sides in the common layout: their rows, with both watermarks, and where the columns of each are."""

    input: Watermark
    keys: tuple[str, ...]
    columns: JoinColumns


def check_keys(left: Side, right: Side) -> None:
    """Refuse keys that cannot be held against one another.

    Raises
    ------
    PlanError
        For no keys, and another number of keys on one side.
    ColumnError
        For types that differ, and types that cannot be keys.
    """
    if not left.keys or len(left.keys) != len(right.keys):
        got = f"left {list(left.keys)}, right {list(right.keys)}"
        hint = 'write on="user", on=["user", "shop"], or on={"user": "customer"} where they have other names'
        raise PlanError("a join needs the same number of keys on both sides, at least one", got=got, hint=hint)
    for ours, theirs in zip(left.keys, right.keys, strict=True):
        one, other = left.schema.field(ours).type, right.schema.field(theirs).type
        for name, type_ in ((ours, one), (theirs, other)):
            check_key_type(name, type_, meant="compared")
        if one != other:
            got = f"{ours!r} is {type_text(one)}, {theirs!r} is {type_text(other)}"
            raise ColumnError("the keys of both sides have other types", got=got, hint=_cast_hint((ours, one), (theirs, other)))


def _cast_hint(left: tuple[str, pa.DataType], right: tuple[str, pa.DataType]) -> str:
    """Return the cast that makes keys of other types comparable."""
    both = key_type(left[1], right[1])
    if both is None:
        return "join on columns of one type"
    casts = {
        side: f'.with_column({name!r}, col({name!r}).cast("{type_text(both)}"))'
        for side, (name, type_) in (("left", left), ("right", right))
        if type_ != both
    }
    if len(set(casts.values())) == 1:
        where = "both sides" if len(casts) == 2 else f"the {next(iter(casts))} side"
        return f"cast the key of {where} before .watermark(...): {next(iter(casts.values()))}"
    return "cast both keys before .watermark(...): " + ", ".join(f"{side} {text}" for side, text in casts.items())


def named(left: Side, right: Side, suffixes: tuple[str, str] | None, *, taken: tuple[str, ...] = ()) -> JoinColumns:
    """Names of the columns of both sides, each once.

    Parameters
    ----------
    left, right : Side
        The sides.
    suffixes : (str, str) or None
        Suffixes for names that both sides have. With None the left side keeps its name, and that of the right side gets
        ``_right``.
    taken : tuple of str
        Names that results have for columns of their own.

    Raises
    ------
    SchemaError
        For columns of one name.
    """
    ours, theirs = {n.lower() for n in left.shown}, {n.lower() for n in right.others}
    keys, bounds = {k.lower() for k in left.keys}, {*taken}
    if suffixes is None:
        used = {*bounds, *ours, *(n.lower() for n in right.others if n.lower() not in ours)}
        lefts = {n: _apart(n, "_left", used) if n.lower() in bounds else n for n in left.others}
        rights = {n: _apart(n, "_right", used) if n.lower() in ours | bounds else n for n in right.others}
    else:
        one, other = suffixes
        lefts = {n: f"{n}{one}" if n.lower() in theirs | bounds and n.lower() not in keys else n for n in left.others}
        rights = {n: f"{n}{other}" if n.lower() in ours | bounds else n for n in right.others}
    _check_distinct([*taken, *left.keys, *lefts.values(), *rights.values()])
    known = {n.lower() for n in (*left.keys, *lefts.values(), *rights.values())}
    time = left.mark.column
    names = tuple(lefts.values()), tuple(rights.values())
    return JoinColumns(*names, _free("side", known), lefts.get(time, time), _free(JOIN_TIME, known))


def _free(name: str, taken: set[str]) -> str:
    return _free(f"{name}_", taken) if name in taken else name


def _apart(name: str, suffix: str, used: set[str]) -> str:
    """Return `name` with as many suffixes as make it another than all that are `used`, and note it there."""
    while name.lower() in used:
        name += suffix
    used.add(name.lower())
    return name


def _check_distinct(names: list[str]) -> None:
    lowered = [n.lower() for n in names]
    twice = [n for n in names if lowered.count(n.lower()) > 1]
    if twice:
        hint = "choose other suffixes, or rename columns before .watermark(...)"
        raise SchemaError("two columns of the result have one name", got=", ".join(sorted(set(twice))), hint=hint)


def both(
    left: Side, right: Side, columns: JoinColumns, idle_timeout_us: int | None, *, passive: tuple[str, ...] = ()
) -> JoinInput:
    """Return the rows of two sides as one stream, whose watermark is the smaller of theirs (SEMANTICS §2.4); not of `passive`
    ones.
    """
    kinds = {time_kind(s.schema, s.mark.column) for s in (left, right)}
    casts = len(kinds) > 1
    time = pa.timestamp("us", "UTC") if casts else _time_type(left)
    fields = [pa.field(k, left.schema.field(k).type) for k in left.keys]
    fields += [pa.field(n, left.schema.field(o).type) for n, o in zip(columns.left, left.others, strict=True)]
    fields += [pa.field(n, right.schema.field(o).type) for n, o in zip(columns.right, right.others, strict=True)]
    fields.append(pa.field(TIME, time))
    common = pa.schema(fields)
    orders = [_order(left), _order(right)]
    in_order = [pa.field(order_name(n), field.type) for n, field in enumerate((*orders[0], *orders[1]))]
    laid_out = pa.schema([*common, *in_order])
    ours = {new.name: old.name for new, old in zip(in_order, orders[0], strict=False)}
    theirs = {new.name: old.name for new, old in zip(in_order[len(ours) :], orders[1], strict=True)}
    ours |= zip(columns.left, left.others, strict=True)
    theirs |= zip(columns.right, right.others, strict=True)
    parts = (
        (LEFT, _laid_out(left, left.keys, ours, laid_out, casts)),
        (RIGHT, _laid_out(right, left.keys, theirs, laid_out, casts)),
    )
    merged = pa.schema([*common, pa.field(columns.side, pa.string()), *in_order])
    bounded = all(source_of(s.mark).bounded for s in (left, right))
    marks = _mark(left, LEFT), _mark(right, RIGHT)
    start_us = min(spec.initial_us for _, spec in marks)
    spec = MultiSourceWatermarkSpec(
        tuple((name, attrs.evolve(own, idle_advance_us=None, clock=None)) for name, own in marks if name not in passive),
        idle_timeout_us,
        start_us,
        idle_advance_us=_advance(*(own.idle_advance_us for _, own in marks)),
        clock=_clock(left, right),
        passive=passive,
    )
    union = UnionSource(parts, columns.side, merged, bounded)
    return JoinInput(Watermark(union, TIME, spec, columns.side), left.keys, columns)


def union_of_sides(
    streams: Mapping[str, tuple[Node, Sequence[tuple[str, Expr]]]], rows: pa.Schema, source_column: str
) -> UnionSource:
    """Return several streams as one, each with what its columns of `rows` are; those that are results keep their order."""
    own: dict[str, dict[str, str]] = {}
    in_order: list[pa.Field] = []
    for name, (node, _) in streams.items():
        schema = source_of(node).schema
        own[name] = {order_name(len(in_order) + n): old for n, old in enumerate(in_order_of(schema.names))}
        in_order += [pa.field(new, schema.field(old).type) for new, old in own[name].items()]
    parts = []
    for name, (node, columns) in streams.items():
        places: list[tuple[str, Expr]] = [
            (f.name, Col(own[name][f.name]) if f.name in own[name] else Cast(Lit(None), f.type)) for f in in_order
        ]
        parts.append((name, Project(node, (*columns, *places), picks=True, aligns=True)))
    merged = pa.schema([*rows, pa.field(source_column, pa.string()), *in_order])
    return UnionSource(tuple(parts), source_column, merged, all(source_of(node).bounded for node, _ in streams.values()))


def tables_together(left: Side, right: Side, columns: JoinColumns) -> JoinInput:
    """Return the rows of two sides as one stream of changes, which needs no event time (SEMANTICS §16.7)."""
    fields = [pa.field(k, left.schema.field(k).type) for k in left.keys]
    fields += [pa.field(n, left.schema.field(o).type) for n, o in zip(columns.left, left.others, strict=True)]
    fields += [pa.field(n, right.schema.field(o).type) for n, o in zip(columns.right, right.others, strict=True)]
    named = [dict(zip(own, side.others, strict=True)) for side, own in ((left, columns.left), (right, columns.right))]
    return JoinInput(_changes_of((left, right), (named[0], named[1]), pa.schema(fields), columns.side), left.keys, columns)


def tables_united(left: Side, right: Side, side: str) -> Watermark:
    """Return the rows of two tables with the same columns as one stream of changes; a column `side` says whose they are."""
    same = {name: name for name in left.shown}
    return _changes_of((left, right), (same, same), pa.schema([left.schema.field(name) for name in left.shown]), side)


def _changes_of(sides: tuple[Side, Side], own: tuple[dict[str, str], dict[str, str]], rows: pa.Schema, side: str) -> Watermark:
    """Return the rows of two sides in a common layout of `rows`, each with the columns that are its `own`."""
    order = pa.field(order_name(0), pa.int64())
    common = pa.schema([*rows, pa.field(OP, pa.string()), order])
    parts = []
    for name, one, named in zip((LEFT, RIGHT), sides, own, strict=True):
        laid_out = _laid_out(one, sides[0].keys, named, common, casts=False)
        kind: Expr = Col(OP) if OP in source_of(one.mark).envelope else Lit("+I")
        source = source_of(one.mark)
        placed = in_order_of(source.schema.names)
        if isinstance(source, Stage) and source.operation.gives_table:
            placed = placed[-1:]  # the number of a row, whatever comes before it
        place: Expr = next(map(Col, placed), Lit(0))
        given = {OP: kind, order.name: Cast(place, pa.int64())}
        parts.append((name, attrs.evolve(laid_out, columns=tuple((n, given.get(n, e)) for n, e in laid_out.columns))))
    merged = pa.schema([*rows, pa.field(side, pa.string()), *list(common)[-2:]])
    union = UnionSource(tuple(parts), side, merged, all(source_of(s.mark).bounded for s in sides), changes=True)
    return Watermark(union, "", WatermarkSpec(0))


def _order(side: Side) -> list[pa.Field]:
    """Return the columns that results on a side are ordered by; those of the left side come first in the common layout."""
    schema = source_of(side.mark).schema
    return [schema.field(name) for name in in_order_of(schema.names)]


def _time_type(side: Side) -> pa.DataType:
    type_ = side.schema.field(side.mark.column).type
    return pa.timestamp("us", type_.tz) if pa.types.is_timestamp(type_) else type_


def _laid_out(side: Side, keys: tuple[str, ...], own: dict[str, str], common: pa.Schema, casts: bool) -> Project:
    """Return the rows of a side in the common layout; columns of the other side are null."""
    named = {**dict(zip(keys, side.keys, strict=True)), **own}
    columns: list[tuple[str, Expr]] = []
    for field in common:
        if field.name == TIME:
            columns.append((TIME, _time_of(side, field.type if casts else None)))
        elif field.name in named:
            columns.append((field.name, Col(named[field.name])))
        else:
            columns.append((field.name, Cast(Lit(None), field.type)))
    node: Node = side.mark.input
    return Project(node, tuple(columns), picks=True, aligns=True)


def _time_of(side: Side, common: pa.DataType | None) -> Expr:
    time = Col(side.mark.column)
    if common is None:
        return time
    unit = pa.timestamp("ms", "UTC") if time_kind(side.schema, side.mark.column) == "bigint_ms" else common
    return Cast(time, unit, tried=True)


def _mark(side: Side, name: str) -> tuple[str, WatermarkSpec]:
    spec = side.mark.spec
    if not isinstance(spec, WatermarkSpec):
        step = f".watermark({side.mark.column!r}, {show_us(most_lag_us(spec))!r})"
        raise PlanError(
            f"the {name} side of a join has a watermark for each of its sources",
            got=spec._describe(),
            then="a join follows one for each side",
            hint=f"write {step} there, one for all of its rows, with a lag as long as its sources are apart",
        )
    return name, spec


def _clock(left: Side, right: Side) -> RowsClock | None:
    """Return what rows of both sides are classified by; results of a stage are classified by nothing."""
    clocks = {s.mark.spec.clock or "batch" for s in (left, right) if not stages_read(s.mark)}
    if len(clocks) > 1:
        got = f"left {left.mark.spec.clock or 'batch'!r}, right {right.mark.spec.clock or 'batch'!r}"
        hint = 'write clock="row" in .watermark(...) of both sides, or of none'
        raise PlanError("the sides of a join have clocks that differ", got=got, then="a join has one", hint=hint)
    return next(iter(clocks), None)


def _advance(left_us: int | None, right_us: int | None) -> int | None:
    """After how long a silence of both sides the watermark goes on with the clock (SEMANTICS §10)."""
    if (left_us is None) != (right_us is None):
        what = "one side of a join goes on with the clock when it is quiet, the other does not"
        got = f"idle_advance of left {left_us} µs, of right {right_us} µs"
        raise PlanError(what, got=got, then="a join has one watermark", hint="write idle_advance on both sides, or on none")
    return left_us if left_us is None or right_us is None else max(left_us, right_us)
