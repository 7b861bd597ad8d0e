"""Joins with a table that does not change: ``JOIN shops s ON a.shop = s.shop``, with validity where it has bounds."""

from __future__ import annotations

from typing import Final, Literal

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.sql.catalog import Static
from krishiv_py.sql.scope import Column, Relation, dotted
from krishiv_py.sql.sources.conditions import Sorter
from krishiv_py.sql.text.statements import refused

VALIDITY: Final = "write ON a.id = t.id, and for validity AND a.ts >= t.valid_from AND a.ts < t.valid_to"


def looked_up(left: Relation, table: Static, alias: str, parts: list[sg.Expression], how: str, node: sg.Expression) -> Relation:
    """Rows with the columns of a table.

    Raises
    ------
    PlanError
        For joins that need more than a look into the table.
    """
    if how not in ("inner", "left"):
        raise refused(f"a {how} join with a table that does not change", node.sql("spark"), "write JOIN or LEFT JOIN")
    stream = left.stream
    if isinstance(stream, ResultStream):
        raise PlanError(
            "rows after a stage are not looked up in a table",
            got=node.sql("spark"),
            then="a lookup is a step before the watermark",
            hint=f"join {table.name} in the innermost query, before windows and other joins",
        )
    names = _names(left, table)
    theirs = tuple(Column(alias, n, names[n]) for n in table.schema.names)
    fields = [table.schema.field(n).with_name(made) for n, made in names.items()]
    whole = Relation(Stream(stream._node, pa.schema(fields), stream._runner), theirs)
    both = Stream(stream._node, pa.schema([*left.schema, *fields]), stream._runner)
    sorter = Sorter(left, whole, attrs.evolve(left, stream=both, columns=(*left.columns, *theirs)))
    look = _Look(left, sorter, {made: name for name, made in names.items()}, stream)
    rest: list[sg.Expression] = []
    for part in parts:
        if look.validity(part) or look.key(part) or (how == "inner" and look.own(part)):
            continue
        if how != "inner":
            raise refused(
                "this condition of a left join with a table that does not change", part.sql("spark"), _kept(part, table, alias)
            )
        rest.append(part)
    if not look.keys:
        raise refused("a join without an equal key", node.sql("spark"), VALIDITY)
    if (look.starts is None) != (look.ends is None):
        raise refused("validity with one bound", node.sql("spark"), VALIDITY)
    valid = None if look.starts is None or look.ends is None else (look.starts, look.ends)
    kept: Literal["left", "inner"] = "left" if how == "left" else "inner"
    made = look.stream.lookup_join(table.table, look.keys, columns=names, how=kept, validity=valid, at=look.at)
    relation = attrs.evolve(left, stream=made, columns=(*left.columns, *theirs))
    for part in rest:
        relation = attrs.evolve(relation, stream=relation.stream.filter(relation.expr(part)))
    return relation


def _kept(part: sg.Expression, table: Static, alias: str) -> str:
    """Return how to write a condition that leaves rows of the left side without a match, and drops none."""
    if all(c.table == alias or (not c.table and c.name in table.schema.names) for c in part.find_all(sg.Column)):
        return f"leave it out, and register {table.name} without the rows for which it is not true"
    choice = f"CASE WHEN {part.sql('spark')} THEN {alias}.{table.schema.names[-1]} END"
    return f"leave it out of ON and select {choice}, and so each column of {alias}, where a key has one row in {table.name}"


@attrs.define(eq=False)
class _Look:
    """Holds what the conditions of a lookup have said so far."""

    left: Relation
    sorter: Sorter
    column_of: dict[str, str]
    stream: Stream
    keys: list[tuple[Expr, Expr]] = attrs.field(factory=list)
    at: str | None = None
    starts: str | None = None
    ends: str | None = None

    def validity(self, part: sg.Expression) -> bool:
        """Return whether a condition is a bound of validity."""
        bound = _validity(part, self.sorter)
        if bound is None:
            return False
        time, column, first = bound
        if self.at not in (None, time) or (self.starts if first else self.ends) is not None:
            raise refused("validity at several times", part.sql("spark"), VALIDITY)
        self.at = time
        if first:
            self.starts = self.column_of[column]
        else:
            self.ends = self.column_of[column]
        return True

    def key(self, part: sg.Expression) -> bool:
        """Return whether a condition is an equal key."""
        conditions = self.sorter.sorted([part])
        if len(conditions.keys) != 1:
            return False
        ours, theirs = conditions.keys[0]
        self.keys.append((expr_of(self.left.resolved(ours)), expr_of(self.sorter.both.resolved(theirs).transform(self._own))))
        return True

    def _own(self, node: sg.Expression) -> sg.Expression:
        """Return a column by its name in the table; a field of a struct has that of the struct before its own."""
        if not isinstance(node, sg.Column):
            return node
        first, *fields = [
            node.args[part_name].name
            for part_name in ("catalog", "db", "table", "this")
            if node.args.get(part_name) is not None
        ]
        return dotted([self.column_of[first], *fields])

    def own(self, part: sg.Expression) -> bool:
        """Return whether a condition is about the rows alone."""
        if self.sorter.sides(part) != {"left"}:
            return False
        self.stream = self.stream.filter(self.left.expr(part))
        return True


def _names(left: Relation, table: Static) -> dict[str, str]:
    """Names for the columns of the table among those of the rows."""
    names: dict[str, str] = {}
    for name in table.schema.names:
        names[name] = free(name, [*left.schema.names, *names.values()])
    return names


def _validity(node: sg.Expression, sorter: Sorter) -> tuple[str, str, bool] | None:
    """Time of rows, column of the table, and whether it is the first moment: ``a.ts >= t.valid_from``."""
    turned: dict[type[sg.Expression], type[sg.Expression]] = {sg.LTE: sg.GTE, sg.GT: sg.LT}
    if not isinstance(node, (sg.GTE, sg.LT, sg.LTE, sg.GT)):
        return None
    kind: type[sg.Expression] = type(node)
    time, bound = node.this, node.expression
    if kind in turned:
        kind, time, bound = turned[kind], bound, time
    if not (isinstance(time, sg.Column) and isinstance(bound, sg.Column)):
        return None
    if (sorter.sides(time), sorter.sides(bound)) != ({"left"}, {"right"}):
        return None
    ours, theirs = sorter.both.resolved(time), sorter.both.resolved(bound)
    if not isinstance(ours, sg.Column) or not isinstance(theirs, sg.Column) or ours.table or theirs.table:
        return None
    if ours.name not in sorter.left.times and not pa.types.is_temporal(sorter.left.schema.field(ours.name).type):
        return None  # null is not a bound of validity, but of a comparison of numbers
    return ours.name, theirs.name, kind is sg.GTE
