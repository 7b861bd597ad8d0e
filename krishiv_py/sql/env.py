"""Define what a query can name, and what was set for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs
from sqlglot import expressions as sg

from krishiv_py.sql.catalog import Registered, Static
from krishiv_py.sql.scope import Relation
from krishiv_py.sql.text.statements import Query


@attrs.frozen(eq=False)
class Env:
    """Holds what a query can name, and what was set for it.

    Attributes
    ----------
    tables : mapping of str to Registered or Static
        By name in small letters.
    lag_us, within_us : int or None
        What SET said of the watermark and of deduplication.
    queries : mapping of str to Rows
        The queries of WITH, by name in small letters.
    used : list of str
        Settings that have had an effect.
    """

    tables: Mapping[str, Registered | Static]
    lag_us: int | None = None
    within_us: int | None = None
    queries: Mapping[str, Relation] = attrs.field(factory=dict)
    used: list[str] = attrs.field(factory=list)

    def knowing(self, name: str, rows: Relation) -> Env:
        """With one more query."""
        return attrs.evolve(self, queries={**self.queries, name.lower(): rows})


Inner: TypeAlias = "Callable[[Query, Env], Relation]"
"""What gives the rows of a query in brackets."""


def conjuncts(node: sg.Expression | None) -> list[sg.Expression]:
    """Return the parts that AND joins, in order and without recursion; none of None."""
    if node is None:
        return []
    found: list[sg.Expression] = []
    open_ = [node]
    while open_:
        part = open_.pop()
        if isinstance(part, sg.And):
            open_ += [part.expression, part.this]
        elif isinstance(part, sg.Paren) and isinstance(part.this, (sg.And, sg.Paren)):
            open_.append(part.this)
        else:
            found.append(part)
    return found
