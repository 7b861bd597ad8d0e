"""Determine which micro-batches a finite input would make in a streaming query, and what would be in force in each.

Memory streams: every send is a batch, and the query is idle between two. Files read with ``max_files_per_batch``: that many
files of every source a batch, by modification time, one batch right after the other, as a query takes what is there. A user's
source plans its batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.connectors.ranges import RangeSource, all_ranges
from krishiv_py.errors import PlanError
from krishiv_py.kernels.prepare import Prepare
from krishiv_py.kernels.spec import Moment, Times
from krishiv_py.kernels.watermark import Clocks
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.planner.physical import PhysicalPlan, Read
from krishiv_py.replay_log import ReplayLog
from krishiv_py.runtime.ranges.log import RangeReader, tokens
from krishiv_py.runtime.reading import FileReader, Located, ParquetReader, Scanned, arrow_scanned, file_reader
from krishiv_py.spark.reading.listing import listed


@attrs.frozen
class TimedBatch:
    """One micro-batch: its number, and what is in force in it.

    Attributes
    ----------
    idle : bool
        Whether a query runs a batch without rows after it, waiting for input.
    """

    number: int
    moment: Moment
    idle: bool = True


@attrs.frozen(eq=False)
class Timetable:
    """The micro-batches of a finite input.

    Attributes
    ----------
    batches : tuple of TimedBatch
        The batches; the last one may be one without rows.
    files : list of dict
        For every stream of the plan, its files with the batch each belongs to.
    """

    batches: tuple[TimedBatch, ...]
    files: list[dict[str, TimedBatch]]


def timetable(spark: SparkSession, plan: PhysicalPlan, now_us: int) -> Timetable | None:
    """Return the micro-batches of the streams of a plan; None where all there is would be one."""
    sources = [read.source for read in plan.reads]
    if all(isinstance(source, MemorySource) for source in sources):
        batches = [[file] for file in _sent(plan.reads)]
        return _timed(plan, batches, now_us, idle=True) if batches else None
    if any(_cut(s) for s in sources) and all(_divided(s) for s in sources):
        batches = _side_by_side([_batches_of(spark, s) for s in sources])
        return _timed(plan, batches, now_us, idle=False) if batches else None
    if any(_cut(s) for s in sources):
        raise PlanError(
            "these files cannot be taken batch by batch in a bounded run",
            got=", ".join(s.detail() for s in sources),
            then="late rows would be others than in a streaming query",
            hint="leave max_files_per_batch out, or read with streaming=True and "
            "start(sink, batches=Batches.available_now(flush=True))",
        )
    return None


def _cut(source: SourceNode) -> bool:
    return isinstance(source, RangeSource) or (isinstance(source, FileSource) and source.max_files_per_batch is not None)


def _divided(source: SourceNode) -> bool:
    """Return whether it is known which batches a query would make of a source."""
    return isinstance(source, RangeSource) or (isinstance(source, FileSource) and arrow_scanned(source))


def _batches_of(spark: SparkSession, source: SourceNode) -> list[list[str]]:
    """Files or ranges of a source by batch."""
    if isinstance(source, RangeSource):
        return tokens(all_ranges(source.source, source.name))
    assert isinstance(source, FileSource)
    paths = listed(spark, Located(source.path, source.literal))
    size = source.max_files_per_batch or max(len(paths), 1)
    return [paths[start : start + size] for start in range(0, len(paths), size)]


def _sent(parts: Sequence[Read]) -> list[tuple[int, str]]:
    """Return all sent files with the number of their stream; of several streams in the order they were sent."""
    files = [(number, path) for number, part in enumerate(parts) for path in replay_log_of(part.source).files()]
    if len(parts) == 1:
        return files
    readers = [stream_reader(part) for part in parts]
    return sorted(files, key=lambda f: next((s.now_us or 0 for s in readers[f[0]](one_path(f[1]))), 0))


def replay_log_of(source: SourceNode) -> ReplayLog:
    """Return the replay log of a memory stream."""
    assert isinstance(source, MemorySource)
    return ReplayLog(source.spool)


def _side_by_side(sources: list[list[list[str]]]) -> list[list[tuple[int, str]]]:
    """Return the batches of a query: of every source its next one."""
    batches: list[list[tuple[int, str]]] = [[] for _ in range(max(map(len, sources), default=0))]
    for index, batches_of_source in enumerate(sources):
        for number, paths in enumerate(batches_of_source):
            batches[number] += [(index, path) for path in paths]
    return batches


def _timed(plan: PhysicalPlan, batches: list[list[tuple[int, str]]], now_us: int, *, idle: bool) -> Timetable:
    """Return what is in force in every batch. Of memory streams the last file need not be read for that."""
    clocks, takers = Clocks(plan.clocks), [_takers(plan, read) for read in plan.reads]
    readers = [stream_reader(read) for read in plan.reads]
    by_read: list[dict[str, TimedBatch]] = [{} for _ in plan.reads]
    timed: list[TimedBatch] = []
    begun_us = now_us
    in_force, before = attrs.evolve(clocks.moment(), now_us=now_us), None
    for number, batch in enumerate(batches):
        if plan.by_clock:
            now_us = max((us for index, path in batch for us in _sent_us(readers[index], path)), default=now_us)
        moment = attrs.evolve(in_force, now_us=now_us, begun_us=begun_us, before=before)
        timed.append(TimedBatch(number, moment, idle))
        for index, path in batch:
            by_read[index][path] = timed[-1]
            wanted = takers[index] and (number + 1 < len(batches) or not idle)
            for scanned in readers[index](one_path(path)) if wanted else ():
                now_us = scanned.now_us if scanned.now_us is not None else now_us
                for taker in takers[index]:
                    taker.tell(clocks, scanned, timed[-1].moment, now_us)
        before = None if idle else in_force.every  # else a batch without rows has run since
        in_force = clocks.settle(now_us)
    if not idle:  # when the last files are done a query runs a batch without rows
        timed.append(TimedBatch(len(batches), attrs.evolve(in_force, now_us=now_us), idle))
    return Timetable(tuple(timed), by_read)


def _sent_us(reader: FileReader | RangeReader, path: str) -> list[int]:
    """Return when what is in a file was sent, if it was."""
    if not isinstance(reader, ParquetReader):
        return []
    return [s.now_us for s in reader(one_path(path)) if s.now_us is not None]


@attrs.frozen(eq=False)
class _Taker:
    """A stage that reads a stream, as far as the clock goes by its rows."""

    prepare: Prepare
    clock: int
    times: Times
    source: str | None

    def tell(self, clocks: Clocks, scanned: Scanned, in_force: Moment, now_us: int) -> None:
        """Let the clock know of what was read."""
        if scanned.control is not None:
            clocks.advance(self.clock, scanned.control.watermark_us, scanned.control.source or self.source, now_us)
        elif scanned.batch is not None:
            watermark_us = in_force.at(self.times).watermark_us
            clocks.saw(self.clock, self.prepare.maxima(scanned.batch, watermark_us, now_us, in_force.begun_us), now_us)


def _takers(plan: PhysicalPlan, read: Read) -> list[_Taker]:
    every = ((plan.stages[number], branch) for number, branch in read.takers)
    return [_Taker(Prepare(b.spec), s.clock or 0, s.times, b.name) for s, b in every if not s.stateless]


def stream_reader(part: Read) -> FileReader | RangeReader:
    """Return what reads the files or ranges of a stream."""
    schema = pa.schema([part.source.schema.field(n) for n in part.needs_columns])
    if isinstance(part.source, RangeSource):
        return RangeReader(schema, part.source.source, part.source.name)
    return file_reader(part.source, schema) if isinstance(part.source, FileSource) else ParquetReader(schema, sent=True)


def one_path(path: str) -> pa.RecordBatch:
    """Return a file name as a scan hands it on."""
    return pa.record_batch([pa.array([path])], names=["path"])
