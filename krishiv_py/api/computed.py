"""Columns that the plan computes for itself, keys, identities and gaps, and rows for the items of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.planning import evaluate, steps
from krishiv_py.errors import ColumnError, PlanError, shown
from krishiv_py.plan.checks import a_switch, column_name, expression, known_column
from krishiv_py.plan.expressions.expr import Col, Expr, col, columns_of, name_of, python_text, unnamed
from krishiv_py.plan.nodes import BatchFunction, Node, Project, Watermark
from krishiv_py.plan.schema import RESERVED, check_key_type, checked, is_key_type, key_hint, require_columns
from krishiv_py.types import type_text

Named: TypeAlias = "tuple[str, Expr]"
Keys: TypeAlias = "tuple[tuple[str, ...], tuple[Named, ...]]"
"""Names of key columns, and those among them that are to be computed."""


def keys_of(items: Sequence[str | Expr], schema: pa.Schema, where: str, named: dict[str, Expr | str] | None = None) -> Keys:
    """Key columns: names, expressions under their alias or text, and `named` ones. Each once, of rows with this `schema`.

    Raises
    ------
    PlanError
        For what is neither, and for two keys of one name.
    ColumnError
        For columns that are not there, names that other columns have, and values that cannot be compared.
    """
    names: list[str] = []
    computed: list[Named] = []
    for item in [*items, *(expression(e, f"{where}({n})").alias(n) for n, e in (named or {}).items())]:
        if isinstance(item, Col):
            item = item.name
        if isinstance(item, str):
            if item not in schema.names and "." in item:
                require_columns(col(item), schema, where)  # says what is written for a field
            name = known_column(item, schema.names, where)
            check_key_type(name, schema.field(name).type)
        elif isinstance(item, Expr):
            name = name_of(item)
            computed.append((name, _computable(item, name, schema, where)))
        else:
            hint = f'pass them one by one: .{where}("user_id", col("url").split("/")[0].alias("site"))'
            raise PlanError("keys are column names or expressions", got=shown(item), hint=hint)
        if name.lower() in (n.lower() for n in names):
            raise PlanError("a key column is named twice", got=name, hint="name it once, or give one another name with .alias")
        names.append(name)
    if computed:
        checked(pa.schema([*schema, *((n, evaluate.expr_type(e, schema)) for n, e in computed)]))
    return tuple(names), tuple(computed)


def _computable(expr: Expr, name: str, schema: pa.Schema, where: str) -> Expr:
    expr = unnamed(expr)
    column_name(name, where)
    require_columns(expr, schema, where)
    _no_constant(expr, where)
    if name.lower() in (n.lower() for n in schema.names):
        hint = f'give it a name of its own: .alias("{name}_key")'
        raise ColumnError(f"{where}: the key has the name of a column", got=f"{expr!r} is called {name!r}", hint=hint)
    type_ = evaluate.expr_type(expr, schema)
    if not is_key_type(type_):
        hint = key_hint(python_text(expr), type_)
        raise ColumnError(f"{where}: {expr!r} cannot be a key", got=type_text(type_), hint=hint)
    return expr


def _no_constant(expr: Expr, where: str) -> None:
    if not columns_of(expr):
        raise PlanError(f"{where}: a constant is not a key", got=repr(expr), hint="leave it out")
    if "*" in columns_of(expr):
        raise PlanError(f'{where} takes no col("*")', got=repr(expr), hint="name a column")


def with_computed(mark: Watermark, rows: pa.Schema, computed: Sequence[Named]) -> Watermark:
    """Return the watermark `mark` over its `rows` with more columns; as it is if there are none."""
    return attrs.evolve(mark, input=projected(mark.input, rows, computed)) if computed else mark


def projected(node: Node, rows: pa.Schema, computed: Sequence[Named]) -> Node:
    """Return the `rows` of a node with more columns."""
    kept = [(n, col(n)) for n in rows.names]
    return Project(node, (*kept, *computed), computes=tuple(name for name, _ in computed))


def visible(rows: pa.Schema) -> pa.Schema:
    """Return the columns of `rows` that are not the library's own."""
    return pa.schema([f for f in rows if not f.name.startswith(RESERVED)])


def unnested(
    schema: pa.Schema, column: str, rank: str | None, outer: bool, spread: bool = True
) -> tuple[BatchFunction, pa.Schema]:
    """Return the step over rows of `schema`, and the schema it makes."""
    known_column(column, schema.names, "unnest")
    if not pa.types.is_list(schema.field(column).type):
        hint = "name a column of lists, such as that of top_k"
        raise ColumnError(f"column {column!r} has no lists", got=type_text(schema.field(column).type), hint=hint)
    function = steps.Unnest(
        column, None if rank is None else column_name(rank, "unnest(rank)"), a_switch(outer, "outer"), spread
    )
    kept = [f for f in schema if f.name != column]
    return function, checked(pa.schema([*kept, *function.fields(schema)]))
