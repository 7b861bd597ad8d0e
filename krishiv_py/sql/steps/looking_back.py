"""``OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW)``: look-back windows."""

from __future__ import annotations

import datetime as dt
from typing import Final

import attrs
from sqlglot import expressions as sg

from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.sql.scope import Column, Env, Relation, dotted
from krishiv_py.sql.text.aggregates import aggregate
from krishiv_py.sql.text.statements import only, refused
from krishiv_py.sql.text.windows import interval_us, tick_us

_SHOW: Final = (
    "write SUM(x) OVER (PARTITION BY user ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW), "
    "with the event time as ts"
)
_SPEC: Final = frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"})


@attrs.frozen
class _Frame:
    size_us: int
    two_sided: bool
    excludes: bool


def looking_back(tree: sg.Select, rows: Relation, env: Env) -> tuple[Relation, sg.Select]:
    """Rows with a column for each OVER, and the query with these columns in the place of OVER.

    Raises
    ------
    PlanError
        For ranges that are not by event time, and several partitions.
    """
    if rows.window is not None and rows.pending:
        hint = "group by window_start, window_end, or leave the window function out"
        raise refused("OVER in a window", tree.sql("spark"), hint)
    calls: list[AggCall] = []
    frames: list[_Frame] = []
    partitions: list[list[sg.Expression]] = []
    taken = [*rows.schema.names, "window_start", "window_end"]
    columns = list(rows.columns)

    def step(node: sg.Expression) -> sg.Expression:
        if not isinstance(node, sg.Window):
            return node
        only(node, frozenset({"this", "partition_by", "order", "spec", "over"}))
        call = aggregate(rows.resolved(node.this))
        if call is None:
            raise refused("this function OVER", node.sql("spark"), _SHOW)
        frames.append(_frame(node, rows))
        partitions.append([rows.resolved(p) for p in node.args.get("partition_by") or ()])
        name = free(f"over_{len(calls) + 1}", taken)
        taken.append(name)
        calls.append(call.alias(name))
        columns.append(Column(None, name, name, hidden=True))
        return dotted([name])

    changed = tree.copy()
    changed.set("expressions", [_named(e).transform(step) for e in changed.expressions])
    if any(p != partitions[0] for p in partitions) or len({(f.two_sided, f.excludes) for f in frames}) > 1:
        raise refused("OVER with several partitions or kinds of ranges", tree.sql("spark"), "write a query for each")
    source, keys = rows.stream, []
    for node in partitions[0]:
        expr = expr_of(node)
        keys.append(expr.name if isinstance(expr, Col) else free("partition", taken))
        if not isinstance(expr, Col):
            taken.append(keys[-1])
            source = source.with_column(keys[-1], expr)
    longest = max(f.size_us for f in frames)
    ranged = [_ranged(c, f.size_us, longest) for c, f in zip(calls, frames, strict=True)]
    windowed = rows.timed(source, env.lag_us).key_by(*dict.fromkeys(keys))
    stream = windowed.lookback_window(
        dt.timedelta(microseconds=longest), with_row=True, two_sided=frames[0].two_sided, exclude_self=frames[0].excludes
    ).agg(ranged)
    return Relation(stream.results(), tuple(columns)), changed


def _ranged(call: AggCall, size_us: int, longest_us: int) -> AggCall:
    return call if size_us == longest_us else call.over(dt.timedelta(microseconds=size_us))


def _named(item: sg.Expression) -> sg.Expression:
    """Return an item that keeps the name it would have had."""
    if isinstance(item, sg.Alias) or item.find(sg.Window) is None:
        return item
    return sg.Alias(this=item.copy(), alias=sg.to_identifier(item.sql("spark"), quoted=True))


def _frame(node: sg.Window, rows: Relation) -> _Frame:
    order, spec = node.args.get("order"), node.args.get("spec")
    by = order.expressions if order is not None else []
    if len(by) != 1 or by[0].args.get("desc") or rows.resolved(by[0].this) not in [dotted([t]) for t in rows.times]:
        raise refused("OVER in another order than that of the event time", node.sql("spark"), _SHOW)
    if spec is None or spec.args.get("kind") != "RANGE" or spec.args.get("start_side") != "PRECEDING":
        raise refused("OVER without a range of time", node.sql("spark"), _SHOW)
    only(spec, _SPEC)
    exclude = spec.args.get("exclude")
    if exclude is not None and exclude.name.upper() not in ("CURRENT ROW", "NO OTHERS"):
        raise refused("EXCLUDE of other rows", node.sql("spark"), "EXCLUDE CURRENT ROW leaves the row itself out")
    size_us, end = _length(spec.args["start"], node, rows), spec.args.get("end")
    excludes = exclude is not None and exclude.name.upper() == "CURRENT ROW"
    if end in (None, "CURRENT ROW"):  # RANGE INTERVAL '1' MINUTE PRECEDING
        return _Frame(size_us, False, excludes)
    if spec.args.get("end_side") != "FOLLOWING" or _length(end, node, rows) != size_us:
        hint = f"end with CURRENT ROW, or with as long a time FOLLOWING; {_SHOW}"
        raise refused("OVER with other ends", node.sql("spark"), hint)
    return _Frame(size_us, True, excludes)


def _length(node: object, over: sg.Window, rows: Relation) -> int:
    """Return a length of time; a number is of milliseconds, over a column of milliseconds."""
    if not isinstance(node, sg.Expression):
        raise PlanError("the range has no length", got=over.sql("spark"), then="every row would have to be kept", hint=_SHOW)
    time = rows.event_time
    if isinstance(node, sg.Literal) and node.is_int and time is not None and tick_us(rows.schema.field(time).type) == 1_000:
        return int(node.name) * 1_000
    return interval_us(node, "OVER", allow_zero=True)
