"""The checked stage: a logical plan against its schema, as an operator specification."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.errors import ColumnError, PlanError, message, unknown_column
from krishiv_py.kernels.evaluate import step_schema
from krishiv_py.kernels.layout import Layout
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.expr import Col, columns_of
from krishiv_py.plan.late import LateWanted
from krishiv_py.plan.nodes import Filter, MapBatches, Node, Prefix, Project, WindowAggregate, prefix_of, source_of
from krishiv_py.plan.schema import is_key_type, require_columns, time_kind


def row_schema(node: WindowAggregate) -> pa.Schema:
    """The schema of rows after the stateless steps."""
    schema = source_of(node).schema
    for step in prefix_of(node):
        schema = step_schema(step, schema)
    return schema


def _check_names(node: WindowAggregate, schema: pa.Schema) -> None:
    # Spark ignores the case of names, so two that differ in it only would be one there
    outputs = [a.output_name.lower() for a in node.aggs]
    keys = {k.lower() for k in node.keys}
    own = {"window_start", "window_end", "op"} | ({"pane_timing", "pane_index"} if node.options.pane else set())
    for name in outputs:
        if outputs.count(name) > 1:
            raise PlanError(message("two aggregates have one output name", name, "one would hide the other",
                                    'name one with .alias("other")'))
        if name in keys:
            raise PlanError(message("an aggregate is named like a key column", name, "one would hide the other",
                                    'rename it with .alias("other")'))
        if name in own:
            raise PlanError(message("an aggregate is named like a window column", name, "one would hide the other",
                                    'rename it with .alias("other")'))
    taken = {"window_start", "window_end", "op", "pane_timing", "pane_index", *outputs}
    for name in node.window.carried(node.keys, schema):
        if name.lower() in taken:
            raise PlanError(message("a column of the row is named like another of the result", name, "one would hide the other",
                                    "rename it before: .rename, or name the aggregate otherwise with .alias"))
    for key in node.keys:
        if key.lower() in own:
            raise PlanError(message("a key is named like a window column", key, "one would hide the other",
                                    ".rename the column before key_by"))


def _check_output(node: WindowAggregate) -> None:
    own = {"op"} | ({"pane_timing", "pane_index"} if node.options.pane else set())
    names = [name.lower() for name, _ in node.output or ()]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(message("two result columns have one name", name, "one would hide the other", "name one with AS"))
        if name in own:
            raise PlanError(message("a result column has a name of the library's own", name, "one would hide the other",
                                    "name it otherwise with AS"))


def _check_keys(node: WindowAggregate, schema: pa.Schema) -> None:
    for key in node.keys:
        if key not in schema.names:
            raise unknown_column(key, schema.names, "key_by")
        if not is_key_type(schema.field(key).type):
            raise ColumnError(message(f"column {key!r} cannot be a key", schema.field(key).type, "nested values cannot be "
                                      "grouped", "key by a field of it"))


def needed_columns(prefix: tuple[Prefix, ...], wanted: set[str], schema: pa.Schema) -> tuple[str, ...]:
    """Source columns needed for `wanted` columns after the stateless steps."""
    for step in reversed(prefix):
        if isinstance(step, MapBatches):
            return tuple(schema.names)
        if isinstance(step, Filter):
            wanted = wanted | columns_of(step.condition)
        else:
            wanted = {c for name, e in step.columns if name in wanted for c in columns_of(e)}
    return tuple(n for n in schema.names if n in wanted) or tuple(schema.names[:1])


def pruned(prefix: tuple[Prefix, ...], wanted: set[str]) -> tuple[Prefix, ...]:
    """The steps, computing only what later ones read."""
    out: list[Prefix] = []
    for at in range(len(prefix) - 1, -1, -1):
        step = prefix[at]
        if isinstance(step, MapBatches):
            return (*prefix[: at + 1], *reversed(out))
        if isinstance(step, Filter):
            wanted = wanted | columns_of(step.condition)
            out.append(step)
        else:
            kept = tuple((n, e) for n, e in step.columns if n in wanted) or step.columns[:1]
            wanted = {c for _, e in kept for c in columns_of(e)}
            if not all(isinstance(e, Col) and e.name == n for n, e in kept):
                out.append(Project(step.input, kept))
    return tuple(reversed(out))


def check(node: WindowAggregate, *, late: LateWanted = "count", name: str = "window-aggregate") -> OperatorSpec:
    """Check a logical plan against its schema.

    Parameters
    ----------
    node : WindowAggregate
        The logical plan.
    late : {"rows", "keys", "count"}
        What the late handler wants of a late row.
    name : str
        The operator's name.

    Raises
    ------
    PlanError
        With what, got, consequence and hint, for everything that cannot run.
    """
    schema = row_schema(node)
    kind = time_kind(schema, node.input.column)
    _check_keys(node, schema)
    if not node.aggs:
        raise PlanError(message("agg() got no aggregate", "0 aggregates", "a window would have no result",
                                "write .agg(count())"))
    for call in node.aggs:
        require_columns(call.arg, schema, f"agg({call.output_name})")
        if call.where is not None:
            require_columns(call.where, schema, f"agg({call.output_name}).filter")
            step_schema(Filter(node.input, call.where), schema)
    _check_names(node, schema)
    _check_output(node)
    node.window.check_columns(schema)
    source = source_of(node).schema
    wanted = {*node.keys, *node.window.columns(), *node.window.carried(node.keys, schema), node.input.column}
    if node.input.source_column:
        wanted.add(node.input.source_column)
    for call in node.aggs:
        wanted |= columns_of(call.arg) - {"*"}
        wanted |= columns_of(call.where) if call.where is not None else set()
    whole = late == "rows"
    prefix = prefix_of(node) if whole else pruned(prefix_of(node), wanted)
    needs = tuple(source.names) if whole else needed_columns(prefix_of(node), wanted, source)
    late_columns = tuple(schema.names) if whole else node.keys if late == "keys" else ()
    prefix = tuple(attrs.evolve(step, input=Node()) for step in prefix)  # tasks need the steps, not the source below them
    spec = OperatorSpec(
        name=name, source_schema=source, row_schema=schema, prefix=prefix, time_column=node.input.column, time_kind=kind,
        watermark=node.input.spec, source_column=node.input.source_column, keys=node.keys, window=node.window,
        aggs=node.aggs, options=node.options, needs_columns=needs, late_columns=late_columns, output=node.output,
    )  # fmt: skip
    operator_for(spec)
    Layout(spec).result_schema  # noqa: B018  # built here so that a type that does not fit is found at the call
    return spec
