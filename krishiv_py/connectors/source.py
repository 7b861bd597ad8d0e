"""The interface of sources: how a source plans and reads its rows, and input that cannot be read (docs/sources.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import SourceError
from krishiv_py.plan.options.late import OnMalformed
from krishiv_py.storage.datasets import Dataset

Content: TypeAlias = "str | int | bytes | None"


@attrs.frozen
class Malformed:
    """Input that is not a row: a line, what is left of a file (without line and text), or a record of a topic.

    Attributes
    ----------
    file, line, text : str, int and str, or None
        Where a line is, from 1, and the whole of it.
    problem : str
        Why it is not a row.
    topic, partition, offset, key, value : str, int, int, bytes and bytes, or None
        Where a record of a topic is, and the whole of it.

    Examples
    --------
    >>> from krishiv_py.connectors import Malformed
    >>> broken = Malformed(file="clicks.json", line=7, text='{"user": ', problem="the line ends within an object")
    >>> broken.where
    'clicks.json, line 7'
    >>> print(broken.error())
    clicks.json, line 7: the line ends within an object (got: 9 characters). Hint: ...
    """

    file: str | None = None
    line: int | None = None
    text: str | None = None
    problem: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    value: bytes | None = None

    @property
    def where(self) -> str:
        """Return its place, for people."""
        if self.topic is not None:
            return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"
        return f"{self.file}" if self.line is None else f"{self.file}, line {self.line}"

    def error(self) -> SourceError:
        """Return what a query that may lose nothing fails with, in one line and without what the input holds."""
        out = "fix or remove it, and begin with a new checkpoint if it had one (docs/sources.md: how to keep it)"
        if self.topic is not None:
            out = "begin after it with a new checkpoint"
        hint = f'leave it as it is, and go on with on_malformed="side_output", which gives it whole, or {out}'
        whole = self.text if self.topic is None else self.value
        unit = "characters" if isinstance(whole, str) else "bytes"
        shown = ("no line" if self.topic is None else "no value") if whole is None else f"{len(whole)} {unit}"
        return SourceError(f"{self.where}: {' '.join(self.problem.split())}", got=shown, hint=hint)


def in_columns(malformed: Sequence[Malformed]) -> dict[str, list[Content]]:
    """Return all that is known of each, as columns."""
    return {name: [getattr(m, name) for m in malformed] for name in attrs.fields_dict(Malformed)}


JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | dict[str, JsonValue] | None"
"""The type of a position or a range: it is noted on disk as JSON."""

ReadRange: TypeAlias = "Callable[[JsonValue, Sequence[str]], Iterator[pa.RecordBatch | pa.Table | Malformed]]"
"""Reads a range, as :meth:`Source.read` does."""


@attrs.frozen
class Planned:
    """The next micro-batch of a source.

    Attributes
    ----------
    position : JSON value
        The position of the source after this batch: numbers, texts, lists and dicts, for instance the offset of each partition.
    ranges : sequence of JSON values
        What tasks read in this batch, at least one range; each is read by one task.

    Examples
    --------
    >>> from krishiv_py.connectors import Planned
    >>> Planned(position=20, ranges=[[0, 10], [10, 20]])
    Planned(position=20, ranges=[[0, 10], [10, 20]])
    """

    position: JsonValue
    ranges: Sequence[JsonValue]


class Source(ABC):
    """Rows from anywhere: the driver plans ranges, tasks read them as Arrow.

    The library notes position and ranges before a batch runs. After a crash the same ranges are read again, so a restart is
    exact if a range always gives the same rows. Only ranges travel through the JVM. A source is sent to the tasks with pickle.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of its rows.
    finite : bool
        Whether it ends: then :meth:`plan` returns None once everything is planned, the end of input fires all windows, and
        ``collect()`` can read it. Otherwise None means that there is nothing new at the moment.
    source_column : str or None
        The text column that names the watermark source of each row; None if it is one source.
    watermark_sources : tuple of str
        The names of its watermark sources, all values of `source_column`: partitions that are read in parallel, and may drift
        apart. ``watermark(column, lag)`` gives each a watermark of its own; ``with_watermark`` must declare each of them.
    lacks_order : str or None
        Why its rows come in no order, in the words of an error: ``clock="row"`` is refused then. None where ranges, or those of
        a partition, follow one another.
    parallelism : int
        How many tasks read the ranges of a batch at the same time.
    poll_seconds : float
        How long to wait after :meth:`plan` returned None before it is called again.
    on_malformed : {"fail", "side_output"}
        What is done with a :class:`~krishiv_py.connectors.Malformed` that :meth:`read` gives: the query stops with an error
        that names it, or it becomes a late row with the reason ``malformed``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py import Session, count
    >>> from krishiv_py.connectors import Dataset, Planned, Source
    >>> class Seconds(Source):
    ...     schema = pa.schema([("at", pa.int64())])
    ...     finite = True
    ...
    ...     def plan(self, last):
    ...         begin = 0 if last is None else last
    ...         return None if begin >= 20 else Planned(begin + 10, [[begin, begin + 10]])
    ...
    ...     def read(self, planned, columns):
    ...         yield pa.record_batch({"at": [1_000 * second for second in range(*planned)]})
    ...
    ...     def describe(self):
    ...         return "20 seconds"
    ...
    ...     def datasets(self):
    ...         return (Dataset("clock://here", "seconds"),)
    ...
    ...     def backlog(self, position):
    ...         return 20 - (position or 0)
    ...
    ...     def finished(self, position):
    ...         print("published up to", position)
    >>> with Session.in_process() as session:
    ...     seconds = session.read_source(Seconds()).watermark("at", 0)
    ...     seconds.tumbling_window("10 s").agg(count()).collect()["count"].to_pylist()
    [10, 10]
    """

    schema: pa.Schema
    finite: bool = False
    source_column: str | None = None
    lacks_order: ClassVar[str | None] = None
    watermark_sources: tuple[str, ...] = ()
    parallelism: int = 1
    poll_seconds: float = 0.1
    on_malformed: OnMalformed = "fail"

    @abstractmethod
    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next batch after the position `last` (None at first); None if there is nothing. Runs on the driver."""

    @abstractmethod
    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Return the rows of one range, in order. Runs in a task, possibly more than once.

        What is not a row is a :class:`~krishiv_py.connectors.Malformed` with `topic`, `partition`, `offset`, `key`, `value` and
        `problem`, as far as they are known.

        Parameters
        ----------
        planned : JSON value
            One of the ranges of :meth:`plan`.
        columns : sequence of str
            The columns that are needed. Batches may have others, and their structs more fields; they are not read.
        """

    def _reading(self, planned: Sequence[JsonValue]) -> AbstractContextManager[ReadRange]:
        """Return what reads some ranges, one after the other. What is wrong with them may show when the context ends."""
        return nullcontext(self.read)

    def describe(self) -> str:
        """Return what ``explain()`` shows of it in a line, without secrets; by default nothing."""
        return ""

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the names of what it reads, for :mod:`krishiv_py.lineage`; by default none, then it goes by its own name."""
        return ()

    def finished(self, position: JsonValue) -> None:  # noqa: B027  # most sources have nothing to do
        """The batch that ends at `position` is published. Runs on the driver; by default nothing.

        For acknowledgements to the outside. After a crash it may be called again for a batch, or not at all for the last one.
        """

    def backlog(self, position: JsonValue) -> int | Mapping[str, int] | None:
        """Return how much lies after `position` that no batch has taken; None, the default, where nobody knows.

        A source of several partitions may return it for each of them, by name. For people, who see it in ``progress.backlog``
        and ``progress.partition_backlog``, and in the metrics ``source_backlog`` and ``partition_backlog``: records, or what
        :meth:`plan` counts. Answer from what the last :meth:`plan` saw: it is called for each reading of the progress.
        `position` is that of the last batch that began, None before the first.
        """
        return None

    def partition_of(self, planned: JsonValue) -> str | None:
        """Return the name of the partition that a range of :meth:`plan` reads; None, the default, where there are none.

        Where all partitions have one watermark, a warning names the one that others make late.

        Examples
        --------
        >>> from krishiv_py.connectors import Source
        >>> class Shards(Source):
        ...     def partition_of(self, planned):
        ...         shard, begin, end = planned
        ...         return f"shard {shard}"
        >>> Shards.partition_of(Shards, [3, 0, 100])
        'shard 3'
        """
        return None

    def partitions_at(self, position: JsonValue) -> Iterable[str]:
        """Return the partitions that a source knows of at a position, by the names of :meth:`partition_of`; none by default.

        With the row clock, the watermark waits for the first row of each of them (SEMANTICS §2.8).

        Examples
        --------
        >>> from krishiv_py.connectors import Source
        >>> class Shards(Source):
        ...     def partitions_at(self, position):
        ...         return [f"shard {shard}" for shard in position]
        >>> Shards.partitions_at(Shards, {"0": 100, "1": 90})
        ['shard 0', 'shard 1']
        """
        return ()

    def until_now(self) -> Source:
        """Return the same source up to what there is now, for ``Batches.available_now()``. By default the source itself.

        It is then planned until :meth:`plan` returns None, so override this if more could come faster than it is planned.

        Examples
        --------
        >>> from krishiv_py.connectors import Source
        >>> class Lines(Source):
        ...     def __init__(self, file, last=None):
        ...         self.file, self.last = file, last  # plan() returns None after the line `last`
        ...
        ...     def until_now(self):
        ...         with open(self.file) as lines:
        ...             return Lines(self.file, last=sum(1 for _ in lines))
        """
        return self
