"""Whole rows as values."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.expressions.trees import listed


@attrs.frozen(eq=False, repr=False)
class StructOf(Expr):
    """Several columns as one struct, under their names; the library's own, for results that hold whole rows."""

    names: tuple[str, ...]

    def _parts(self) -> tuple[Any, ...]:
        return "struct(", *listed(self._children()), ")"

    def _children(self) -> tuple[Expr, ...]:
        return tuple(Col(n) for n in self.names)
