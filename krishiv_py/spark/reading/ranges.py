"""Ranges of a user's source, read in the tasks: what travels through the JVM are names of files, and ranges as text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import NotedRanges, RangeSource, read_range
from krishiv_py.connectors.source import Source
from krishiv_py.disk.files import file_system
from krishiv_py.replay_index import open_sent
from krishiv_py.replay_log import control_of
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.log import RANGE
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.reading.scanned import Scanned
from krishiv_py.spark.reading.listing import own_files
from krishiv_py.spark.setup.partitioning import bucket_ids

_TOGETHER: Final = 1_000


@attrs.frozen(eq=False)
class RangeReader:
    """Batches of ranges as text (a bounded run), or of file names of the log and slots (a streaming query)."""

    schema: pa.Schema
    source: Source
    name: str
    slots: tuple[int, ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        given = batch.column(0).to_pylist()
        if not self.slots:
            for token in given:
                yield from self._rows(json.loads(token)[2])
            return
        slots = batch.column(1).to_pylist() if batch.num_columns > 1 else [self.slots[0]] * len(given)
        for uri, slot in zip(given, slots, strict=True):
            yield from self._noted(uri, self.slots.index(slot))

    def _noted(self, uri: str, at: int) -> Iterator[Scanned]:
        """The rows of every so-many-th range of a file of the log."""
        table = open_sent(*file_system(uri)).read()
        control = control_of(table)
        if control is None:
            for planned in table.column(RANGE).to_pylist()[at :: len(self.slots)]:
                yield from self._rows(planned)
        elif at == 0:
            yield Scanned(None, control, control.now_us)

    def _rows(self, planned: str) -> Iterator[Scanned]:
        if isinstance(self.source, SentSource):
            yield from self.source.scanned(int(planned), self.schema)
            return
        if isinstance(self.source, FolderSource):
            yield from self.source.scanned(json.loads(planned), self.schema)
            return
        found = read_range(self.source, self.name, planned, self.schema)
        for is_bad, group in itertools.groupby(found, lambda one: isinstance(one, Malformed)):
            if not is_bad:
                yield from map(Scanned, group)
            while is_bad and (some := tuple(itertools.islice(group, _TOGETHER))):
                yield Scanned(None, malformed=some)


def tokens(batches: list[NotedRanges]) -> list[list[str]]:
    """Batches of ranges, each as a text of its own: equal ranges are two."""
    return [[json.dumps([number, at, planned]) for at, planned in enumerate(b.ranges)] for number, b in enumerate(batches)]


def range_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """The files of a log as a query reads them: one a batch, for each of the tasks that share its ranges."""
    assert source.log is not None
    slots = bucket_ids(source.source.parallelism)
    frame = own_files(spark, source.log, streaming=True, max_files=1)
    if len(slots) > 1:
        named = ", ".join(map(str, slots))
        frame = frame.selectExpr("path", f"explode(array({named})) AS slot").repartition(len(slots), "slot")
    return frame, RangeReader(schema, source.source, source.name, slots)


def empty_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """A finite source without any range."""
    return spark.createDataFrame([], "path string"), RangeReader(schema, source.source, source.name)
