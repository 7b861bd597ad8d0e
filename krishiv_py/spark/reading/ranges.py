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
from krishiv_py.connectors.ranges import NotedRanges, RangeSource, partition_of, read_range
from krishiv_py.connectors.source import Source
from krishiv_py.disk.files import file_system
from krishiv_py.replay_index import open_sent
from krishiv_py.replay_log import control_of
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.log import RANGE
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.reading.scanned import Scanned
from krishiv_py.spark.reading.listing import own_files

_TOGETHER: Final = 1_000


@attrs.frozen(eq=False)
class RangeReader:
    """Batches of ranges as text (a bounded run), or of names of files of the log and the number of a task of `tasks`."""

    schema: pa.Schema
    source: Source
    name: str
    tasks: int = 0

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        given = batch.column(0).to_pylist()
        if not self.tasks:
            for token in given:
                yield from self._rows(json.loads(token)[2])
            return
        tasks = batch.column(1).to_pylist() if batch.num_columns > 1 else [0] * len(given)
        for uri, at in zip(given, tasks, strict=True):
            yield from self._noted(uri, at)

    def _noted(self, uri: str, at: int) -> Iterator[Scanned]:
        """The rows of every so-many-th range of a file of the log."""
        table = open_sent(*file_system(uri)).read()
        control = control_of(table)
        if control is None:
            for planned in table.column(RANGE).to_pylist()[at :: self.tasks]:
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
        partition = partition_of(self.source, self.name, planned)
        found = read_range(self.source, self.name, planned, self.schema)
        for is_bad, group in itertools.groupby(found, lambda one: isinstance(one, Malformed)):
            if not is_bad:
                yield from (Scanned(one, partition=partition) for one in group)
            while is_bad and (some := tuple(itertools.islice(group, _TOGETHER))):
                yield Scanned(None, malformed=some)


def tokens(batches: list[NotedRanges]) -> list[list[str]]:
    """Batches of ranges, each as a text of its own: equal ranges are two."""
    return [[json.dumps([number, at, planned]) for at, planned in enumerate(b.ranges)] for number, b in enumerate(batches)]


def range_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Return the files of a log as a query reads them: one a batch, for each of the tasks that share its ranges.

    A product with the numbers of the tasks gives each task its row without a shuffle, and the source is in the plan once:
    checkpoints count how often it is.
    """
    assert source.log is not None
    tasks = source.source.parallelism
    frame = own_files(spark, source.log, streaming=True, max_files=1)
    if tasks > 1:
        numbers = spark.range(0, tasks, 1, tasks).withColumnRenamed("id", "task")
        frame = frame.hint("shuffle_replicate_nl").crossJoin(numbers)  # a cartesian product; a broadcast would be a job
    return frame, RangeReader(schema, source.source, source.name, tasks)


def empty_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """A finite source without any range."""
    return spark.createDataFrame([], "path string"), RangeReader(schema, source.source, source.name)
