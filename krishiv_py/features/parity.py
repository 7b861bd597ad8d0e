"""Parity: features that are recomputed from the archive, compared with those that were served, row by row."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.api.stages.running import RunMethods
from krishiv_py.api.stages.stream import Stream
from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.connectors.lookup_table import in_types_of_streams
from krishiv_py.connectors.ranges import NotedRanges, RangeSource, all_ranges
from krishiv_py.connectors.sinks.features import OF_LOG, FeatureSink
from krishiv_py.display.html import rows_html
from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import ColumnError, PlanError, SourceError, failure_text, shown
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.plan.checks import a_function, a_number, a_path, a_switch, is_collection
from krishiv_py.plan.schema import checked, is_key_type, time_kind
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.capture import CapturedBatch, OpenCapture
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.testing.captures import Comparison, Explanation, compared, explained
from krishiv_py.testing.driver import Driver, rows_of_file
from krishiv_py.testing.sends import BatchInput, CapturedTables, DriverInput, picked, stream_of

Pipeline: TypeAlias = "Callable[[Stream], RunMethods]"
_CALLED: Final = "log", "archive"
_ENDS: Final = "window_end"


@attrs.frozen(eq=False, repr=False)
class Parity(ArrowRows):
    """The differences between a feature log and the same features of an archive.

    Attributes
    ----------
    counts : dict
        How many rows are ``same``, ``changed``, ``only_log`` and ``only_archive``.
    rows : pyarrow.Table
        Those that differ: key and time, ``change``, and the other columns of both as ``name_log`` and ``name_archive``.

    Examples
    --------
    >>> import tempfile
    >>> from krishiv_py import sum
    >>> from krishiv_py.features import FeatureLog, check_parity
    >>> from krishiv_py.testing import Driver, stream_of
    >>> def spent(payments):
    ...     timed = payments.watermark("at", "5 s").key_by("card")
    ...     return timed.tumbling_window("10 s").agg(sum("amount").alias("spent"))
    >>> log = FeatureLog(tempfile.mkdtemp(), key="card", at="window_end")
    >>> driver = Driver(spent(stream_of("card string, amount bigint, at bigint")), sink=log)
    >>> payments = [{"card": "a", "amount": 1, "at": at} for at in (2_000, 17_000, 3_000, 31_000)]
    >>> for payment in payments:  # one by one: the third comes after its window has left
    ...     _ = driver.send([payment])
    >>> print(check_parity(spent, pa.Table.from_pylist(payments), log))
    rows same: 1, changed: 1, only log: 0, only archive: 0
    card=a, window_end=10000, change=changed, window_start_log=0, spent_log=1, window_start_archive=0, spent_archive=2
    why in the archive:
    batch 0, row 0: a row of 1970-01-01T00:00:02Z was taken in before a watermark was set
    batch 0, row 2: a row of 1970-01-01T00:00:03Z was taken in before a watermark was set
    window 1970-01-01T00:00:00Z to 1970-01-01T00:00:10Z: fired in batch 0, and gave spent=2; ...
    """

    _comparison: Comparison
    _archive: _Archive
    _log: FeatureSink

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows are the same, and how many are not."""
        return self._comparison.counts

    @property
    def rows(self) -> pa.Table:
        """The rows that differ."""
        return self._comparison.rows

    @property
    def equal(self) -> bool:
        """Return whether each row of the log is in the features of the archive, and each of these in the log.

        Examples
        --------
        >>> import pyarrow as pa, tempfile
        >>> from krishiv_py.features import FeatureLog, check_parity
        >>> from krishiv_py.testing import Driver, stream_of
        >>> log, rows = FeatureLog(tempfile.mkdtemp(), key="card", at="at"), pa.table({"card": ["a"], "at": [1_000]})
        >>> _ = Driver(stream_of(rows.schema), sink=log).send(rows)
        >>> check_parity(lambda stream: stream, rows, log).equal
        True
        """
        return not self.rows.num_rows

    def why(self, number: int = 0) -> Explanation:
        """Say which rows of the archive came into the features of a difference, and which came too late.

        Parameters
        ----------
        number : int
            The number of the difference in :attr:`rows`.

        Raises
        ------
        PlanError
            For a number that there is not, and for features without keys and windows, whose rows are not known.
        """
        most = self.rows.num_rows - 1
        a_number(number, "number", 0, "pass the number of a difference, from 0", most=max(most, 0))
        if most < 0:
            raise PlanError("there is no difference", got=f"{number}", hint="ask where a log and an archive differ")
        column = self.rows[self._log.at].slice(number, 1)
        us = int(bounds_of(column.combine_chunks(), time_kind(self.rows.schema, self._log.at))[0][0])
        driver = self._archive.driver()
        driver._feed = self._archive.turns()
        stage = driver._plan.stage_called(None)
        spec = driver._plan.stages[stage].spec
        if driver._plan.stages[stage].stateless or not set(spec.keys) <= set(self.rows.column_names):
            hint = "let the results, and the key of the log, have the key columns of the pipeline"
            raise PlanError("the rows of a feature are not known", got=shown(list(spec.keys)), hint=hint)
        row = self.rows.slice(number, 1).to_pylist()[0]
        key = tuple(row[name] for name in spec.keys)
        keys = keys_of(StageOperator(spec), key if len(key) > 1 else key[0])
        return explained(driver, self._archive.turns(), stage, keys, us - (self._log.at == _ENDS))

    def _arrow(self) -> pa.Table:
        return self.rows

    def __str__(self) -> str:
        head, *lines = str(self._comparison).splitlines()
        text = [head.replace("results", "rows", 1), *lines]
        if self.equal:
            return text[0]
        try:
            return "\n".join([*text, "why in the archive:", str(self.why())])
        except PlanError:  # of features without windows
            return "\n".join(text)

    def __repr__(self) -> str:
        return f"<Parity {str(self._comparison).splitlines()[0].removeprefix('results ')}>"

    def _repr_html_(self) -> str:
        """Return the differences as a table."""
        return rows_html("Parity", str(self._comparison).splitlines()[0], {"differences": self.rows})


def check_parity(pipeline: Pipeline, archive: Any, log: FeatureSink, *, schema: Any = None, close: bool = False) -> Parity:
    """Compute features of an archive once more, and compare them with a log, row by row.

    Rows belong together by the key and time of the log, and all other columns of both must be equal. With
    ``clock="row"`` they do not depend on how the archive is cut into files, so a difference is one of data or code.

    Parameters
    ----------
    pipeline : callable
        A function from a stream to the features, as the query that wrote the log used it.
    archive : iterable of str or os.PathLike, table or Stream
        What arrived: parquet files in their order, each a micro-batch; a table or frame in the order of its rows; or of a topic
        ``session.read_parquet(path, lane="partition", order="offset")``.
    log : FeatureLog or FeatureTable
        What was served.
    schema : str or Schema, optional
        The columns of the stream; by default those of the archive.
    close : bool
        Whether the input of the query ended with the archive, so that what is open fires. By default it goes on.

    Returns
    -------
    Parity
        Print it, or look at :attr:`Parity.equal`.

    Raises
    ------
    PlanError
        For what is no pipeline or no archive.
    SourceError
        For files that cannot be read.
    ColumnError
        For features without the key or the time of the log.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from krishiv_py import sum
    >>> from krishiv_py.features import FeatureLog, check_parity
    >>> from krishiv_py.testing import Driver, stream_of
    >>> def spent(payments):
    ...     timed = payments.watermark("at", "5 s", clock="row").key_by("card")
    ...     return timed.lookback_window("1 h", emit="arrival", with_row=True).agg(sum("amount").alias("spent"))
    >>> log = FeatureLog(tempfile.mkdtemp(), key="card", at="at")
    >>> driver = Driver(spent(stream_of("card string, amount bigint, at bigint")), sink=log)
    >>> payments = [{"card": "a", "amount": 1, "at": at} for at in (2_000, 17_000, 3_000, 31_000)]
    >>> for payment in payments:
    ...     _ = driver.send([payment])
    >>> print(check_parity(spent, pa.Table.from_pylist(payments), log))
    rows same: 3, changed: 0, only log: 0, only archive: 0
    """
    a_function(pipeline, "check_parity takes the function that builds the pipeline", "pass the function, not what it returns")
    a_switch(close, "close")
    if not isinstance(log, FeatureSink):
        raise PlanError("check_parity takes a feature log", got=shown(log), hint='pass FeatureLog(path, key="card", at="at")')
    kept = _Archive.of(pipeline, archive, schema, ends=close)
    driver, turns, results = kept.driver(), kept.turns(), list[pa.Table]()
    while (turn := turns.next()) is not None:
        results.append(driver._take(turn).results)
    results.append(driver._plan.outputs[0].schema.empty_table())
    served, again = in_types_of_streams(log.read()).drop_columns(OF_LOG.names), pa.concat_tables(results)
    names = (*log.keys, log.at)
    missing = [name for name in names if name not in again.column_names]
    if missing:
        hint = "give key and at of the log that the pipeline wrote"
        raise ColumnError("the features lack a column of the log", got=missing[0], hint=hint)
    same, served, again = _without_equal(served, again)
    comparison = compared(served, again, names, _CALLED)
    counts = {**comparison.counts, "same": comparison.counts["same"] + same}
    return Parity(attrs.evolve(comparison, counts=counts), kept, log)


def _without_equal(one: pa.Table, other: pa.Table) -> tuple[int, pa.Table, pa.Table]:
    """Return how many rows of both are equal, and the other ones; nothing is equal where columns differ."""
    if {field.name: field.type for field in one.schema} != {field.name: field.type for field in other.schema}:
        return 0, one, other
    columns = []
    for name in one.column_names:
        column = pa.chunked_array([*one[name].chunks, *other[name].chunks], one.schema.field(name).type)
        columns.append(column if is_key_type(column.type) else pa.array(map(repr, column.to_pylist()), pa.string()))
    ids = group(list(columns), one.num_rows + other.num_rows).ids
    ours, theirs = ids[: one.num_rows], ids[one.num_rows :]
    size = len(ids) + 1
    met = np.minimum(np.bincount(ours, minlength=size), np.bincount(theirs, minlength=size))
    left = [pick(table, np.flatnonzero(_rank(mine) >= met[mine])) for table, mine in ((one, ours), (other, theirs))]
    return int(met.sum()), left[0], left[1]


def _rank(ids: Ints) -> Ints:
    """Return which one each is among its equals, from 0."""
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.append(True, ids[order][1:] != ids[order][:-1]))
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids)) - np.repeat(begins, np.diff(np.append(begins, len(ids))))[: len(ids)]
    return rank


@attrs.frozen(eq=False)
class _Archive:
    """Holds what arrived, batch by batch, and the pipeline over it."""

    pipeline: RunMethods
    schema: pa.Schema
    batches: Sequence[pa.Table | str | NotedRanges]
    ends: bool
    source: RangeSource | None = None
    """The source of ranges, which are read lane by lane."""

    @classmethod
    def of(cls, pipeline: Pipeline, archive: Any, schema: Any, *, ends: bool) -> _Archive:
        """Return a checked one."""
        if isinstance(archive, Stream):
            return cls._of_stream(pipeline, archive, ends=ends)
        table = arrow_table(archive)
        batches: list[pa.Table | str]
        if table is not None:
            batches = [in_types_of_streams(table)]
        elif is_collection(archive):
            batches = [a_path(file, "archive", "pass files of Parquet in their order") for file in archive]
        else:
            hint = "pass them in the order in which they came: sorted(folder.glob('*.parquet'))"
            raise PlanError("an archive is files or a table", got=shown(archive), hint=hint)
        if not batches:
            raise PlanError("the archive is empty", got="no file", hint="pass the files that the query read")
        stream = stream_of(_schema_of(batches[0]) if schema is None else schema)
        return cls(pipeline(stream), stream.schema, batches, ends)

    @classmethod
    def _of_stream(cls, pipeline: Pipeline, archive: Stream, *, ends: bool) -> _Archive:
        """Return one that is read as a bounded run reads it: by a source of ranges, lane by lane."""
        node = archive._node
        if not isinstance(node, RangeSource) or not node.bounded:
            hint = 'pass files, a table, or session.read_parquet(path, lane="partition", order="offset")'
            raise PlanError("an archive that is a stream ends, and says its lanes", got=shown(archive), hint=hint)
        return cls(pipeline(archive), node.schema, all_ranges(node.source, node.name), ends, node)

    def driver(self) -> Driver:
        """Return a driver that has run nothing yet."""
        return Driver(self.pipeline, idle_batches=False)

    def turns(self) -> _ArchiveTurns:
        """Return the batches, from the first on."""
        return _ArchiveTurns(self, self.driver()._plan)


def _schema_of(batch: pa.Table | str) -> pa.Schema:
    if isinstance(batch, pa.Table):
        return batch.schema
    try:
        return checked(pq.read_schema(batch).remove_metadata())
    except (OSError, pa.ArrowException) as problem:
        hint = "pass paths of files of Parquet"
        raise SourceError("an archive cannot be read", got=shown(batch), then=failure_text(problem), hint=hint) from problem


class _ArchiveTurns:
    """Gives the batches of an archive, as :class:`~krishiv_py.testing.sends.Feed` gives those of a capture."""

    def __init__(self, archive: _Archive, plan: PhysicalPlan) -> None:
        self._archive, self._plan, self._input, self._next = archive, plan, DriverInput(plan), 0
        self._now_us = time.time_ns() // 1_000
        self._tables = CapturedTables.of(OpenCapture("", {}, [], [], {}, True, "", {}), plan)

    @property
    def left(self) -> int:
        """Return how many batches are to come."""
        return len(self._archive.batches) + self._archive.ends - self._next

    def next(self) -> BatchInput | None:
        """Return the next batch; None after the last one."""
        if not self.left:
            return None
        number, batches = self._next, self._archive.batches
        self._next += 1
        if number == len(batches):
            return BatchInput(CapturedBatch(number, self._now_us, True, ended=True), {}, [], self._tables)
        batch = batches[number]
        if isinstance(batch, NotedRanges):
            return self._of_ranges(number, batch)
        rows = batch if isinstance(batch, pa.Table) else rows_of_file(batch, self._archive.schema)
        waits = number == len(batches) - 1  # as in a query that has read everything
        return BatchInput(CapturedBatch(number, self._now_us, waits), self._input.sent(rows), [], self._tables)

    def _of_ranges(self, number: int, planned: NotedRanges) -> BatchInput:
        """Return a batch of a source of ranges, whose partitions are known as in a query."""
        source, read = self._archive.source, self._plan.reads[0]
        assert source is not None
        waits = number == len(self._archive.batches) - 1
        known = list(source.source.partitions_at(json.loads(planned.position)))
        turn = BatchInput(CapturedBatch(number, self._now_us, waits), {}, [], self._tables)
        turn.partitions.append((self._plan.clock_inputs(read), known))
        rows = picked(list(RangeReader(source.schema, source.source, source.name).rows_of(planned.ranges)), read)
        for stage, branch in read.takers:
            turn.sent.setdefault(stage, []).append((StageOperator(branch.spec), rows))
        return turn
