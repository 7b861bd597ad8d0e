"""Lists in FROM: ``LATERAL VIEW explode(xs) t AS x``, ``CROSS JOIN UNNEST(xs) AS t(x)``, ``CROSS JOIN LATERAL explode(xs)``."""

from __future__ import annotations

from typing import Final

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.planning import evaluate
from krishiv_py.errors import PlanError
from krishiv_py.plan.expressions.expr import Expr, Func, Lit, col
from krishiv_py.plan.expressions.lambdas import Lambda, LambdaVar
from krishiv_py.plan.names import free
from krishiv_py.sql.scope import Column, Relation
from krishiv_py.sql.text.statements import only, refused
from krishiv_py.types import type_text

_KINDS: Final = frozenset({"explode", "posexplode", "inline", "unnest"})
_WRITE: Final = (
    "write LATERAL VIEW explode(xs) t AS x, with posexplode(xs) t AS i, x for places, LATERAL VIEW OUTER to keep all rows"
)


@attrs.frozen(eq=False)
class _Call:
    """Holds what gives rows: its `kind`, the list, names of the table and its columns, and whether rows without items stay."""

    kind: str
    value: sg.Expression
    table: str | None
    names: tuple[str, ...]
    outer: bool
    ordinality: bool


def is_lateral(node: sg.Expression) -> bool:
    """Return whether a part of FROM is made of the columns before it."""
    return isinstance(node, (sg.Lateral, sg.Unnest))


def spread(rows: Relation, node: sg.Expression, outer: bool = False) -> Relation:
    """The rows once for each item of a list, with the item as a column; also those without items if `outer`.

    Raises
    ------
    PlanError
        For other functions, and names that are too few or too many.
    """
    call = _call_of(node)
    value, fields = _list_of(rows.expr(call.value), rows.schema, call, node)
    wanted = (["pos"] if call.kind == "posexplode" else []) + (fields or ["col"]) + (["pos"] if call.ordinality else [])
    names = call.names or tuple(wanted)
    if len(names) != len(wanted):
        raise PlanError(
            f"{call.kind} gives {len(wanted)} columns",
            got=node.sql("spark"),
            then=f"{len(names)} are named",
            hint=f"name {len(wanted)}: AS {', '.join(wanted)}",
        )
    item = free("col", rows.schema.names)
    ranked = call.kind == "posexplode" or call.ordinality
    rank = free("pos", [*rows.schema.names, item]) if ranked else None
    stream = rows.stream.with_column(item, value)._unnested(item, rank, outer or call.outer, spread=False)
    if rank is not None and call.kind == "posexplode":  # which counts from 0
        stream = stream.with_column(rank, (col(rank) - 1).cast("int"))
    actual = [item]
    if fields:
        actual = []
        for field in fields:
            actual.append(free(field, stream.schema.names))
            stream = stream.with_column(actual[-1], col(item).field(field))
    if rank is not None:
        actual = [rank, *actual] if call.kind == "posexplode" else [*actual, rank]
    added = tuple(Column(call.table, name, made) for name, made in zip(names, actual, strict=True))
    return attrs.evolve(rows, stream=stream, columns=(*rows.columns, *added))


def _call_of(node: sg.Expression) -> _Call:
    call, outer, place = node, False, None
    if isinstance(node, sg.Lateral):
        only(node, frozenset({"this", "view", "outer", "alias"}))
        outer, call = bool(node.args.get("outer")), node.this
    else:
        only(node, frozenset({"expressions", "alias", "offset"}))
        place = node.args.get("offset")
    name = call.name.lower() if isinstance(call, sg.Anonymous) else type(call).__name__.lower().strip("_")
    kind = name.removesuffix("outer").removesuffix("_")
    lists = [e for e in (call.args.get("this"), *call.expressions) if isinstance(e, sg.Expression)]
    if kind not in _KINDS or len(lists) != 1:
        raise refused("this function in LATERAL", node.sql("spark"), _WRITE)
    alias = node.args.get("alias")
    table = alias.name if isinstance(alias, sg.TableAlias) and alias.this is not None else None
    names = tuple(c.name for c in alias.columns) if isinstance(alias, sg.TableAlias) else ()
    if names and isinstance(place, sg.Identifier):  # the parser takes the last name for that of the place
        names = (*names, place.name)
    return _Call(kind, lists[0], table, names, outer or name.endswith("outer"), bool(place))


def _list_of(value: Expr, schema: pa.Schema, call: _Call, node: sg.Expression) -> tuple[Expr, list[str]]:
    """The list, and the fields that become columns: of maps key and value."""
    type_ = evaluate.expr_type(value, schema)
    if pa.types.is_map(type_) and call.kind in ("explode", "posexplode", "unnest"):
        pair = Func("named_struct", (Lit("key"), LambdaVar("k"), Lit("value"), LambdaVar("v")))
        keys, values = Func("map_keys", (value,)), Func("map_values", (value,))
        return Func("zip_with", (keys, values, Lambda(("k", "v"), pair))), ["key", "value"]
    if not pa.types.is_list(type_) or (call.kind == "inline" and not pa.types.is_struct(type_.value_type)):
        raise PlanError(
            f"{call.kind} takes {'a list of structs' if call.kind == 'inline' else 'a list or a map'}",
            got=f"{call.value.sql('spark')} is {type_text(type_)}",
            hint=_WRITE,
        )
    spreads = call.kind == "inline" or (call.kind == "unnest" and pa.types.is_struct(type_.value_type))
    return value, [f.name for f in type_.value_type] if spreads else []
