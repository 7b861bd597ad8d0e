"""Plans with a fault each, which a check has to find (T1 to T12 of its design), by name; importable by another process."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py import Context, WindowAssigner, count, udaf, udf
from krishiv_py.plan.described import Assigned, Times
from krishiv_py.testing import stream_of

SCHEMA = "user string, at bigint, v bigint"
LAG = 20_000


def keyed(schema: str = SCHEMA) -> Any:
    return stream_of(schema).watermark("at", LAG).key_by("user")


class Counter:
    """Counts the calls of the process, not the rows."""

    calls = itertools.count()

    def create(self) -> list[int]:
        return [0]

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [max(accumulator[0], next(self.calls))]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return [max(left[0], right[0])]

    def finish(self, accumulator: list[int]) -> int:
        return accumulator[0]


class Difference(Counter):
    """Takes values off one another: not associative."""

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [accumulator[0] + value]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return [left[0] - right[0]]


class FloatSum:
    """Adds floats as they come, so the last digit depends on the order."""

    def create(self) -> float:
        return 0.0

    def add(self, accumulator: float, value: float) -> float:
        return accumulator + value

    def merge(self, left: float, right: float) -> float:
        return left + right

    def finish(self, accumulator: float) -> float:
        return accumulator


class OrderOfSet:
    """Joins texts in the order of a set, which differs by process."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], value: str) -> list[str]:
        return sorted({*accumulator, value})

    def merge(self, left: list[str], right: list[str]) -> list[str]:
        return sorted({*left, *right})

    def finish(self, accumulator: list[str]) -> str:
        return ",".join(set(accumulator))


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([*batch.columns, pa.array(range(batch.num_rows))], [*batch.schema.names, "n"])


def without_last(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, max(batch.num_rows - 1, 0))


def one_a_call(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([batch.num_rows])})


def no_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.column("v").null_count:
        raise ValueError("v is null")
    return batch


class NumberedCalls:
    """Numbers the rows of the process, not of their key."""

    calls = itertools.count()

    def on_row(self, row: Any, state: None, ctx: Context) -> list[dict[str, int]]:
        return [{"n": next(self.calls)}]


@udf("double")
def by_chance(v: Any) -> list[float]:
    return [random.random() for _ in v]


@udf("timestamp")
def by_clock(v: Any) -> list[Any]:
    return [dt.datetime.now() for _ in v]


@attrs.frozen
class ByBatch(WindowAssigner):
    """Gives all rows of a batch the window of its first row."""

    @property
    def longest(self) -> str:
        return "1 hour"

    def assign(self, times: Times) -> Assigned:
        first = times[:1] - times[:1] % 60_000_000
        begins = np.full(len(times), first[0] if len(times) else 0)
        rows = np.flatnonzero((times >= begins) & (times < begins + 3_600_000_000))
        return rows, begins[rows], begins[rows] + 3_600_000_000


def global_counter() -> Any:
    return keyed().tumbling_window(60_000).agg(udaf(Counter(), "v", pa.int64()).alias("n"))


def rows_numbered() -> Any:
    return stream_of(SCHEMA).map_batches(numbered, f"{SCHEMA}, n bigint")


def last_dropped() -> Any:
    return stream_of(SCHEMA).map_batches(without_last, SCHEMA)


def random_values() -> Any:
    return stream_of(SCHEMA).select("user", x=by_chance("v"))


def clock_values() -> Any:
    return stream_of(SCHEMA).select("user", x=by_clock("v"))


def rows_a_call() -> Any:
    return stream_of(SCHEMA).map_batches(one_a_call, "n bigint")


def not_associative() -> Any:
    return keyed().tumbling_window(60_000).agg(udaf(Difference(), "v", pa.int64()).alias("n"))


def by_batch() -> Any:
    return keyed().windowed_by(ByBatch()).agg(count())


def float_sum() -> Any:
    return keyed("user string, at bigint, v double").tumbling_window(60_000).agg(udaf(FloatSum(), "v", pa.float64()).alias("x"))


def raises_on_null() -> Any:
    return stream_of(SCHEMA).map_batches(no_nulls, SCHEMA)


def order_of_set() -> Any:
    rows = keyed("user string, at bigint, v string")
    return rows.tumbling_window(60_000).agg(udaf(OrderOfSet(), "v", pa.string()).alias("all"))


def per_minute() -> Any:
    return keyed().tumbling_window(60_000).agg(count())


def numbered_calls() -> Any:
    return keyed().process(NumberedCalls(), returns="n bigint")
