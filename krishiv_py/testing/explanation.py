"""Explains a result of a capture by the rows that came into it, through all stages on its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.display.html import rows_html
from krishiv_py.engine.stage import StageOperator
from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET, show_instant
from krishiv_py.plan.expressions.expr import col
from krishiv_py.plan.nodes import MapBatches, Prefix, Project
from krishiv_py.planner.cut import Branch, StagePlan
from krishiv_py.planner.physical import OutputPlan
from krishiv_py.planner.why import Held
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.feed import Feed

_ROW: Final = "__krishiv_row"
_MOST: Final = 20
Bounds: TypeAlias = "list[tuple[int, int]] | None"
"""The windows of a key, µs; None for all of its rows."""
Key: TypeAlias = "tuple[str, ...]"


@attrs.frozen(eq=False, repr=False)
class Explanation:
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

    def __str__(self) -> str:
        lines, several = [], len(set(self.rows["stage"].to_pylist())) > 1
        for row in self.rows.slice(0, _MOST).to_pylist():
            came = "came in" if row["fate"] == "in" else f"was refused ({row['fate']})"
            stage = f"{row['stage']}: " if several else ""
            place = f"{stage}batch {row['batch']}, row {row['row']}: a row of {row['event_time']}"
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


@attrs.frozen(eq=False)
class _Batch:
    """A batch that ran again: what was in force before and after it, and the results of each stage."""

    number: int
    moment: Moment
    watermark_us: int
    results: list[pa.Table]


@attrs.frozen(eq=False)
class _Wanted:
    """The results of a stage that are explained: its windows by key; `keys` are these as a table, None for all rows."""

    keys: pa.Table | None
    windows: Mapping[Key, Bounds]

    def has(self, key: Key, us: int, *, inclusive: bool) -> bool:
        """Return whether a row of a key and time is in one of the windows."""
        if self.keys is None:
            return True
        bounds = self.windows.get(key)
        return bounds is None or any(s <= us < e or (inclusive and us == e) for s, e in bounds)


def explained(driver: Driver, feed: Feed, number: int, keys: pa.Table, us: int) -> Explanation:
    """Run a capture with a `driver`, and explain what a stage gave for a key around a time.

    Parameters
    ----------
    driver : Driver
        A driver that begins with the capture.
    feed : Feed
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
    held = Held.of(stage, result, keys)
    windows: Bounds = None
    names = list(stage.spec.keys)
    if held is None and set(names) <= set(result.column_names):
        result = result.filter(pa.array(among(result, keys.rename_columns(names), names)))
    if held is not None:
        mask = held.holding(us, inclusive=stage.spec.operation.extent.inclusive)
        result = held.rows.filter(pa.array(mask))
        windows = sorted(set(zip(held.starts[mask].tolist(), held.ends[mask].tolist(), strict=True)))
        grid = stage.spec.operation.extent.grid
        if not windows and grid is not None:
            windows = [(us - us % grid.size_us, us - us % grid.size_us + grid.size_us)]
        windows = windows or None
    wanted = {number: _Wanted(keys, {_key(keys, 0): windows})}
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
    return Explanation(pa.Table.from_pylist(source_lines + lines, pa.schema(list(kinds.items()))), result)


def _ran(driver: Driver) -> Iterator[_Batch]:
    """Yield the batches of a driver's capture, run one after the other."""
    while (turn := driver._feed.next() if driver._feed is not None else None) is not None:
        moment = driver._core.moment(turn.batch.now_us, turn.batch.now_us)
        output = driver._take(turn)
        given = [pa.concat_tables([one.results for one in some]) for some in driver._done]
        yield _Batch(turn.batch.number, moment, output.watermark_us, given)


def _with_batches(output: OutputPlan | None, batches: Sequence[_Batch], number: int) -> pa.Table:
    """Return all results of a stage, as they leave by its output, with the batch that gave each and the watermark then."""
    tables = [pa.table({"batch": pa.array([], pa.int64())})] if not batches else []
    for batch in batches:
        given = batch.results[number] if output is None else output.of(batch.results[number])
        marks = pa.array([show_instant(batch.watermark_us)] * given.num_rows, pa.string())
        given = given.append_column("batch", pa.array([batch.number] * given.num_rows, pa.int64()))
        given = given.append_column("watermark", marks)
        tables.append(given)
    return pa.concat_tables(tables)


def _wanted(stage: StagePlan, results: pa.Table) -> _Wanted:
    """Return what is wanted of a stage to explain some of its results."""
    names = list(stage.spec.keys)
    if not set(names) <= set(results.column_names):
        return _Wanted(None, {})
    keys, held, windows = results.select(names), Held.of(stage, results, None), dict[Key, Bounds]()
    for row in range(keys.num_rows):
        key = _key(keys, row)
        if held is None:
            windows[key] = None
            continue
        bounds = windows.setdefault(key, [])
        assert bounds is not None
        bounds.append((int(held.starts[row]), int(held.ends[row])))
    return _Wanted(keys, windows)


def _of_results(
    stage: StagePlan, branch: Branch, batches: Sequence[_Batch], wanted: _Wanted, before: StagePlan
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the rows that a stage took of the results of another one, and these results."""
    assert branch.after is not None
    lines, taken, spec = list[dict[str, Any]](), list[pa.Table](), branch.spec
    for batch in batches:
        results = batch.results[branch.after]
        if not results.num_rows:
            continue
        rows = _numbered(spec, results.select(list(spec.needs_columns)), 0)
        numbers = []
        for one in _matching(stage, spec, rows, wanted, Moment(UNSET), results=True):
            numbers.append(one["row"])
            place = {"stage": stage.spec.name, "batch": batch.number, "source": before.spec.name}
            lines.append({**one, **place, "watermark": show_instant(batch.watermark_us)})
        taken.append(results.take(pa.array(numbers, pa.int64())))
    return lines, pa.concat_tables([before.layout.result_schema.empty_table(), *taken], promote_options="permissive")


def _of_sources(driver: Driver, feed: Feed, batches: Sequence[_Batch], wanted: Mapping[int, _Wanted]) -> list[dict[str, Any]]:
    """Return the rows of sources that stages took."""
    lines, plan = list[dict[str, Any]](), driver._plan
    for batch in batches:
        turn = feed.next()
        assert turn is not None
        for number in [number for number in plan.roots if number in wanted and not plan.stages[number].stateless]:
            stage = plan.stages[number]
            moment = batch.moment.at(stage.times)
            names = {id(branch.spec): branch.name or "" for branch in stage.inputs}
            for taker, scanned in turn.sent.get(number, []):
                count = 0
                for part in scanned:
                    if part.batch is None:
                        continue
                    table = pa.Table.from_batches([part.batch])
                    rows = _numbered(taker.spec, table, count)
                    count += table.num_rows
                    place = {"stage": stage.spec.name, "batch": batch.number, "source": names.get(id(taker.spec), "")}
                    place["watermark"] = show_instant(moment.watermark_us)
                    lines += [{**one, **place} for one in _matching(stage, taker.spec, rows, wanted[number], moment)]
    return lines


def _matching(
    stage: StagePlan, spec: OperatorSpec, rows: pa.Table, wanted: _Wanted, moment: Moment, *, results: bool = False
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
        yield {"row": rows[_ROW][row].as_py(), "event_time": show_instant(us), "fate": fate}


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
    numbered = ((_ROW, col(_ROW)),)
    return tuple(attrs.evolve(s, columns=(*s.columns, *numbered)) if isinstance(s, Project) else s for s in steps)
