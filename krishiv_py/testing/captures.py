"""Explains the results of a capture: the rows that came into them, and what another plan or lag would have given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.api.stages.running import Output, RunMethods
from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.arrays.grouping import among
from krishiv_py.connectors.lookup_table import tables_are
from krishiv_py.display.html import rows_html
from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator, of_output
from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.in_process.core import Core, row_clock
from krishiv_py.in_process.savepoints import begun_core
from krishiv_py.kernels.columns.steps import prefixed
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.lanes import RowClock, lane_of
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.plan.checks import PathLike, a_path, a_text, is_collection
from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.nodes import MapBatches, Prefix, Project
from krishiv_py.plan.options.query import StartPoint
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.planner.cut import Branch, StagePlan
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan
from krishiv_py.planner.why import KeyRows, result_values, window_name
from krishiv_py.runtime.capture import OpenCapture
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.sends import CapturedTables, Feed, StepOutput, Turns

_ROW: Final = "__krishiv_row"
Bounds: TypeAlias = "list[tuple[int, int]] | None"
"""The windows of a key, µs; None for all of its rows."""
Key: TypeAlias = "tuple[str, ...]"


@attrs.frozen(eq=False, repr=False)
class Explanation(ArrowRows):
    """The rows of a key around a time: those that came into its results, and those that came too late.

    Attributes
    ----------
    rows : pyarrow.Table
        ``stage`` that took it, ``batch``, ``row`` (its number in what the batch had of the ``source``, or of the results of
        the stage that is named there), ``event_time``, ``fate`` (``in``, or why a row was late), and the ``watermark`` that
        was in force. Rows of the first stage come first.
    results : pyarrow.Table
        The results, with the ``batch`` that gave them and the ``watermark`` that closed them.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> from krishiv_py.testing import Capture
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     counts = stream.watermark("at", "5 s").key_by("user").tumbling_window("10 s").agg(count())
    ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
    ...     for rows in ([{"user": "ann", "at": 1_000}], [{"user": "ann", "at": 22_000}], [{"user": "ann", "at": 2_000}]):
    ...         _ = sender.send(rows)
    ...         query.process_all_available()
    ...     query.stop()
    ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
    ...     explanation = Capture(capture, counts).why("ann", 2_000)
    ...     explanation.rows.select(["batch", "row", "fate"]).to_pylist(), explanation.results.column("count").to_pylist()
    ([{'batch': 0, 'row': 0, 'fate': 'in'}, {'batch': 2, 'row': 0, 'fate': 'late'}], [1])
    """

    rows: pa.Table
    results: pa.Table
    _keys: tuple[str, ...] = ()
    _windows: tuple[str, ...] = ()

    def _arrow(self) -> pa.Table:
        return self.results

    def __str__(self) -> str:
        lines, several = [], len(set(self.rows["stage"].to_pylist())) > 1
        for row in self.rows.slice(0, _MOST).to_pylist():
            came = "was taken in" if row["fate"] == "in" else f"was refused ({row['fate']})"
            stage = f"{row['stage']}: " if several else ""
            place = f"{stage}batch {row['batch']}, row {row['row']}: a row of {row['event_time']}"
            unset = row["watermark"] == show_instant(UNSET)
            met = "before a watermark was set" if unset else f"under the watermark {row['watermark']}"
            lines.append(f"{place} {came} {met}")
        rest = [f"and {self.rows.num_rows - _MOST:,} more rows"] if self.rows.num_rows > _MOST else []
        for number, row in enumerate(self.results.slice(0, _MOST).to_pylist()):
            batch, watermark = row.pop("batch"), row.pop("watermark")
            if self._windows:
                gave = f"{self._windows[number]}: fired in batch {batch}, and gave {result_values(row, self._keys)}"
            else:
                gave = f"batch {batch} gave the result {result_values(row, ())}"
            rest.append(f"{gave}; the watermark was then {watermark}")
        if lines and not self.results.num_rows:
            rest.append("no window of these rows has fired in the capture")
        return "\n".join([*lines, *rest]) or "there is no row of this key at this time"

    def __repr__(self) -> str:
        return f"<Explanation {self.rows.num_rows} rows, {self.results.num_rows} results>"

    def _repr_html_(self) -> str:
        """Return the rows and results as tables."""
        return rows_html("Rows of a result", "", {"rows": self.rows, "results": self.results})


@attrs.frozen(eq=False)
class _Batch:
    """A batch that ran again: what was in force before and after it, the results of each stage, and its lookup tables.

    With them the clock of the rows of each stage that reads a source, where it goes on with each row.
    """

    number: int
    moment: Moment
    watermark_us: int
    results: list[pa.Table]
    tables: CapturedTables
    row_clocks: Mapping[int, RowClock]


@attrs.frozen(eq=False)
class _ExplainedWindows:
    """The results of a stage that are explained: its windows by key; `keys` are these as a table, None for all rows."""

    keys: pa.Table | None
    windows: Mapping[Key, Bounds]

    def has(self, key: Key, us: int, *, inclusive: bool) -> bool:
        """Return whether a row of a key and time is in one of the windows."""
        if self.keys is None:
            return True
        bounds = self.windows.get(key)
        return bounds is None or any(s <= us < e or (inclusive and us == e) for s, e in bounds)


def explained(driver: Driver, feed: Turns, number: int, keys: pa.Table, us: int) -> Explanation:
    """Run a capture with a `driver`, and explain what a stage gave for a key around a time.

    Parameters
    ----------
    driver : Driver
        A driver that begins with the capture.
    feed : Turns
        The batches of the capture, once more.
    number : int
        The stage.
    keys : pyarrow.Table
        The key, one row.
    us : int
        The time, µs since the epoch.
    """
    batches, plan = list(_ran(driver)), driver._plan
    stage = plan.stages[number]
    result = _with_batches(next((output for output in plan.outputs if output.stage == number), None), batches, number)
    held = KeyRows.of(stage, result, keys)
    windows: Bounds = None
    names, fired = list(stage.spec.keys), list[str]()
    if held is None and set(names) <= set(result.column_names):
        result = result.filter(pa.array(among(result, keys.rename_columns(names), names)))
    if held is not None:
        mask = held.holding(us, inclusive=stage.spec.operation.extent.inclusive)
        result = held.rows.filter(pa.array(mask))
        fired = [window_name(int(start), int(end)) for start, end in zip(held.starts[mask], held.ends[mask], strict=True)]
        windows = sorted(set(zip(held.starts[mask].tolist(), held.ends[mask].tolist(), strict=True)))
        grid = stage.spec.operation.extent.grid
        if not windows and grid is not None:
            windows = [(us - us % grid.size_us, us - us % grid.size_us + grid.size_us)]
        windows = windows or None
    wanted = {number: _ExplainedWindows(keys, {_key(keys, 0): windows})}
    lines = list[dict[str, Any]]()
    for current in range(number, -1, -1):
        if current not in wanted or plan.stages[current].stateless:
            continue
        mine = list[dict[str, Any]]()
        for branch in plan.stages[current].inputs:
            if branch.after is not None:
                rows, taken = _of_results(plan.stages[current], branch, batches, wanted[current], plan.stages[branch.after])
                mine += rows
                if taken.num_rows and branch.after not in wanted:
                    wanted[branch.after] = _wanted(plan.stages[branch.after], taken)
        lines = mine + lines
    source_lines = _of_sources(driver, feed, batches, wanted)
    kinds = {"stage": pa.string(), "batch": pa.int64(), "row": pa.int64(), "source": pa.string(), "event_time": pa.string()}
    kinds |= {"fate": pa.string(), "watermark": pa.string()}
    rows = pa.Table.from_pylist(source_lines + lines, pa.schema(list(kinds.items())))
    return Explanation(rows, result, tuple(names), tuple(fired))


def _ran(driver: Driver) -> Iterator[_Batch]:
    """Yield the batches of a driver's capture, run one after the other."""
    while (turn := driver._feed.next() if driver._feed is not None else None) is not None:
        moment = driver._core.moment(turn.batch.now_us, turn.batch.now_us)
        clocks = {
            n: clock for n in driver._plan.roots if (clock := row_clock(driver._plan, n, driver._clocks, moment)) is not None
        }
        output = driver._take(turn)
        given = [pa.concat_tables([one.results for one in some]) for some in driver._done]
        yield _Batch(turn.batch.number, moment, output.watermark_us, given, turn.tables, clocks)


def _with_batches(output: OutputPlan | None, batches: Sequence[_Batch], number: int) -> pa.Table:
    """Return all results of a stage, as they leave by its output, with the batch that gave each and the watermark then."""
    tables = [pa.table({"batch": pa.array([], pa.int64())})] if not batches else []
    for batch in batches:
        given = batch.results[number] if output is None else of_output(output, batch.results[number])
        marks = pa.array([show_instant(batch.watermark_us)] * given.num_rows, pa.string())
        given = given.append_column("batch", pa.array([batch.number] * given.num_rows, pa.int64()))
        given = given.append_column("watermark", marks)
        tables.append(given)
    return pa.concat_tables(tables)


def _wanted(stage: StagePlan, results: pa.Table) -> _ExplainedWindows:
    """Return what is wanted of a stage to explain some of its results."""
    names = list(stage.spec.keys)
    if not set(names) <= set(results.column_names):
        return _ExplainedWindows(None, {})
    keys, held, windows = results.select(names), KeyRows.of(stage, results, None), dict[Key, Bounds]()
    for row in range(keys.num_rows):
        key = _key(keys, row)
        if held is None:
            windows[key] = None
            continue
        bounds = windows.setdefault(key, [])
        assert bounds is not None
        bounds.append((int(held.starts[row]), int(held.ends[row])))
    return _ExplainedWindows(keys, windows)


def _of_results(
    stage: StagePlan, branch: Branch, batches: Sequence[_Batch], wanted: _ExplainedWindows, before: StagePlan
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the rows that a stage took of the results of another one, and these results."""
    assert branch.after is not None
    lines, taken, spec = list[dict[str, Any]](), list[pa.Table](), branch.spec
    for batch in batches:
        results = batch.results[branch.after]
        if not results.num_rows:
            continue
        with tables_are(batch.tables):
            rows = _numbered(spec, results.select(list(spec.needs_columns)), 0)
        numbers = []
        for one in _matching(stage, spec, rows, wanted, Moment(UNSET), results=True):
            numbers.append(one["row"])
            place = {"stage": stage.spec.name, "batch": batch.number, "source": before.spec.name}
            lines.append({**one, **place, "watermark": show_instant(batch.watermark_us)})
        taken.append(results.take(pa.array(numbers, pa.int64())))
    return lines, pa.concat_tables([before.layout.result_schema.empty_table(), *taken], promote_options="permissive")


def _of_sources(
    driver: Driver, feed: Turns, batches: Sequence[_Batch], wanted: Mapping[int, _ExplainedWindows]
) -> list[dict[str, Any]]:
    """Return the rows of sources that stages took."""
    lines, plan = list[dict[str, Any]](), driver._plan
    for batch in batches:
        turn = feed.next()
        assert turn is not None
        for number in [number for number in plan.roots if number in wanted and not plan.stages[number].stateless]:
            stage = plan.stages[number]
            moment = batch.moment.at(stage.times)
            names = {id(branch.spec): branch.part or "" for branch in stage.inputs}
            for taker, scanned in turn.sent.get(number, []):
                count = 0
                for part in scanned:
                    if part.batch is None:
                        continue
                    table = pa.Table.from_batches([part.batch])
                    with tables_are(batch.tables):
                        rows = _numbered(taker.spec, table, count)
                    count += table.num_rows
                    place = {"stage": stage.spec.name, "batch": batch.number, "source": names.get(id(taker.spec), "")}
                    mine = list(_matching(stage, taker.spec, rows, wanted[number], moment))
                    if (clock := batch.row_clocks.get(number)) is not None:
                        mine = _row_by_row(taker, part, mine, count - table.num_rows, moment, clock)
                    lines += [{**one, **place} for one in mine]
    return lines


def _row_by_row(
    taker: StageOperator, part: ScannedRows, found: list[dict[str, Any]], first: int, moment: Moment, clock: RowClock
) -> list[dict[str, Any]]:
    """Return the rows that were found in a part, each with its fate by the row clock, which goes on with all rows."""
    assert part.batch is not None
    done, lines = 0, list[dict[str, Any]]()
    if _numbering(taker.spec.prefix) is None:  # rows have other numbers than those of the source
        return found
    for one in found:
        place = one["row"] - first
        if place < done:  # a step made several rows of one
            lines.append({**lines[-1], **one, "fate": lines[-1]["fate"], "watermark": lines[-1]["watermark"]})
            continue
        taker.pack(moment, rows_clock=clock).take(part.batch.slice(done, place - done), part.partition)
        packing = taker.pack(moment, rows_clock=clock)
        before = attrs.evolve(clock, newest=dict(clock.newest), advanced=dict(clock.advanced))
        packing.take(part.batch.slice(place, 1), part.partition)
        late = packing.late[0] if packing.late and packing.late[0].num_rows else None
        fate = "in" if late is None else late["reason"][0].as_py()
        lines.append({**one, "fate": fate, "watermark": show_instant(_watermark_us(taker.spec, part, place, before))})
        done = place + 1
    taker.pack(moment, rows_clock=clock).take(part.batch.slice(done), part.partition)
    return lines


def _watermark_us(spec: OperatorSpec, part: ScannedRows, place: int, clock: RowClock) -> int:
    """Return the watermark by which a row is classified; `clock` is that of the rows before it."""
    assert part.batch is not None
    row = prefixed(spec.prefix, pa.Table.from_batches([part.batch.slice(place, 1)]))
    sources = None if spec.source_column is None else row[spec.source_column].combine_chunks()
    times, null = bounds_of(row[spec.time_column].combine_chunks(), spec.time_kind)
    marks = clock.marks(lane_of(spec.stream, part.partition), times, ~null, sources)
    return int(marks.watermarks[0])


def _matching(
    stage: StagePlan, spec: OperatorSpec, rows: pa.Table, wanted: _ExplainedWindows, moment: Moment, *, results: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows after the steps that are wanted: their numbers, times and fates."""
    names = list(spec.keys)
    if wanted.keys is not None and names:
        mask = among(rows, wanted.keys.rename_columns(names), names)
        rows = rows.filter(pa.array(np.asarray(mask, bool)))
    column = pa.concat_arrays([*rows[spec.time_column].chunks, pa.array([], spec.row_schema.field(spec.time_column).type)])
    times, _ = bounds_of(column, spec.time_kind)
    bare = attrs.evolve(spec, prefix=(), source_schema=spec.row_schema, needs_columns=tuple(spec.row_schema.names))
    for row in range(rows.num_rows):
        us = int(times[row])
        if not wanted.has(_key(rows.select(names), row), us, inclusive=stage.spec.operation.extent.inclusive):
            continue
        whole = rows.slice(row, 1).select(spec.row_schema.names).combine_chunks().to_batches()[0]
        packing = StageOperator(bare).pack(moment, results=results)
        packing.take(whole)
        fate = packing.late[0]["reason"][0].as_py() if packing.late and packing.late[0].num_rows else "in"
        mark = show_instant(moment.watermark_us)
        yield {"row": rows[_ROW][row].as_py(), "event_time": show_instant(us), "fate": fate, "watermark": mark}


def _key(keys: pa.Table, row: int) -> Key:
    return tuple(repr(keys[name][row].as_py()) for name in keys.column_names)


def _numbered(spec: OperatorSpec, table: pa.Table, first: int) -> pa.Table:
    """Return rows after the steps, with the number that each had before."""
    steps = _numbering(spec.prefix)
    if steps is None:  # a function over batches: rows are numbered after it
        rows = prefixed(spec.prefix, table)
        return rows.append_column(_ROW, pa.array(range(first, first + rows.num_rows), pa.int64()))
    return prefixed(steps, table.append_column(_ROW, pa.array(range(first, first + table.num_rows), pa.int64())))


def _numbering(steps: Sequence[Prefix]) -> tuple[Prefix, ...] | None:
    """Return steps that hand the numbers of rows on; None where a function over batches is among them."""
    if any(isinstance(step, MapBatches) for step in steps):
        return None
    return tuple(attrs.evolve(s, envelope=(*s.envelope, _ROW)) if isinstance(s, Project) else s for s in steps)


_MOST: Final = 20
_BOUNDS: Final = ("window_start", "window_end")


@attrs.frozen(eq=False, repr=False)
class Comparison(ArrowRows):
    """The differences between the results of two plans over one capture.

    Attributes
    ----------
    counts : dict
        How many results are ``same``, ``changed``, ``only_old`` and ``only_new``.
    rows : pyarrow.Table
        Those that differ: key and window, ``change``, and the other columns of both plans as ``name_old`` and ``name_new``.
    uncompared : tuple of str
        The columns that only one of the plans has; results that differ in nothing else are the same.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> from krishiv_py.testing import Capture
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     counts = stream.watermark("at", "5 s").key_by("user").tumbling_window("10 s").agg(count())
    ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
    ...     for rows in ([{"user": "ann", "at": 1_000}], [{"user": "ann", "at": 22_000}], [{"user": "ann", "at": 2_000}]):
    ...         _ = sender.send(rows)
    ...         query.process_all_available()
    ...     query.stop()
    ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
    ...     longer = stream.watermark("at", "1 min").key_by("user").tumbling_window("10 s").agg(count())
    ...     found = Capture(capture, counts).compare(counts, longer)
    ...     print(found)
    results ...
    """

    counts: dict[str, int]
    rows: pa.Table
    uncompared: tuple[str, ...] = ()

    def _arrow(self) -> pa.Table:
        return self.rows

    def __str__(self) -> str:
        head = ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in self.counts.items())
        lines = [", ".join(f"{name}={value}" for name, value in row.items()) for row in self.rows.slice(0, _MOST).to_pylist()]
        rest = [f"and {self.rows.num_rows - _MOST:,} more"] if self.rows.num_rows > _MOST else []
        alone = f" (not compared, as only one plan has them: {', '.join(self.uncompared)})" if self.uncompared else ""
        return "\n".join([f"results {head}{alone}", *lines, *rest])

    def __repr__(self) -> str:
        return f"<Comparison {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        """Return the differences as a table."""
        return rows_html("Comparison", str(self).splitlines()[0], {"differences": self.rows})


class Capture:
    """A capture and the pipeline of its query: explains results, compares plans, tries lags (docs/capture.md).

    Parameters
    ----------
    path : str or os.PathLike
        The folder that ``session.capture(...)`` or ``krishiv capture`` wrote.
    stream : stream or iterable of Output
        The pipeline of the query.

    Raises
    ------
    CheckpointError
        When the folder holds no capture, or a damaged one.
    PlanError
        When the pipeline reads a source that the capture does not have.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> from krishiv_py.testing import Capture
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     counts = stream.watermark("at", "5 s").key_by("user").tumbling_window("10 s").agg(count())
    ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
    ...     for rows in ([{"user": "ann", "at": 1_000}], [{"user": "ann", "at": 22_000}], [{"user": "ann", "at": 2_000}]):
    ...         _ = sender.send(rows)
    ...         query.process_all_available()
    ...     query.stop()
    ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
    ...     capture = Capture(capture, counts)
    ...     print(capture.why("ann", 2_000))
    ...     print(capture.what_if(lag=["5 s", "1 min"]).to_pylist()[1])
    batch 0, row 0: a row of 1970-01-01T00:00:01Z was taken in before a watermark was set
    batch 2, row 0: a row of 1970-01-01T00:00:02Z was refused (late) under the watermark 1970-01-01T00:00:17Z
    ...
    """

    def __init__(self, path: PathLike, stream: RunMethods | Iterable[Output]) -> None:
        self._captured = OpenCapture.open(a_path(path, "path", "pass the folder of a capture"))
        self._stream = list(stream) if isinstance(stream, Iterator) else stream
        self._driver(self._stream)

    def __repr__(self) -> str:
        return f"<Capture of {len(self._captured.batches)} batches>"

    def compare(self, old: RunMethods | Iterable[Output], new: RunMethods | Iterable[Output]) -> Comparison:
        """Run two plans over the capture and compare the results of their first outputs, row by row, per key and window.

        Parameters
        ----------
        old, new : stream or iterable of Output
            The plans.

        Raises
        ------
        CheckpointError
            When a plan cannot take the state of the capture.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> from krishiv_py.testing import Capture
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     counts = stream.watermark("at", "5 s").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
        ...     _ = sender.send([{"at": 1_000}, {"at": 22_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
        ...     longer = stream.watermark("at", "1 min").tumbling_window("10 s").agg(count())
        ...     Capture(capture, counts).compare(counts, longer).counts
        {'same': 0, 'changed': 0, 'only_old': 1, 'only_new': 0}
        """
        tables, names = [], list[list[str]]()
        for given in (old, new):
            driver = self._driver(list(given) if isinstance(given, Iterator) else given)
            tables.append(pa.concat_tables([output.results for output in _outputs(driver)] or [_empty(driver)]))
            names.append([*driver._spec.keys, *_BOUNDS])
        return compared(tables[0], tables[1], [name for name in names[0] if name in names[1]])

    def what_if(self, *, lag: Sequence[Duration]) -> pa.Table:
        """Return what other lags of the watermark would have given, a row for each.

        Parameters
        ----------
        lag : sequence of int or timedelta or str
            The lags to try.

        Returns
        -------
        pyarrow.Table
            ``lag``, ``late_rows``, ``results``, and how many results are ``changed``, ``only_old`` (no longer given) and
            ``only_new`` against the lag of the plan. Where the capture begins with a state, windows that had left it stay so.

        Raises
        ------
        DurationError
            For what cannot be a lag.
        PlanError
            For pipelines without a watermark by a column.
        """
        tried = list(lag) if is_collection(lag) else []
        if not tried:
            raise DurationError("`lag` is a list of durations", got=shown(lag), hint='write lag=["5 s", "30 s"]')
        driver = self._driver(self._stream)
        names = [*driver._spec.keys, *_BOUNDS]
        own = pa.concat_tables([output.results for output in _outputs(driver)] or [_empty(driver)])
        rows = []
        for us in [to_us(each, "lag", allow_zero=True) for each in tried]:
            driver = self._driver(self._stream, us)
            outputs = list(_outputs(driver))
            results = pa.concat_tables([output.results for output in outputs] or [_empty(driver)])
            late = sum(table.num_rows for output in outputs for table in output.late_by_stage.values())
            counts = compared(own, results, names).counts
            rows.append({"lag": show_us(us), "late_rows": late, "results": results.num_rows, **counts})
        columns = ("lag", "late_rows", "results", "changed", "only_old", "only_new")
        return pa.table({name: [row[name] for row in rows] for name in columns})

    def why(self, key: Any, time: TimePoint, stage: str | None = None) -> Explanation:
        """Say which rows of a `key` came into its results around a `time`, which came too late, and what closed them.

        Of several stages each one on the way of the result is explained, the first one first: the rows that came into the
        windows whose results came into the window of the key.

        Parameters
        ----------
        key : object
            The key; a tuple of several columns.
        time : int or datetime or str
            An event time in the window.
        stage : str, optional
            The stage whose result it is, by its name; by default the last one with windows.

        Raises
        ------
        PlanError
            For a value that cannot be a key, for a plan without keys and windows, and for a name that no stage has.
        DurationError
            For anything else than a time.
        """
        if stage is not None:
            a_text(stage, "stage", "pass the name of a stage, or None for the last one")
        us, driver = time_point_us(time, "time"), self._driver(self._stream)
        number = driver._plan.stage_called(stage)
        if driver._plan.stages[number].stateless or isinstance(key, list):
            hint = "pass one key of a plan with windows"
            raise PlanError("the rows of a result are not known", got=shown(key), hint=hint)
        keys = keys_of(StageOperator(driver._plan.stages[number].spec), key)
        return explained(driver, Feed(self._captured, driver._plan), number, keys, us)

    def _driver(self, stream: RunMethods | Iterable[Output], lag_us: int | None = None) -> Driver:
        driver = Driver.from_capture(self._captured.folder, stream)
        if lag_us is None:
            return driver
        plan = _with_lag(Driver(stream)._plan, lag_us)
        savepoint = self._captured.savepoint
        if savepoint is None:
            driver._plan, driver._core = plan, Core(plan, driver.name, 0)
        else:
            driver._plan, driver._core = begun_core(StartPoint(savepoint, {}), plan, driver.name, 0)
        driver._feed = Feed(self._captured, driver._plan)
        return driver


def _outputs(driver: Driver) -> Iterator[StepOutput]:
    while (output := driver.next_batch()) is not None:
        yield output


def _empty(driver: Driver) -> pa.Table:
    return driver._plan.outputs[0].schema.empty_table()


def compared(old: pa.Table, new: pa.Table, keys: Sequence[str], called: tuple[str, str] = ("old", "new")) -> Comparison:
    """Compare two tables row by row, by the columns that name a row; `called` is what the tables are called."""
    first, second = called
    names = [name for name in keys if name in old.column_names and name in new.column_names]
    names = names or [name for name in old.column_names if name in new.column_names]
    before, after = _by_key(old, names), _by_key(new, names)
    both = [name for name in old.column_names if name in new.column_names and name not in names]
    counts = Counter({"same": 0, "changed": 0, f"only_{first}": 0, f"only_{second}": 0})
    lines = list[dict[str, Any]]()
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key), after.get(key)
        same = was is not None and now is not None and all(_equal(was[name], now[name]) for name in both)
        change = "same" if same else "changed" if was and now else f"only_{first}" if was else f"only_{second}"
        counts[change] += 1
        if change == "same":
            continue
        line: dict[str, Any] = {name: (was or now or {})[name] for name in names} | {"change": change.replace("_", " ")}
        for table, row, suffix in ((old, was, first), (new, now, second)):
            for name in table.column_names:
                if name not in names:
                    line[f"{name}_{suffix}"] = None if row is None else row[name]
        lines.append(line)
    fields = [pa.field(name, old.schema.field(name).type) for name in names] + [pa.field("change", pa.string())]
    for table, suffix in ((old, first), (new, second)):
        fields += [pa.field(f"{f.name}_{suffix}", f.type) for f in table.schema if f.name not in names]
    alone = [name for name in dict.fromkeys((*old.column_names, *new.column_names)) if name not in (*names, *both)]
    return Comparison(dict(counts), pa.Table.from_pylist(lines, pa.schema(fields)), tuple(alone))


def _by_key(table: pa.Table, names: Sequence[str]) -> dict[Any, Mapping[str, Any]]:
    """Return rows by their key and window; of several results of one window each has its number."""
    seen, rows = Counter[Any](), dict[Any, Mapping[str, Any]]()
    for row in table.to_pylist():
        key = tuple(repr(row[name]) for name in names)
        rows[key, seen[key]] = row
        seen[key] += 1
    return rows


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)


def _with_lag(plan: PhysicalPlan, lag_us: int) -> PhysicalPlan:
    """Return a plan whose watermarks have another lag.

    Raises
    ------
    PlanError
        Where no watermark follows a column.
    """

    def spec(given: OperatorSpec) -> OperatorSpec:
        return attrs.evolve(given, watermark=_lagging(given.watermark, lag_us))

    stages, changed = [], False
    for stage in plan.stages:
        follows = bool(stage.read) and not stage.stateless and not stage.after
        changed = changed or follows
        inputs = tuple(attrs.evolve(branch, spec=spec(branch.spec)) for branch in stage.inputs) if follows else stage.inputs
        stages.append(attrs.evolve(stage, spec=spec(stage.spec), inputs=inputs) if follows else stage)
    if not changed or any(clock.watermark._by_clock for clock in plan.clocks.clocks):
        hint = "try lags on a pipeline with .watermark(column, lag)"
        raise PlanError("no watermark of this pipeline has a lag", got=plan.title, hint=hint)
    return attrs.evolve(plan, stages=tuple(stages))


def _lagging(mark: AnyWatermarkSpec, lag_us: int) -> AnyWatermarkSpec:
    if isinstance(mark, WatermarkSpec):
        return attrs.evolve(mark, lag_us=lag_us)
    assert isinstance(mark, MultiSourceWatermarkSpec)
    sources = tuple((name, attrs.evolve(each, lag_us=lag_us)) for name, each in mark.sources)
    unknown = None if mark.unknown_spec is None else attrs.evolve(mark.unknown_spec, lag_us=lag_us)
    return attrs.evolve(mark, sources=sources, unknown_spec=unknown)
