"""The same query on the three engines, and what differs."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from krishiv_py import MemorySink, Session, SideOutputLateEventHandler
from krishiv_py.testing import Driver, stream_of
from tests.engines.workload import Workload

COUNTERS = ("rows", "late", "null_time", "null_key", "time_out_of_range", "unassigned", "mildly_late", "very_late", "future")


@attrs.frozen(eq=False)
class Seen:
    """What an engine gave for a query."""

    results: pa.Table
    late: pa.Table
    counters: dict[str, int]


def on_driver(work: Workload) -> Seen:
    """Batch by batch, without a JVM."""
    driver = Driver(work.plan(stream_of(work.schema), SideOutputLateEventHandler(MemorySink())))
    steps = [driver.send(batch) for batch in work.batches]
    steps.append(driver.close())
    results, late = (pa.concat_tables([getattr(s, name) for s in steps]) for name in ("results", "late"))
    return Seen(results, late, _counted(driver.counters))


def on_spark(session: Session, work: Workload) -> tuple[Seen, Seen]:
    """As one batch job, and as a query."""
    stream, sender = session.memory_stream(work.schema)
    late = MemorySink()
    plan = work.plan(stream, SideOutputLateEventHandler(late))
    for batch in work.batches:
        sender.send(batch)
    sender.close()
    run = plan.run()
    late.tables.clear()  # a bounded run puts its late rows there too
    query = plan.start(MemorySink())
    try:
        query.process_all_available()
        streamed = Seen(query.results(), query.late_rows(), _counted(query.progress.counters))
    finally:
        query.stop()
    return Seen(run.table, run.late, _counted(run.counters)), streamed


def _counted(counters: Any) -> dict[str, int]:
    return {name: counters.get(name, 0) for name in COUNTERS}


def differences(one: Seen, other: Seen, keys: list[str]) -> dict[str, str]:
    """Columns in which two engines differ, and how; under names of their own what is not a column."""
    actual: dict[str, str] = {}
    if one.counters != other.counters:
        actual["counters"] = f"{one.counters} against {other.counters}"
    actual |= _tables("", one.results, other.results, [*keys, "window_start", "window_end"])
    return actual | _tables("late row, ", one.late, other.late, list(one.late.column_names))


def _tables(label: str, one: pa.Table, other: pa.Table, order: list[str]) -> dict[str, str]:
    if one.schema != other.schema:
        return {f"{label}schema": f"{one.schema} against {other.schema}"}
    if one.num_rows != other.num_rows:
        return {f"{label}number of rows": f"{one.num_rows} against {other.num_rows}"}
    left, right = _sorted(one, order), _sorted(other, order)
    return {f"{label}{name}": f"{_first(left[name], right[name])}" for name in one.column_names if left[name] != right[name]}


def _sorted(table: pa.Table, order: list[str]) -> dict[str, list[str]]:
    """Values as texts, which tell NaN, -0.0 and 0.0, and every type from every other; rows in an order of their own."""
    columns = {name: [repr(v) for v in table[name].to_pylist()] for name in table.column_names}
    marks = list(zip(*(columns[n] for n in order), strict=True))
    rows = sorted(range(table.num_rows), key=lambda i: (marks[i], [columns[n][i] for n in columns]))
    return {name: [values[i] for i in rows] for name, values in columns.items()}


def _first(left: list[str], right: list[str]) -> str:
    index = next(i for i, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])
    return f"row {index}: {left[index]} against {right[index]}"
