"""A running query: its handle, what the driver knows of it, and its rows in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.subscription import Subscription, WhenSlow
from krishiv_py.arrays.grouping import HashIndex, among, key_hashes
from krishiv_py.arrays.types import pick
from krishiv_py.connectors.ranges import Backlog
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import ReadableSink, side_output
from krishiv_py.display.html import query_html
from krishiv_py.display.lag import Lateness, LatenessProfile
from krishiv_py.display.text import LaidOut, plan_text
from krishiv_py.display.watch import QuerySample, watch
from krishiv_py.engine.closing import keys_of, why_text
from krishiv_py.engine.stage import Report, StageOperator, count
from krishiv_py.errors import KrishivError, PlanError, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.prepare import late_output_schema, refused, refused_rows
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.watermark import ONLY
from krishiv_py.logs import BatchCounts, RecentTimes
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.checks import PathLike
from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, time_point_us, to_us
from krishiv_py.plan.options.late import SparedLateEventHandler
from krishiv_py.plan.running import STILL_S, Progress, TableVersion, call_seconds_of, counts_of, of_stages, waiting
from krishiv_py.planner.cut import StagePlan, input_stages, leading_stage
from krishiv_py.planner.explain import explain
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.why import QueryProgress, in_stage, oldest_of_all, rows_that_wait, why_not_fired
from krishiv_py.runtime.batch import stage_of
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.ranges.limits import Alignment
from krishiv_py.storage.sends.log import wall_clock_us

AGE_MS: Final = b"age_ms"
"""The name in the metadata of a table under which the age of a snapshot is, in milliseconds."""


@attrs.define(eq=False)
class KeyedRows:
    """Rows in their order, and an index of them by key, which is made when somebody looks."""

    table: pa.Table
    _index: HashIndex | None = None

    @property
    def nbytes(self) -> int:
        return int(self.table.get_total_buffer_size())

    def rows_of(self, key: pa.Table, mark: int, names: Sequence[str], most: int) -> pa.Table | None:
        """Return the newest rows of a key with this hash, `most` at the most; None if there are none."""
        if self._index is None:
            self._index = HashIndex.of([self.table[name] for name in names], self.table.num_rows)
        places = self._index.rows(np.array([mark]))
        if not len(places):
            return None
        rows = pick(self.table, places[-most:])
        if not among(rows, key, list(names)).all():  # hashes may meet
            rows = pick(self.table, places)
            rows = rows.filter(pa.array(among(rows, key, list(names))))
        return rows.slice(max(rows.num_rows - most, 0))


@attrs.define(eq=False)
class StateSnapshot:
    """The windows in state of a stage at one time, with an index by key.

    Attributes
    ----------
    rows : KeyedRows
        Keys, bounds and aggregates so far.
    names : tuple of str
        The key columns.
    taken_s : float
        When it was taken, by the clock that never goes back.
    """

    rows: KeyedRows
    names: tuple[str, ...]
    taken_s: float = attrs.field(factory=time.monotonic)

    @property
    def age_s(self) -> float:
        """Return how old it is, in seconds."""
        return time.monotonic() - self.taken_s

    def of(self, keys: pa.Table) -> pa.Table:
        """Return the windows of some keys; the metadata of the table says how old they are."""
        keys, table = keys.rename_columns(list(self.names)), self.rows.table
        marks = key_hashes(list(keys.columns), keys.num_rows).tolist()
        tables = [self.rows.rows_of(keys.slice(i, 1), mark, self.names, table.num_rows) for i, mark in enumerate(marks)]
        rows = pa.concat_tables([table.slice(0, 0), *(some for some in tables if some is not None)])
        return rows.replace_schema_metadata({AGE_MS: str(round(self.age_s * 1_000)).encode()})


def holding(rows: pa.Table, at_us: int, spec: OperatorSpec) -> pa.Table:
    """Return the windows that hold a time, µs since the epoch.

    Raises
    ------
    PlanError
        For windows whose bounds are not times.
    """
    if spec.operation.extent.numbered:
        raise PlanError("count windows hold no time", got=spec.operation.describe(), hint="leave `window` out")
    n = len(spec.keys)
    starts, ends = (bounds_of(joined(rows.column(i)), spec.time_kind) for i in (n, n + 1))
    within = (starts[1] | (starts[0] <= at_us)) & (ends[1] | (ends[0] > at_us))
    return rows.filter(pa.array(within))


def joined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


@attrs.define(eq=False)
class BucketMetrics:
    """Metrics of all buckets, as the driver last heard of them; safe to read from any thread."""

    notes: CheckpointNotes
    stages: tuple[StagePlan, ...]
    last: int
    """The number of the stage whose buckets are kept without it."""
    moment: Moment
    """The watermarks and clocks in force in the next batch."""
    aligned: tuple[Alignment, ...] = ()
    """The sources that wait for one another."""
    every_batch: bool = False
    """True if batches in which no bucket had work are noted too: over Connect the client knows what is noted."""
    buckets: dict[str, Report] = attrs.field(factory=dict)
    batch_id: int = -1
    sources_us: dict[str, int] = attrs.field(factory=dict)
    advances: int = 0
    tables: dict[str, TableVersion] = attrs.field(factory=dict)
    """The version of each table that the last batch that was begun looks rows up in."""
    idle: tuple[str, ...] = ()
    """Sources that no watermark waits for."""
    began: float = attrs.field(factory=time.monotonic)
    """The time at which the batch in hand was begun, s of a clock that never goes back."""
    busy_since: float | None = None
    """The time at which the look for the batch in hand was begun, s of the same clock; None between two batches."""
    seconds: float = 0.0
    shown_us: int = UNSET
    """The watermark after the last batch, µs."""
    ended_us: int | None = None
    doubts: tuple[str, ...] = ()
    """Sentences about event times of this run that look wrong."""
    partition_times_us: dict[str, int] = attrs.field(factory=dict)
    """The newest event time of each partition in this run."""
    moved_us: dict[str, int] = attrs.field(factory=dict)
    """The last time that the watermark of each source moved, µs since the epoch; under "" that of the whole query."""
    trouble: str = ""
    """The error over something that is away, while it is tried again; empty while nothing is."""
    backlog: Callable[[], dict[str, Backlog]] = dict
    """Asks what no batch has taken, by source."""
    rows_before: int = 0
    """The rows that earlier runs have read."""
    _still_since: float | None = None
    """The time at which rows came first after the watermark had moved, s of the same clock."""
    _came: float = 0.0
    """The time at which rows came last."""
    _rows: int = 0
    _caught_up: float | None = None
    """The last time at which a look found no backlog."""
    _lock: Any = attrs.field(factory=threading.Lock)
    _inputs: tuple[int, ...] = attrs.field(init=False)
    _leading: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._inputs, self._leading = input_stages(self.stages), leading_stage(self.stages)

    def take(
        self, batch_id: int, reported: dict[str, Report], moment: Moment, sources_us: dict[str, int], *, whole: bool = False
    ) -> None:
        """Remember what the buckets reported in a batch (or, `whole`, all there is), and where the watermark is."""
        with self._lock:
            self.buckets = dict(reported) if whole else {**self.buckets, **reported}
            self.batch_id = batch_id
            now = _latest(moment, self.moment)
            self.advances += now.later(self.moment)
            self.moment = now
            now_s, least_us = time.monotonic(), min(now.every)
            self.seconds, self.ended_us = now_s - self.began, time.time_ns() // 1_000
            self._note_still(now_s, moved=least_us != self.shown_us)
            reached = {**sources_us, ONLY: least_us}
            before = {**self.sources_us, ONLY: self.shown_us}
            self.moved_us |= {name: self.ended_us for name, us in reached.items() if us != before.get(name, UNSET)}
            self.sources_us, self.shown_us = sources_us, least_us
            if reported or self.every_batch:
                self._note()

    def note_waiting(self) -> None:
        """Note again, between two batches, as other sources are held back now; of numbers nothing is new."""
        with self._lock:
            self._note()

    def _note(self) -> None:
        now = self.moment
        saved = {bucket: report.saved() for bucket, report in self.buckets.items()}
        report = {"buckets": saved, "watermark": now.watermark_us, "sources": self.sources_us, "advances": self.advances}
        report |= (
            {
                "batch": self.batch_id,
                "held": self._held(),
                "waiting": self.waiting(),
                "idle": self.idle,
                "doubts": self.doubts,
                "partition times": self.partition_times_us,
                "backlog": self.backlog(),
            }
            if self.every_batch
            else {}
        )
        report |= {"seconds": self.seconds, "ended": self.ended_us}
        report |= {"tables": {n: attrs.astuple(t) for n, t in self.tables.items()}} if self.tables else {}
        report |= {"watermarks of further clocks": list(now.others)} if now.others else {}
        report |= {"moved": self.moved_us} if self.moved_us else {}
        self.notes.keep_metrics(report)

    def waiting(self) -> list[str]:
        """Return which sources are held back at the moment, in words."""
        return [words for alignment in self.aligned for words in alignment.waiting()]

    def restore(self) -> None:
        """Begin with what an earlier run of this checkpoint knew."""
        self._take_noted(self.notes.metrics())
        self.doubts, self.partition_times_us = (), {}  # of this run: doubts of an earlier one may be mended

    def _take_noted(self, kept: dict[str, Any]) -> None:
        self.buckets = {bucket: Report.restored(saved) for bucket, saved in kept.get("buckets", {}).items()}
        if "watermark" in kept:
            self.moment = Moment(kept["watermark"], others=tuple(kept.get("watermarks of further clocks", ())))
        self.batch_id = max(self.batch_id, kept.get("batch", -1))
        self.sources_us = kept.get("sources", {})
        self.advances = kept.get("advances", 0)
        self.idle = tuple(kept.get("idle", ()))
        self.seconds, self.ended_us = kept.get("seconds", 0.0), kept.get("ended")
        self.moved_us, self.shown_us = dict(kept.get("moved", {})), self.moment.watermark_us
        self.doubts, self.partition_times_us = tuple(kept.get("doubts", ())), kept.get("partition times", {})
        self.tables = {name: TableVersion(*version) for name, version in kept.get("tables", {}).items()}

    def is_due(self, now_us: int) -> bool:
        """Return whether a bucket wants to be woken at a processing time that has come."""
        with self._lock:
            due = (report.wakeup_now_us for report in self.buckets.values())
            return any(us is not None and us <= now_us for us in due)

    @property
    def open(self) -> int:
        """Return how many windows and rows are open, in all stages."""
        with self._lock:
            return sum(report.open_windows + report.open_rows for report in self.buckets.values())

    def progress(self) -> Progress:
        """Return the sums over all buckets, and what sources say."""
        values, first, held = self._by_stage(), self.stages[0].spec.name, self._held()
        backlog, by_partition = waiting(self.backlog())
        ended = self.ended_us
        values[first] = attrs.evolve(
            values[first], idle_sources=self.idle, held_back=held, backlog=backlog, partition_backlog=by_partition
        )
        whole = self._whole(values)
        return attrs.evolve(
            whole,
            run_rows=whole.rows - self.rows_before,
            watermark_advances=self.advances,
            held_back=held,
            backlog=backlog,
            partition_backlog=by_partition,
            tables=dict(self.tables),
            busy_seconds=self.busy_seconds,
            still_seconds=self._still_seconds(),
            backlog_seconds=(behind_s := self._backlog_seconds(backlog)),
            stalled_seconds=behind_s if ended is None else min(behind_s, max(time.time() - ended / 1e6, 0.0)),
            trouble=self.trouble,
            doubts=self.doubts,
            partition_times_us=self.partition_times_us,
        )

    @property
    def busy_seconds(self) -> float:
        """Return how long the batch in hand has run, with the look for what it reads."""
        since = self.busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _still_seconds(self) -> float:
        """Return for how long rows have come and wait, and the watermark has not moved."""
        since, now = self._still_since, time.monotonic()
        if since is None or not self.open:
            return 0.0
        several = sum(1 for name in self.sources_us if name) > 1
        # of a single source that is silent nothing waits for another one
        return now - since if several or now - self._came < STILL_S else 0.0

    def _backlog_seconds(self, backlog: Mapping[str, int]) -> float:
        now = time.monotonic()
        if self._caught_up is None or not any(backlog.values()):
            self._caught_up = now
        return now - self._caught_up

    def _note_still(self, now: float, *, moved: bool) -> None:
        """Note whether rows have come since the watermark moved, at a time of the clock that never goes back."""
        rows, self._rows = self._rows, 0
        for report in self.buckets.values():
            self._rows += report.counters.get("rows", 0)
        if self._rows > rows:
            self._came = now
        if moved:
            self._still_since = None
        elif self._rows > rows and self._still_since is None:
            self._still_since = now

    def counted(self) -> BatchCounts:
        """Return what the line of a micro-batch says, at a small part of the cost of :meth:`progress`."""
        with self._lock:
            entries, batch_id, moment = dict(self.buckets), self.batch_id, self.moment
        rows, late, firings = 0, 0, 0
        for bucket, report in entries.items():
            stage, counters = stage_of(bucket, self.last), report.counters
            rows += counters.get("rows", 0) if stage in self._inputs else 0
            late += refused_rows(counters)
            firings += counters.get("firings", 0) if stage == len(self.stages) - 1 else 0
        watermark_us = moment.at(self.stages[self._leading].times).watermark_us
        return BatchCounts(batch_id, rows, late, firings, watermark_us, self.seconds)

    def _by_stage(self) -> dict[str, Progress]:
        with self._lock:
            entries, batch_id, moment = dict(self.buckets), self.batch_id, self.moment
        values = {}
        for number, stage in enumerate(self.stages):
            reached = moment.at(stage.times).watermark_us
            mine = [report for bucket, report in entries.items() if stage_of(bucket, self.last) == number]
            sources_us = {} if number else dict(self.sources_us)
            open_windows = stage.spec.operation.open_windows(report.open_windows for report in mine)
            values[stage.spec.name] = _sums(mine, open_windows, batch_id, reached, sources_us, self.seconds, self.ended_us)
        return values

    def _whole(self, values: dict[str, Progress]) -> Progress:
        return of_stages(values, self._inputs, self._leading)

    def _held(self) -> dict[str, int]:
        """Return how often each source was held back."""
        return {name: times for alignment in self.aligned for name, times in alignment.held.items()}


def _latest(one: Moment, other: Moment) -> Moment:
    """Of each clock the later time."""
    others = tuple(max(a, b) for a, b in zip(one.others, other.others, strict=True))
    return Moment(max(one.watermark_us, other.watermark_us), others=others)


def _sums(
    entries: list[Report],
    open_windows: int,
    batch_id: int,
    watermark_us: int,
    sources_us: dict[str, int],
    seconds: float,
    ended_us: int | None,
) -> Progress:
    counters, given = dict[str, int](), dict[str, int]()
    for entry in entries:
        count(counters, entry.counters)
        count(given, entry.given)
    return Progress(
        batch_id=batch_id,
        watermark_us=watermark_us,
        rows=counters.get("rows", 0),
        late=refused(counters),
        counters=counts_of(counters),
        open_windows=open_windows,
        open_rows=sum(e.open_rows for e in entries),
        timers=sum(e.timers for e in entries),
        held_rows=sum(e.held_rows for e in entries),
        call_seconds=call_seconds_of(counters),
        state_bytes=sum(e.state_bytes for e in entries),
        firings=counters.get("firings", 0),
        source_watermarks_us=sources_us,
        sink_rows=given,
        batch_seconds=seconds,
        batch_ended_us=ended_us,
    )


@attrs.frozen(eq=False)
class OutputColumns:
    """One output: its sink, the columns of its rows, and who else has some of them in memory."""

    sink: Sink | None
    schema: pa.Schema
    memory: SparedLateEventHandler | None = None

    @property
    def readable(self) -> ReadableSink | None:
        """Return what has rows in memory."""
        return self.memory or (self.sink if isinstance(self.sink, ReadableSink) else None)

    def table(self, what: str, hint: str) -> pa.Table:
        """Return all rows so far.

        Raises
        ------
        PlanError
            For a sink that cannot be read.
        """
        if self.readable is None:
            got = "no side output" if self.sink is None else self.sink.title
            raise PlanError(f"{what} needs the rows in memory", got=got, hint=hint)
        table = self.readable.table() if self.memory is None else self.memory.table(self.schema)
        return self.schema.empty_table() if table is None else table


@attrs.frozen(eq=False)
class QueryRows:
    """Results by the names of outputs, late rows by those of stages; each in the order of the plan."""

    results: dict[str, OutputColumns]
    late: dict[str, OutputColumns]

    @classmethod
    def of(cls, plan: PhysicalPlan, sinks: tuple[Sink, ...]) -> QueryRows:
        """Return those of a plan whose outputs go to `sinks`."""
        given = zip(plan.outputs, sinks, strict=True)
        return cls(
            {o.name: OutputColumns(sink, o.schema) for o, sink in given}, {s.spec.name: _late_columns(s) for s in plan.stages}
        )

    def result_rows(self, output: str | None) -> pa.Table:
        """Return all results of an output so far.

        Raises
        ------
        PlanError
            For a name that no output has, for none where there are several, and for rows that are not in memory.
        """
        kept = self.results[self.output_called(output, "results()")]
        return kept.table("results()", "start with MemorySink(), or read what the sink wrote")

    def output_called(self, name: str | None, what: str) -> str:
        """Return the name of an output, which may be left out where there is one.

        Raises
        ------
        PlanError
            For a name that no output has, and for none where there are several.
        """
        if name is None and len(self.results) > 1:
            raise PlanError("the query has several outputs", got="no name", hint=_known(self.results))
        if name is not None:
            _chosen(self.results, name, what, "output")
        return next(iter(self.results)) if name is None else name

    def late_rows(self, stage: str | None) -> pa.Table:
        """Return all late rows of a stage so far, by default of the first one. Raises as :meth:`result_rows`."""
        name = next(iter(self.late)) if stage is None else stage
        kept = _chosen(self.late, name, "late_rows()", "stage")
        others = [f"late_rows({n!r})" for n, one in self.late.items() if one.readable is not None]
        keep = "write .with_late_event_handler(SideOutputLateEventHandler(MemorySink())) before .start(...)"
        hint = (
            f"write {' or '.join(others)}" if others else keep if kept.sink is None else f"{keep}, or read what the sink wrote"
        )
        return kept.table("late_rows()" if len(self.late) == 1 else f"late_rows() of the stage {name!r}", hint)

    def late_in_memory(self) -> dict[str, pa.Table]:
        """Return the late rows so far of each stage that keeps them in memory."""
        return {n: kept.table("late_rows()", "") for n, kept in self.late.items() if kept.readable is not None}


def _late_columns(stage: StagePlan) -> OutputColumns:
    memory = stage.late if isinstance(stage.late, SparedLateEventHandler) else None
    return OutputColumns(side_output(stage.late), late_output_schema(stage.layout), memory)


def _chosen(kept: dict[str, OutputColumns], name: str | None, what: str, of: str) -> OutputColumns:
    if name is None:
        return next(iter(kept.values()))
    if not isinstance(name, str) or name not in kept:
        raise PlanError(f"{what}: no such {of}", got=shown(name), hint=_known(kept))
    return kept[name]


def _known(kept: dict[str, OutputColumns]) -> str:
    return f"pass one of {', '.join(map(repr, kept))}"


@attrs.define(eq=False, repr=False, slots=False)
class RunningQuery(OfOneProcess):
    """Implements the part of :class:`krishiv_py.api.query.Query` that no engine changes.

    An engine adds `status`, `exception`, `state`, `stop` and how to wait.
    """

    _kind = "query"
    _instead = ("a query that runs in this process", "send what is needed of it: query.results(), query.progress or query.id")

    _name: str
    _ledger: BucketMetrics
    _plan: PhysicalPlan
    _note: str
    _rows: QueryRows
    _cleanup: Callable[[], None]
    _lateness: Lateness = attrs.field(init=False)
    _looking: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _snapshots: dict[int, StateSnapshot] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._lateness = Lateness(self._plan)

    def _begin(self) -> None:
        """Run, once the session has its handle; most engines have started it by then."""

    def _give_up(self) -> None:
        """End without having begun."""
        self.stop()

    def _fail(self, problem: KrishivError) -> None:
        """End it over a problem that is not one of the engine's; nothing, when it has ended."""
        raise NotImplementedError

    @property
    def status(self) -> Literal["running", "stopped", "failed"]:
        """``running``, ``stopped`` or ``failed``."""
        raise NotImplementedError

    def exception(self) -> Exception | None:
        """Return what made the query fail; None if it did not fail."""
        raise NotImplementedError

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state of a stage."""
        raise NotImplementedError

    def lookup(
        self,
        key: Any,
        *,
        window: TimePoint | None = None,
        stage: str | None = None,
        last: int | None = None,
        max_age: Duration = "10 s",
    ) -> pa.Table:
        """Return the open windows of one key, or of a list of keys, from a snapshot of the state that is kept for a while."""
        number = self._plan.stage_called(stage)
        spec, oldest_s = self._plan.stages[number].spec, to_us(max_age, "max_age", allow_zero=True) / 1e6
        at_us = None if window is None else time_point_us(window, "window")
        if last is not None:
            then = "only open windows can be looked up there"
            hint = "leave `last` out, read the sink, or run the query with Session.in_process()"
            raise PlanError("results that have left are not kept on Spark", got=f"last={last!r}", then=then, hint=hint)
        keys = keys_of(StageOperator(spec), key)
        with self._looking:
            kept = self._snapshots.get(number)
            if kept is None or kept.age_s > oldest_s:
                began = time.monotonic()
                kept = self._snapshots[number] = StateSnapshot(KeyedRows(self.state(stage)), spec.keys, began)
            answer = kept.of(keys)
        return answer if at_us is None else holding(answer, at_us, spec)

    def savepoint(self, path: PathLike) -> str:
        """Write a savepoint between two micro-batches."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the query."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name it was started under."""
        return self._name

    @property
    def operator(self) -> str:
        """The name of its operator, as in late rows and ``explain()``."""
        return self._plan.spec.name

    @property
    def progress(self) -> Progress:
        """Watermark, late counts, open windows, state."""
        now = self._lateness.seen(self._ledger.progress())
        if self.status == "running":
            return now
        return attrs.evolve(now, trouble="", busy_seconds=0.0, still_seconds=0.0, backlog_seconds=0.0, stalled_seconds=0.0)

    def lateness(self, stage: str | None = None) -> LatenessProfile:
        """Return how late the rows of a source have come so far."""
        return self._lateness.counted(self._ledger.progress(), stage)

    def expect_lateness(self, profile: LatenessProfile, stage: str | None = None) -> None:
        """Warn in `progress` when rows that come from now on are later than a `profile` says."""
        self._lateness.expect(profile, self._ledger.progress(), stage)

    def results(self, output: str | None = None) -> pa.Table:
        """Return all results so far, of the `output` of this name where there are several; for a memory sink only."""
        return self._rows.result_rows(output)

    def subscribe(self, output: str | None = None, *, buffer: int = 100_000, when_slow: WhenSlow = "fail") -> Subscription:
        """Refuse: results do not come through this process."""
        hint = "run it with Session.in_process(), or read what a sink wrote, such as a topic of KafkaSink"
        raise PlanError("a query on Spark has no subscribers", got="subscribe()", hint=hint)

    def late_rows(self, stage: str | None = None) -> pa.Table:
        """Return all late rows so far, of the first stage or of the `stage` of this name; for a memory side output only."""
        return self._rows.late_rows(stage)

    def why_not_fired(self, window_end: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what the window of a `stage` that ends at `window_end` is waiting for; without it the oldest that waits."""
        now, moment = self.progress, self._ledger.moment
        every, named = now.stages or {self._plan.spec.name: now}, {one.spec.name: one for one in self._plan.stages}
        rows = {name: rows_that_wait(named[name], one.open_windows, one.open_rows) for name, one in every.items()}
        stage_plan = self._plan.stages[self._plan.stage_called(stage)]
        end_us = None if window_end is None else time_point_us(window_end, "window_end")
        oldest = None
        if end_us is None:
            stages = self._plan.stages if stage is None else [stage_plan]
            oldest = oldest_of_all(stages, lambda one: moment.at(one.times).watermark_us, self.state, rows)
            stage_plan, end_us = oldest or (stage_plan, None)
        text = why_not_fired(
            stage_plan,
            self._plan.clocks,
            moment.at(stage_plan.times).watermark_us,
            now.source_watermarks_us,
            end_us,
            now.idle_sources,
            rows=0 if oldest is None else rows.get(stage_plan.spec.name),
        )
        return LaidOut(" ".join([in_stage(self._plan.stages, stage_plan), text, *self._ledger.waiting()]).lstrip())

    def why(self, key: Any = None, time: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what became of a `key` at a `time`: its windows, the watermark, and where a row of that time would go."""
        if key is None and time is None:
            return self.why_not_fired(stage=stage)
        stage_plan = self._plan.stages[self._plan.stage_called(stage)]
        progress = self.progress
        now = QueryProgress(
            self._ledger.moment.at(stage_plan.times).watermark_us,
            progress.source_watermarks_us,
            self._ledger.moved_us,
            wall_clock_us(),
            progress.idle_sources,
        )
        text = why_text(self._plan, stage_plan, now, key, time, lambda: self.state(stage), self._result_rows(stage_plan))
        return LaidOut("\n".join([text, *self._ledger.waiting()]))

    def _result_rows(self, stage: StagePlan) -> pa.Table | None:
        """Return the results of a stage, where they are in memory."""
        outputs = [o.name for o in self._plan.outputs if self._plan.stages[o.stage] is stage]
        try:
            return self._rows.result_rows(outputs[0]) if len(outputs) == 1 else None
        except PlanError:
            return None

    @property
    def watermark(self) -> str:
        """The watermark that is in force, as text; of several clocks that of the last stage, which waits for all."""
        stages = self._plan.stages
        return show_instant(self._ledger.moment.at(stages[leading_stage(stages)].times).watermark_us)

    def explain(self) -> str:
        """Return the plan of the query as text."""
        doubts = (f"! {problem}" for problem in self.progress.doubts)
        return LaidOut("\n".join([plans_text(self._plan), self._note, *doubts]))

    def watch(self, *, every: Duration = "1 s", timeout: Duration | None = None) -> None:
        """Show the query where one looks, until it has ended, for at most `timeout`, or until Ctrl-C; the query goes on."""
        step_us = to_us(every, "every")
        until = None if timeout is None else time.monotonic() + to_us(timeout, "timeout") / 1e6
        with RecentTimes(self._name) as recent:
            watch(lambda: self._seen(recent), every_s=step_us / 1e6, until=until)

    def _seen(self, recent: RecentTimes | None = None) -> QuerySample:
        status = self.status
        problem = self.exception() if status == "failed" else None
        times = () if recent is None else recent.last()
        return QuerySample(self._name, status, self.progress, None if problem is None else str(problem), times)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return redacted(f"<Query {self._name}: {self.status}, {self.progress}>")

    def _repr_html_(self) -> str:
        """Show the state of the query in a notebook."""
        seen = self._seen()
        return query_html(seen.name, seen.status, seen.progress, seen.problem)


def all_rows(query: RunningQuery) -> QueryRows:
    """Return the outputs of a query: their sinks, and the columns of their rows."""
    return query._rows


def inside(query: RunningQuery) -> tuple[PhysicalPlan, dict[str, pa.Table]]:
    """Return the plan of a query, and of each stage whose late rows are in memory these rows: for displays."""
    return query._plan, query._rows.late_in_memory()


def plans_text(plan: PhysicalPlan) -> str:
    """Return what ``explain()`` says of a plan; of several outputs the plan of each, and which of its stages run for it."""
    if not plan.parts:
        return plan_text(explain(plan))
    said = [
        f"== output {output.name!r}: {_way(plan, output.stage)} ==\n{plan_text(explain(part))}"
        for output, part in zip(plan.outputs, plan.parts, strict=True)
    ]
    return "\n\n".join(said)


def _way(plan: PhysicalPlan, number: int) -> str:
    """Return the stages that rows go through to one, the sides of a join in brackets."""
    stage = plan.stages[number]
    before = [_way(plan, n) for n in stage.after]
    if not before:
        return stage.spec.name
    joined = before[0] if len(before) == 1 else " + ".join(f"({way})" for way in before)
    return f"{joined} -> {stage.spec.name}"
