"""Run one stream under a plan: in batches, over restarts, with more workers, on another engine, over a change of the plan."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.query import QueryStart
from krishiv_py.api.sender import Sender
from krishiv_py.connectors.sinks.known import MemorySink
from krishiv_py.in_process.bounded import run_bounded
from krishiv_py.in_process.core import BatchOutput, Core
from krishiv_py.in_process.runner import ProcessRunner
from krishiv_py.in_process.savepoints import begun_core, save_core
from krishiv_py.in_process.stage import Workers
from krishiv_py.kernels.prepare import refused_rows
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.options.query import Batches, given_begin
from krishiv_py.plan.running import BEHIND, counts_of
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.storage.local import private_folder
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.testing.checking.plans import ONLY_STREAM, CheckedPlan, rewritten
from krishiv_py.testing.checking.streams import Arrivals, Row
from krishiv_py.testing.sends import DriverInput

Cut: TypeAlias = "tuple[int, ...]"
"""The places where batches begin, besides the first: numbers of arrivals, ascending."""
_BY_BATCH: Final = ("watermark", "lateness")
"""Columns of late rows that say under which watermark a batch ran."""
_TITLE: Final = "check"
_RESTARTS: Final = 4
"""About how many restarts a stream goes through."""
_LATER_US: Final = 4_102_444_800_000_000
"""The clock of queries, µs: so late that no row is from the future by it, as under a driver whose clock was never set."""


@attrs.frozen(eq=False)
class RunOutput:
    """Holds what came out of a stream.

    Attributes
    ----------
    results : dict of str to list of dict
        The rows of each output, in the order in which they were given.
    late : dict of str to list of dict
        The late rows of each stage.
    counters : dict of str to dict
        The counters of each stage; empty where the engine does not say them.
    steps : list of (dict of int to int, BatchOutput)
        For each batch, V of each stage before it, µs (SEMANTICS §7.2), and what it gave.
    """

    results: dict[str, list[Row]]
    late: dict[str, list[Row]]
    counters: dict[str, dict[str, int]] = attrs.field(factory=dict)
    steps: list[tuple[dict[int, int], BatchOutput]] = attrs.field(factory=list)

    @property
    def late_by_time(self) -> int:
        """Return how many rows were late, or shut out for a time far ahead: which ones may depend on batches."""
        names = ("late", "future_dropped", "future_side_output")
        return sum(counted.get(name, 0) for counted in self.counters.values() for name in names)

    @property
    def behind(self) -> int:
        """Return how many rows came behind the watermark and the allowed lateness, late or not."""
        return sum(counted.get("very_late", 0) for counted in self.counters.values())

    @property
    def behind_us(self) -> int:
        """Return how far rows came behind the newest one before them, at most, µs; -1 where none did."""
        names = [name for counted in self.counters.values() for name, n in counted.items() if n and name.startswith(BEHIND)]
        return max((int(name.removeprefix(BEHIND)) for name in names), default=-1)

    @property
    def refused(self) -> int:
        """Return how many rows entered no result, for whatever reason."""
        return sum(map(refused_rows, self.counters.values()))


def batches_of(plan: CheckedPlan, arrivals: Arrivals, cut: Cut) -> Iterator[tuple[int, int]]:
    """Yield the batches of a cut, as ranges of arrivals.

    A driver takes the streams of a batch one after the other. Where their order counts, a batch ends before a stream comes a
    second time, so each cut has the same arrivals.
    """
    begin, met = 0, dict[str, None]()
    free = len(plan.streams) == 1 or plan.joins
    for number, arrival in enumerate(arrivals):
        again = not free and arrival.of in met and next(reversed(met)) != arrival.of
        if number > begin and (number in cut or again):
            yield begin, number
            begin, met = number, {}
        met[arrival.of] = None
    if arrivals:
        yield begin, len(arrivals)


def ran(
    plan: CheckedPlan,
    arrivals: Arrivals,
    cut: Cut,
    *,
    restarts: bool = False,
    workers: int = 1,
    after: CheckedPlan | None = None,
) -> RunOutput:
    """Return what comes out of arrivals in batches.

    Parameters
    ----------
    restarts : bool
        Whether all goes through a checkpoint after each batch, of many batches after some.
    workers : int
        How many buckets of keys there are.
    after : CheckedPlan, optional
        The plan that ran the first half of the batches; a savepoint is between. Only the results after it are given.
    """
    batches = list(batches_of(plan, arrivals, cut))
    pool = Workers(workers) if workers > 1 else None
    core, steps = Core((after or plan).plan, _TITLE, 0, pool), list[tuple[dict[int, int], BatchOutput]]()
    tables, running = _tables(plan, arrivals), after or plan
    inputs = running.inputs
    for number, (begin, end) in enumerate(batches):
        if running is not plan and number == (len(batches) + 1) // 2:
            running, core, steps = plan, _begun(core, plan.plan), []
            inputs = DriverInput(core.plan)  # which carries something along since a savepoint
        steps.append((_handed_on(core), core.run(inputs.sent(_slices(tables, arrivals, begin, end)), 0)))
        if restarts and number % (len(batches) // _RESTARTS + 1) == 0:
            core = _restarted(core)
    if running is not plan:
        core, steps = _begun(core, plan.plan), []
    handed = _handed_on(core)
    core.clocks.advance(None, END_OF_TIME, None, 0)
    steps.append((handed, core.run(None, 0)))
    if pool is not None:
        pool.close()
    return _ran(core, steps)


def _ran(core: Core, steps: list[tuple[dict[int, int], BatchOutput]]) -> RunOutput:
    results = {o.name: [row for _, out in steps for row in out.results[o.name].to_pylist()] for o in core.plan.outputs}
    late = {s.spec.name: [row for _, out in steps for row in out.late[n].to_pylist()] for n, s in enumerate(core.stages)}
    return RunOutput(results, late, {s.spec.name: counts_of(s.counters) for s in core.stages}, steps)


def _tables(plan: CheckedPlan, arrivals: Arrivals) -> dict[str, pa.RecordBatch]:
    return {
        shape.name: pa.RecordBatch.from_pylist([a.row for a in arrivals if a.of == shape.name], schema=shape.schema)
        for shape in plan.streams
    }


def _slices(tables: Mapping[str, pa.RecordBatch], arrivals: Arrivals, begin: int, end: int) -> Any:
    """Return the rows of a batch by the names of their streams; of the only stream by themselves."""
    names = list(dict.fromkeys(arrival.of for arrival in arrivals[begin:end]))
    before = {name: sum(a.of == name for a in arrivals[:begin]) for name in names}
    sent = {name: tables[name].slice(before[name], sum(a.of == name for a in arrivals[begin:end])) for name in names}
    return sent.get(ONLY_STREAM, sent)


def _handed_on(core: Core) -> dict[int, int]:
    """Return V of each stage, µs: no result of a later batch lies before it."""
    marks = {number: core.in_force.at(stage.plan.times).watermark_us for number, stage in enumerate(core.stages)}
    return {number: w if w == UNSET else w - _hold_back_us(core.stages[number].plan) for number, w in marks.items()}


def _hold_back_us(stage: StagePlan) -> int:
    return stage.spec.operation.hold_back_us(stage.spec.options)


def _restarted(core: Core) -> Core:
    again = Core(core.plan, _TITLE, 0)
    again.go_on_from(core)
    return again


def _begun(core: Core, plan: PhysicalPlan) -> Core:
    """Return a core that goes on under another plan from a savepoint."""
    with tempfile.TemporaryDirectory() as folder:
        begin = given_begin(save_core(core, 0, f"{folder}/savepoint").folder, None)
        assert begin is not None
        return begun_core(begin, plan, _TITLE, 0)[1]


# ---- another engine


def cut_at_streams(arrivals: Arrivals, cut: Cut) -> Cut:
    """Return a cut in which each batch is of one stream, as a send is."""
    turns = (n for n in range(1, len(arrivals)) if arrivals[n].of != arrivals[n - 1].of)
    return tuple(sorted({*cut, *turns}))


def ran_bounded(plan: CheckedPlan, arrivals: Arrivals, cut: Cut) -> RunOutput:
    """Return what a bounded run over the same batches gives, each of them one send."""
    with _SpooledStreams.of(plan) as spooled:
        for begin, end in batches_of(plan, arrivals, cut):
            spooled.send(arrivals[begin:end])
        done = run_bounded(attrs.evolve(spooled.plan, engine="in_process"), lambda: _LATER_US, False, 1)
    late = {name: table.to_pylist() for name, table in done.late_by_stage.items()}
    return RunOutput({name: table.to_pylist() for name, table in done.outputs.items()}, late)


def ran_in_process(plan: CheckedPlan, arrivals: Arrivals, cut: Cut) -> RunOutput:
    """Return what a query of a session in process gives, with a checkpoint, over the same batches."""
    runner = ProcessRunner.of("dev-local", {})
    runner.clock = lambda: _LATER_US
    try:
        with _SpooledStreams.of(plan) as spooled:
            sinks = tuple(MemorySink() for _ in spooled.plan.outputs)
            query = runner.start(QueryStart(spooled.plan, sinks, None, Batches.as_fast_as_possible(), None))
            for begin, end in batches_of(plan, arrivals, cut):
                spooled.send(arrivals[begin:end])
                query.process_all_available()
            spooled.close()
            query.process_all_available()
            outputs = zip(spooled.plan.outputs, sinks, strict=True)
            tables = {output.name: sink.table() for output, sink in outputs}
            return RunOutput({name: [] if table is None else table.to_pylist() for name, table in tables.items()}, {})
    finally:
        runner.stop()


@attrs.define(eq=False)
class _SpooledStreams:
    """Holds a plan whose streams are memory streams of a session, in a temporary folder, and their senders."""

    plan: PhysicalPlan
    senders: dict[str, Sender[Any]]
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def of(cls, checked: CheckedPlan) -> _SpooledStreams:
        """Return one without rows."""
        folder, sent = tempfile.TemporaryDirectory(), itertools.count(_LATER_US)
        sources: dict[int, MemorySource] = {}
        senders: dict[str, Sender[Any]] = {}
        for number, (read, shape) in enumerate(zip(checked.plan.reads, checked.streams, strict=True)):
            assert isinstance(read.source, MemorySource)
            spool = f"{folder.name}/{number}"
            private_folder(spool)
            sources[id(read.source)] = attrs.evolve(read.source, spool=spool)
            senders[shape.name] = Sender(ReplayLog(spool, False, True), shape.schema, lambda: next(sent))
        plan = rewritten(checked.plan, lambda part: sources.get(id(part), part))
        return cls(plan, senders, folder)

    def __enter__(self) -> _SpooledStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()

    def send(self, arrivals: Arrivals) -> None:
        """Send a batch, which is of one stream."""
        self.senders[arrivals[0].of].send([arrival.row for arrival in arrivals])

    def close(self) -> None:
        """End the input."""
        for sender in self.senders.values():
            sender.close()


# ---- what is compared


def texts(rows: Sequence[Row], without: Sequence[str] = ()) -> list[str]:
    """Return rows as texts that tell -0.0 from 0.0 and are equal for NaN, sorted."""
    return sorted(repr({name: value for name, value in row.items() if name not in without}) for row in rows)


def late_texts(one: RunOutput, *, any_cut: bool) -> list[str]:
    """Return the late rows as texts; for `any_cut` without what says under which watermark their batch ran."""
    return sorted(text for rows in one.late.values() for text in texts(rows, _BY_BATCH if any_cut else ()))


def folded(stage: StagePlan, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are left once updates and withdrawals of a log were applied."""
    options, operation = stage.spec.options, stage.spec.operation
    aside = ("op", "pane_timing", "pane_index")
    plain = [{name: value for name, value in row.items() if name not in aside} for row in rows]
    if options.emit_mode == "updates":
        last = {repr({name: v for name, v in row.items() if name not in operation.changing}): row for row in plain}
        return list(last.values())
    if options.emit_mode != "retractions":
        return plain
    left: dict[str, list[Row]] = {}
    for row, op in zip(plain, (row["op"] for row in rows), strict=True):
        same = left.setdefault(repr(row), [])
        if op in ("+I", "+U"):
            same.append(row)
        elif same:
            same.pop()
    return [row for same in left.values() for row in same]
