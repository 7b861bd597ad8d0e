"""Rules as a stream (SEMANTICS §16.10): each row meets the rules that are valid at its time, and whose condition holds.

A rule is a row of a table of changes; state has its versions, each valid from its time on until before the next one of its key.
Conditions are texts. They are read and checked as they arrive, and evaluated column by column, equal ones once for all rules
that have them. Where a condition names columns of its rule, pairs of a row and a rule are evaluated; of those only the ones
that an equality such as ``user = rule.who`` lets through::

    rules    a: n > 5 from 10, n > 8 from 20       b: n = rule.wanted (7) from 0
    rows     n 7 at 12: a, b                       n 7 at 25: b
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.errors import KrishivError, OperatorError, shown
from krishiv_py.kernels.changes.readable import readable
from krishiv_py.kernels.columns.evaluate import evaluate, expr_type
from krishiv_py.kernels.columns.layout import TIME, whole
from krishiv_py.kernels.joins.interval import NOBODY, Pairs, results
from krishiv_py.kernels.joins.sides import NUMBER, JoinOperator, JoinProgress
from krishiv_py.kernels.ordered import row_ranks
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import TimeLog
from krishiv_py.kernels.state.window_log import KeyedLog
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.expressions.expr import BinOp, Col, Expr, Field, columns_of
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.plan.joins import BAD_RULE, RULE, RulesJoin
from krishiv_py.plan.sides import RIGHT

_PAIRS: Final = 1 << 18
"""The number of pairs that a condition is evaluated for at a time."""


@attrs.frozen(eq=False)
class _Versions:
    """Versions of rules: their rows, and from when on and until before when each is valid, µs."""

    rows: pa.Table
    starts: Ints
    ends: Ints


class RulesOperator(JoinOperator):
    """See the module's docstring."""

    join: RulesJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, RulesJoin)
        self.join = join = spec.operation
        working = self.layout.working
        self.schemas = tuple(self.schema_of(half) for half in self.halves)
        self.change, self.sequence = working[join.change], [working[name] for name in join.sequence]
        self.condition = working[dict(join.rules)[join.condition_column]]
        self.key = [working[name] for name in join.key]
        self.of_rule = {name: working[inside] for name, inside in join.rules}
        self.of_row = {name: working[name] for name in join.sides.left}
        fields = spec.row_schema
        self.rule_type = pa.struct([pa.field(name, fields.field(inside).type) for name, inside in join.rules])
        self.schema = pa.schema([*(fields.field(name) for name in join.sides.left), pa.field(RULE, self.rule_type)])

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of each side that results have."""
        left, right = super().names
        return left, right[: len(self.join.sides.right)]

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        known = JoinProgress.of(bucket)
        passed = self._horizon(known.joined_at)
        lefts, rules = TimeLog(bucket, "al"), KeyedLog(bucket, "as", self.schemas[1], lambda rows, _: rows)
        left, right = known.fresh(chunks, self.halves, self.schemas)
        known.joined_at = max(known.joined_at, moment.watermark_us)
        known.store(bucket)
        lefts.append(left.table, passed)
        fresh, late = self._checked(right.table, moment)
        rules.append(fresh)
        horizon = self._horizon(known.joined_at)
        due = lefts.load(passed, horizon)
        table, unmatched = self.layout.result_schema.empty_table(), 0
        if due is not None:
            table, unmatched = self._results_of(rules.everything(), due.combine_chunks())
        lefts.pass_by(horizon)
        lefts.forget(horizon)
        if horizon == END_OF_TIME:
            rules.clear()
        elif fresh.num_rows:
            kept = self._changes_from(rules.everything(), horizon)
            rules.clear()
            rules.append(kept)
        wakeup = lefts.next_waiting
        wakeup = None if wakeup is None else wakeup + self.late_us + 1
        counters = {"unmatched": unmatched} | ({"refused_changes": sum(t.num_rows for t in late)} if late else {})
        refused, held = pa.concat_tables(late) if late else None, lefts.waiting + len(rules)
        return StepResult(table, wakeup, held, held, table.num_rows, counters, refused)

    def _horizon(self, us: int) -> int:
        """Before which time rows have their results under a watermark."""
        return max(floor_watermark(us, self.late_us), self.layout.spec.options.left_us)

    def _checked(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, list[pa.Table]]:
        """Part rules that can be taken from those that are put aside: the version before these stays."""
        rows, refused = readable(rows, self.change, self.sequence)
        if rows.num_rows:
            texts = pc.if_else(rows[self.change], rows[self.condition], pa.scalar(None, pa.string()))
            bad = [text for text in texts.unique().to_pylist() if text is not None and self._read(text) is None]
            if bad:
                mask = pc.is_in(texts, value_set=pa.array(bad, pa.string()))
                refused[BAD_RULE] = rows.filter(mask)
                rows = rows.filter(pc.invert(mask))
        side = self.layout.own_names[0]
        late = []
        for reason, part in refused.items():
            named = part.append_column(side, pa.repeat(pa.scalar(RIGHT), part.num_rows))
            late.append(self.layout.refused(named, reason, moment.watermark_us))
        return rows, late

    def _read(self, text: str) -> Expr | None:
        """Return a condition that is read; None where it is none over rows and their rule."""
        expr = _parsed(text)
        if expr is None:
            return None
        try:
            fits = pa.types.is_boolean(expr_type(expr, self.schema))
        except KrishivError:
            return None
        return expr if fits else None

    def _ordered(self, rows: pa.Table) -> tuple[pa.Table, Ints, Ints]:
        """Return changes by rule and time, of each time the one that counts; the rule of each, and its time."""
        of = group([rows[name] for name in self.key], rows.num_rows).ids
        times, by = rows[TIME].to_numpy(), rows[NUMBER].to_numpy()
        ranks = row_ranks(rows.select(self.sequence)) if self.sequence and rows.num_rows else by
        order = np.lexsort((by, ranks, times, of))
        of, times = of[order], times[order]
        last = np.append((of[1:] != of[:-1]) | (times[1:] != times[:-1]), np.ones(min(len(of), 1), np.bool_))
        return pick(rows, order[last]), of[last], times[last]

    def _changes_from(self, rows: pa.Table, horizon: int) -> pa.Table:
        """Return the changes that count for rows from `horizon` on."""
        rows, of, times = self._ordered(rows)
        followed = np.append((of[1:] == of[:-1]) & (times[1:] <= horizon), np.zeros(min(len(of), 1), np.bool_))
        return pick(rows, np.flatnonzero(~followed))

    def _versions(self, rows: pa.Table, first: int, last: int) -> _Versions:
        """Return the versions that are valid at some time from `first` to `last`."""
        rows, of, times = self._ordered(rows)
        ends = np.append(np.where(of[1:] == of[:-1], times[1:], END_OF_TIME), np.full(min(len(of), 1), END_OF_TIME))
        up = rows[self.change].to_numpy(zero_copy_only=False).astype(np.bool_) & rows[self.condition].is_valid().to_numpy()
        some = np.flatnonzero(up & (times <= last) & (ends > first))
        return _Versions(pick(rows, some), times[some], ends[some])

    def _results_of(self, rules: pa.Table, due: pa.Table) -> tuple[pa.Table, int]:
        """Return the results of rows, and how many of them are not given as no rule holds."""
        due = pick(due, stable_order(due[TIME].to_numpy()))
        times = due[TIME].to_numpy()
        versions = self._versions(rules, int(times[0]), int(times[-1])) if len(times) else None
        lefts, places = np.empty(0, np.int64), np.empty(0, np.int64)
        right = rules.slice(0, 0)
        if versions is not None and versions.rows.num_rows:
            right = versions.rows.combine_chunks()
            parts = list(self._pairs(due, times, versions))
            lefts, places = (np.concatenate([lefts, *(part[n] for part in parts)]) for n in (0, 1))
        none = np.ones(len(times), np.bool_)
        none[lefts] = False
        if self.join.how == "left":
            alone = np.flatnonzero(none)
            lefts, places = np.concatenate([lefts, alone]), np.concatenate([places, np.full(len(alone), NOBODY)])
        pairs = Pairs(lefts, places)
        table = results(self.layout, self.names, due, right, pairs, times[lefts])
        return table, int(np.count_nonzero(none)) if self.join.how == "inner" else 0

    def _pairs(self, due: pa.Table, times: Ints, versions: _Versions) -> Iterator[tuple[Ints, Ints]]:
        """Yield pairs of a row and a version whose condition holds, of all texts one after the other."""
        texts = group([versions.rows[self.condition]], versions.rows.num_rows)
        order = stable_order(texts.ids)
        begins = np.searchsorted(texts.ids[order], np.arange(texts.n + 1))
        for number, place in enumerate(texts.first.tolist()):
            mine = order[begins[number] : begins[number + 1]]
            text = versions.rows[self.condition][place].as_py()
            expr = self._read(text)
            if expr is None:
                rule = {
                    name: versions.rows[inside][place].as_py() for name, inside in zip(self.join.key, self.key, strict=True)
                }
                raise OperatorError(
                    "the condition of a rule does not fit the rows any more",
                    got=f"{shown(text)} of {rule}",
                    then="the rule would not be followed",
                    hint="send the rule again with another condition, or keep the columns that it names",
                )
            if RULE not in columns_of(expr):
                held = np.flatnonzero(_true(evaluate(expr, self._rows(due, columns_of(expr)))))
                spans = np.searchsorted(times[held], versions.starts[mine]), np.searchsorted(times[held], versions.ends[mine])
                at, of = expand(spans[0], np.maximum(*spans))
                yield held[at], mine[of]
            else:
                yield from self._with_rule(expr, due, times, versions, mine)

    def _with_rule(
        self, expr: Expr, due: pa.Table, times: Ints, versions: _Versions, mine: Ints
    ) -> Iterator[tuple[Ints, Ints]]:
        """Yield such pairs for a condition over rows and columns of their rule."""
        low, high = np.searchsorted(times, versions.starts[mine]), np.searchsorted(times, versions.ends[mine])
        order = np.arange(len(times))
        if (equal := _equality(expr, set(self.of_row))) is not None:
            mine_column = pick(versions.rows[self.of_rule[equal[1]]], mine)
            column = due[self.of_row[equal[0]]]
            if column.type == mine_column.type and not pa.types.is_nested(column.type):
                both = pa.chunked_array([*column.chunks, *mine_column.chunks], column.type)
                codes = group([both], len(both)).ids
                own, theirs = codes[: len(times)], codes[len(times) :]
                order, width = stable_order(own), len(times) + 1
                places = own[order] * width + order  # rows lie by time, so within a code their numbers ascend
                low = np.searchsorted(places, theirs * width + low)
                high = np.searchsorted(places, theirs * width + high)
        counts = np.cumsum(np.maximum(high - low, 0))
        begin, used = 0, columns_of(expr)
        while begin < len(mine):
            before = counts[begin - 1] if begin else 0
            end = max(int(np.searchsorted(counts, before + _PAIRS, side="right")), begin + 1)
            at, of = expand(low[begin:end], np.maximum(low[begin:end], high[begin:end]))
            lefts, rules = order[at], mine[begin:end][of]
            if len(lefts):
                holds = _true(evaluate(expr, self._rows(pick(due, lefts), used, pick(versions.rows, rules))))
                yield lefts[holds], rules[holds]
            begin = end

    def _rows(self, rows: pa.Table, used: frozenset[str], rules: pa.Table | None = None) -> pa.RecordBatch:
        """Return the columns of rows, and of their rules, as a condition calls them."""
        columns = {name: whole(rows[inside]) for name, inside in self.of_row.items() if name in used}
        if rules is not None:
            parts = [whole(rules[inside]) for inside in self.of_rule.values()]
            columns[RULE] = pa.StructArray.from_arrays(parts, fields=list(self.rule_type))
        if not columns:
            columns[RULE] = pa.nulls(rows.num_rows, self.rule_type)
        return pa.RecordBatch.from_pydict(columns)


@lru_cache(maxsize=65_536)
def _parsed(text: str) -> Expr | None:
    try:
        return parse_expr(text)
    except KrishivError:
        return None


def _true(values: pa.Array) -> Ints:
    """Return which values are true; null is not."""
    mask: Ints = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def _equality(expr: Expr, columns: set[str]) -> tuple[str, str] | None:
    """Return a column of rows and one of rules that a condition says to be equal, if it says so."""
    if isinstance(expr, BinOp) and expr.op == "and":
        return _equality(expr.left, columns) or _equality(expr.right, columns)
    if not isinstance(expr, BinOp) or expr.op not in ("=", "=="):
        return None
    for one, other in ((expr.left, expr.right), (expr.right, expr.left)):
        of_rule = isinstance(other, Field) and isinstance(other.arg, Col) and other.arg.name == RULE
        if isinstance(one, Col) and one.name in columns and of_rule and isinstance(other, Field):
            return one.name, other.name
    return None
