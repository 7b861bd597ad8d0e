"""Explains the results of a capture: their rows, what another plan would have given, and which lag would have lost less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.api.outputs import Output
from krishiv_py.api.stages.running import RunMethods
from krishiv_py.arrays.grouping import among
from krishiv_py.display.html import rows_html
from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.in_process.core import Core
from krishiv_py.in_process.moving import begun_core
from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.checks import a_text, is_collection
from krishiv_py.plan.durations import Duration, TimePoint, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.expressions.expr import col
from krishiv_py.plan.nodes import MapBatches, Prefix, Project
from krishiv_py.plan.options.query import Begin
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.why import Held
from krishiv_py.runtime.capture import Captured
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.feed import Feed, Turn
from krishiv_py.testing.output import StepOutput

_ROW: Final = "__krishiv_row"
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


@attrs.frozen(eq=False, repr=False)
class Explanation:
    """The rows of a key around a time: those that came into its results, and those that came too late.

    Attributes
    ----------
    rows : pyarrow.Table
        ``batch``, ``row`` (its number in the batch), ``source``, ``event_time``, ``fate`` (``in``, or why a row
        was late), and the ``watermark`` that was in force.
    results : pyarrow.Table
        The results, with the ``batch`` that gave them and the ``watermark`` that closed them.
    """

    rows: pa.Table
    results: pa.Table

    def __str__(self) -> str:
        lines = []
        for row in self.rows.slice(0, _MOST).to_pylist():
            came = "came in" if row["fate"] == "in" else f"was refused ({row['fate']})"
            place = f"batch {row['batch']}, row {row['row']}: a row of {row['event_time']}"
            lines.append(f"{place} {came} under the watermark {row['watermark']}")
        rest = [f"and {self.rows.num_rows - _MOST:,} more rows"] if self.rows.num_rows > _MOST else []
        for row in self.results.slice(0, _MOST).to_pylist():
            shown_row = ", ".join(f"{name}={value}" for name, value in row.items() if name not in ("batch", "watermark"))
            rest.append(f"batch {row['batch']} gave the result {shown_row}; the watermark was then {row['watermark']}")
        return "\n".join([*lines, *rest]) or "the capture has no row of this key at this time"

    def __repr__(self) -> str:
        return f"<Explanation {self.rows.num_rows} rows, {self.results.num_rows} results>"

    def _repr_html_(self) -> str:
        """Return the rows and results as tables."""
        return rows_html("Rows of a result", "", {"rows": self.rows, "results": self.results})


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

    def why(self, key: Any, time: TimePoint) -> Explanation:
        """Say which rows of a `key` came into its results around a `time`, which came too late, and what closed them.

        Parameters
        ----------
        key : object
            The key; a tuple of several columns.
        time : int or datetime or str
            An event time in the window.

        Raises
        ------
        PlanError
            For a value that cannot be a key, and for a plan whose first stage has no keys and windows.
        DurationError
            For anything else than a time.
        """
        us, driver = time_point_us(time, "time"), self._driver(self._stream)
        plan = driver._plan
        number = next((n for n in plan.roots if not plan.stages[n].stateless), None)
        if number is None or isinstance(key, list):
            hint = "pass one key of a plan with windows"
            raise PlanError("the rows of a result are not known", got=shown(key), hint=hint)
        keys = keys_of(StageOperator(plan.stages[number].spec), key)
        rows, results = list[dict[str, Any]](), list[pa.Table]()
        while (turn := driver._feed.next() if driver._feed is not None else None) is not None:
            moment = driver._core.moment(turn.batch.now_us, turn.batch.now_us).at(plan.stages[number].times)
            for source, one in _rows_of(plan, number, turn, keys):
                packing = StageOperator(one.spec).pack(moment)
                packing.take(one.batch)
                fate = packing.late[0]["reason"][0].as_py() if packing.late and packing.late[0].num_rows else "in"
                place = {"batch": turn.batch.number, "row": one.row, "source": source, "us": one.time_us, "fate": fate}
                rows.append({**place, "watermark": show_instant(moment.watermark_us)})
            output = driver._take(turn)
            given = output.results if len(plan.stages) == 1 else None
            if given is not None and given.num_rows:
                extra = {"batch": turn.batch.number, "watermark": show_instant(output.watermark_us)}
                for name, value in extra.items():
                    given = given.append_column(name, pa.array([value] * given.num_rows))
                results.append(given)
        return _explained(plan, number, rows, results, keys, us)

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


@attrs.frozen(eq=False)
class _Row:
    """A row after the steps: its batch of one row, its number, its event time, and how it is prepared."""

    batch: pa.RecordBatch
    row: int
    time_us: int
    spec: OperatorSpec


def _outputs(driver: Driver) -> Iterator[StepOutput]:
    while (output := driver.next_batch()) is not None:
        yield output


def _empty(driver: Driver) -> pa.Table:
    return driver._plan.outputs[0].schema.empty_table()


def _rows_of(plan: PhysicalPlan, number: int, turn: Turn, keys: pa.Table) -> Iterator[tuple[str, _Row]]:
    """The rows of a key in a batch, one by one, as the stage takes them."""
    names = {id(branch.spec): branch.name or "" for branch in plan.stages[number].inputs}
    for stage, scanned in turn.sent.get(number, []):
        spec = stage.spec
        bare = attrs.evolve(spec, prefix=(), source_schema=spec.row_schema, needs_columns=tuple(spec.row_schema.names))
        count = 0
        for one in scanned:
            if one.batch is None:
                continue
            table = pa.Table.from_batches([one.batch])
            numbered = table.append_column(_ROW, pa.array(range(count, count + table.num_rows), pa.int64()))
            count += table.num_rows
            steps = _numbering(spec.prefix)
            rows = prefixed(steps, numbered) if steps is not None else prefixed(spec.prefix, table)
            if steps is None:  # a function over batches: rows are numbered after it
                rows = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
            if spec.keys:
                mask = among(rows, keys.rename_columns(list(spec.keys)), list(spec.keys))
                rows = rows.filter(pa.array(np.asarray(mask, bool)))
            times, _ = bounds_of(pa.concat_arrays([*rows[spec.time_column].chunks, _none(spec)]), spec.time_kind)
            for row in range(rows.num_rows):
                whole = rows.slice(row, 1).select(spec.row_schema.names).combine_chunks().to_batches()[0]
                yield names.get(id(spec), ""), _Row(whole, rows[_ROW][row].as_py(), int(times[row]), bare)


def _none(spec: OperatorSpec) -> pa.Array:
    return pa.array([], spec.row_schema.field(spec.time_column).type)


def _numbering(steps: Sequence[Prefix]) -> tuple[Prefix, ...] | None:
    """Return steps that hand the numbers of rows on; None where a function over batches is among them."""
    if any(isinstance(step, MapBatches) for step in steps):
        return None
    numbered = ((_ROW, col(_ROW)),)
    return tuple(attrs.evolve(s, columns=(*s.columns, *numbered)) if isinstance(s, Project) else s for s in steps)


def _explained(
    plan: PhysicalPlan, number: int, rows: list[dict[str, Any]], results: list[pa.Table], keys: pa.Table, us: int
) -> Explanation:
    stage = plan.stages[number]
    result = pa.concat_tables(results) if results else pa.table({"batch": pa.array([], pa.int64())})
    held = Held.of(stage, result, keys)
    if held is not None:
        mask = held.holding(us, inclusive=stage.spec.operation.inclusive)
        result = held.rows.filter(pa.array(mask))
        windows = set(zip(held.starts[mask].tolist(), held.ends[mask].tolist(), strict=True))
        grid = stage.spec.operation.grid
        if not windows and grid is not None:
            windows = {(us - us % grid.size_us, us - us % grid.size_us + grid.size_us)}
        inclusive = stage.spec.operation.inclusive
        if windows:
            rows = [r for r in rows if any(s <= r["us"] < e or (inclusive and r["us"] == e) for s, e in windows)]
    kinds = {"batch": pa.int64(), "row": pa.int64(), "source": pa.string(), "event_time": pa.string()}
    kinds |= {"fate": pa.string(), "watermark": pa.string()}
    lines = [{**row, "event_time": show_instant(row["us"])} for row in rows]
    return Explanation(pa.Table.from_pylist(lines, pa.schema(list(kinds.items()))), result)


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
