"""The two sides of a join as they were told: streams with watermark, key columns, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.computed import keys_of, visible, with_computed
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import check, evaluate
from krishiv_py.errors import OrderError, PlanError, shown
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.handed_on import in_order_of
from krishiv_py.plan.joins.sides import Side, check_keys
from krishiv_py.plan.nodes import Stage, source_of
from krishiv_py.plan.options.explicit import ExplicitOptions
from krishiv_py.plan.options.late import one_handler

On: TypeAlias = "str | Expr | Sequence[str | Expr] | Mapping[str, str]"
Sides: TypeAlias = "tuple[Side, Side]"


def _joins(stream: object) -> bool:
    return isinstance(stream, OptionMethods) and stream._draft.operation is None


def sides_of(left: OptionMethods, right: object, on: On | None, where: str, *, left_time: bool = False) -> Sides:
    """The checked sides of the join called `where`; `left_time`: results have the time of left rows.

    Raises
    ------
    OrderError
        For a right side without watermark.
    PlanError
        For keys that are missing, told twice or do not fit.
    """
    if not _joins(right):
        if isinstance(right, OptionMethods) and right._draft.operation is not None:
            raise OrderError(
                "the right side of a join has a window, but no aggregates",
                got=type(right).__name__,
                hint=f"write left.{where}(right.key_by(...).tumbling_window(...).agg(count()), ...), or leave the window out",
            )
        if hasattr(right, "watermark"):
            raise OrderError(
                "the right side of a join has no watermark",
                got=type(right).__name__,
                hint=f'write left.{where}(right.watermark("event_time", "5 seconds"), ...)',
            )
        raise PlanError(
            "the right side of a join is not a stream with event time",
            got=shown(right),
            hint="pass a stream with .watermark(...); tables are joined with .lookup_join(table, ...)",
        )
    assert isinstance(right, OptionMethods)
    sides = [_side(left, shows_time=left_time), _side(right)]
    if not isinstance(on, (str, Mapping)) and on is not None:
        on = _computed(sides, on, where)
    names = _keys(left, right, on, (sides[0].schema, sides[1].schema), where)
    one, other = (attrs.evolve(side, keys=keys) for side, keys in zip(sides, names, strict=True))
    check_keys(one, other)
    return one, other


def _side(stream: OptionMethods, *, shows_time: bool = False) -> Side:
    mark, schema = stream._draft.input, stream._row_schema()
    source = source_of(mark)
    if not isinstance(source, Stage):
        return Side(mark, schema, stream._draft.keys)
    check.check_followed(source)
    own = (source.time_of_row and not source.operation.hides_time) or shows_time or not stream._draft.hides_time
    time = () if own else (source.time_column,)
    return Side(mark, schema, stream._draft.keys, (*time, *in_order_of(schema.names)))


def _computed(sides: list[Side], on: object, where: str) -> On:
    """The names of keys that may be expressions; `sides` get the columns of those."""
    listed = [on] if isinstance(on, Expr) else _listed(on)
    pair = len(listed) == 2 and all(isinstance(e, Expr) for e in listed)
    items = [(listed[0], listed[1])] if pair else [(e, e) for e in listed]
    if not any(isinstance(e, Expr) for item in items for e in item):
        return [str(e) for e, _ in items]
    names = []
    for at, word in enumerate(("left", "right")):
        side = sides[at]
        found, computed = keys_of([item[at] for item in items], visible(side.schema), f"{where}(on), {word} side")
        mark = with_computed(side.mark, side.schema, computed)
        schema = pa.schema([*side.schema, *((n, evaluate.expr_type(e, side.schema)) for n, e in computed)])
        sides[at] = attrs.evolve(side, mark=mark, schema=schema)
        names.append(found)
    return dict(zip(*names, strict=True))


def _keys(
    left: OptionMethods, right: OptionMethods, on: On | None, schemas: tuple[pa.Schema, pa.Schema], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    keyed_by = left._draft.keys, right._draft.keys
    if on is None:
        if not (keyed_by[0] and keyed_by[1]):
            raise PlanError(
                f"{where} has no key",
                got=f"left {list(keyed_by[0])}, right {list(keyed_by[1])}",
                then="every row would meet every other",
                hint='write on="user", or .key_by("user") on both streams',
            )
        return keyed_by
    pairs = list(on.items()) if isinstance(on, Mapping) else [(n, n) for n in ([on] if isinstance(on, str) else _listed(on))]
    for ours, theirs in pairs:
        known_column(ours, schemas[0].names, f"{where}(on), left side")
        known_column(theirs, schemas[1].names, f"{where}(on), right side")
    found = tuple(str(ours) for ours, _ in pairs), tuple(str(theirs) for _, theirs in pairs)
    for side, keys in zip(("left", "right"), found, strict=True):
        twice = sorted({k for k in keys if keys.count(k) > 1})
        if twice:
            raise PlanError(f"a key of the {side} side is named twice", got=twice, hint="name it once")
    for side, keyed, keys in zip(("left", "right"), keyed_by, found, strict=True):
        if keyed and keyed != keys:
            raise PlanError(
                f"the {side} stream is keyed by other columns than it is joined on",
                got=f"key_by {list(keyed)}, on {list(keys)}",
                hint="leave `on` out, or leave .key_by out",
            )
    return found


def _listed(on: object) -> list[str | Expr]:
    if isinstance(on, Sequence) and all(isinstance(n, (str, Expr)) for n in on):
        return list(on)
    raise PlanError(
        "`on` names no columns",
        got=shown(on),
        hint='write on="user", on=["user", "shop"], on={"user": "customer"}, or on=(col("a").lower(), col("b").lower())',
    )


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
        raise PlanError(
            f"`{name}` is finer than the time columns",
            got=f"{bound_us} µs",
            then="both have whole milliseconds",
            hint="use bounds of whole milliseconds",
        )


def merged_draft(left: Draft, right: Draft) -> Draft:
    """Return what was told before the join, of either side; it may be told behind it as well."""
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
