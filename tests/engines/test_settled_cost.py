"""The cost of a batch of stages in settled order: it follows what the batch brings, not what is held.

What work costs is counted in memory that it takes: a step that looks at each of a million rows takes some bytes for each.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import Context, Row, col, first, prev, step
from krishiv_py.testing import Driver, stream_of
from tests.engines.test_process import Waits
from tests.kernels.process.test_process import Count

DDL = "k bigint, at bigint, c string"
MOST_BYTES = 3_000_000
"""A number for each of a million rows takes eight."""


class WaitsByRow:
    """Every key has state and a timer that is far off."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> None:
        """Set the timer."""
        state.n += 1
        ctx.timer("far", after="1 day")

    def on_timer(self, name: str, state: Count, ctx: Context) -> None:
        """Never called here."""


def _pattern() -> Any:
    return step("A", col("c") == "a").followed_by(step("B", col("c") == "b"))


STAGES: dict[str, Callable[[Any], Any]] = {
    "process": lambda keyed: keyed.process(WaitsByRow(), returns="n bigint", state=Count),
    "rounds": lambda keyed: keyed.process(Waits(), returns="n bigint", state=Count),
    "absence": lambda keyed: keyed.absent("1 day", repeat="1 h", forget_after="7 d"),
    "pattern": lambda keyed: keyed.match(_pattern(), within="10 days", measures=first("A.at").alias("began")),
    "rows before": lambda keyed: keyed.with_previous(before=prev("c")),
}


_POOLS: list[pa.MemoryPool] = []
"""Arrays outlive the calls that made them, and their pool must outlive them."""


class Taken:
    """The most bytes that were in use at a time, more than before."""

    def __init__(self) -> None:
        self.numpy = self.arrow = 0


@contextmanager
def _memory() -> Iterator[Taken]:
    taken, before = Taken(), pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield taken
        taken.numpy, taken.arrow = tracemalloc.get_traced_memory()[1], pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def _batch(keys: Any, at: int, kind: str) -> pa.Table:
    return pa.table({"k": keys, "at": np.full(len(keys), at), "c": pa.array([kind]).take(pa.array(np.zeros(len(keys), int)))})


def _cost_of_batches(driver: Driver, keys: int, at: int) -> Taken:
    for number in range(8):  # small tails become one
        driver.send(_batch(np.arange(50) * 7 % keys, at + number, "x"))
    with _memory() as taken:
        for number in range(8, 12):
            driver.send(_batch(np.arange(50) * 7 % keys, at + number, "x"))
    return taken


@pytest.mark.one_in(10)
@pytest.mark.parametrize("keys", [1_000, 1_000_000])
@pytest.mark.parametrize("name", STAGES)
def test_keys_with_deadlines_cost_a_batch_nothing(name: str, keys: int) -> None:
    driver = Driver(STAGES[name](stream_of(DDL).watermark("at", 0).key_by("k")))
    for begin in range(0, keys, 250_000):
        driver.send(_batch(np.arange(begin, min(keys, begin + 250_000)), 0, "a"))
    taken = _cost_of_batches(driver, keys, 1)
    assert (taken.numpy < MOST_BYTES, taken.arrow < MOST_BYTES) == (True, True), (taken.numpy, taken.arrow)
    assert driver.state().num_rows == keys


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rows", [1_000, 1_000_000])
@pytest.mark.parametrize("keys", [1, 10_000])
@pytest.mark.parametrize("name", STAGES)
def test_rows_that_wait_cost_a_batch_nothing(name: str, keys: int, rows: int) -> None:
    driver = Driver(STAGES[name](stream_of(DDL).watermark("at", 3_600_000).key_by("k")))
    for begin in range(0, rows, 250_000):
        n = min(rows, 250_000)
        driver.send(_batch((np.arange(n) + begin) % keys, 3_000_000, "a"))
    taken = _cost_of_batches(driver, keys, 3_000_001)
    assert (taken.numpy < MOST_BYTES, taken.arrow < MOST_BYTES) == (True, True), (taken.numpy, taken.arrow)


@pytest.mark.parametrize("rows", [1_000, 1_000_000])
def test_rows_of_an_undecided_start_cost_a_batch_nothing(rows: int) -> None:
    driver = Driver(stream_of(DDL).watermark("at", 0).key_by("k").match(_pattern(), max_rows_per_key=2_000_000))
    driver.send(_batch(np.zeros(1, int), 0, "a"))
    for _ in range(0, rows, 250_000):
        driver.send(_batch(np.zeros(min(rows, 250_000), int), 1, "x"))
    taken = _cost_of_batches(driver, 1, 2)
    assert (taken.numpy < MOST_BYTES, taken.arrow < MOST_BYTES) == (True, True), (taken.numpy, taken.arrow)


def test_a_pattern_that_never_ends_keeps_so_many_rows_of_a_key() -> None:
    driver = Driver(stream_of(DDL).watermark("at", 0).key_by("k").match(_pattern(), max_rows_per_key=1_000))
    given_up = 0
    for number in range(40):
        rows = np.repeat(np.arange(3), 100)
        kinds = pa.array(["a" if n % 100 == 0 else "x" for n in range(300)])
        out = driver.send(pa.table({"k": rows, "at": np.full(300, number), "c": kinds}))
        given_up += out.late.num_rows
        held = sum(table.num_rows for name, table in driver._store.tables.items() if name.startswith("match_log"))
        assert held < 3 * 1_000 * 4, "rows and marks of a log whose halves are merged"
    assert given_up > 0 and set(out.late["reason"].to_pylist()) <= {"pattern_limit"}
