"""The progress of a running query, as a frozen value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from krishiv_py.plan.durations import UNSET, show_instant
from krishiv_py.plan.running.counters import Counters, summed


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
    """

    version: int
    loaded_us: int
    rows: int


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
    late : dict
        Refused rows by reason, so far.
    counters : dict
        Everything counted, under SEMANTICS §4.5's names without prefix.
    open_windows, open_rows, state_bytes, firings : int
        The content of the state, and results fired so far.
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
    doubts : tuple of str
        What looks wrong in the event times of this run, such as seconds that are read as milliseconds, and what helps.
    stages : dict
        The progress of each stage by its name; empty for a query of one stage. Of several, the progress of the whole has the
        batch, watermark and sources of the first stage, the rows and counters of the stages that read sources (each source
        once), the firings of the last stage, and the sums of the rest.
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

    def __str__(self) -> str:
        late = ", ".join(f"{n} {r}" for r, n in self.late.items() if n) or "none"
        held = "".join(f", held back: {name} {times}" for name, times in sorted(self.held_back.items()))
        seen = "".join(f", table {name}: version {one.version}" for name, one in self.tables.items())
        doubts = "".join(f", ! {problem}" for problem in self.doubts)
        return (
            f"batch {self.batch_id}: watermark {self.watermark}, {self.rows} rows, late: {late}, "
            f"{self.open_windows} open windows, {self.state_bytes} state bytes, {self.firings} firings{held}{seen}{doubts}"
        )


def of_stages(stages: dict[str, Progress], inputs: Sequence[int], leading: int) -> Progress:
    """The progress of a query by that of its stages; the `inputs` among them count input rows, one is `leading` in time."""
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
    parts = [(name, part, n) for name, found in sources.items() if not isinstance(found, int) for part, n in found.items()]
    often = Counter(part for _, part, _ in parts)
    return total, {part if often[part] == 1 else f"{name} {part}": n for name, part, n in parts}
