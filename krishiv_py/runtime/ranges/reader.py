"""Reads planned ranges: as text, or from the files of a range log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import NotedRanges, partition_of, read_range
from krishiv_py.connectors.source import Malformed, Source
from krishiv_py.plan.running import Control
from krishiv_py.replay_index import RANGE, open_sent
from krishiv_py.replay_log import control_of
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.reading import Scanned
from krishiv_py.storage.files import store_at

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
                yield from self.rows_of(json.loads(token)[2])
            return
        tasks = batch.column(1).to_pylist() if batch.num_columns > 1 else [0] * len(given)
        for uri, position in zip(given, tasks, strict=True):
            yield from self.noted(uri, position)

    def noted(self, uri: str, position: int = 0) -> Iterator[Scanned]:
        """Yield the rows of every so-many-th range of a file of the log."""
        ranges, control = entry_of(uri)
        for planned in ranges[position :: self.tasks]:
            yield from self.rows_of(planned)
        if control is not None and position == 0:
            yield Scanned(None, control, control.now_us)

    def rows_of(self, planned: str) -> Iterator[Scanned]:
        """Read one planned range."""
        if isinstance(self.source, SentSource):
            yield from self.source.scanned(json.loads(planned), self.schema)
            return
        if isinstance(self.source, FolderSource):
            yield from self.source.scanned(json.loads(planned), self.schema)
            return
        partition = partition_of(self.source, self.name, planned)
        batches = read_range(self.source, self.name, planned, self.schema)
        for is_bad, group in itertools.groupby(batches, lambda one: isinstance(one, Malformed)):
            if not is_bad:
                yield from (Scanned(one, partition=partition) for one in group)
            while is_bad and (some := tuple(itertools.islice(group, _TOGETHER))):
                yield Scanned(None, malformed=some)


def entry_of(uri: str) -> tuple[list[str], Control | None]:
    """Return the ranges of a file of the log, or none and what it says of the watermark."""
    table = open_sent(*store_at(uri)).read()
    control = control_of(table)
    return (table.column(RANGE).to_pylist() if control is None else []), control


def tokens(batches: list[NotedRanges]) -> list[list[str]]:
    """Batches of ranges, each as a text of its own: equal ranges are two."""
    return [[json.dumps([number, i, planned]) for i, planned in enumerate(b.ranges)] for number, b in enumerate(batches)]
