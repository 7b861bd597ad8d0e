"""Joins in FROM: of two streams, by an interval, by windows or with a version; and with a table that does not change."""

from __future__ import annotations

import datetime as dt
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.planning import evaluate, hidden
from krishiv_py.api.stages.results import ResultStream, results_of
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import ColumnError, DurationError, PlanError
from krishiv_py.plan.expressions.expr import Col, Expr, Func, Lit, UnOp, col
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.plan.nodes import Project
from krishiv_py.plan.schema import is_key_type
from krishiv_py.plan.sides import OP
from krishiv_py.plan.windows.fixed import HoppingWindow, hopping, tumbling
from krishiv_py.sql.catalog import StaticTable
from krishiv_py.sql.scope import Column, Env, Relation, Role, dotted
from krishiv_py.sql.statements import refused
from krishiv_py.sql.windows import WindowCall, interval_us
from krishiv_py.types import key_type, type_text

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
class ConditionSorter:
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
            then = "a timestamp has no unit of its own"
            raise DurationError("a number is not a duration", got=node.name, then=then, hint="write INTERVAL '5' SECOND")
        return int(node.name) * 1_000


def _signed(node: sg.Expression, length_us: int) -> int:
    return length_us if isinstance(node, sg.Add) else -length_us


How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]

_BOUND: Final = "write ON a.id = b.id AND b.ts BETWEEN a.ts - INTERVAL '5' MINUTE AND a.ts + INTERVAL '1' HOUR"
_WINDOWS: Final = "join windows: ON a.id = b.id AND a.window_start = b.window_start AND a.window_end = b.window_end"
_AS_OF: Final = "write JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.id = b.id"
_KINDS: Final[dict[str, How]] = {
    **dict.fromkeys(("", "INNER", "CROSS"), "inner"),
    **dict.fromkeys(("LEFT", "LEFT OUTER"), "left"),
    **dict.fromkeys(("RIGHT", "RIGHT OUTER"), "right"),
    **dict.fromkeys(("FULL", "FULL OUTER"), "full"),
    **dict.fromkeys(("SEMI", "LEFT SEMI"), "semi"),
    **dict.fromkeys(("ANTI", "LEFT ANTI"), "anti"),
}


def how_of(join: sg.Join) -> How:
    """Return which rows a JOIN gives."""
    words = " ".join(str(join.args.get(key) or "").upper() for key in ("method", "side", "kind")).strip()
    words = " ".join(words.split())
    if words == "ASOF":
        raise refused("ASOF JOIN", join.sql("spark"), f"{_AS_OF}, or LEFT JOIN to keep rows without one")
    if words not in _KINDS:
        raise refused(f"{words} JOIN", join.sql("spark"), f"joins are {', '.join(k for k in _KINDS if k)}")
    return _KINDS[words]


@attrs.frozen(eq=False)
class Sides:
    """Two sides whose columns have different names in their streams, and how they are joined.

    Attributes
    ----------
    left, right : Rows
        The sides.
    conditions : Conditions
        What joins them.
    how : str
        Which rows are given.
    version : Expression or None
        The time of AS OF.
    """

    left: Relation
    right: Relation
    conditions: Conditions
    how: How
    version: sg.Expression | None


def sides(left: Relation, right: Relation, parts: list[sg.Expression], how: How, version: sg.Expression | None) -> Sides:
    """Return the sides of a join, and its conditions sorted."""
    for rows in (left, right):
        if rows.ranking is not None:
            raise rows.ranking.unbounded()
    right = apart(right, [n.lower() for n in left.schema.names])
    both = attrs.evolve(left, columns=(*left.columns, *right.columns))
    return Sides(left, right, ConditionSorter(left, right, both).sorted(parts), how, version)


def check_bound_in_where(
    left: Relation, right: Relation, parts: list[sg.Expression], in_where: list[sg.Expression], how: How
) -> None:
    """Refuse an outer join whose bound of time is in WHERE: it would drop the rows without a partner again.

    Raises
    ------
    PlanError
        With both ways to write what may be meant.
    """

    def bounded(all_parts: list[sg.Expression]) -> bool:
        read = sides(left, right, all_parts, how, None).conditions
        return bool(read.same or (read.lower and read.upper))

    if how in ("left", "right", "full") and not bounded(parts) and bounded([*parts, *in_where]):
        then = "WHERE drops rows without a partner, whose time is null"
        hint = "write the bound in ON, where it keeps them, or JOIN, which drops them"
        got = " AND ".join(p.sql("spark") for p in in_where)
        raise PlanError(f"the bound of time of a {how} join is in WHERE", got=got, then=then, hint=hint)


def apart(rows: Relation, taken: list[str]) -> Relation:
    """Rows whose columns have other names than `taken`; the change kind of a table is no column of its rows."""
    names: dict[str, str] = {}
    own = {column.actual for column in rows.columns}
    for name in rows.schema.names:
        if name.lower() in taken and (name != OP or name in own):
            names[name] = free(f"{name}_", [*taken, *rows.schema.names, *names.values()])
    if not names:
        return rows
    columns = tuple(attrs.evolve(c, actual=names.get(c.actual or "", c.actual)) for c in rows.columns)
    return attrs.evolve(rows, stream=rows.stream.rename(**names), columns=columns)


def joined(
    left: Relation, right: Relation, parts: list[sg.Expression], how: How, version: sg.Expression | None, env: Env
) -> Relation:
    """Return the rows of a join of two streams."""
    joined_sides = _filtered(_without_bounds(sides(left, right, parts, how, version)))
    conditions = joined_sides.conditions
    keys: list[tuple[str, str]] = []
    streams = [joined_sides.left.stream, joined_sides.right.stream]
    for pair in conditions.keys:
        names: list[str] = []
        for i, (rows, node) in enumerate(zip((joined_sides.left, joined_sides.right), pair, strict=True)):
            expr = expr_of(rows.resolved(node))
            taken = [*joined_sides.left.schema.names, *joined_sides.right.schema.names, *(n for k in keys for n in k), *names]
            names.append(expr.name if isinstance(expr, Col) else free("join_key", taken))
            if not isinstance(expr, Col):
                streams[i] = streams[i].with_column(names[i], expr)
        one, other = (s.schema.field(n).type for s, n in zip(streams, names, strict=True))
        if one != other and is_key_type(one) and is_key_type(other):
            raise _other_types(pair, one, other)
        keys.append((names[0], names[1]))
    if not keys:
        raise no_key(parts, _AS_OF if version is not None else _BOUND)
    shown = {c.actual for rows in (joined_sides.left, joined_sides.right) for c in rows.columns}
    renamed, streams = _copies([k for k in keys if shown & set(k)], streams, how)
    on, window = dict(keys), None
    changes = right.stream
    if version is not None and isinstance(changes, ResultStream) and not changes._draft.input.column:
        if not changes._steps:
            changes = _named_otherwise(changes, right, joined_sides.right, renamed)
        made = _of_version(joined_sides.left.timed(streams[0], env.lag_us), changes, on, joined_sides, version)
    elif version is None and _of_tables(joined_sides):
        left, right = joined_sides.left, joined_sides.right
        table = right.of_all_time(streams[1], env.lag_us)
        ttl, rows_of_all_time = env.ttl_of_sides(), left.of_all_time(streams[0], env.lag_us)
        made = rows_of_all_time.join(table, on, how=how, ttl=ttl)
        made = env.with_ttl(made) if ttl is None else made
    else:
        timed = [
            rows.timed(stream, env.lag_us)
            for rows, stream in zip((joined_sides.left, joined_sides.right), streams, strict=True)
        ]
        made, window = _made(timed[0], timed[1], on, joined_sides)
    stream = made.results()
    stream, bounds = (stream, {}) if window is None else _bounds(stream, joined_sides)
    columns = _columns(joined_sides, keys, renamed, stream, window, bounds)
    rows = Relation(stream, columns, window=window)
    rest = conditions.rest
    if rest and how != "inner":
        hint = "write JOIN, which takes it, where rows without a partner are not needed; WHERE would drop those, too"
        if version is not None:
            hint = "select CASE WHEN ... THEN b.column END, or leave versions out: WITH b AS (SELECT * FROM ... WHERE ...)"
        raise refused(f"this condition of a {how} join", rest[0].sql("spark"), hint)
    for part in rest:
        rows = attrs.evolve(rows, stream=rows.stream.filter(rows.expr(part)))
    return rows


def _of_tables(join_sides: Sides) -> bool:
    """Return whether no bound of time is given, and a side is a table that changes or both are streams as they are."""
    conditions, both = join_sides.conditions, (join_sides.left, join_sides.right)
    if conditions.lower or conditions.upper or conditions.same or any(side.pending for side in both):
        return False
    results = [side.stream for side in both if isinstance(side.stream, ResultStream)]
    return not results or any(not stream._draft.input.column for stream in results)


def no_key(parts: list[sg.Expression], hint: str) -> PlanError:
    """Return the error for a join without an equal key."""
    got = " AND ".join(p.sql("spark") for p in parts) or "no ON"
    nulls = next((p for p in parts if isinstance(p, sg.NullSafeEQ)), None)
    if nulls is not None:
        then = "keys that are null never meet"
        hint = f"write {nulls.this.sql('spark')} = {nulls.expression.sql('spark')}"
        return PlanError("<=>, or IS NOT DISTINCT FROM, is not a key of a join", got=got, then=then, hint=hint)
    return PlanError("the join has no key", got=got, then="every row would meet every other", hint=hint)


def _other_types(pair: tuple[sg.Expression, sg.Expression], one: pa.DataType, other: pa.DataType) -> ColumnError:
    """Return the error for sides of an equality that have other types."""
    both, texts = key_type(one, other), [node.sql("spark") for node in pair]
    cast = [
        text if type_ == both or both is None else f"CAST({text} AS {type_text(both)})"
        for text, type_ in zip(texts, (one, other), strict=True)
    ]
    got = f"{texts[0]} is {type_text(one)}, {texts[1]} is {type_text(other)}"
    hint = "join on columns of one type" if both is None else f"write {cast[0]} = {cast[1]}"
    return ColumnError("the keys of both sides have other types", got=got, hint=hint)


def _filtered(join_sides: Sides) -> Sides:
    """Return the sides with what is asked of one alone: rows that fail it are left out, or given as rows without a partner.

    For these the key is null, which never meets another.
    """
    conditions, how = join_sides.conditions, join_sides.how
    left, right = join_sides.left, join_sides.right
    keys = list(conditions.keys)
    if join_sides.version is not None:  # asked of the version that was valid; rows that fail it are versions all the same
        conditions.rest, conditions.right = [*conditions.right, *conditions.rest], []
    for part in conditions.left:
        if how not in ("left", "full", "anti"):
            left = attrs.evolve(left, stream=left.stream.filter(left.expr(part)))
        elif keys:
            keys[0] = (_where(part, keys[0][0]), keys[0][1])
    for part in conditions.right:
        if how not in ("right", "full"):
            right = attrs.evolve(right, stream=right.stream.filter(right.expr(part)))
        elif keys:
            keys[0] = (keys[0][0], _where(part, keys[0][1]))
    conditions.keys = keys
    return attrs.evolve(join_sides, left=left, right=right)


def _where(condition: sg.Expression, key: sg.Expression) -> sg.Expression:
    return sg.Case(ifs=[sg.If(this=condition.copy(), true=key.copy())])


_BOUNDS: Final = ("window_start", "window_end")


def _without_bounds(join_sides: Sides) -> Sides:
    """Return the sides of a window join without columns that are called as the bounds its results have."""
    if not join_sides.conditions.same:
        return join_sides
    left = apart(join_sides.left, [*_BOUNDS, *(n.lower() for n in join_sides.right.schema.names)])
    right = apart(join_sides.right, [*_BOUNDS, *(n.lower() for n in left.schema.names)])
    return attrs.evolve(join_sides, left=left, right=right)


def _may_lack(how: How, side: SideName) -> bool:
    """Return whether results of a join may lack the row of a side."""
    return how == "full" or how == ("left" if side == "right" else "right")


def _bounds(stream: ResultStream, join_sides: Sides) -> tuple[ResultStream, dict[SideName, dict[Role, str]]]:
    """Return results of a window join, and their columns with the bounds of sides that may lack a row: null where they do."""
    made: dict[SideName, dict[Role, str]] = {}
    both: tuple[tuple[SideName, Relation], ...] = (("left", join_sides.left), ("right", join_sides.right))
    for side, rows in both:
        if not _may_lack(join_sides.how, side) or rows.event_time is None or not rows.pending:
            continue
        roles: tuple[Role, ...] = ("start", "end")
        made[side] = {role: free(f"window_{role}_{side}", stream.schema.names) for role in roles}
        has_row = UnOp("is_not_null", Col(rows.event_time))
        for role, name in made[side].items():
            stream = stream.with_column(name, Func("if_else", (has_row, Col(f"window_{role}"), Lit(None))))
    return stream, made


_Streams: TypeAlias = "list[Stream | ResultStream]"


def _copies(keys: list[tuple[str, str]], streams: _Streams, how: How) -> tuple[dict[str, str], _Streams]:
    """Copies of keys that are null where their side has no row: results have the key columns once, and never null."""
    renamed: dict[str, str] = {}
    for i, outer in ((0, how in ("right", "full")), (1, how in ("left", "full"))):
        for key in (pair[i] for pair in keys) if outer else ():
            taken = [*streams[0].schema.names, *streams[1].schema.names]
            renamed[key] = free(f"{key}_key", taken)
            streams[i] = streams[i].with_column(renamed[key], col(key))
    return renamed, streams


def _made(
    left: TimedStream, right: TimedStream, on: dict[str, str], join_sides: Sides
) -> tuple[ResultStream, WindowCall | None]:
    conditions, how = join_sides.conditions, join_sides.how
    if not conditions.same and (join_sides.left.pending or join_sides.right.pending):
        raise PlanError(
            "rows of a window function are joined by something else than their windows",
            got=f"left {join_sides.left.window}, right {join_sides.right.window}",
            then="a row would meet others once for each of its windows",
            hint=f"{_WINDOWS}; or leave the window function out",
        )
    if join_sides.version is not None:
        return _as_of(left, right, on, join_sides, join_sides.version), None
    if conditions.same:
        window = _same_window(conditions, join_sides)
        return left.window_join(right, on, window=_value(window), how=how), window
    if not conditions.lower or not conditions.upper:
        missing = "no bound" if not conditions.lower and not conditions.upper else "a bound on one side only"
        results = "join_time" in (join_sides.left.event_time, join_sides.right.event_time)
        hint = f"{_BOUND}; or {_WINDOWS}{'; the time of what a join gives is join_time' if results else ''}"
        raise PlanError("the join has no interval of time", got=missing, then="rows would have to be kept for ever", hint=hint)
    lower, upper = (dt.timedelta(microseconds=us) for us in (max(conditions.lower), min(conditions.upper)))
    return left.interval_join(right, on, lower=lower, upper=upper, how=how), None


def _as_of(
    left: TimedStream, right: TimedStream, on: dict[str, str], join_sides: Sides, version: sg.Expression
) -> ResultStream:
    conditions, how = join_sides.conditions, _how_as_of(join_sides, version)
    tolerance = dt.timedelta(microseconds=-max(conditions.lower)) if conditions.lower else None
    return left.asof_join(right, on, tolerance=tolerance, how="left" if how == "left" else "inner")


def _of_version(
    left: TimedStream, table: ResultStream, on: dict[str, str], join_sides: Sides, version: sg.Expression
) -> ResultStream:
    how = _how_as_of(join_sides, version)
    return left.versioned_join(table, on, how="left" if how == "left" else "inner")


def _named_otherwise(table: ResultStream, rows: Relation, apart_rows: Relation, copied: dict[str, str]) -> ResultStream:
    """Return a table of changes whose columns are called as those of another relation, and copies of some of its keys.

    That is done to what it reads: no step may follow the table of a versioned join.
    """
    stage, pairs = table._stage, zip(rows.columns, apart_rows.columns, strict=True)
    new = {old.actual: other.actual for old, other in pairs if old.actual is not None and other.actual is not None}
    mark = stage.input
    names = [name for name in hidden.row_schema(mark).names if name not in copied.values()]
    columns = [(copied[new.get(key, key)], col(key)) for key in stage.keys if new.get(key, key) in copied]
    columns += [(new.get(name, name), col(name)) for name in names]  # what a change does comes last
    read = attrs.evolve(mark, input=Project(mark.input, tuple(columns)), column=new.get(mark.column, mark.column))
    keys = tuple(new.get(key, key) for key in stage.keys)
    assert stage.operation is not None
    return results_of(attrs.evolve(stage, input=read, keys=keys).doing(stage.operation), table._runner)


def _how_as_of(join_sides: Sides, version: sg.Expression) -> How:
    """Return which rows a join AS OF gives, once it names the time of its left side and nothing else."""
    conditions, how, text = join_sides.conditions, join_sides.how, version.sql("spark")
    own = all(c.table in (None, "", *(t.table for t in join_sides.left.columns)) for c in version.find_all(sg.Column))
    time = join_sides.left.resolved(version) if own else None
    if not isinstance(time, sg.Column) or time.name not in join_sides.left.times:
        raise refused("AS OF another time", text, "name the event time of the left side: FOR SYSTEM_TIME AS OF a.ts")
    if how not in ("inner", "left"):
        raise refused(f"a {how} join AS OF", text, "write JOIN or LEFT JOIN")
    if [us for us in conditions.upper if us < 0] or [us for us in conditions.lower if us > 0] or conditions.same:
        raise refused("other bounds of a join AS OF", text, "the version at a time is the newest at or before it")
    return how


def _same_window(conditions: Conditions, join_sides: Sides) -> WindowCall:
    if conditions.same != {"start", "end"} or conditions.lower or conditions.upper:
        what = "a window join compares both bounds, and no times"
        raise PlanError(what, got=", ".join(sorted(conditions.same)), hint=_WINDOWS)
    one, other = join_sides.left.window, join_sides.right.window
    if one is None or one != other:
        hint = "write the same window function on both sides"
        raise PlanError("both sides of a window join have the same windows", got=f"left {one}, right {other}", hint=hint)
    return one


def _value(window: WindowCall) -> HoppingWindow:
    if not window.lengths:
        raise refused("a join of windows of the calendar", str(window), "join tumbling or hopping windows without a time zone")
    lengths = [dt.timedelta(microseconds=us) for us in window.lengths]
    offset = dt.timedelta(microseconds=window.offset_us)
    if window.kind == "tumble":
        return tumbling(lengths[0], offset)
    if window.kind == "hop":
        return hopping(lengths[1], lengths[0], offset)
    raise refused(f"a join of {window.kind} windows", str(window), "join tumbling or hopping windows")


def _columns(
    join_sides: Sides,
    keys: list[tuple[str, str]],
    renamed: dict[str, str],
    stream: ResultStream,
    window: WindowCall | None,
    bounds: dict[SideName, dict[Role, str]],
) -> tuple[Column, ...]:
    """Return the columns of results, under the names they had before."""
    how = join_sides.how
    left_of = {right: left for left, right in keys}
    sides: dict[SideName, Relation] = {"left": join_sides.left, "right": join_sides.right}
    if how in ("semi", "anti"):
        del sides["right"]
    columns: list[Column] = []
    time = stream._draft.input.column
    for side, rows in sides.items():
        sure = not _may_lack(how, side)
        for column in rows.columns:
            actual = column.actual
            if actual is None:
                if window is not None and column.role in ("start", "end"):
                    own = bounds.get(side, {}).get(column.role)
                    known = attrs.evolve(column, actual=f"window_{column.role}", bound=column.role)
                    columns.append(known if own is None else attrs.evolve(known, actual=own, role=None))
                continue
            actual = renamed.get(actual) or left_of.get(actual, actual)
            role: Role | None = "time" if actual == time else None
            columns.append(attrs.evolve(column, actual=actual, role=role, bound=None, sure=column.sure and sure))
    columns += [Column(None, f"window_{role}", f"window_{role}", role, hidden=True) for role in _roles_left(window, columns)]
    if time and not any(c.role == "time" for c in columns):
        columns.append(Column(None, time, time, "time", hidden=True))
    return tuple(columns)


def _roles_left(window: WindowCall | None, columns: list[Column]) -> list[Role]:
    """Return the bounds of the window of results that no column of a side is in every row."""
    roles: tuple[Role, ...] = () if window is None else ("start", "end")
    return [role for role in roles if not any(c.role == role for c in columns)]


VALIDITY: Final = "write ON a.id = t.id, and for validity AND a.ts >= t.valid_from AND a.ts < t.valid_to"


def looked_up(
    left: Relation, table: StaticTable, alias: str, parts: list[sg.Expression], how: How, node: sg.Expression
) -> Relation:
    """Rows with the columns of a table.

    Raises
    ------
    PlanError
        For joins that need more than a look into the table.
    """
    if how == "right" or how == "full":
        hint = "write LEFT JOIN: a table alone gives no rows of a stream"
        raise refused(f"a {how} join with a table that does not change", node.sql("spark"), hint)
    stream = left.stream
    if isinstance(stream, ResultStream):
        then = "a lookup is a step before the watermark"
        hint = f"join {table.name} in the innermost query, before windows and other joins"
        raise PlanError("rows after a stage are not looked up in a table", got=node.sql("spark"), then=then, hint=hint)
    names = _names(left, table)
    theirs = tuple(Column(alias, n, names[n]) for n in table.schema.names)
    fields = [table.schema.field(n).with_name(made) for n, made in names.items()]
    whole = Relation(Stream(stream._node, pa.schema(fields), stream._runner), theirs)
    both = Stream(stream._node, pa.schema([*left.schema, *fields]), stream._runner)
    sorter = ConditionSorter(left, whole, attrs.evolve(left, stream=both, columns=(*left.columns, *theirs)))
    look = _LookupConditions(left, sorter, {made: name for name, made in names.items()}, stream)
    rest: list[sg.Expression] = []
    for part in parts:
        if look.validity(part) or look.key(part) or (how in ("inner", "semi") and look.own(part)):
            continue
        if how != "inner":
            what = f"this condition of a {how} join with a table that does not change"
            raise refused(what, part.sql("spark"), _kept(part, table, alias, how))
        rest.append(part)
    if not look.keys:
        raise no_key(parts, VALIDITY)
    if (look.starts is None) != (look.ends is None):
        raise refused("validity with one bound", node.sql("spark"), VALIDITY)
    valid = None if look.starts is None or look.ends is None else (look.starts, look.ends)
    added = None if how in ("semi", "anti") else names
    made = look.stream.lookup_join(table.table, look.keys, columns=added, how=how, validity=valid, at=look.at)
    relation = attrs.evolve(left, stream=made, columns=left.columns if added is None else (*left.columns, *theirs))
    for part in rest:
        relation = attrs.evolve(relation, stream=relation.stream.filter(relation.expr(part)))
    return relation


def _kept(part: sg.Expression, table: StaticTable, alias: str, how: How) -> str:
    """Return how to write a condition that leaves rows of the left side without a match, and drops none."""
    if all(c.table == alias or (not c.table and c.name in table.schema.names) for c in part.find_all(sg.Column)):
        return f"leave it out, and register {table.name} without the rows for which it is not true"
    if how in ("semi", "anti"):
        return f"leave it out, and register {table.name} with the column that both sides are equal in"
    choice = f"CASE WHEN {part.sql('spark')} THEN {alias}.{table.schema.names[-1]} END"
    return f"leave it out of ON and select {choice}, and so each column of {alias}, where a key has one row in {table.name}"


@attrs.define(eq=False)
class _LookupConditions:
    """Holds what the conditions of a lookup have said so far."""

    left: Relation
    sorter: ConditionSorter
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
        one = evaluate.expr_type(self.left.expr(ours), self.left.schema)
        other = evaluate.expr_type(self.sorter.both.expr(theirs), self.sorter.both.schema)
        if one != other and is_key_type(one) and is_key_type(other):
            raise _other_types((ours, theirs), one, other)
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


def _names(left: Relation, table: StaticTable) -> dict[str, str]:
    """Names for the columns of the table among those of the rows."""
    names: dict[str, str] = {}
    for name in table.schema.names:
        names[name] = free(name, [*left.schema.names, *names.values()])
    return names


def _validity(node: sg.Expression, sorter: ConditionSorter) -> tuple[str, str, bool] | None:
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
