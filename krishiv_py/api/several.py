"""Several streams as one, each with its watermark: their rows side by side in the columns of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from krishiv_py.api.computed import visible
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import check
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.expressions.expr import Cast, Col, Expr, Lit
from krishiv_py.plan.nodes import Node, Stage, StageDraft, Watermark, source_of
from krishiv_py.plan.options.late import DefaultLateEventHandler
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, RowsClock, WatermarkSpec
from krishiv_py.plan.sides import union_of_sides
from krishiv_py.types import type_text


def side_by_side(streams: Mapping[str, OptionMethods], source_column: str, own: Sequence[str] = ()) -> StageDraft:
    """Return a keyed stage that reads several streams, with the lag of each, and the name of its stream in each row.

    The keys and the time are called as in the first one; a column that a stream lacks is null in its rows. Of the library's
    own columns only those in `own` are among them.

    Raises
    ------
    PlanError
        For other keys, several clocks, and streams with options of their own.
    SchemaError
        For columns of one name with two types.
    """
    for name, stream in streams.items():
        _check(name, stream)
    first = next(iter(streams.values()))._draft
    leading = [*first.keys, first.input.column]
    columns_of = {name: _like_first(name, stream, leading, source_column, own) for name, stream in streams.items()}
    rows = _columns_of_all(columns_of, streams, leading)
    marks = MultiSourceWatermarkSpec.new(clock=_clock_of(stream._draft.input for stream in streams.values()))
    sides: dict[str, tuple[Node, list[tuple[str, Expr]]]] = {}
    for name, stream in streams.items():
        mark = stream._draft.input
        assert isinstance(mark.spec, WatermarkSpec)
        marks = marks.source(name, WatermarkSpec(mark.spec.lag_us))
        named = columns_of[name]
        columns: list[tuple[str, Expr]] = [
            (f.name, Col(named[f.name]) if f.name in named else Cast(Lit(None), f.type)) for f in rows
        ]
        sides[name] = mark.input, columns
    union = union_of_sides(sides, rows, source_column)
    return StageDraft(Watermark(union, first.input.column, marks, source_column), first.late_handler, first.keys)


def _check(name: str, stream: OptionMethods) -> None:
    """Refuse what cannot be one of several streams."""
    draft = stream._draft
    source = source_of(draft.input.input)
    if isinstance(source, Stage):
        check.check_followed(source)
    spec = draft.input.spec
    if not isinstance(spec, WatermarkSpec) or spec != WatermarkSpec(spec.lag_us, clock=spec.clock):
        hint = f'write .watermark("{draft.input.column}", "5 s") on it'
        raise PlanError(f"the watermark of {name!r} is more than a lag", got=spec._describe(), hint=hint)
    if draft.explicit != ExplicitOptions() or not isinstance(draft.late_handler, DefaultLateEventHandler):
        hint = "write connect(...).allowed_lateness(...), and other options behind it, too"
        raise PlanError(f"{name!r} has options of its own", got=repr(stream), hint=hint)


def _clock_of(marks: Iterable[Watermark]) -> RowsClock | None:
    """Return what rows of the streams are classified by; results of a stage are classified by nothing."""
    clocks = {mark.spec.clock for mark in marks if not isinstance(source_of(mark.input), Stage)}
    if len(clocks) > 1:
        hint = "give each watermark the same clock"
        raise PlanError("the streams go by several clocks", got=shown(sorted(map(str, clocks))), hint=hint)
    return next(iter(clocks), None)


def _like_first(name: str, stream: OptionMethods, leading: list[str], source_column: str, own: Sequence[str]) -> dict[str, str]:
    """Return what the columns of a stream are called here, with what it calls them: keys and time as in the first one."""
    draft, keys = stream._draft, leading[:-1]
    if len(draft.keys) != len(keys):
        hint = f"give each stream {len(keys)} key columns, as {', '.join(keys)}"
        raise PlanError(f"{name!r} has another key", got=", ".join(draft.keys), hint=hint)
    places, schema = [*draft.keys, draft.input.column], stream._row_schema()
    rest = [f for f in [*visible(schema).names, *(f for f in own if f in schema.names)] if f not in places]
    if taken := [field for field in rest if field in (*leading, source_column)]:
        hint = f'write .rename({taken[0]}="{name}_{taken[0]}") on it'
        what = f"a column of {name!r} is called like a key, the time or {source_column!r}"
        raise SchemaError(what, got=shown(taken[0]), hint=hint)
    return dict(zip(leading, places, strict=True)) | {field: field for field in rest}


def _columns_of_all(
    own: Mapping[str, Mapping[str, str]], streams: Mapping[str, OptionMethods], leading: list[str]
) -> pa.Schema:
    """Return the columns that any of the streams has."""
    types: dict[str, tuple[str, pa.DataType]] = {}
    for name, stream in streams.items():
        schema = stream._row_schema()
        for column, old in own[name].items():
            type_ = schema.field(old).type
            other, known = types.setdefault(column, (name, type_))
            if known != type_:
                got = f"{type_text(known)} in {other!r} and {type_text(type_)} in {name!r}"
                hint = f'write .with_column("{column}", col("{column}").cast("{type_text(known)}")) on {name!r}'
                hint = hint if column in leading else f'write .rename({column}="{name}_{column}") on {name!r}'
                raise SchemaError(f"column {column!r} has two types", got=got, hint=hint)
    return pa.schema([pa.field(name, type_) for name, (_, type_) in types.items()])
