"""What a batch costs follows what it brings and what expires, not what is held: counts of calls and rows, not times."""

from __future__ import annotations

import attrs
import pyarrow as pa
import pytest

from krishiv_py.kernels.state.store import MemoryStore
from krishiv_py.testing import Driver, stream_of

BATCHES, ROWS = 16, 10


@attrs.define
class CountingStore:
    """Counts what a state store would be asked for."""

    inner: MemoryStore = attrs.field(factory=MemoryStore)
    calls: int = 0
    rows_written: int = 0

    def get(self, name: str) -> pa.Table:
        self.calls += 1
        return self.inner.get(name)

    def put(self, name: str, table: pa.Table) -> None:
        self.calls += 1
        self.rows_written += table.num_rows
        self.inner.put(name, table)

    def delete(self, name: str) -> None:
        self.calls += 1
        self.inner.delete(name)


def held(identities: int) -> Driver:
    """A driver that remembers so many identities; nothing of them expires before 1 000 000."""
    driver = Driver(stream_of("id bigint, at bigint").watermark("at", 0).drop_duplicates("id", within=1_000_000))
    driver.send(pa.table({"id": range(identities), "at": pa.array([0] * identities, pa.int64())}))
    return driver


def cost(identities: int) -> CountingStore:
    driver = held(identities)
    store = CountingStore(driver._store)
    driver._store = store  # type: ignore[assignment]
    for batch in range(BATCHES):
        new = [{"id": -1 - batch * ROWS - i, "at": batch} for i in range(ROWS // 2)]
        known = [{"id": (batch * 7919 + i * 104_729) % identities, "at": batch} for i in range(ROWS // 2)]
        assert driver.send(known + new).results.num_rows == ROWS // 2
    return store


def test_a_batch_costs_what_it_brings_however_many_identities_are_held() -> None:
    few, many = cost(50_000), cost(5_000_000)
    assert few.rows_written == many.rows_written <= 4 * BATCHES * ROWS
    assert many.calls <= few.calls + BATCHES * ROWS, "of a large run at most one piece for each row is opened"


@pytest.mark.parametrize("spread", [1, 1_000])
def test_expiry_costs_what_expires(spread: int) -> None:
    driver = Driver(stream_of("id bigint, at bigint").watermark("at", 0).drop_duplicates("id", within=1_000))
    n, store = 40_000, CountingStore()
    driver._store = store  # type: ignore[assignment]
    driver.send(pa.table({"id": range(n), "at": [i * spread // n for i in range(n)]}))
    written = store.rows_written
    assert written == n
    for index in range(1_000, 2_000 + spread, 25):
        driver.send([{"id": -index, "at": index}])
    left = driver._stages[0].open_rows
    assert left <= 3 * (1_000 // 25 + 1), "what is over has left, but for less than half of a run"
    assert store.rows_written - written <= n + 4_000, "a run is halved now and then, never rewritten for a few rows"
