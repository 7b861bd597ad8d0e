"""Bytewax: its windowing operators where they fit, a ``StatefulBatchLogic`` by hand for the look-back and for retractions.

One worker in one process, no recovery store: the cheapest per CPU second.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.run import cli_main

from benchmarks.jobs import Job
from benchmarks.peers.common import Task, run, unsupported

# mypy: disable-error-code="misc"
# (the base classes are Any where Bytewax is not installed)
NAME = "bytewax_flow"
ORIGIN = datetime(2025, 12, 31, tzinfo=timezone.utc)
BATCH = 10_000
Event = tuple[Any, int]
"""Time, as the job wants it, and amount."""


class PartsPartition(StatelessSourcePartition[tuple[str, Event]]):
    """Reads the parts one after the other."""

    def __init__(self, files: Sequence[Path], *, as_datetime: bool) -> None:
        self.batches = (batch for path in files for batch in pq.ParquetFile(path).iter_batches(BATCH))
        self.as_datetime = as_datetime

    def next_batch(self) -> Iterable[tuple[str, Event]]:
        """The rows of the next record batch as ``(key, (time, amount))``."""
        batch = next(self.batches)
        user, time, amount = (batch.column(name) for name in ("user_id", "event_time", "amount"))
        times = time.cast(pa.timestamp("us") if self.as_datetime else pa.int64()).to_pylist()
        if self.as_datetime:
            times = [moment.replace(tzinfo=timezone.utc) for moment in times]  # the only time zone Bytewax takes
        return list(zip(user.cast(pa.string()).to_pylist(), zip(times, amount.to_pylist(), strict=True), strict=True))


class Parts(DynamicSource[tuple[str, Event]]):
    """The parquet parts."""

    def __init__(self, files: Sequence[Path], *, as_datetime: bool) -> None:
        self.files, self.as_datetime = files, as_datetime

    def build(self, step_id: str, worker_index: int, worker_count: int) -> PartsPartition:
        """One partition: a single worker."""
        return PartsPartition(self.files, as_datetime=self.as_datetime)


class ParquetPartition(StatelessSinkPartition[tuple[Any, ...]]):
    """Writes rows in chunks."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema, self.writer, self.rows = schema, pq.ParquetWriter(path, schema), list[tuple[Any, ...]]()

    def write_batch(self, items: list[tuple[Any, ...]]) -> None:
        """Take rows; write when there are many."""
        self.rows += items
        if len(self.rows) >= 100_000:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self.rows:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*self.rows, strict=True), self.schema, strict=True)
            ]
            self.writer.write_table(pa.table(columns, schema=self.schema))
            self.rows = []

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self.writer.close()


class ParquetOut(DynamicSink[tuple[Any, ...]]):
    """The output file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema

    def build(self, step_id: str, worker_index: int, worker_count: int) -> ParquetPartition:
        """One file per worker."""
        return ParquetPartition(self.path, self.schema)


class Lookback(StatefulBatchLogic[Event, tuple[int, int, int], Any]):
    """J4 for one key: rows in time order; those below the key's watermark are final."""

    def __init__(self, job: Job) -> None:
        self.size, self.lag = job.size_ms * 1_000, job.lag_ms * 1_000
        self.rows: list[Event] = []
        self.final = 0
        self.watermark = -(2**62)

    def on_batch(self, values: list[Event]) -> tuple[Iterable[tuple[int, int, int]], bool]:
        """Insert the rows, give out what is final."""
        for event in values:
            if event[0] >= self.watermark:
                insort(self.rows, event)
                self.watermark = max(self.watermark, event[0] - self.lag)
        return self.emit(self.watermark), self.RETAIN

    def on_eof(self) -> tuple[Iterable[tuple[int, int, int]], bool]:
        """Everything is final."""
        return self.emit(2**62), self.RETAIN

    def emit(self, watermark: int) -> list[tuple[int, int, int]]:
        """Results of rows before the watermark; forget what no later row looks back to."""
        rows, out = self.rows, []
        low, total, high = 0, 0, 0
        for position in range(self.final, len(rows)):
            t = rows[position][0]
            if t >= watermark:
                break
            while high < len(rows) and rows[high][0] <= t:
                total += rows[high][1]
                high += 1
            while rows[low][0] < t - self.size:
                total -= rows[low][1]
                low += 1
            out.append((t, high - low, total))
        self.final += len(out)
        if self.final < len(rows):
            horizon = rows[self.final][0] - self.size
        else:
            horizon = watermark - self.size
        horizon = min(horizon, watermark - self.size)
        keep = next((i for i, row in enumerate(rows) if row[0] >= horizon), len(rows))
        del rows[:keep]
        self.final -= keep
        return out

    def snapshot(self) -> Any:
        """State for recovery."""
        return (list(self.rows), self.final, self.watermark)


class Retractions(StatefulBatchLogic[Event, tuple[str, int, int, int], Any]):
    """J5 for one key: windows with what was given of them."""

    def __init__(self, job: Job) -> None:
        self.size, self.lag, self.lateness = job.size_ms * 1_000, job.lag_ms * 1_000, job.allowed_lateness_ms * 1_000
        self.windows: dict[int, tuple[int, int, tuple[int, int] | None]] = {}
        self.watermark = -(2**62)

    def on_batch(self, values: list[Event]) -> tuple[Iterable[tuple[str, int, int, int]], bool]:
        """Add the rows, tell what closed or changed."""
        for t, amount in values:
            if t >= self.watermark - self.lateness:
                start = t - t % self.size
                n, a, given = self.windows.get(start, (0, 0, None))
                self.windows[start] = (n + 1, a + amount, given)
                self.watermark = max(self.watermark, t - self.lag)
        return self.emit(self.watermark), self.RETAIN

    def on_eof(self) -> tuple[Iterable[tuple[str, int, int, int]], bool]:
        """Everything closes."""
        return self.emit(2**62), self.RETAIN

    def emit(self, watermark: int) -> list[tuple[str, int, int, int]]:
        """Changes of the closed windows; those that can change no more are dropped."""
        out: list[tuple[str, int, int, int]] = []
        for start in sorted(self.windows):
            n, a, given = self.windows[start]
            if start + self.size > watermark:
                break
            if given != (n, a):
                if given is not None:
                    out.append(("-U", start, *given))
                out.append(("+I" if given is None else "+U", start, n, a))
                self.windows[start] = (n, a, (n, a))
            if start + self.size + self.lateness <= watermark:
                del self.windows[start]
        return out

    def snapshot(self) -> Any:
        """State for recovery."""
        return (dict(self.windows), self.watermark)


TIME = pa.timestamp("us", tz="UTC")
WINDOW = [
    ("user_id", pa.int64()),
    ("window_start", TIME),
    ("window_end", TIME),
    ("count", pa.int64()),
    ("sum_amount", pa.int64()),
]
LOOKBACK = pa.schema([("user_id", pa.int64()), ("event_time", TIME), ("count", pa.int64()), ("sum_amount", pa.int64())])
Totals = tuple[datetime, datetime, int, int]
FIRST, LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)


def fold(state: Totals, event: Event) -> Totals:
    """Add a row; first and last time give a session its bounds."""
    t, amount = event
    return (min(state[0], t), max(state[1], t), state[2] + 1, state[3] + amount)


def merge(left: Totals, right: Totals) -> Totals:
    """Join two sessions."""
    return (min(left[0], right[0]), max(left[1], right[1]), left[2] + right[2], left[3] + right[3])


def windowed(job: Job, keyed: Any) -> Any:
    """J1, J2 and J3 with Bytewax's own windows."""
    # The events are older than the clock: with timers every key with an open window would be woken at every batch.
    # So a key's windows close with its next row, or at the end; with 500 000 keys that is many times as fast. And the clock
    # stands, because Bytewax adds the time that passes to the watermark: a slow machine would make rows late.
    lag = timedelta(milliseconds=job.lag_ms)
    clock: Any = win.EventClock(lambda event: event[0], lag, now_getter=lambda: ORIGIN, to_system_utc=lambda _: None)
    size, slide = timedelta(milliseconds=job.size_ms), timedelta(milliseconds=job.slide_ms or job.size_ms)
    windower: Any
    if job.kind == "session":
        windower = win.SessionWindower(size)
    elif job.kind == "hopping":
        windower = win.SlidingWindower(size, slide, ORIGIN)
    else:
        windower = win.TumblingWindower(size, ORIGIN)
    out = win.fold_window("fold", keyed, clock, windower, lambda: (LAST, FIRST, 0, 0), fold, merge, ordered=False)

    def row(item: tuple[str, tuple[int, Totals]]) -> tuple[Any, ...]:
        key, (number, (first, last, n, a)) = item
        if job.kind == "session":
            return (int(key), first, last + size, n, a)
        start = ORIGIN + number * slide
        return (int(key), start, start + size, n, a)

    return op.map("row", out.down, row)


def by_hand(job: Job, keyed: Any) -> tuple[Any, pa.Schema]:
    """J4 and J5."""
    if job.kind == "lookback":
        results = op.stateful_batch("lookback", keyed, lambda _: Lookback(job))
        return op.map("row", results, lambda item: (int(item[0]), *item[1])), LOOKBACK
    changes = op.stateful_batch("retractions", keyed, lambda _: Retractions(job))
    size = job.size_ms * 1_000

    def row(item: tuple[str, tuple[str, int, int, int]]) -> tuple[Any, ...]:
        key, (change, start, n, a) = item
        return (change, int(key), start, start + size, n, a)

    return op.map("row", changes, row), pa.schema([("op", pa.string()), *WINDOW])


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    job = task.job
    if job.name not in ("J1", "J2", "J3", "J4", "J5"):
        raise unsupported(NAME, job, "no operator computes it")
    own = job.name in ("J1", "J2", "J3")
    flow = Dataflow(job.name)
    keyed = op.input("in", flow, Parts(task.files, as_datetime=own))
    rows, schema = (windowed(job, keyed), pa.schema(WINDOW)) if own else by_hand(job, keyed)
    op.output("out", rows, ParquetOut(task.out / "result.parquet", schema))
    main_of: Callable[..., None] = cli_main
    main_of(flow, workers_per_process=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
