"""The kernel of each operation, and the operator of rows as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.kernels import absence, dedup, previous
from krishiv_py.kernels.changes import changelog, history, multiset, net, running, top, touched
from krishiv_py.kernels.changes import join as table_join
from krishiv_py.kernels.changes import table as tables
from krishiv_py.kernels.changes import windowed as changed_windows
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.joins import asof, interval, rules, windowed
from krishiv_py.kernels.patterns import operator as patterns
from krishiv_py.kernels.process import operator as process
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.ttl import ExpiringAssigned, ExpiringFixed, ExpiringOperator
from krishiv_py.kernels.windows import count as counts
from krishiv_py.kernels.windows.fixed import panes, triggered
from krishiv_py.kernels.windows.fixed.plain import FixedOperator
from krishiv_py.kernels.windows.ranged import distinct, lookback
from krishiv_py.kernels.windows.session import capped, capped_triggered, growing
from krishiv_py.kernels.windows.session import plain as sessions
from krishiv_py.kernels.wrappers import (
    HandingOnOperator,
    ProjectedOperator,
    PunctualOperator,
    StepsAfterOperator,
    WholeOperator,
    WrappingOperator,
)
from krishiv_py.plan.durations import UNSET


class RowsOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        schema = self.layout.result_schema
        given = [pa.Table.from_arrays(c.select(self.layout.own_names).columns, schema=schema) for c in chunks]
        results = pa.concat_tables([schema.empty_table(), *given])
        return StepResult(results, None, 0, 0, results.num_rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """Refused: there is none."""
        hint = "read the results instead"
        raise PlanError("a stream without windows keeps no state", got=self.layout.spec.operation.describe(), hint=hint)


class UnionOperator(RowsOperator):
    """Hands changes of two tables on: what one withdraws and the other gives in a batch is as it was."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = super().step(bucket, chunks, moment)
        return attrs.evolve(done, results=net.without_unchanged(done.results))


@attrs.frozen(eq=False)
class Link:
    """One operator of a chain: what it is, and how it is made around the next one."""

    title: str
    make: Callable[[OperatorSpec, Any], WindowOperator]


def chain(spec: OperatorSpec) -> tuple[Link, ...]:
    """Return the operators that a specification is run by, the one around all others first; nothing is built."""
    links = [_window(spec)]
    if spec.options.ttl is not None:
        around = _EXPIRING.get(spec.operation.route)
        keys = Link("time to live of keys", ExpiringOperator)
        if spec.operation.gives_table:
            keys = Link("time to live of keys", lambda whole, inner: tables.ExpiringTable(whole, inner))
        if spec.options.ttl._sides is not None:
            keys = Link("time to live of each side", lambda whole, inner: table_join.ExpiringSide.around(whole, inner))
        links.insert(0, keys if around is None else Link("time to live of windows", around))
    if spec.options.late_rule == "window":
        links.insert(0, Link("fire before rows are taken in", PunctualOperator))
    return (*_around(spec), *links)


def _around(spec: OperatorSpec) -> tuple[Link, ...]:
    """Return what happens to results, which no kernel has to know: each gets the specification without what is around it."""
    links: list[Link] = []
    if spec.after:
        links.append(Link("steps over results", StepsAfterOperator))
    if spec.output is not None:
        links.append(Link("other names", lambda whole, inner: ProjectedOperator(attrs.evolve(whole, after=()), inner)))
    if spec.followed:
        links.append(Link("event time of results", _handing_on))
    if spec.wholes or spec.blind_us != UNSET:
        links.append(Link("null where rows from before a savepoint lack", WholeOperator))
    return tuple(links)


def _handing_on(whole: OperatorSpec, inner: WindowOperator) -> WindowOperator:
    return HandingOnOperator(attrs.evolve(whole, after=(), output=None), inner)


def operator_for(spec: OperatorSpec) -> WindowOperator:
    """Return the operator of a specification."""
    links, around = chain(spec), len(_around(spec))
    operator: WindowOperator | None = None
    for link in reversed(links[around:]):
        operator = link.make(spec.plain, operator)
    for link in reversed(links[:around]):
        operator = link.make(spec, operator)
    assert operator is not None
    return operator


def _window(spec: OperatorSpec) -> Link:
    if spec.changes and spec.operation.nature.opens_windows:
        return Link("windows over changes", lambda spec, _: changed_windows.ChangedWindowsOperator(spec))
    plainly = spec.operation.fires_plainly(spec.options)
    title, operator = _PLAIN[spec.operation.route] if plainly else _OFTEN[spec.operation.route]
    return Link(title, lambda spec, _: operator(spec))


Made: TypeAlias = tuple[str, Callable[[OperatorSpec], WindowOperator]]
_PLAIN: Final[dict[str, Made]] = {
    "fixed": ("fixed windows", FixedOperator),
    "panes": ("panes", lambda spec: panes.PaneOperator(spec)),
    "assigned": ("windows of an assigner", lambda spec: triggered.AssignedOperator(spec)),
    "lookback": ("look-back windows", lambda spec: lookback.LookBackOperator(spec)),
    "lookback on arrival": ("look-back windows on arrival", lambda spec: lookback.ArrivalOperator(spec)),
    "distinct": ("distinct-set windows", lambda spec: distinct.DistinctOperator(spec)),
    "count": ("count windows", lambda spec: counts.CountOperator(spec)),
    "session": ("sessions", lambda spec: sessions.SessionOperator(spec)),
    "capped session": ("sessions with a longest duration", lambda spec: capped.CappedSessionOperator(spec)),
    "rows": ("rows as they are", RowsOperator),
    "deduplication": ("deduplication", lambda spec: dedup.DedupOperator(spec)),
    "absence": ("absence", lambda spec: absence.AbsenceOperator(spec)),
    "match": ("pattern", lambda spec: patterns.PatternOperator(spec)),
    "previous": ("rows before", lambda spec: previous.PreviousOperator(spec)),
    "process": ("process function", lambda spec: process.ProcessOperator(spec)),
    "changelog": ("rows by key", lambda spec: changelog.ChangelogOperator(spec)),
    "row log": ("rows with their number", lambda spec: multiset.RowLogOperator(spec)),
    "history": ("versions by key", lambda spec: history.HistoryOperator(spec)),
    "changes as rows": ("changes as rows", RowsOperator),
    "union of tables": ("union of tables", lambda spec: UnionOperator(spec)),
    "regular join": ("join of tables", lambda spec: table_join.RegularJoinOperator(spec)),
    "first rows": ("first rows", lambda spec: top.TopRowsOperator(spec)),
    "running aggregate": ("aggregates without a window", lambda spec: running.RunningOperator(spec)),
    "as-of join": ("as-of join", lambda spec: asof.AsofOperator(spec)),
    "versioned join": ("versioned join", lambda spec: asof.VersionedOperator(spec)),
    "features": ("features of labels", lambda spec: asof.FeatureOperator(spec)),
    "rules": ("rules", lambda spec: rules.RulesOperator(spec)),
    "window join": ("window join", lambda spec: windowed.WindowJoinOperator(spec)),
    "interval join": ("interval join", lambda spec: interval.IntervalJoinOperator(spec)),
}
"""The operators by the route of an operation."""
_OFTEN: Final[dict[str, Made]] = {
    **_PLAIN,
    "fixed": ("fixed windows with triggers", lambda spec: triggered.TriggeredOperator(spec)),
    "assigned": ("windows of an assigner with triggers", lambda spec: triggered.AssignedOperator(spec)),
    "count": ("count windows with triggers", lambda spec: counts.TriggeredCountOperator(spec)),
    "session": ("sessions with triggers", lambda spec: growing.TriggeredSessionOperator(spec)),
    "capped session": (
        "sessions with a longest duration and triggers",
        lambda spec: capped_triggered.CappedTriggeredOperator(spec),
    ),
}
"""The same for windows that fire otherwise than they do by default."""
_EXPIRING: Final[dict[str, Callable[[OperatorSpec, Any], WindowOperator]]] = {
    "fixed": ExpiringFixed,
    "panes": ExpiringFixed,
    "assigned": ExpiringAssigned,
}
"""The time to live of windows that follow from the time of a row alone; of all others, keys expire."""


def begin_bucket(spec: OperatorSpec, bucket: Bucket, states: pa.Table) -> None:
    """Give those keys that an empty bucket has the states that a query begins with."""
    process.ProcessOperator(spec).begin(bucket, states)


def content_of_keys(operator: object, bucket: Bucket, keys: pa.Table) -> pa.Table | None:
    """Return the results of some keys of a table as they stand, at a cost that does not depend on how many keys there are.

    None for an operator without a table, and where results of before a savepoint are not whole.
    """
    if isinstance(operator, tables.TableOperator):
        return operator.rows_of(bucket, touched.TouchedKeys.of(keys, operator.names)[0])
    if isinstance(operator, WholeOperator) or not isinstance(operator, (WrappingOperator, ExpiringOperator)):
        return None
    rows = content_of_keys(operator.inner, bucket, keys)
    return operator.named(rows) if rows is not None and isinstance(operator, ProjectedOperator) else rows
