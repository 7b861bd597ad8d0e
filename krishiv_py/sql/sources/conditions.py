"""Define what joins two streams: equal keys, bounds of time, equal windows, and what is asked of one side alone."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import DurationError
from krishiv_py.sql.scope import Column, Relation
from krishiv_py.sql.text.windows import interval_us

SideName: TypeAlias = Literal["left", "right"]

_LESS: Final[dict[type[sg.Expression], tuple[bool, bool]]] = {
    # whether the left operand is the smaller one, and whether they may be equal
    sg.LTE: (True, True),
    sg.LT: (True, False),
    sg.GTE: (False, True),
    sg.GT: (False, False),
}


@attrs.define(eq=False)
class Conditions:
    """The parts of a condition, sorted.

    Attributes
    ----------
    keys : list of (Expression, Expression)
        Left and right sides that have to be equal.
    lower, upper : list of int
        Bounds of the right time less the left one, µs.
    same : set of str
        Bounds of windows that are equal on both sides.
    left, right : list of Expression
        What is asked of one side alone.
    rest : list of Expression
        Everything else.
    """

    keys: list[tuple[sg.Expression, sg.Expression]] = attrs.field(factory=list)
    lower: list[int] = attrs.field(factory=list)
    upper: list[int] = attrs.field(factory=list)
    same: set[str] = attrs.field(factory=set)
    left: list[sg.Expression] = attrs.field(factory=list)
    right: list[sg.Expression] = attrs.field(factory=list)
    rest: list[sg.Expression] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class _Term:
    side: SideName
    offset_us: int


@attrs.frozen(eq=False)
class Sorter:
    """Sorts the conditions of a join.

    Attributes
    ----------
    left, right : Rows
        The sides; their columns have different names in the streams.
    both : Rows
        The columns of both.
    """

    left: Relation
    right: Relation
    both: Relation

    def sorted(self, parts: list[sg.Expression]) -> Conditions:
        """Return the `parts`, which AND joins, sorted."""
        conditions = Conditions()
        for part in parts:
            self.both.check_quotes(part)
            if isinstance(part, sg.Between):
                low = sg.GTE(this=part.this.copy(), expression=part.args["low"].copy())
                high = sg.LTE(this=part.this.copy(), expression=part.args["high"].copy())
                if self._bound(low, conditions) and self._bound(high, conditions):
                    continue
            elif self._bound(part, conditions) or self._equal(part, conditions):
                continue
            sides = self.sides(part)
            (conditions.left if sides == {"left"} else conditions.right if sides == {"right"} else conditions.rest).append(part)
        return conditions

    def sides(self, node: sg.Expression) -> set[SideName]:
        """Return which sides the columns of a node come from."""
        return {self._side(c) for c in node.find_all(sg.Column) if not isinstance(c.this, sg.Star)}

    def _side(self, node: sg.Column) -> SideName:
        column = self.both.find(node)[0]
        return "left" if any(column is c for c in self.left.columns) else "right"

    def _column(self, node: object) -> tuple[Column, SideName] | None:
        if not isinstance(node, sg.Column) or isinstance(node.this, sg.Star):
            return None
        column, fields = self.both.find(node)
        return None if fields else (column, self._side(node))

    def _equal(self, node: sg.Expression, conditions: Conditions) -> bool:
        if not isinstance(node, sg.EQ):
            return False
        ours, theirs = self._column(node.this), self._column(node.expression)
        if ours is not None and theirs is not None and ours[1] != theirs[1]:
            role = ours[0].role
            if role in ("start", "end") and role == theirs[0].role:
                if ours[0].actual is None or theirs[0].actual is None:
                    conditions.same.add(role)
                    return True
                if role == "end" and self._ends_tell_times():  # equal ends are equal event times
                    conditions.lower.append(0)
                    conditions.upper.append(0)
        one, other = self.sides(node.this), self.sides(node.expression)
        if not (len(one) == len(other) == 1) or one == other:
            return False
        pair = (node.this, node.expression) if one == {"left"} else (node.expression, node.this)
        if any(self.both.resolved(pair[0]) == a or self.both.resolved(pair[1]) == b for a, b in self._taken(conditions)):
            return False  # a key has one partner
        conditions.keys.append(pair)
        return True

    def _ends_tell_times(self) -> bool:
        """Return whether the event times of both sides follow from the ends of their windows in the same way."""
        times = {r.stream._result_time if isinstance(r.stream, ResultStream) else None for r in self._sides}
        return len(times) == 1 and times <= {"before_end", "end"}

    def _taken(self, conditions: Conditions) -> list[tuple[sg.Expression, sg.Expression]]:
        return [(self.both.resolved(a), self.both.resolved(b)) for a, b in conditions.keys]

    def _bound(self, node: sg.Expression, conditions: Conditions) -> bool:
        """Return whether a comparison bounds the time of one side by that of the other; its bounds are noted."""
        if type(node) not in _LESS and not isinstance(node, sg.EQ):
            return False
        assert isinstance(node, sg.Binary)
        one, other = self._term(node.this), self._term(node.expression)
        if one is None or other is None or one.side == other.side:
            return False
        left, right = (one, other) if one.side == "left" else (other, one)
        distance = left.offset_us - right.offset_us  # of the right time less the left one
        if isinstance(node, sg.EQ):
            conditions.lower.append(distance)
            conditions.upper.append(distance)
            return True
        first_is_less, inclusive = _LESS[type(node)]
        off = 0 if inclusive else self._tick_us()
        if first_is_less == (one.side == "left"):
            conditions.lower.append(distance + off)
        else:
            conditions.upper.append(distance - off)
        return True

    def _tick_us(self) -> int:
        """Return the least distance of two times of different sides."""
        whole = all(r.event_time is not None and pa.types.is_int64(r.schema.field(r.event_time).type) for r in self._sides)
        return 1_000 if whole else 1

    @property
    def _sides(self) -> tuple[Relation, Relation]:
        return self.left, self.right

    def _term(self, expression: sg.Expression) -> _Term | None:
        """Return an event time, and what is added to it."""
        node = expression.unnest()
        column = self._column(node)
        if column is not None:
            return _Term(column[1], 0) if column[0].role == "time" and column[0].actual is not None else None
        if not isinstance(node, (sg.Add, sg.Sub)):
            return None
        term = self._term(node.this)
        if term is not None:
            length = self._length(node.expression, term.side)
            return None if length is None else attrs.evolve(term, offset_us=term.offset_us + _signed(node, length))
        term = self._term(node.expression) if isinstance(node, sg.Add) else None
        length = None if term is None else self._length(node.this, term.side)
        return None if term is None or length is None else attrs.evolve(term, offset_us=term.offset_us + length)

    def _length(self, expression: sg.Expression, side: SideName) -> int | None:
        """Return a length of time; a number is of milliseconds, next to a column of milliseconds."""
        node = expression.unnest()
        if isinstance(node, sg.Neg):  # x + -3000
            length = self._length(node.this, side)
            return None if length is None else -length
        if isinstance(node, sg.Interval):
            return interval_us(node, "INTERVAL", allow_zero=True, allow_negative=True)
        rows = self.left if side == "left" else self.right
        time = rows.event_time
        if not isinstance(node, sg.Literal) or not node.is_int or time is None:
            return None
        if not pa.types.is_int64(rows.schema.field(time).type):
            raise DurationError(
                "a number is not a duration",
                got=node.name,
                then="a timestamp has no unit of its own",
                hint="write INTERVAL '5' SECOND",
            )
        return int(node.name) * 1_000


def _signed(node: sg.Expression, length_us: int) -> int:
    return length_us if isinstance(node, sg.Add) else -length_us
