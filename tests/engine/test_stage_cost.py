"""What a batch of two stages costs does not depend on what either holds: counts of calls and rows, not times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import count, sum
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.testing import Driver, stream_of
from tests.kernels.state.test_cost import CountingStore

BATCHES, ROWS, FEW, MANY = 16, 10, 50_000, 5_000_000
LAG, LATER = 500_000, 400_000
KINDS: dict[str, Callable[[KeyedStream], Any]] = {
    "windows, then windows": lambda s: s.tumbling_window(10).agg(count(), sum("n")).key_by("user").tumbling_window(1_000_000),
    "first arrivals, then sessions": lambda s: (
        s.drop_duplicates("user", "n", within=10).results().key_by("user").session_window(600_000)
    ),
}


def cost(kind: str, held: int) -> list[CountingStore]:
    """What small batches, each of which fires the first stage, ask of the stores when so many keys are open in both."""
    stream = stream_of("user bigint, at bigint, n bigint").watermark("at", LAG).key_by("user")
    driver = Driver(KINDS[kind](stream).agg(count()))
    users = np.arange(held)
    driver.send(pa.table({"user": users, "at": np.full(held, 5), "n": users}))
    driver.send(pa.table({"user": users, "at": np.full(held, LATER), "n": users + held}))
    driver.send([{"user": -1, "at": LAG + 20, "n": 0}])  # the first rows are over in the first stage, the others are not
    assert [stage.open_rows >= held for stage in driver._stages] == [True, True]
    stores = [CountingStore(stage.buckets[0].store) for stage in driver._stages]
    for stage, store in zip(driver._stages, stores, strict=True):
        stage.buckets[0].store = store  # type: ignore[assignment]
    for batch in range(BATCHES):
        moment = 30 + 10 * batch
        rows = [{"user": (batch * 7 + i) % 50 * (held // 100), "at": moment, "n": -batch * ROWS - i} for i in range(ROWS)]
        driver.send([*rows, {"user": -1, "at": LAG + moment, "n": 0}])
    return stores


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_costs_what_it_brings(kind: str) -> None:
    for few, many in zip(cost(kind, FEW), cost(kind, MANY), strict=True):
        assert 0 < few.rows_written <= 6 * BATCHES * (ROWS + 1)
        assert many.rows_written == few.rows_written
        assert few.calls <= 14 * BATCHES
        assert many.calls <= few.calls + BATCHES * ROWS, "a log by key opens at most a piece for each row where there are many"
