"""The folder through which a query of ours hands its results to a query of plain Spark.

A micro-batch is one file, whose name tells query and batch and whose modification time their order: it is there whole or not at
all, and a batch that is repeated finds it there. So Spark's own log of the files it has read makes the hand-over exactly once.
Besides rows a file may have one that tells the watermark, and if the query fails a file tells why.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_py.connectors.sink import OnRepeat, OutputBatch, OutputName, TableSink
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.planner.cut import StagePlan
from krishiv_py.runtime.clock.clocks import LedgerClock, SparkClock
from krishiv_py.runtime.storage.hadoopsums import NEW_CHECKPOINT
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

TIME: Final = "time"
NOTE: Final = "note"
WATERMARK: Final = "watermark"
"""The note of a row that only tells the time; any other note is why the query failed."""
_TIME_TYPE: Final = pa.timestamp("us", "UTC")
_LAST_US: Final = 253_402_300_799_000_000
"""The watermark at the end of input, in the last second of the year 9999: Spark's own arithmetic has room behind it."""
_HOME: Final = "_home.json"
_FIRST_MTIME: Final = 1_000_000_000
_NAMED: Final = re.compile(r"batch-(.+)-([0-9]{12})\.parquet")


def folder_below(checkpoint: str) -> str:
    """Return where the files of a checkpoint are."""
    return f"{checkpoint}/krishiv/handed"


@attrs.frozen(eq=False)
class ResultTimes:
    """The event time of results, as far as their columns tell it, and how far the watermark of a stage has come.

    Attributes
    ----------
    column : str or None
        The column it follows from; None where there is none.
    before_us : int
        How much it is less than that, µs.
    tick_us : int
        The unit of the time column, µs.
    hold_back_us : int
        How far the watermark of results is behind that of the stage, µs (SEMANTICS §7.2).
    """

    column: str | None
    before_us: int
    tick_us: int
    hold_back_us: int

    @classmethod
    def of(cls, stage: StagePlan, schema: pa.Schema) -> ResultTimes:
        """Those of the results of a stage with this `schema`."""
        spec, time = stage.spec, stage.node.time
        hold_us = spec.operation.hold_back_us(spec.options)
        if stage.stateless or time is None or time.column not in schema.names:
            return cls(None, 0, spec.tick_us, hold_us)
        type_ = schema.field(time.column).type
        fits = pa.types.is_timestamp(type_) or type_ == pa.int64()
        return cls(time.column if fits else None, time.before_us(spec.tick_us), spec.tick_us, hold_us)

    def times(self, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        """The event time of each of the `rows`."""
        if self.column is None:
            return pa.nulls(rows.num_rows, _TIME_TYPE)
        raw = rows[self.column]
        scale = 1 if pa.types.is_timestamp(raw.type) else 1_000
        us = pc.subtract(pc.multiply(raw.cast(pa.int64()), pa.scalar(scale, pa.int64())), pa.scalar(self.before_us, pa.int64()))
        return us.cast(_TIME_TYPE)

    def reached(self, watermark_us: int) -> int | None:
        """The greatest time that no later result has, for this watermark of the stage, µs; None while it has none."""
        if watermark_us in (UNSET, END_OF_TIME):
            return None if watermark_us == UNSET else _LAST_US
        return watermark_us - self.hold_back_us - self.tick_us  # Spark takes a row at its watermark for late


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return how rows lie in files: under plain names, without columns that have nothing but nulls, which parquet does
    not know.
    """
    fields = [pa.field(f"c{at}", f.type) for at, f in enumerate(schema) if not pa.types.is_null(f.type)]
    return pa.schema([*fields, pa.field(TIME, _TIME_TYPE), pa.field(NOTE, pa.string())])


@attrs.define(eq=False)
class HandOver(TableSink):
    """Takes the results of a query, a file a micro-batch.

    Attributes
    ----------
    folder : str
        Where the files are.
    schema : pyarrow.Schema
        Columns of results.
    stage : StagePlan
        The stage that gives them.
    clock : SparkClock or LedgerClock or None
        Tells what is in force in a batch; None where the frame has no watermark.
    durable : bool
        Whether files must survive a loss of power.
    """

    folder: str
    schema: pa.Schema
    stage: StagePlan
    times: ResultTimes
    clock: SparkClock | LedgerClock | None
    durable: bool = False
    _reported_us: int = UNSET
    on_repeat: ClassVar[OnRepeat] = "skip"

    @property
    def title(self) -> str:
        """Return what errors and plans call it."""
        return "to_dataframe()"

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make the folder, and take back what earlier runs told of failures.

        The files stay, for a batch of the reader may have planned them already.

        Raises
        ------
        CheckpointError
            When the folder was moved: whoever reads it knows files by their paths, and would read all of them again.
        """
        store, root = store_at(self.folder)
        store.make_folder(root)
        there = store.entries(root)
        _check_home(store, root, any(_NAMED.fullmatch(found.base_name) for found in there), durable=self.durable)
        for found in there:
            if found.base_name.startswith("failed-") and found.base_name.endswith(".parquet"):
                name = found.base_name.removesuffix(".parquet")
                write(self.folder, name, stored_schema(self.schema).empty_table(), 0, durable=self.durable)

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See TableSink."""
        store, root = store_at(self.folder)
        found = store.entries(root)
        named = [name for f in found if (name := _NAMED.fullmatch(f.base_name)) is not None]
        return max((int(name[2]) for name in named if name[1] == batch.query_id), default=None)

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """See TableSink."""
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        parts = [self._stored(rows)] if rows.num_rows else []
        reached = self._reached(batch.batch_id)
        if reached is not None and reached > self._reported_us:
            self._reported_us = reached
            parts.append(_only(stored_schema(self.schema), reached, WATERMARK))
        if parts:
            name = f"batch-{batch.query_id}-{batch.batch_id:012d}"
            write(self.folder, name, pa.concat_tables(parts), batch.batch_id, durable=self.durable)

    def _stored(self, rows: pa.Table) -> pa.Table:
        stored = stored_schema(self.schema)
        kept = [c for c, f in zip(rows.columns, self.schema, strict=True) if not pa.types.is_null(f.type)]
        return pa.Table.from_arrays([*kept, self.times.times(rows), pa.nulls(rows.num_rows, pa.string())], schema=stored)

    def _reached(self, batch_id: int) -> int | None:
        if self.clock is None:
            return None
        return self.times.reached(self.clock.in_force(batch_id).at(self.stage.times).watermark_us)


def _check_home(store: Store, root: str, any_there: bool, *, durable: bool) -> None:
    here = os.path.realpath(root) if store.local else root
    path = f"{root}/{_HOME}"
    data = store.read(path)
    home = here if data is None else json.loads(unsealed(data, path, NEW_CHECKPOINT))
    if home != here and any_there:
        raise CheckpointError(
            "the checkpoint was moved, and it hands results over",
            got=f"{here}, before {home}",
            then="the query that reads the frame would read all of them again",
            hint="move it back, or start with both queries",
        )
    if data is None or home != here:
        store.write(path, sealed(json.dumps(here).encode()), durable=durable)


def tell_failure(folder: str, schema: pa.Schema, why: str, durable: bool) -> None:
    """Let whoever reads the folder fail with this text."""
    write(folder, f"failed-{uuid.uuid4().hex}", _only(stored_schema(schema), None, why), 0, durable=durable)


def _only(stored: pa.Schema, time_us: int | None, note: str) -> pa.Table:
    """A row with nothing but a note."""
    values = {TIME: pa.array([time_us], pa.int64()).cast(_TIME_TYPE), NOTE: pa.array([note])}
    return pa.Table.from_arrays([values.get(f.name, pa.nulls(1, f.type)) for f in stored], schema=stored)


def write(folder: str, name: str, rows: pa.Table, number: int, *, durable: bool) -> None:
    """Write a file, or replace it, whole or not at all; its modification time tells its place in the order."""
    store, root = store_at(folder)
    hidden, final = f"{root}/{name}.tmp", f"{root}/{name}.parquet"
    with store.arrow.open_output_stream(hidden) as stream:
        pq.write_table(rows, stream, compression="snappy", store_schema=False, write_page_checksum=True)
    if store.local:
        os.utime(hidden, (_FIRST_MTIME + number,) * 2)
    if durable:
        store.sync(hidden)
    store.rename([(hidden, final)])
    if durable:
        store.sync(root)
