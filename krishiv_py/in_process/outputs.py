"""Outputs of a query in this process: sinks and handlers of late rows, and the newest results of each key.

Results of small batches are put together in pieces that double in size, and a piece gets its index when somebody looks. So a
batch costs no more than it did, and a lookup looks into a few pieces, the newest first.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import key_hashes
from krishiv_py.arrays.types import pick
from krishiv_py.connectors.publish import OutputOf, Publisher, TablePublisher, blamed, check_sink, write_staged
from krishiv_py.connectors.sink import FileSink, Sink, TableSink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.connectors.sinks.known import BatchConsumer, MemorySink, side_output
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.stage import ProcessStage, Workers
from krishiv_py.kernels.columns.layout import late_names
from krishiv_py.kernels.prepare import late_output_schema
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.options.late import LateEventHandler, LateRows, hand_over
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.places import check_places
from krishiv_py.runtime.query import KeyedRows, holding
from krishiv_py.storage.files import store_at

AnySink: TypeAlias = Sink | BatchConsumer


class ProcessOutput(Protocol):
    """One output of a plan that runs in this process."""

    def publish(self, batch_id: int, rows: pa.Table, now_us: int, *, is_replay: bool) -> None:
        """Take what one call gave, at the time `now_us` on record."""


@attrs.frozen(eq=False)
class InMemory:
    """Rows for a memory sink, after what is there: several drivers may write into one, and no batch is repeated."""

    sink: MemorySink

    def publish(self, batch_id: int, rows: pa.Table, now_us: int, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        if rows.num_rows:
            self.sink.put(max(self.sink.tables, default=-1) + 1, [rows])


@attrs.frozen(eq=False)
class ToTables:
    """Rows for a sink that takes tables."""

    publisher: TablePublisher

    def publish(self, batch_id: int, rows: pa.Table, now_us: int, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        given = [self.publisher.sink.in_batch(rows, batch_id, lambda: now_us)] if rows.num_rows else []
        self.publisher.publish(batch_id, given, is_replay=is_replay)


_SHARED_ROWS: Final = 1 << 18
"""Fewer results are written to one file."""


@attrs.frozen(eq=False)
class ToFiles:
    """Rows for a sink that writes files. Workers share many rows: each writes a file."""

    sink: FileSink
    publisher: Publisher
    workers: Workers

    def publish(self, batch_id: int, rows: pa.Table, now_us: int, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        rows = self.sink.in_batch(rows, batch_id, lambda: now_us)
        to, n = self.publisher, rows.num_rows
        size = -(-n // self.workers.count) if self.sink.in_threads and n >= _SHARED_ROWS else n
        parts = [rows.slice(begin, size) for begin in range(0, n, size or 1)]
        staged_in = to.staging(batch_id)
        write = partial(
            write_staged, self.sink, to.folder, to.mark, batch_id, durable=to.durable, staged_in=staged_in, claimed=to.claimed
        )
        with blamed(self.sink, batch_id):
            written = self.workers.run([partial(write, number, part) for number, part in enumerate(parts)])
        to.publish(batch_id, [name for names in written for name in names])


@attrs.frozen(eq=False)
class ToHandler:
    """Late rows for a handler that has no sink."""

    handler: LateEventHandler
    spec: OperatorSpec

    def publish(self, batch_id: int, rows: pa.Table, now_us: int, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        if not rows.num_rows:
            return
        keys = () if self.handler.wants == "count" else self.spec.keys
        if self.handler.wants != "rows":
            why = rows.schema.names[-3:]
            rows = rows.select([*keys, *why]).rename_columns([*keys, *late_names(keys)])
        hand_over(self.handler, LateRows(rows, self.spec.name, batch_id))


@attrs.frozen(eq=False)
class Outputs:
    """The outputs of a plan that runs in this process.

    Attributes
    ----------
    results : tuple of (ProcessOutput or None)
        Where the results of each output go, in addition to the :class:`~krishiv_py.testing.StepOutput`.
    late : tuple of ProcessOutput
        Where late rows of each stage go.
    """

    results: tuple[ProcessOutput | None, ...]
    late: tuple[ProcessOutput, ...]

    def publish(
        self, batch_id: int, results: Sequence[pa.Table], late: Sequence[pa.Table], now_us: int, *, is_replay: bool = False
    ) -> None:
        """Publish what one call gave, the results of each output first, then the `late` rows of each stage.

        `now_us` is the time of the batch that is on record. `is_replay` says that the batch began in an earlier run, and may
        have been published then.
        """
        for to, rows in zip(self.results, results, strict=True):
            if to is not None:
                to.publish(batch_id, rows, now_us, is_replay=is_replay)
        for output, rows in zip(self.late, late, strict=True):
            output.publish(batch_id, rows, now_us, is_replay=is_replay)

    def end(self) -> None:
        """Leave folders of files as they are to stay; no batch follows."""
        for output in (*self.results, *self.late):
            if isinstance(output, ToFiles):
                output.publisher.end()


def outputs(sinks: Sequence[Sink | None], plan: PhysicalPlan, query: str) -> Outputs:
    """Return the outputs of a driver, one of `sinks` for each of the plan.

    Raises
    ------
    PlanError
        For a sink that needs Spark, and for folders or sinks that may not be one (see :func:`check_places`).
    """
    mark = uuid.uuid4().hex[:8]
    aside = [side_output(stage.late) for stage in plan.stages]
    check_places(sinks[0], aside[-1], plan.source, None, aside[:-1], [sink for sink in sinks[1:] if sink is not None])
    return outputs_of(plan, sinks, query, mark, in_driver=True)


def outputs_of(
    plan: PhysicalPlan,
    sinks: Sequence[Sink | None],
    query: str,
    mark: str,
    *,
    durable: bool = False,
    in_driver: bool = False,
    workers: Workers | None = None,
) -> Outputs:
    """Return the outputs of a plan, one of `sinks` for each; `mark` is in the names of files, which `workers` write.

    Raises
    ------
    PlanError
        For a sink that needs Spark, and for one whose key does not fit the results.
    """
    check_keys(plan, sinks)
    marks = [f"{mark}-{output.name}" if plan.named else mark for output in plan.outputs]

    def output(sink: Sink, of: OutputOf) -> ProcessOutput:
        if in_driver and isinstance(sink, MemorySink):
            check_sink(sink, of.output, of.schema)
            return InMemory(sink)
        return _output(sink, of, workers or Workers(), durable=durable, in_driver=in_driver)

    late = []
    for number, stage in enumerate(plan.stages):
        to, own = side_output(stage.late), plan.late_id(mark, number)
        schema = late_output_schema(stage.layout)
        late.append(ToHandler(stage.late, stage.spec) if to is None else output(to, OutputOf(own, query, "late_rows", schema)))
    return Outputs(
        tuple(
            None if sink is None else output(sink, OutputOf(own, query, "results", of.schema))
            for sink, own, of in zip(sinks, marks, plan.outputs, strict=True)
        ),
        tuple(late),
    )


def _output(sink: Sink, output: OutputOf, workers: Workers, *, durable: bool, in_driver: bool) -> ProcessOutput:
    check_sink(sink, output.output, output.schema)
    match sink:
        case TableSink():
            return ToTables(TablePublisher(sink, output))
        case FileSink():
            folder = folder_of(sink) or ""
            # of other stores a folder is only the names in it; nobody says when a driver has ended
            alone = bool(folder) and not in_driver and store_at(folder)[0].local
            return ToFiles(sink, Publisher(folder, output.query_id, durable, alone, claimed=not in_driver), workers)
    rows, attribute = ("results", "results") if output.output == "results" else ("late rows", "late")
    read = f", or read StepOutput.{attribute}" if in_driver else ", or use Session.embedded()"
    what = f"a {'Driver' if in_driver else 'session in process'} cannot write {rows} to a sink that needs Spark"
    raise PlanError(what, got=sink.title, hint=f"pass MemorySink(), ParquetSink(...), ConsoleSink() or a TableSink{read}")


MOST_BYTES: Final = 64 << 20
"""So much memory may results have; of a single batch that has more, all of them stay."""
_TOGETHER: Final = 64
_MERGED_ROWS: Final = 1 << 16


@attrs.define(eq=False)
class LastResults:
    """The newest results of an output.

    Attributes
    ----------
    stage : ProcessStage
        The stage that gives them.
    schema : pyarrow.Schema
        Their columns.
    most_rows : int
        About how many there are, 0 for none.
    """

    stage: ProcessStage
    schema: pa.Schema
    most_rows: int
    _fresh: list[pa.Table] = attrs.field(factory=list)
    _fresh_rows: int = 0
    _pieces: list[KeyedRows] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _none: pa.Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._none = self.schema.empty_table()

    def put(self, results: pa.Table) -> None:
        """Keep what a batch gave."""
        if not results.num_rows or not self.most_rows:
            return
        with self._lock:
            self._fresh.append(results)
            self._fresh_rows += results.num_rows
            if len(self._fresh) >= _TOGETHER or self._fresh_rows >= self._merged_rows:
                self._merge()

    @property
    def _merged_rows(self) -> int:
        return min(_MERGED_ROWS, self.most_rows)

    def of(self, keys: pa.Table, last: int, at_us: int | None) -> pa.Table:
        """Return the newest results of each of some keys, `last` at the most, in the order in which they left.

        Parameters
        ----------
        keys : pyarrow.Table
            The keys, in the order of the key columns.
        last : int
            How many of each key.
        at_us : int, optional
            Only windows that hold this time, µs since the epoch.

        Raises
        ------
        PlanError
            Where the output has no column for the key, or for the bounds of windows if they are needed.
        """
        names = list(self.stage.spec.keys)
        bounds = self.stage.stage.layout.result_schema.names[len(names) : len(names) + 2]
        missing = [name for name in (names if at_us is None else [*names, *bounds]) if name not in self.schema.names]
        if missing:
            what = "results are looked up by their key, and by the bounds of their windows"
            hint = "keep the column in the last .select(...) of the pipeline"
            raise PlanError(what, got=f"an output without {shown(missing[0])}", then="no result can be found", hint=hint)
        keys = keys.rename_columns(names)
        with self._lock:
            if self._fresh:
                self._merge()
            pieces = list(self._pieces)
        marks = key_hashes(list(keys.columns), keys.num_rows)
        results: list[pa.Table] = []
        for i, mark in enumerate(marks.tolist()):
            results += self._of_key(pieces, keys.slice(i, 1), mark, last, at_us)
        return pa.concat_tables(results) if results else self._none

    def _of_key(self, pieces: Sequence[KeyedRows], key: pa.Table, mark: int, last: int, at_us: int | None) -> list[pa.Table]:
        """Return the results of one key, the oldest first."""
        wanted, tables = last, list[pa.Table]()
        for piece in reversed(pieces):
            rows = piece.rows_of(key, mark, self.stage.spec.keys, wanted if at_us is None else piece.table.num_rows)
            if rows is None:
                continue
            if at_us is not None:
                rows = self._holding(rows, at_us)
                rows = rows.slice(max(rows.num_rows - wanted, 0))
            tables.append(rows)
            wanted -= rows.num_rows
            if wanted <= 0:
                break
        return tables[::-1]

    def _holding(self, rows: pa.Table, at_us: int) -> pa.Table:
        """Return the results whose windows hold a time."""
        layout = self.stage.stage.layout.result_schema.names[: len(self.stage.spec.keys) + 2]
        within = holding(rows.select(layout).append_column("at", pa.array(np.arange(rows.num_rows))), at_us, self.stage.spec)
        return pick(rows, within["at"].to_numpy())

    def _merge(self) -> None:
        """Make a piece of what came last, and one of small ones before it; the oldest go."""
        fresh, self._fresh, self._fresh_rows = self._fresh, [], 0
        self._pieces.append(KeyedRows(pa.concat_tables(fresh).combine_chunks() if len(fresh) > 1 else fresh[0]))
        pieces = self._pieces
        while len(pieces) > 1 and pieces[-2].table.num_rows < min(2 * pieces[-1].table.num_rows, self._merged_rows):
            newest = pieces.pop()
            pieces[-1] = KeyedRows(pa.concat_tables([pieces[-1].table, newest.table]).combine_chunks())
        rows, nbytes = sum(p.table.num_rows for p in pieces), sum(p.nbytes for p in pieces)
        while len(pieces) > 1 and (rows > self.most_rows or nbytes > MOST_BYTES):
            oldest = pieces.pop(0)
            rows, nbytes = rows - oldest.table.num_rows, nbytes - oldest.nbytes
