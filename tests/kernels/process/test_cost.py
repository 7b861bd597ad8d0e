"""What a batch of a stage in settled order costs follows what it brings and what is due, not what is held.

Counted are calls of Python functions, rows that the state store is given, and the most memory that arrays take at a time: an
array of as many values as there are keys would take more than a batch of ten rows does.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import Context, Events, RoundContext, Row, col, last, step
from krishiv_py.testing import Driver, stream_of
from tests.kernels.dedup.test_cost import CountingStore

ROWS, BATCHES, DAY = 10, 8, 86_400_000
SCHEMA: Final = "key bigint, at bigint, kind bigint"


@attrs.define
class Seen:
    """The rows of a key."""

    rows: int = 0


class ByRound:
    """Counts rows, and waits a day for the next one."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        state.rows = state.rows + events.is_row
        ctx.timer("idle", after="1 day", where=events.is_row)
        ctx.emit(where=~events.is_row, rows=state.rows)


class ByRow:
    """The same, a call a row."""

    def on_row(self, row: Row, state: Seen, ctx: Context) -> None:
        state.rows += 1
        ctx.timer("idle", after="1 day")

    def on_timer(self, name: str, state: Seen, ctx: Context) -> Iterator[dict[str, Any]]:
        yield {"rows": state.rows}


def _rows(lag: int) -> Any:
    return stream_of(SCHEMA).watermark("at", lag).key_by("key")


def _placed_and_paid(lag: int) -> Any:
    placed, paid = step("placed", col("kind") == 1), step("paid", col("kind") == 2)
    return _rows(lag).match(placed.followed_by(paid), measures=[last("paid.at").alias("paid_at")], within="1 day")


STAGES: Final[dict[str, Callable[[int], Any]]] = {
    "rounds": lambda lag: _rows(lag).process(ByRound(), returns="rows bigint", state=Seen),
    "rows": lambda lag: _rows(lag).process(ByRow(), returns="rows bigint", state=Seen),
    "absence": lambda lag: _rows(lag).absent(after="1 day"),
    "pattern": _placed_and_paid,
}
LAGS: Final = {"timers pending": 0, "rows held": DAY}
"""Without a lag rows are settled, and keys have a timer, a deadline or an undecided start; with one the rows wait."""


@attrs.frozen
class Cost:
    """What batches took: calls, rows written, and the most memory at a time."""

    calls: int
    rows_written: int
    peak_bytes: int


def cost(stage: str, lag: int, keys: int) -> Cost:
    """Return what small batches take where so many keys are held."""
    driver = Driver(STAGES[stage](lag))
    driver.send(pa.table({"key": np.arange(keys), "at": np.arange(keys) % 1_000, "kind": np.ones(keys, np.int64)}))
    driver.send([{"key": 0, "at": 1_001, "kind": 0}])
    driver.send([{"key": 0, "at": 1_002, "kind": 0}])  # what was before is settled
    store = CountingStore(driver._store)
    driver._store = store  # type: ignore[assignment]
    calls = 0

    def counted(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(counted)
    try:
        for batch in range(BATCHES):
            every = [(batch * 7_919 + row * 104_729) % keys for row in range(ROWS)]
            assert not driver.send([{"key": key, "at": 1_010 + batch, "kind": 0} for key in every]).results.num_rows
    finally:
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Cost(calls, store.rows_written, peak)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("many", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lag", LAGS.values(), ids=LAGS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_batch_costs_what_it_brings(stage: str, lag: int, many: int) -> None:
    few, actual = cost(stage, lag, 1_000), cost(stage, lag, many)
    assert actual.rows_written <= few.rows_written + 2 * BATCHES * ROWS
    assert actual.calls <= 1.2 * few.calls + BATCHES * ROWS
    assert actual.peak_bytes <= few.peak_bytes + many // 2, "no array has a value for each key"
