"""Filters after the watermark (SEMANTICS §2.7): rows that they leave out still move it.

Such a row goes along with a mark until its event time is known. Then it is left out, before anything judges it. The mark is a
hidden column, and every step after the filter keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
import pyarrow as pa

from krishiv_py.plan.expressions.case import coalesce
from krishiv_py.plan.expressions.expr import Expr, col, lit
from krishiv_py.plan.nodes import KEPT, Expect, Filter, Node, Project


@attrs.frozen(eq=False)
class FilterAfter(Project):
    """Mark rows that a filter after the watermark leaves out."""

    title: ClassVar[str] = "Filter"
    condition: Expr = attrs.field(kw_only=True)

    def detail(self) -> str:
        return f"{self.condition!r}, after the watermark: rows that it leaves out move the watermark"


def is_marked(node: Node) -> bool:
    """Return whether rows of a node have the mark."""
    return isinstance(node, Project) and any(name == KEPT for name, _ in node.columns)


def filtered_after(node: Node, names: Sequence[str], condition: Expr) -> FilterAfter:
    """Return the rows of a node with these columns, marked by a condition; of two filters both hold."""
    kept = coalesce(condition, lit(False))
    mark: Expr = kept & col(KEPT) if is_marked(node) else kept
    return FilterAfter(node, (*((name, col(name)) for name in names), (KEPT, mark)), condition=condition)


def without_mark(rows: pa.Schema) -> pa.Schema:
    """Return the columns of `rows` but the mark."""
    return rows.remove(rows.get_field_index(KEPT)) if KEPT in rows.names else rows


def keeping_mark(step: Project) -> Project:
    """Return a step whose rows keep the mark that they had before."""
    return attrs.evolve(step, columns=(*step.columns, (KEPT, col(KEPT)))) if is_marked(step.input) else step


def without_marked(node: Node, names: Sequence[str]) -> Node:
    """Return the rows of a node with these columns, where no watermark follows: marked ones are left out."""
    if not is_marked(node):
        return node
    return Project(Filter(node, col(KEPT)), tuple((name, col(name)) for name in names))


def filters_after(node: Node, base: Node, names: Sequence[str]) -> Node:
    """Return the steps over a `base` with these columns, with filters after its watermark; as they are if others are among
    them.
    """
    steps: list[Filter | Project] = []
    current = node
    while current is not base:
        if not isinstance(current, (Filter, Project)):
            return node
        steps.append(current)
        current = current.input
    for step in reversed(steps):
        if isinstance(step, Expect):  # a row that it leaves out is not a row, and moves no watermark
            current = attrs.evolve(step, input=current)
        elif isinstance(step, Filter):
            current = filtered_after(current, names, step.condition)
        else:
            names = [name for name, _ in step.columns]
            current = keeping_mark(attrs.evolve(step, input=current))
    return current
