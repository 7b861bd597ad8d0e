"""A finite input in this process: its batches one after the other, then the end of input. Nothing is written down."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.query import BoundedResult
from krishiv_py.connectors.lookup_table import tables_age_by
from krishiv_py.connectors.ranges import RangeSource, all_ranges
from krishiv_py.connectors.sink import FolderSink
from krishiv_py.connectors.sinks.known import side_output
from krishiv_py.display.progress import Show, of_job, shown
from krishiv_py.engine.stage import StageOperator
from krishiv_py.in_process.core import BatchOutput, Core, Parts, StreamRows
from krishiv_py.in_process.outputs import outputs_of
from krishiv_py.in_process.sources import controls_of, in_process
from krishiv_py.in_process.stage import Workers, parted
from krishiv_py.kernels.watermark import ClockInput
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import FileSource, MemorySource
from krishiv_py.plan.running import summed
from krishiv_py.planner.cut import input_stages
from krishiv_py.planner.physical import PhysicalPlan, SourceRead
from krishiv_py.planner.places import LATE, check_places
from krishiv_py.runtime.outputs import claim_folder
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.runtime.ranges.sent import scanned_of
from krishiv_py.runtime.reading import FileReader, ScannedRows, file_reader
from krishiv_py.runtime.row_order import RowsInOrder
from krishiv_py.storage.files import files_at
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.storage.sends.segments import Send

Piece: TypeAlias = Callable[[], Iterable[ScannedRows]]
"""A part of a stream that is in one batch; it is read when its turn comes."""


@attrs.frozen(eq=False)
class _Stream:
    """A stream: its pieces, and who takes the rows."""

    pieces: Sequence[Piece]
    takers: list[tuple[int, StageOperator]]
    clocks: tuple[ClockInput, ...]


def run_bounded(plan: PhysicalPlan, now: Callable[[], int], progress: Show, workers: int) -> BoundedResult:
    """Run a plan over a finite input to its end.

    Raises
    ------
    PlanError
        For a source or a side output that needs Spark.
    """
    order = RowsInOrder.of(plan, workers)
    aside = [side_output(stage.late) for stage in plan.stages]
    check_places(None, aside[-1], plan.source, None, aside[:-1])
    for sink in aside:
        if isinstance(sink, FolderSink):
            claim_folder(sink, LATE, "bounded", None)
    outputs = outputs_of(plan, [None] * len(plan.outputs), plan.title, uuid.uuid4().hex[:8])
    streams = [_stream(plan, read, workers) for read in plan.reads]
    sent = all(isinstance(read.source, MemorySource) for read in plan.reads)
    batches = _in_order_of_sending(streams) if sent else _side_by_side(streams)
    counters: dict[str, int] = {}
    done: list[BatchOutput] = []
    with shown(lambda: of_job(len(done), len(batches) + 1, counters), progress):
        core, begun_us = Core(plan, plan.title, now(), Workers(workers)), now()
        now_us = begun_us
        for batch in batches:
            for stream, piece in batch:
                core.clocks.expect(stream.clocks, piece.partitions if isinstance(piece, _Ranges) else (), now_us)
            rows, sent_us = _read(core, batch, now_us, order)
            now_us = sent_us
            with tables_age_by(core, now_us):  # sends came one by one, so a batch without rows followed each
                done.append(core.run(rows, now_us, begun_us=begun_us, waits=sent))
            counters.update(_counters(core))
        core.clocks.advance(None, END_OF_TIME, None, now_us)
        with tables_age_by(core, now_us):
            done.append(core.run(None, now_us, begun_us=begun_us))
        core.workers.close()
    late = [pa.concat_tables([d.late[n] for d in done]).combine_chunks() for n in range(len(plan.stages))]
    outputs.publish(0, [o.schema.empty_table() for o in plan.outputs], late, begun_us)
    results = {o.name: pa.concat_tables([d.results[o.name] for d in done]).combine_chunks() for o in plan.outputs}
    by_stage = {s.spec.name: rows for s, rows in zip(plan.stages, late, strict=True)}
    if order is not None:
        order.tell(plan.title, _counters(core))
    counted = {s.spec.name: dict(s.counters) for s in core.stages}
    return BoundedResult(next(iter(results.values())), late[0], _counters(core), by_stage, results, counted)


def _in_order_of_sending(streams: Sequence[_Stream]) -> list[list[tuple[_Stream, Piece]]]:
    """Every send as a batch of its own, as a query would have taken them; one that several streams read is one batch."""
    every = [(_sent_us(piece) if len(streams) > 1 else 0, stream, piece) for stream in streams for piece in stream.pieces]
    batches: dict[object, list[tuple[_Stream, Piece]]] = {}
    for _, stream, piece in sorted(every, key=lambda one: one[0]):
        batches.setdefault(piece.place if isinstance(piece, _Send) else piece, []).append((stream, piece))
    return list(batches.values())


def _side_by_side(streams: Sequence[_Stream]) -> list[list[tuple[_Stream, Piece]]]:
    """Return the batches of a query: of every stream its next piece."""
    most = max((len(stream.pieces) for stream in streams), default=0)
    return [[(s, s.pieces[number]) for s in streams if number < len(s.pieces)] for number in range(most)]


def _sent_us(piece: Piece) -> int:
    return next((scanned.now_us for scanned in piece() if scanned.now_us is not None), 0)


def _read(
    core: Core, batch: Sequence[tuple[_Stream, Piece]], now_us: int, order: RowsInOrder | None
) -> tuple[dict[int, StreamRows], int]:
    """Return the rows of a batch as stages read them, and the time at which they were sent, if they were."""
    rows: dict[int, StreamRows] = {}
    for stream, piece in batch:
        pieces = piece() if order is None else order.watched(piece())
        if len(stream.takers) > 1 or isinstance(piece, _Send):
            pieces = list(pieces)
            now_us = max((s.now_us for s in pieces if s.now_us is not None), default=now_us)
            for control, inputs in controls_of(pieces, stream.clocks):
                core.clocks.take(control, inputs, now_us)
        for taker, stage in stream.takers:
            rows.setdefault(taker, []).append((stage, pieces))
    return rows, now_us


@attrs.frozen(eq=False)
class _Send:
    """One send of a memory stream, and its folder and number."""

    schema: pa.Schema
    sent: Send
    place: tuple[str, int]

    def __call__(self) -> Iterator[ScannedRows]:
        return scanned_of(self.sent, self.schema)


@attrs.frozen(eq=False)
class _Ranges:
    """The ranges of a batch, and the partitions that their source knows of."""

    reader: RangeReader
    ranges: Sequence[str]
    partitions: Sequence[str]

    def __call__(self) -> Iterator[ScannedRows]:
        return self.reader.rows_of(self.ranges)


def _counters(core: Core) -> dict[str, int]:
    return summed(dict(core.stages[n].counters) for n in input_stages(core.plan.stages))


def _stream(plan: PhysicalPlan, read: SourceRead, workers: int) -> _Stream:
    takers = [(number, StageOperator(b.spec)) for number, b in read.takers]
    schema = pa.schema([read.source.schema.field(name) for name in read.needs_columns])
    return _Stream(_pieces(read, schema, workers), takers, plan.clock_inputs(read))


def _pieces(read: SourceRead, schema: pa.Schema, workers: int) -> Sequence[Piece]:
    source = read.source
    if isinstance(source, MemorySource):
        return [_Send(schema, sent, (source.spool, n)) for n, sent in enumerate(ReplayLog(source.spool).sends())]
    if isinstance(source, RangeSource):
        ranges = RangeReader(schema, source.source, source.name)
        planned = all_ranges(source.source, source.name)
        return [_Ranges(ranges, one.ranges, list(source.source.partitions_at(json.loads(one.position)))) for one in planned]
    in_process(source, "", 0)  # says what needs Spark
    assert isinstance(source, FileSource)
    paths = [file.path for file in files_at(source.path, literal=source.literal)]
    reader, most = file_reader(source, schema), source.max_files_per_batch or max(len(paths), 1)
    return [partial(_of_files, reader, paths[begin : begin + most], workers) for begin in range(0, len(paths), most)]


def _of_files(reader: FileReader, paths: Sequence[str], workers: int) -> Iterable[ScannedRows]:
    each = [reader.read_file(path) for path in paths]
    return Parts([itertools.chain.from_iterable(some) for some in parted(each, workers)])
