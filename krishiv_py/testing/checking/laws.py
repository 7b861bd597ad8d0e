"""The laws of SEMANTICS that hold for a plan: each says where it holds, runs one case two ways, and compares.

A law that a plan does not claim is left out, and says why: results of ``updates`` differ by cut and fold to the same, rows that
are late by the clock of batches differ by cut, and what goes by arrival differs by the order of arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import RAISED, failure_text
from krishiv_py.kernels.prepare import refused_rows
from krishiv_py.plan.durations import UNSET, show_instant
from krishiv_py.plan.nodes import Filter, MapBatches, prefix_of
from krishiv_py.planner.check import longest_lag_us
from krishiv_py.planner.cut import StagePlan
from krishiv_py.testing.checking.plans import CheckedPlan
from krishiv_py.testing.checking.runs import (
    Cut,
    RunOutput,
    batches_of,
    cut_at_streams,
    folded,
    late_texts,
    ran,
    ran_bounded,
    ran_in_process,
    texts,
)
from krishiv_py.testing.checking.streams import Arrivals, Row, us_of

_SPREAD: Final = (2, 7)


@attrs.frozen
class Trial:
    """Holds one case: rows in the order in which they arrive, where batches begin, and the same rows in another order."""

    arrivals: Arrivals
    cut: Cut = ()
    order: tuple[int, ...] = ()

    @property
    def permuted(self) -> Arrivals:
        """Return the rows in the other order."""
        return tuple(self.arrivals[number] for number in self.order)


@attrs.frozen(eq=False)
class Finding:
    """Says that a law does not hold for a case.

    Attributes
    ----------
    law : str
        Its name.
    what : str
        One sentence.
    one, other : tuple of (str, list of str)
        What was run, and the rows that came out, as texts.
    row : dict or None
        The first row of the results that differs.
    raised : str
        The type of the error that stopped the plan; empty where none did.
    """

    law: str
    what: str
    one: tuple[str, list[str]] = ("", [])
    other: tuple[str, list[str]] = ("", [])
    row: Row | None = None
    raised: str = ""

    def same_kind(self, other: Finding | None) -> bool:
        """Return whether another finding is of the same law, and of the same error."""
        return other is not None and (self.law, self.raised) == (other.law, other.raised)


@attrs.frozen(eq=False)
class Subject:
    """Holds what laws are tried on.

    Attributes
    ----------
    plan : CheckedPlan
        The plan.
    oracle : callable or None
        A user's function of rows to results.
    against : CheckedPlan or None
        The plan before a change.
    engines : tuple of str
        The engines whose results are compared.
    """

    plan: CheckedPlan
    oracle: Callable[[Any], Any] | None = None
    against: CheckedPlan | None = None
    engines: tuple[str, ...] = ("driver", "in-process")


class Law:
    """Base of the laws."""

    name: ClassVar[str]
    every: ClassVar[int] = 1
    """A case in so many is tried."""

    def unclaimed(self, subject: Subject) -> str | None:
        """Return why a plan does not claim it; None where it does."""
        return None

    def tried(self, subject: Subject, trial: Trial, base: RunOutput) -> bool:
        """Return whether it says something of a case whose rows gave `base`."""
        return True

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        """Return what contradicts it in a case; None where it holds."""
        raise NotImplementedError


def found(law: Law, subject: Subject, trial: Trial, base: RunOutput | None = None) -> Finding | None:
    """Return what contradicts a law in a case, an error that stops the plan among it; None where it holds or says nothing.

    `base` is what came out of the case, where that is known.
    """
    try:
        base = base or ran(subject.plan, trial.arrivals, trial.cut)
    except RAISED as problem:
        return stopped(problem)
    try:
        return law.broken(subject, trial, base) if law.tried(subject, trial, base) else None
    except RAISED as problem:
        return attrs.evolve(stopped(problem), law=law.name, what=f"trying it stops: {failure_text(problem)}")


def stopped(problem: BaseException) -> Finding:
    """Return the finding that an error has stopped the plan: its rows are in no result and in no late output."""
    return Finding("conservation", f"the plan stops: {failure_text(problem)}", raised=type(problem).__name__)


def differing(
    law: str,
    what: str,
    plan: CheckedPlan,
    one: tuple[str, RunOutput],
    other: tuple[str, RunOutput],
    *,
    any_cut: bool,
    late: bool = True,
) -> Finding | None:
    """Return how two runs differ; for `any_cut` logs are folded first."""
    names = (one[0], other[0])
    for output in plan.plan.outputs:
        stage = plan.plan.stages[output.stage]
        left, right = (run.results[output.name] for run in (one[1], other[1]))
        if any_cut:
            left, right = folded(stage, left), folded(stage, right)
        if (finding := _unequal(law, what, names, left, right)) is not None:
            return finding
    lates = [late_texts(run, any_cut=any_cut) for run in (one[1], other[1])]
    if late and lates[0] != lates[1]:
        return Finding(law, f"{what}: late rows differ", (names[0], lates[0]), (names[1], lates[1]))
    return None


def _unequal(law: str, what: str, names: tuple[str, str], left: Sequence[Row], right: Sequence[Row]) -> Finding | None:
    mine, theirs = texts(left), texts(right)
    if mine == theirs:
        return None
    return Finding(law, f"{what}: results differ", (names[0], mine), (names[1], theirs), _first(left, right, mine, theirs))


def _first(left: Sequence[Row], right: Sequence[Row], mine: list[str], theirs: list[str]) -> Row | None:
    """Return the first row that is on one side only."""
    for rows, others in ((left, theirs), (right, mine)):
        remaining = list(others)
        for row in sorted(rows, key=repr):
            if (text := repr(row)) not in remaining:
                return row
            remaining.remove(text)
    return None


def cut_text(cut: Cut) -> str:
    """Return a cut for people."""
    return f"batches that begin at rows {', '.join(map(str, (0, *cut)))}" if cut else "one batch"


# ---- the laws


class CutLaw(Law):
    """Results do not depend on how rows are cut into batches."""

    name = "cut"

    def unclaimed(self, subject: Subject) -> str | None:
        return not_folded(subject.plan)

    def tried(self, subject: Subject, trial: Trial, base: RunOutput) -> bool:
        plan = subject.plan
        return bool(trial.cut) and (not at_an_edge(plan, base, by_row=True) if plan.by_row else within_lag(plan, base))

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        whole = ran(subject.plan, trial.arrivals, ())
        names = cut_text(()), cut_text(trial.cut)
        what = "one stream, cut into batches in two ways"
        return differing(self.name, what, subject.plan, (names[0], whole), (names[1], base), any_cut=True)


def within_lag(plan: CheckedPlan, base: RunOutput) -> bool:
    """Return whether no batch could have made a row late, or another window of it.

    Windows whose state refuses rows take one in that is older than the watermark, and which of them are over by then
    depends on batches.
    """
    by_state = any(s.spec.operation.late_by == "state" and s.spec.options.late_rule == "window" for s in plan.plan.stages)
    return not base.late_by_time and not (by_state and base.behind) and not at_an_edge(plan, base)


def at_an_edge(plan: CheckedPlan, base: RunOutput, *, by_row: bool = False) -> bool:
    """Return whether a row may lie at the end of a touching session that has left, or not, by where a batch ended.

    Such a row is exactly the lag behind. `by_row`: one that comes alone finds what the rows before it have left.
    """
    for stage in plan.plan.stages:
        touching = getattr(stage.spec.operation, "touch", None) == "merge"
        if touching and stage.after:
            return True
        if touching and not by_row and max(base.behind_us, 0) >= longest_lag_us(stage.spec):
            return True
    return False


def not_folded(plan: CheckedPlan) -> str | None:
    """Return why logs of a plan that are cut in other ways do not fold to the same; None where they do."""
    for stage in plan.plan.stages:
        options, operation = stage.spec.options, stage.spec.operation
        if options.late_by_batch_before:
            return "rows are classified by the watermark of the batch before"
        if options.accumulation == "discarding":
            return "results are what came since the last firing, which differs by batch"
        if options.trigger.early is not None and operation.nature.fires_anyway:
            return "a trigger fires by batch"
        if operation.handled:
            return "a handler sees batches"
        if options.emit_mode == "updates" and (operation.moves or operation.apart_by is None):
            return 'updates of windows that move cannot be folded: .emit("retractions") can'
        if options.ttl is not None:
            return "what state of a key is dropped depends on when batches run"
        if options.future_action != "warn" and not plan.by_row:
            return "which rows are too far ahead depends on batches"
        if operation.kind == "lookback" and operation.goes_by_arrival and not plan.by_row and stage.after:
            return "results on arrival depend on batches of the stage before"
        if operation.reads_marks and (operation.takes_late or not plan.by_row or stage.after):
            return "when a process function is called depends on batches"
    return None


class RestartLaw(Law):
    """A restart changes nothing (SEMANTICS §6.3)."""

    name = "restart"
    every = 2

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        again = ran(subject.plan, trial.arrivals, trial.cut, restarts=True)
        names = "without a restart", "with a restart after each batch"
        what = "a restart changes the results"
        finding = differing(self.name, what, subject.plan, (names[0], base), (names[1], again), any_cut=False)
        if finding is None and base.counters != again.counters:
            counted = [[str(run.counters)] for run in (base, again)]
            return Finding(self.name, "a restart changes the counters", (names[0], counted[0]), (names[1], counted[1]))
        return finding


class SpreadLaw(Law):
    """Keys may be in any number of buckets, on any number of workers."""

    name = "spread"
    every = 4

    def unclaimed(self, subject: Subject) -> str | None:
        keyed = any(stage.spec.keys for stage in subject.plan.plan.stages)
        return None if keyed else "the plan has no key"

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        workers = _SPREAD[len(trial.cut) % len(_SPREAD)]
        again = ran(subject.plan, trial.arrivals, trial.cut, workers=workers)
        sides = ("1 worker", base), (f"{workers} workers", again)
        return differing(self.name, "other workers, other results", subject.plan, *sides, any_cut=False)


class ArrivalLaw(Law):
    """Within the lag the order of arrival makes no difference, up to rows of equal time."""

    name = "arrival"
    every = 2

    def unclaimed(self, subject: Subject) -> str | None:
        if any(shape.time is None for shape in subject.plan.streams):
            return "the event time is computed, so a stream within the lag is not known"
        for stage in subject.plan.plan.stages:
            operation = stage.spec.operation
            if operation.goes_by_arrival:
                return f"{operation.kind} goes by the order of arrival"
        return not_folded(subject.plan)

    def tried(self, subject: Subject, trial: Trial, base: RunOutput) -> bool:
        return bool(trial.order) and trial.order != tuple(range(len(trial.order))) and within_lag(subject.plan, base)

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        again = ran(subject.plan, trial.permuted, trial.cut)
        if not within_lag(subject.plan, again):
            return None
        sides = ("as the rows arrive", base), ("in another order within the lag", again)
        what = "another order of arrival within the lag"
        return differing(self.name, what, subject.plan, *sides, any_cut=True)


class ConservationLaw(Law):
    """Every row is in a result, in the late output or a counted drop (SEMANTICS §4.3)."""

    name = "conservation"

    def unclaimed(self, subject: Subject) -> str | None:
        if len(subject.plan.plan.stages) > 1 or subject.plan.plan.named:
            return "the plan has several stages or outputs: only that it does not stop is held"
        if _counted(subject.plan.stage) is None:
            return "rows of this operation cannot be counted in its results: only that it does not stop is held"
        return None

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        stage = subject.plan.stage
        counted = _counted(stage)
        assert counted is not None
        counters = base.counters[stage.spec.name]
        came = len(trial.arrivals) if stage.stateless else counters["rows"]
        dropped = counters.get("duplicates", 0) + counters.get("unassigned", 0)
        given, aside = counted(base), refused_rows(counters) + dropped
        if not _takes_out(stage) and came != len(trial.arrivals):
            return Finding(self.name, f"{len(trial.arrivals)} rows came, and {came} were counted")
        if given + aside == came:
            return None
        return Finding(self.name, f"{came} rows came: {given} are in results, {aside} were refused or dropped and counted")


def _takes_out(stage: StagePlan) -> bool:
    """Return whether steps before it may take rows out, or add some."""
    return any(isinstance(step, (Filter, MapBatches)) for step in prefix_of(stage.node.input))


def _counted(stage: StagePlan) -> Callable[[RunOutput], int] | None:
    """Return how many rows are in results; None where they do not say it."""
    operation, options = stage.spec.operation, stage.spec.options
    whole = not stage.spec.after and options.emit_mode == "final" and options.ttl is None
    if not whole or operation.nature.joins:
        return None
    if operation.kind in ("deduplication", "lookback") or (operation.kind == "rows" and not _takes_out(stage)):
        return lambda base: sum(map(len, base.results.values()))
    column = _count_column(stage)
    return None if column is None else lambda base: sum(row[column] for rows in base.results.values() for row in rows)


def _count_column(stage: StagePlan) -> str | None:
    """Return the result column that counts all rows of a window, where each row is in one."""
    operation = stage.spec.operation
    tiles = operation.kind == "session" or (operation.kind == "tumbling" and not operation.handled)
    names = [call.output_name for call in operation.aggs if call.func == "count" and call._counts_rows and call.where is None]
    return names[0] if tiles and names and stage.spec.output is None and operation.result_columns is None else None


class MonotoneLaw(Law):
    """No result lies before the watermark that the batch before handed on (SEMANTICS §7.2)."""

    name = "monotone"

    def unclaimed(self, subject: Subject) -> str | None:
        if all(self._time(stage) is None for stage in subject.plan.plan.stages):
            return "its results have no event time"
        return None

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        for number, stage in enumerate(subject.plan.plan.stages):
            time = self._time(stage)
            for batch, (handed, out) in enumerate(base.steps):
                v_us = handed[number]
                if time is None or v_us == UNSET:
                    continue
                for row in (row for done in out.done[number] for row in done.results.to_pylist()):
                    row_us = None if time[0] not in row else us_of(row[time[0]])
                    if row_us is not None and row_us - time[1] < v_us:
                        said = f"a result of batch {batch} has the time {show_instant(row_us - time[1])}"
                        return Finding(
                            self.name, f"{said}, and the watermark handed on before was {show_instant(v_us)}", row=row
                        )
        return None

    def _time(self, stage: StagePlan) -> tuple[str, int] | None:
        """Return the column of the event time of results, and how far before it that lies, µs."""
        spec = stage.spec
        time = None if stage.stateless else spec.operation.result_time(spec.time_column)
        if time is None or spec.output is not None or spec.options.late_by_batch_before:
            return None
        if spec.options.emit_mode == "retractions" and spec.operation.moves:
            return None  # a withdrawal has the time of what it withdraws
        return time.column, time.before_us(spec.tick_us)


class EngineLaw(Law):
    """A bounded run and a query in process give what the driver gives, for the same batches."""

    name = "engine"
    every = 16

    def unclaimed(self, subject: Subject) -> str | None:
        if "in-process" not in subject.engines:
            return "only the driver was asked for"
        sources = [id(read.source) for read in subject.plan.plan.reads]
        if len(set(sources)) < len(sources):
            return "one stream is read in several places, so its rows are sent once and not by name"
        if any(stage.spec.options.future_action != "warn" for stage in subject.plan.plan.stages):
            return "rows ahead of the clock are classified by the clock of the machine"
        return None

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        plan, cut = subject.plan, cut_at_streams(trial.arrivals, trial.cut)
        driver = ran(plan, trial.arrivals, cut)
        bounded = ran_bounded(plan, trial.arrivals, cut)
        what = "another engine, other results"
        finding = differing(self.name, what, plan, ("driver", driver), ("bounded run", bounded), any_cut=False)
        if finding is not None or len(trial.arrivals) % 3:
            return finding
        query = ran_in_process(plan, trial.arrivals, cut)
        sides = ("driver", driver), ("query in process", query)
        return differing(self.name, what, plan, *sides, any_cut=False, late=False)


class OracleLaw(Law):
    """The results are those of a function of the user's over all rows."""

    name = "oracle"

    def unclaimed(self, subject: Subject) -> str | None:
        if subject.oracle is None:
            return "no oracle was given"
        return None if len(subject.plan.plan.outputs) == 1 else "the plan has several outputs"

    def tried(self, subject: Subject, trial: Trial, base: RunOutput) -> bool:
        return not base.refused

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        assert subject.oracle is not None
        tables = {
            shape.name: pa.Table.from_pylist([a.row for a in trial.arrivals if a.of == shape.name], schema=shape.schema)
            for shape in subject.plan.streams
        }
        said = _as_rows(subject.oracle(tables if len(tables) > 1 else next(iter(tables.values()))))
        output = subject.plan.plan.outputs[0]
        rows = folded(subject.plan.plan.stages[output.stage], base.results[output.name])
        shared = [name for name in output.schema.names if not said or name in said[0]]
        sides = [[{name: _plain(row.get(name)) for name in shared} for row in each] for each in (rows, said)]
        return _unequal(self.name, "the oracle says otherwise", ("the plan", "the oracle"), *sides)


def _as_rows(given: Any) -> list[Row]:
    """Return the table of an oracle as rows: Arrow, pandas, Polars, or a list of dicts."""
    if isinstance(given, list):
        return given
    if hasattr(given, "to_dict") and hasattr(given, "iloc"):
        given = pa.Table.from_pandas(given, preserve_index=False)
    reads = isinstance(given, pa.RecordBatchReader)
    table = given if isinstance(given, pa.Table) else given.read_all() if reads else pa.table(given)
    rows: list[Row] = table.to_pylist()
    return rows


def _plain(value: Any) -> Any:
    """Return a value as an oracle means it: a whole number may be a float, -0.0 is 0.0, and the last digits are its own."""
    if isinstance(value, float):
        return float(f"{value:.12g}") + 0.0
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1 << 53 else value
    return value


class UpgradeLaw(Law):
    """From a savepoint of the plan before, a plan gives what it would have given, or null where state cannot tell (§12.2)."""

    name = "upgrade"
    every = 2

    def unclaimed(self, subject: Subject) -> str | None:
        return "no plan before it was given: against=old_plan" if subject.against is None else None

    def broken(self, subject: Subject, trial: Trial, base: RunOutput) -> Finding | None:
        assert subject.against is not None
        plan = subject.plan
        changed = ran(plan, trial.arrivals, trial.cut, after=subject.against)
        batches = len(list(batches_of(plan, trial.arrivals, trial.cut)))
        later = base.steps[(batches + 1) // 2 :]
        for output in plan.plan.outputs:
            whole = [row for _, out in later for row in out.results[output.name].to_pylist()]
            mine, theirs = sorted(whole, key=repr), sorted(changed.results[output.name], key=repr)
            if not _equal_up_to_nulls(mine, theirs):
                sides = ("the plan from the beginning", texts(mine)), ("from a savepoint of the plan before", texts(theirs))
                return Finding(self.name, "a savepoint of the plan before changes the results", *sides)
        return None


def _equal_up_to_nulls(whole: list[Row], changed: list[Row]) -> bool:
    """Return whether rows are equal up to nulls in `changed`, in any order."""
    remaining = list(whole)
    for row in changed:
        equal = (n for n, other in enumerate(remaining) if all(v is None or repr(v) == repr(other[c]) for c, v in row.items()))
        match = next(equal, None)
        if match is None:
            return False
        del remaining[match]
    return not remaining
