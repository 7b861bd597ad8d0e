"""Sources of a query in this process: all plan ranges, which are noted before they are read; files need no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.csv import CsvOptions
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError, SourceError, cut
from krishiv_py.in_process.core import Parts, StreamRows
from krishiv_py.in_process.stage import parted
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.firing import custom_trigger_of
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.watermark import ClockInput
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.nodes import FileSource, FrameSource, SourceNode
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.running import Control
from krishiv_py.plan.schema import checked
from krishiv_py.plan.steps import traced
from krishiv_py.planner.physical import PhysicalPlan, SourceRead
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.limits import Alignment, Limit
from krishiv_py.runtime.ranges.log import RangeLog, RangeReader
from krishiv_py.runtime.ranges.planning import RangePlanner, logged
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.reading import UNKNOWN_COLUMNS, UNREAD_FILE, ScannedRows, header_columns, planned_here, with_partitions
from krishiv_py.storage.files import arrow_reads, files_at, store_at
from krishiv_py.storage.sends.segments import Send

_ROUTES: Final = ("fixed", "session", "lookback", "rows")
"""Windows whose results depend on the watermark and on rows that are not late, and not on where batches end."""


@attrs.frozen
class SingleSends:
    """Implements :class:`~krishiv_py.runtime.ranges.sent.SendGrouping`: each send is a batch."""

    def most(self) -> tuple[int, int]:
        """See Together."""
        return 0, 0

    def count(self, sends: Sequence[Send]) -> int:
        """See Together."""
        return 1


@attrs.define(eq=False)
class GatheredSends:
    """Implements :class:`~krishiv_py.runtime.ranges.sent.SendGrouping`: sends are one batch while each alone gives the same.

    A row is compared with the watermark that the sends before it have reached. So a send joins a batch only if no row lies
    before that: then none of them is late, none belongs to a window that would have fired before it, and it makes no difference
    that both are in one batch. The first send with another row begins the next batch.

    Attributes
    ----------
    spec : OperatorSpec
        What reads the sends.
    column : str
        The column of a send that has its event times; empty where rows need none.
    lag_us : int
        The lag of the watermark, µs.
    limit : Limit
        How much a batch takes.
    in_force : callable
        The watermark that is in force for the next batch, µs.
    on_watermark : bool
        Whether a row with the time of the watermark belongs to no window that has fired.
    """

    spec: OperatorSpec
    column: str
    lag_us: int
    limit: Limit
    in_force: Callable[[], int]
    on_watermark: bool

    @classmethod
    def of(cls, plan: PhysicalPlan, limit: Limit, in_force: Callable[[], int]) -> GatheredSends | None:
        """Return the gathering of the sends of a plan; None where each send has to be a batch."""
        if len(plan.stages) > 1 or len(plan.reads) > 1 or len(plan.reads[0].takers) > 1:
            return None
        spec = plan.reads[0].takers[0][1].spec
        options, mark, operation = spec.options, spec.watermark, spec.operation
        by_batch = (
            custom_trigger_of(options.trigger) is not None or options.trigger._period_us is not None or options.ttl is not None
        )
        if not operation.fires_plainly(options) or by_batch or options.late_by_batch_before:
            return None
        if mark.by_row:  # a row is classified by those before it, whatever batch they are in
            return cls(spec, "", 0, limit, in_force, on_watermark=True)
        if operation.route not in _ROUTES:
            return None
        if not spec.time_column:
            return cls(spec, "", 0, limit, in_force, on_watermark=True)
        column = _source_column(spec)
        if column is None or not isinstance(mark, WatermarkSpec) or mark._by_clock or mark.idle_advance_us is not None:
            return None
        return cls(spec, column, mark.lag_us, limit, in_force, operation.route in ("fixed", "rows"))

    def most(self) -> tuple[int, int]:
        """See Together."""
        return self.limit.rows, self.limit.nbytes

    def count(self, sends: Sequence[Send]) -> int:
        """See Together."""
        if len(sends) == 1:
            return 1
        each = [s.num_rows for s in sends]
        rows, nbytes = np.cumsum(each), np.cumsum([s.nbytes for s in sends])
        room = int(np.count_nonzero((rows <= self.limit.rows) & (nbytes <= self.limit.nbytes)))
        if room < len(sends):
            self.limit.took(self.limit.rows, self.limit.nbytes)
        else:
            self.limit.took(int(rows[-1]), int(nbytes[-1]))
        sends = sends[: max(room, 1)]
        return len(sends) if not self.column else self._in_time(sends, each[: len(sends)])

    def _in_time(self, sends: Sequence[Send], rows: list[int]) -> int:
        """Return how many sends, of so many rows each, have no row before the watermark that those before have reached."""
        in_force = self.in_force()
        sends = sends[: rows.index(0)] if 0 in rows else sends
        if in_force == UNSET or len(sends) < 2:
            return 1
        stamped = stamp(pa.concat_arrays([c for send in sends for c in _chunks(send, self.column)]), self.spec.time_kind)
        starts = np.cumsum([0, *rows[: len(sends) - 1]])
        first = np.minimum.reduceat(stamped.times, starts)
        last = np.maximum.reduceat(stamped.times, starts)
        reached = np.maximum(np.maximum.accumulate(last) - self.lag_us, in_force)
        fits = ~np.logical_or.reduceat(stamped.null | stamped.out_of_range, starts)
        if self.spec.options.future_reference == "watermark":  # which the sends before have moved; the clock goes by itself
            fits &= last <= in_force + self.spec.options.future_us
        fits[1:] &= first[1:] >= reached[:-1] + (not self.on_watermark)
        return max(int(fits.argmin()), 1) if not fits.all() else len(sends)


def _chunks(send: Send, name: str) -> list[pa.Array]:
    """Return the pieces of a column of a send."""
    assert send.rows is not None
    column = send.rows.column(name)
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _source_column(spec: OperatorSpec) -> str | None:
    """Return the column of the source that is the event time; None where steps compute it, or may change the rows."""
    return traced(spec.prefix, spec.time_column)


ClockControl: TypeAlias = "tuple[Control, tuple[ClockInput, ...]]"
"""A word of a stream about the watermark, and the stream as each of the clocks has it that go by it."""


@attrs.define(eq=False)
class StreamReader:
    """A stream of a source: who plans it, who reads it, the stages that take its rows, and the clocks that go by them.

    Its rows are read by so many `workers`.
    """

    planner: RangePlanner
    reader: RangeReader
    takers: list[tuple[int, StageOperator]]
    clocks: tuple[ClockInput, ...]
    workers: int = 1

    def bounded_by(self, limit: Limit, together: GatheredSends | SingleSends | None) -> None:
        """Let a batch take no more files than the limit, and of sends those that may come `together`; None: each is a batch."""
        source = self.planner.node.source
        if isinstance(source, FolderSource):
            source.bounded_by(limit)
        elif isinstance(source, SentSource) and together is not None:
            source.together = together

    def partitions(self) -> Iterable[str]:
        """Return the partitions that its source knows of."""
        source, position = self.planner.node.source, self.planner.log.position
        return () if position is None else source.partitions_at(json.loads(position))

    def read(self, number: int, into: dict[int, StreamRows], controls: list[ClockControl]) -> None:
        """Read an entry of the range log: rows go `into` what each stage is sent, what it says of the watermark to `controls`.

        Rows are read when the stage takes them; only where several stages do, and of sends, they are read at once.
        """
        ranges, source = self.planner.ranges_of(number), self.planner.node.source
        sent, held, control = isinstance(source, SentSource), None, None
        if isinstance(source, SentSource) and ranges:
            held = source.taken([json.loads(one) for one in ranges], self.reader.schema)
        if ranges is None:
            ranges, control = self.planner.log.entry(number)
        scanned: Iterable[ScannedRows]
        if held is not None:
            scanned = held
        elif control is not None:
            scanned = [ScannedRows(None, control, control.now_us)]
        else:
            scanned = self._of_ranges(ranges)
        ends = self.planner.log.ended and number == self.planner.log.last
        if ends or len(self.takers) > 1 or sent:
            scanned = list(scanned)
            controls += controls_of(scanned, self.clocks)
        for taker, stage in self.takers:
            into.setdefault(taker, []).append((stage, scanned))

    def _of_ranges(self, ranges: Sequence[str]) -> Iterable[ScannedRows]:
        """Return the rows of planned ranges, in parts where the source can be read by several threads."""
        if self.workers == 1 or not isinstance(self.planner.node.source, (FolderSource, KafkaSource)):
            return self.reader.rows_of(ranges)
        return Parts([self.reader.rows_of(some) for some in parted(ranges, self.workers)])


def controls_of(rows: Iterable[ScannedRows], clocks: tuple[ClockInput, ...]) -> list[ClockControl]:
    """Return the controls in what was read, for the clocks that go by the stream."""
    return [(scanned.control, clocks) for scanned in rows if scanned.control is not None]


def readers(
    plan: PhysicalPlan,
    checkpoint: str,
    now: Callable[[], int],
    aligned: Mapping[int, tuple[Alignment, str]],
    *,
    durable: bool,
    workers: int,
    kept: int = 0,
) -> list[StreamReader]:
    """Return a reader for each stream of a plan, with so many `workers`; what `kept` batches read is kept.

    Raises
    ------
    PlanError
        For a source that needs Spark.
    """
    readers = []
    for number, read in enumerate(plan.reads):
        source = in_process(read.source, checkpoint, number)
        log = RangeLog.open(source.log or "", durable=durable, kept=kept)
        planner = RangePlanner(source, number, checkpoint, log, now, aligned.get(number))
        readers.append(_reader(plan, read, source, planner, workers))
    return readers


def _reader(plan: PhysicalPlan, read: SourceRead, source: RangeSource, planner: RangePlanner, workers: int) -> StreamReader:
    schema = pa.schema([source.schema.field(name) for name in read.needs_columns])
    takers = [(number, StageOperator(branch.spec)) for number, branch in read.takers]
    return StreamReader(planner, RangeReader(schema, source.source, source.name, 1), takers, plan.clock_inputs(read), workers)


def in_process(source: SourceNode, checkpoint: str, number: int) -> RangeSource:
    """Return a source as one that plans ranges, whose log is in the checkpoint.

    Raises
    ------
    PlanError
        For a source that needs Spark.
    """
    if isinstance(source, FrameSource):
        raise _needs_spark(
            source, "a DataFrame is read by Spark", "use Session.embedded(), or read the files or the topic here"
        )
    if isinstance(source, FileSource):
        if not planned_here(source):
            what, hint = "files there are listed by Spark", "use s3a://, gs://, hdfs:// or a folder of this machine"
            raise _needs_spark(source, what, f"{hint}, or Session.embedded()")
        if source.options and source.format != "csv":
            hint = f"use read_{source.format} without options; Session.embedded() reads all of them"
            raise _needs_spark(source, f"{source.format} files with these options are read by Spark", hint)
    source_in_log = logged(source, checkpoint, number, waits=True, by_spark=False)
    assert isinstance(source_in_log, RangeSource)
    return source_in_log


def _needs_spark(source: SourceNode, what: str, hint: str) -> PlanError:
    got = f"{source.title} {source.detail()}"
    return PlanError(f"{what}, and this session has none", got=got, hint=hint)


def inferred(path: tuple[str, bool], kind: str, options: Mapping[str, str]) -> pa.Schema:
    """Return the columns of the files at a path, by the first one, and those that folders such as ``user=7`` add.

    The columns of CSV are texts, as on Spark.

    Raises
    ------
    SourceError
        When there is no file, or it says no columns.
    """
    where, literal = path
    if kind == "json" or not arrow_reads(where):
        what = f"{where}: the columns of {kind} files are found out by Spark, and this session has none"
        raise SourceError(what, got="no schema", hint=UNKNOWN_COLUMNS)
    paths = [file.path for file in files_at(where, literal=literal)]
    if not paths:
        raise _unknown(where, "no file says which columns there are", "no file")
    if kind == "csv":
        return checked(pa.schema([(name, pa.string()) for name in _named(paths[0], options)]))
    store, root = store_at(paths[0])
    try:
        with store.open(root) as file:
            schema = pq.read_schema(file)
    except (OSError, pa.ArrowException) as problem:
        what, got = f"{paths[0]}: the file cannot be read", cut(str(problem), 300)
        raise SourceError(what, got=got, hint=UNREAD_FILE) from problem
    return checked(with_partitions(schema.remove_metadata(), paths))


def _named(path: str, options: Mapping[str, str]) -> list[str]:
    names = header_columns(path, CsvOptions.of(options.items()))
    if not names or not all(names) or len({name.lower() for name in names}) < len(names):
        raise _unknown(path, "the first line names no columns", ", ".join(names)[:300] or "no line")
    return names


def _unknown(path: str, what: str, got: str) -> SourceError:
    return SourceError(f"{path}: {what}", got=got, hint=UNKNOWN_COLUMNS)
