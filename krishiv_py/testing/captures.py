"""Explains the results of a capture: their rows, what another plan would have given, and which lag would have lost less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.api.stages.running import Output, RunMethods
from krishiv_py.display.html import rows_html
from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.in_process.core import Core
from krishiv_py.in_process.moving import begun_core
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.checks import a_text, is_collection
from krishiv_py.plan.durations import Duration, TimePoint, show_us, time_point_us, to_us
from krishiv_py.plan.options.query import Begin
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.capture import Captured
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.explanation import Explanation, explained
from krishiv_py.testing.feed import Feed
from krishiv_py.testing.sends import StepOutput

_MOST: Final = 20
_BOUNDS: Final = ("window_start", "window_end")


@attrs.frozen(eq=False, repr=False)
class Comparison:
    """The differences between the results of two plans over one capture.

    Attributes
    ----------
    counts : dict
        How many results are ``same``, ``changed``, ``only_old`` and ``only_new``.
    rows : pyarrow.Table
        Those that differ: key and window, ``change``, and the other columns of both plans as ``name_old`` and ``name_new``.

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

    def __str__(self) -> str:
        head = ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in self.counts.items())
        lines = [", ".join(f"{name}={value}" for name, value in row.items()) for row in self.rows.slice(0, _MOST).to_pylist()]
        rest = [f"and {self.rows.num_rows - _MOST:,} more"] if self.rows.num_rows > _MOST else []
        return "\n".join([f"results {head}", *lines, *rest])

    def __repr__(self) -> str:
        return f"<Comparison {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        """Return the differences as a table."""
        return rows_html("Comparison", str(self).splitlines()[0], {"differences": self.rows})


class Capture:
    """A capture and the pipeline of its query: explains results, compares plans, tries lags (docs/capture.md).

    Parameters
    ----------
    path : str
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
    batch 0, row 0: a row of 1970-01-01T00:00:01Z came in under the watermark unset
    batch 2, row 0: a row of 1970-01-01T00:00:02Z was refused (late) under the watermark 1970-01-01T00:00:17Z
    ...
    """

    def __init__(self, path: str, stream: RunMethods | Iterable[Output]) -> None:
        self._captured = Captured.open(a_text(path, "path", "pass the folder of a capture"))
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
        return _compared(tables[0], tables[1], [name for name in names[0] if name in names[1]])

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
            counts = _compared(own, results, names).counts
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
            driver._plan, driver._core = begun_core(Begin(savepoint, {}), plan, driver.name, 0)
        driver._feed = Feed(self._captured, driver._plan)
        return driver


def _outputs(driver: Driver) -> Iterator[StepOutput]:
    while (output := driver.next_batch()) is not None:
        yield output


def _empty(driver: Driver) -> pa.Table:
    return driver._plan.outputs[0].schema.empty_table()


def _compared(old: pa.Table, new: pa.Table, keys: Sequence[str]) -> Comparison:
    names = [name for name in keys if name in old.column_names and name in new.column_names]
    names = names or [name for name in old.column_names if name in new.column_names]
    before, after = _by_key(old, names), _by_key(new, names)
    both = [name for name in old.column_names if name in new.column_names and name not in names]
    counts = Counter({"same": 0, "changed": 0, "only_old": 0, "only_new": 0})
    lines = list[dict[str, Any]]()
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key), after.get(key)
        same = was is not None and now is not None and all(_equal(was[name], now[name]) for name in both)
        change = "same" if same else "changed" if was and now else "only_old" if was else "only_new"
        counts[change] += 1
        if change == "same":
            continue
        line: dict[str, Any] = {name: (was or now or {})[name] for name in names} | {"change": change.replace("_", " ")}
        for table, row, suffix in ((old, was, "old"), (new, now, "new")):
            for name in table.column_names:
                if name not in names:
                    line[f"{name}_{suffix}"] = None if row is None else row[name]
        lines.append(line)
    fields = [pa.field(name, old.schema.field(name).type) for name in names] + [pa.field("change", pa.string())]
    for table, suffix in ((old, "old"), (new, "new")):
        fields += [pa.field(f"{f.name}_{suffix}", f.type) for f in table.schema if f.name not in names]
    return Comparison(dict(counts), pa.Table.from_pylist(lines, pa.schema(fields)))


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
