"""Values that a running query gives and takes: control, counters, progress, and windows that fire by the clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from krishiv_py.deprecation import deprecated
from krishiv_py.plan.durations import UNSET, show_instant
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Prefix, Project
from krishiv_py.plan.options.watermarks import WatermarkSpec


@attrs.frozen
class Control:
    """A watermark to reach, or a heartbeat: what a control file says.

    Attributes
    ----------
    watermark_us : int
        The watermark to reach; ``UNSET`` for a heartbeat, which only tells the time.
    source : str or None
        The source it is for; None means all.
    now_us : int
        Processing time at which it was written, µs.
    snapshot : bool
        Whether what is open is to be given as early results (SEMANTICS §10).
    """

    watermark_us: int
    source: str | None
    now_us: int
    snapshot: bool = False


@attrs.frozen
class ProcessingTime(WatermarkSpec):
    """The watermark is the clock: it goes on without rows, and rows are never before it."""

    lag_us: int = 0
    _by_clock: ClassVar[bool] = True

    def _describe(self) -> str:
        """One line for ``explain()``."""
        return "the clock, as it is recorded with every batch"


@attrs.frozen(eq=False, repr=False)
class BatchTime(Expr):
    """Says when a micro-batch was begun, by the clock that is recorded with it.

    Attributes
    ----------
    at_us : int or None
        µs since the epoch; None in a plan, as it is known in a batch only.
    """

    at_us: int | None = None

    def _parts(self) -> tuple[Any, ...]:
        return ("processing_time()",)


def stamped(prefix: tuple[Prefix, ...], at_us: int) -> tuple[Prefix, ...]:
    """Stateless steps in a batch of this time, µs."""
    return tuple(_with_clock(step, at_us) if isinstance(step, Project) and uses_clock(step) else step for step in prefix)


def uses_clock(step: Project) -> bool:
    """Return whether a step asks for the clock."""
    return any(isinstance(expr, BatchTime) for _, expr in step.columns)


def _with_clock(step: Project, at_us: int) -> Project:
    return attrs.evolve(step, columns=tuple((n, BatchTime(at_us) if isinstance(e, BatchTime) else e) for n, e in step.columns))


RENAMED: Final = {"out_of_range": "time_out_of_range"}
"""Old names, with the new ones: a counter is called like the reason in a late row."""


class Counters(dict[str, int]):
    """Counts by name. An old name gives the count of the new one, and warns."""

    def __missing__(self, name: str) -> int:
        return self._renamed(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the count of `name`, or the `default`."""
        if name not in self and RENAMED.get(name) in self:
            return self._renamed(name)
        return super().get(name, default)

    def _renamed(self, name: str) -> int:
        new = RENAMED.get(name)
        if new is None or new not in self:
            raise KeyError(name)
        deprecated(f"the counter {name!r}", repr(new), callers=2)
        return self[new]


CALL_US: Final = "call_us"
"""The counter of the time for which process functions ran, µs: it is counted as others are, and shown on its own."""


def counts_of(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the counters but for that of a time, which differs from run to run."""
    return {name: n for name, n in counters.items() if name != CALL_US}


def call_seconds_of(counters: Mapping[str, int]) -> float:
    """Return for how long process functions ran, s."""
    return counters.get(CALL_US, 0) / 1e6


BEHIND: Final = "behind_us_"
"""The beginning of a counter of rows that came so many µs after a newer row, at most (see ``query.lateness()``)."""
FAILED: Final = "failed:"
"""The beginning of a counter of rows that failed an expectation, or a function, of that name, and went to the late output."""
FAILED_DROPPED: Final = "failed_dropped:"
"""The same of rows that were dropped."""
FAILED_HANDLER: Final = "failed_handler:"
"""The beginning of a counter of rows that a handler of this name was given, and raised for."""


def failed_of(counters: dict[str, int], kinds: tuple[str, ...] = (FAILED, FAILED_DROPPED)) -> dict[str, int]:
    """Return how many rows failed, by the name of the expectation or function (or handler, of another kind of counter).

    Examples
    --------
    >>> failed_of({"rows": 9, "failed:amount > 0": 2, "failed_dropped:amount > 0": 1})
    {'amount > 0': 3}
    """
    failed: dict[str, int] = {}
    for counter in [name for name in counters if name.startswith(kinds)]:
        name = counter.partition(":")[2]
        failed[name] = failed.get(name, 0) + counters[counter]
    return failed


def behind_of(counters: dict[str, int]) -> dict[int, int]:
    """Return how many rows came after a newer one: by the largest distance, µs, that each counter stands for.

    Examples
    --------
    >>> behind_of({"rows": 9, "behind_us_5000": 2, "behind_us_1000": 1})
    {1000: 1, 5000: 2}
    """
    return dict(sorted((int(name[len(BEHIND) :]), n) for name, n in counters.items() if name.startswith(BEHIND)))


def summed(every: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of counters by name."""
    total: dict[str, int] = {}
    for counters in every:
        for name, n in counters.items():
            total[name] = total.get(name, 0) + n
    return total


def under_new_names(counters: dict[str, int]) -> dict[str, int]:
    """Return the `counters` of a checkpoint, which an earlier version may have written; changed in place."""
    for old, new in RENAMED.items():
        if old in counters:
            counters[new] = counters.get(new, 0) + counters.pop(old)
    return counters


@attrs.frozen
class TableVersion:
    """Says which version of a table a micro-batch looked rows up in (SEMANTICS §9.3).

    Attributes
    ----------
    version : int
        Counts the tables that were loaded and differed from the one before, from 1 on.
    loaded_us : int
        When it was last loaded, µs since the epoch by the clock of the query.
    rows : int
        How many rows it has.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.testing import Driver, ManualClock, stream_of
    >>> def shops():
    ...     return pa.table({"shop": ["a"], "city": ["Pune"]})
    >>> named = stream_of("shop string").lookup_join(shops, on="shop", reload="1 hour")
    >>> driver = Driver(named, clock=ManualClock())
    >>> driver.send([{"shop": "a"}]).results.to_pylist()
    [{'shop': 'a', 'city': 'Pune'}]
    >>> driver.progress.tables
    {'shops': TableVersion(version=1, loaded_us=0, rows=1)}
    """

    version: int
    loaded_us: int
    rows: int


HUNG_S: Final = 600.0
"""For how long a batch may run, and a backlog may wait for the end of one, before a query counts as stuck, s."""
STILL_S: Final = 300.0
"""For how long rows may come without a moving watermark, s."""


@attrs.frozen
class Progress:
    """The progress of a query.

    Attributes
    ----------
    batch_id : int
        The last finished micro-batch, -1 before the first.
    watermark_us : int
        The watermark of that batch, µs; minus 2**63 while unset.
    rows : int
        Input rows so far, over all restarts.
    run_rows : int
        Those of this run: 0 after a start that has found nothing new.
    late : dict
        Refused rows by reason, so far.
    counters : dict
        Everything counted, under SEMANTICS §4.5's names without prefix.
    open_windows, open_rows, state_bytes, firings : int
        The content of the state, and results fired so far. A window that all keys share (tumbling, hopping, cumulating,
        calendar windows and panes) is open once, whatever the number of its keys; where keys are in several buckets it is the
        count of the bucket with the most. Of windows of one key (sessions, look-back and count windows) and of joins it counts
        what waits to become a result: rows, or parts of sessions. ``query.state()`` has a row for each key and window.
    timers, held_rows : int
        Of process functions, absence and patterns: deadlines at which keys are looked at, and rows that are not settled, since
        the first batch of this run.
    call_seconds : float
        How long process functions ran, with what goes around each call, s, over all restarts.
    source_watermarks_us : dict
        The watermark of every declared source, µs; empty for a single source.
    idle_sources : tuple of str
        Sources that were silent for longer than the idle time-out when the last batch ended; no watermark waits for them.
    sink_rows : dict
        Rows that went to each output so far, over all restarts: of each output of the query by its name (``"results"`` where
        there is only one), and under ``"late_rows"`` the late rows that went to a sink or handler. Of a query over several
        stages those of all stages.
    backlog : dict
        How much each source has that no micro-batch has taken, as it was when the source planned last: records of
        Kafka topics, files of a folder, what a source of your own states (``Source.backlog``). Sources that do not know, and
        memory streams, are not in it.
    partition_backlog : dict
        The same by partition, of sources that know it: of Kafka ``"events-0"``. Where two sources have a partition of the same
        name, the name of the source is before it.
    partition_times_us : dict
        The largest event time that this run has read of each partition, µs, where all partitions have one watermark (else see
        `source_watermarks_us`): how far they are from one another. On Spark, of sources that name them.
    watermark_advances : int
        How often a batch has moved the watermark, over all restarts.
    held_back : dict
        How often the planning of each source was put off in this run because it was too far ahead
        (``MultiSourceWatermarkSpec.max_drift``).
    tables : dict
        Of each table of a lookup join that a function loads, by the name of the function, the :class:`TableVersion` that the
        last batch saw.
    batch_seconds : float
        How long the last finished micro-batch took, s: reading, windows and both outputs.
    batch_ended_us : int or None
        When it ended, µs since the epoch by the clock of the machine; None before the first.
    busy_seconds : float
        How long the batch in hand has run so far, with the look for what it reads, s; 0 between two batches.
    still_seconds : float
        For how long rows have come while the watermark did not move, s; 0 while it moves, and while no window waits for it.
    backlog_seconds : float
        For how long each look at `backlog` has found some, s, as far as somebody looked; 0 while there is none.
    stalled_seconds : float
        The part of that since the last batch ended, s.
    trouble : str
        What is away, while the query tries again (docs/running.md, "What is away"); empty while nothing is.
    doubts : tuple of str
        What looks wrong in this run, such as seconds that are read as milliseconds, or a late handler that raises, and what
        helps.
    stages : dict
        The progress of each stage by its name; empty for a query of one stage. Of several, the progress of the whole has the
        batch, watermark and sources of the first stage, the rows and counters of the stages that read sources (each source
        once), the firings of the last stage, and the sums of the rest.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window("1 minute").agg(count()))
    >>> for at in (1_000, 70_000, 2_000):
    ...     _ = driver.send([{"at": at}])
    >>> driver.progress.watermark, driver.progress.rows, driver.progress.late["late"], driver.progress.pending_window_count
    ('1970-01-01T00:01:10Z', 3, 1, 1)
    """

    batch_id: int = -1
    watermark_us: int = UNSET
    rows: int = 0
    late: dict[str, int] = attrs.field(factory=dict, converter=Counters)
    counters: dict[str, int] = attrs.field(factory=dict, converter=Counters)
    open_windows: int = 0
    open_rows: int = 0
    state_bytes: int = 0
    firings: int = 0
    timers: int = 0
    held_rows: int = 0
    call_seconds: float = attrs.field(default=0.0, eq=False)
    source_watermarks_us: dict[str, int] = attrs.field(factory=dict)
    idle_sources: tuple[str, ...] = ()
    sink_rows: dict[str, int] = attrs.field(factory=dict)
    backlog: dict[str, int] = attrs.field(factory=dict, eq=False)
    partition_backlog: dict[str, int] = attrs.field(factory=dict, eq=False)
    partition_times_us: dict[str, int] = attrs.field(factory=dict)
    watermark_advances: int = 0
    held_back: dict[str, int] = attrs.field(factory=dict)
    tables: dict[str, TableVersion] = attrs.field(factory=dict)
    batch_seconds: float = attrs.field(default=0.0, eq=False)
    batch_ended_us: int | None = attrs.field(default=None, eq=False)
    run_rows: int = attrs.field(default=0, eq=False)
    busy_seconds: float = attrs.field(default=0.0, eq=False)
    still_seconds: float = attrs.field(default=0.0, eq=False)
    backlog_seconds: float = attrs.field(default=0.0, eq=False)
    stalled_seconds: float = attrs.field(default=0.0, eq=False)
    trouble: str = ""
    doubts: tuple[str, ...] = ()
    stages: dict[str, Progress] = attrs.field(factory=dict)

    @property
    def pending_window_count(self) -> int:
        """The open windows, under the name of the metric."""
        return self.open_windows

    @property
    def watermark(self) -> str:
        """The watermark as readable text."""
        return show_instant(self.watermark_us)

    @property
    def stuck(self) -> dict[str, str]:
        """Sentences about what keeps it from going on, by the reason; empty while it goes on.

        The reasons are ``away`` (it tries again), ``batch`` (the one in hand runs for ten minutes), ``watermark`` (rows come,
        and windows wait for five minutes) and ``backlog`` (some waits, and no batch has ended for ten minutes). The metric
        ``query_stuck``, its alert, ``/readyz`` and the page of a session go by them.

        Examples
        --------
        >>> Progress(busy_seconds=720).stuck
        {'batch': 'the batch in hand, or the look for it, has run for 12 min'}
        """
        reasons = {"away": f"it tries again: {self.trouble}"} if self.trouble else {}
        if self.busy_seconds >= HUNG_S:
            reasons["batch"] = f"the batch in hand, or the look for it, has run for {_minutes(self.busy_seconds)}"
        if self.still_seconds >= STILL_S:
            still = f"rows come, and the watermark has not moved for {_minutes(self.still_seconds)}"
            reasons["watermark"] = still + self._slowest()
        if self.stalled_seconds >= HUNG_S:
            reasons["backlog"] = f"a backlog waits, and no batch has ended for {_minutes(self.stalled_seconds)}"
        return reasons

    def _slowest(self) -> str:
        """Return a clause that names the source that holds the watermark, where there are several."""
        marks = {name: us for name, us in self.source_watermarks_us.items() if name and name not in self.idle_sources}
        if len(marks) < 2:
            return ""
        return f": it waits for the source {min(marks, key=lambda name: marks[name])}, which an idle time-out would let go"

    def __str__(self) -> str:
        late = ", ".join(f"{n} {r}" for r, n in self.late.items() if n) or "none"
        late += "".join(f", {text}" for text in dropped_by(self))
        held = "".join(f", held back: {name} {times}" for name, times in sorted(self.held_back.items()))
        seen = "".join(f", table {name}: version {one.version}" for name, one in self.tables.items())
        doubts = "".join(f", ! {problem}" for problem in (*([self.trouble] if self.trouble else []), *self.doubts))
        windows = "window" if self.open_windows == 1 else "windows"
        silent = [name for name, us in self.source_watermarks_us.items() if us == UNSET]
        holds = self.watermark_us == UNSET and len(silent) < len(self.source_watermarks_us)
        held_by = f" (nothing came from {', '.join(silent)})" if holds and silent else ""
        return (
            f"batch {self.batch_id}: watermark {self.watermark}{held_by}, {self.rows} rows, late: {late}, "
            f"{self.open_windows} open {windows}, {self.state_bytes} state bytes, {self.firings} firings{held}{seen}{doubts}"
        )


_DROPPED: Final = {
    "duplicates": "duplicates",
    "future_dropped": "too far ahead",
    "unassigned": "in no window",
    "unmatched": "unmatched",
    "refused_changes": "changes refused",
    "stale": "stale",
    "unknown_delete": "deletions without a row",
    "expired": "withdrawn after they expired",
    "limited": "over the limit",
    "ttl_dropped": "expired",
    "close_key_dropped": "closed",
}
"""Counters of rows and windows that are in no output, and what they are called."""


def dropped_by(progress: Progress) -> list[str]:
    """Return what the stages of a query have counted that is in no output."""
    return dropped(summed([stage.counters for stage in progress.stages.values()] or [progress.counters]))


def dropped(counters: Mapping[str, int]) -> list[str]:
    """Return what was counted and is in no output, where there is some."""
    return [f"{words} {counters[name]}" for name, words in _DROPPED.items() if counters.get(name)]


def _minutes(length_s: float) -> str:
    return f"{length_s / 60:.0f} min"


def of_stages(stages: dict[str, Progress], inputs: Sequence[int], leading: int) -> Progress:
    """Return the progress of a query by that of its stages; the `inputs` among them count input rows, one is `leading` in
    time.
    """
    every = list(stages.values())
    if len(every) == 1:
        return every[0]
    counters = summed([every[n].counters for n in inputs])
    late = dict(every[0].late)
    for stage in every[1:]:
        for reason, rows in stage.late.items():
            late[reason] = late.get(reason, 0) + rows
    counters["firings"] = every[-1].firings
    return attrs.evolve(
        every[0],
        watermark_us=every[leading].watermark_us,
        rows=counters.get("rows", 0),
        late=late,
        counters=counters,
        open_windows=sum(s.open_windows for s in every),
        open_rows=sum(s.open_rows for s in every),
        timers=sum(s.timers for s in every),
        held_rows=sum(s.held_rows for s in every),
        call_seconds=math.fsum(s.call_seconds for s in every),
        state_bytes=sum(s.state_bytes for s in every),
        firings=every[-1].firings,
        sink_rows=summed([s.sink_rows for s in every]),
        stages=stages,
    )


def waiting(sources: Mapping[str, int | Mapping[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    """Return what waits by source, and by partition where a source has them.

    Examples
    --------
    >>> waiting({"files": 3, "clicks": {"t-0": 1, "t-1": 4}})
    ({'files': 3, 'clicks': 5}, {'t-0': 1, 't-1': 4})
    """
    total = {name: n if isinstance(n, int) else sum(n.values()) for name, n in sources.items()}
    parts = [
        (name, part, n) for name, by_part in sources.items() if not isinstance(by_part, int) for part, n in by_part.items()
    ]
    often = Counter(part for _, part, _ in parts)
    return total, {part if often[part] == 1 else f"{name} {part}": n for name, part, n in parts}
