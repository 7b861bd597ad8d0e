"""What a batch of a join costs does not depend on what is held: counts of store calls and of rows written, not times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.testing import Driver, stream_of
from tests.kernels.state.test_cost import CountingStore

BATCHES, ROWS, FEW, MANY = 24, 10, 50_000, 5_000_000
KINDS: dict[str, Callable[[Any, Any], ResultStream]] = {
    "interval": lambda left, right: left.interval_join(right, "user", lower=-50_000, upper=50_000, how="full"),
    "as-of": lambda left, right: left.asof_join(right, "user", direction="nearest", tolerance=50_000),
}


def cost(kind: str, held: int) -> CountingStore:
    """What small batches ask of the store when so many rows of as many keys are held before."""
    left = stream_of("user bigint, at bigint, n bigint").watermark("at", 100_000)
    right = stream_of("user bigint, seen bigint, m bigint").watermark("seen", 100_000)
    driver = Driver(KINDS[kind](left, right))
    users = np.arange(held // 2)
    moment = pa.array(1_000_000 + users * 100_000 // len(users))
    driver.send(
        {
            "left": pa.table({"user": users, "at": moment, "n": users}),
            "right": pa.table({"user": users + held, "seen": moment, "m": users}),
        }
    )
    store = CountingStore(driver._store)
    driver._store = store  # type: ignore[assignment]
    for batch in range(BATCHES):
        rows = [{"user": (batch * 7 + i) % 50 * (held // 100), "seen": 1_050_000 + batch, "m": 1} for i in range(ROWS)]
        driver.send({"right": rows})
    return store


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_costs_what_it_brings(kind: str) -> None:
    few, many = cost(kind, FEW), cost(kind, MANY)
    assert few.rows_written <= 12 * BATCHES * ROWS
    assert many.rows_written == few.rows_written
    assert few.calls <= 12 * BATCHES
    assert many.calls <= few.calls + BATCHES * ROWS, "each key opens a piece of its own where there are many"
