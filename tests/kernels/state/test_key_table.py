"""A key finds its own row, whatever the keys next to it are: whole numbers close together are numbered by value, others not."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import Context, Row, count, sum
from krishiv_py.arrays.grouping import key_hashes, places_among
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.testing import Driver, stream_of

KEYS = {
    "ids": lambda n: pa.array([3 * i // 2 for i in range(n)]),
    "numbers far apart": lambda n: pa.array([i * 7_919**3 for i in range(n)]),
    "texts": lambda n: pa.array([f"key {i}" for i in range(n)]),
    "floats": lambda n: pa.array([i / 2 for i in range(n)]),
    "some null": lambda n: pa.array([None, *range(1, n)]),
}
SIZES = (3, 40, 150, 300, 700, 5_000)


def _some(draw: random.Random, keys: pa.Array) -> pa.Table:
    places = draw.sample(range(len(keys)), draw.randrange(1, len(keys) + 1))
    return pa.table({"k": keys.take(pa.array(places))})


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("size", SIZES)
def test_a_key_finds_its_own_row(kind: str, size: int) -> None:
    draw, every = random.Random(f"{kind} {size}"), KEYS[kind](size)
    table = KeyTable(Bucket(MemoryStore(), {}), "t", [pa.field("k", every.type)], [pa.field("v", pa.int64())])
    stored: dict[Any, int] = {}
    for turn in range(6):
        keys = _some(draw, every)
        hashes = key_hashes([keys["k"]], keys.num_rows)
        rows, places = table.lookup(keys, hashes)
        values = rows["v"].to_pylist()
        assert [None if at < 0 else values[at] for at in places] == [stored.get(key) for key in keys["k"].to_pylist()]
        numbers = [1_000_000 * turn + number for number in range(keys.num_rows)]
        table.write(keys, hashes, np.ones(keys.num_rows, np.bool_), [pa.array(numbers)])
        stored |= dict(zip(keys["k"].to_pylist(), numbers, strict=True))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("size", SIZES)
def test_a_key_finds_its_own_rows(kind: str, size: int) -> None:
    draw, every = random.Random(f"{kind} {size}"), KEYS[kind](size)
    log = CountedLog(Bucket(MemoryStore(), {}), "t", [pa.field("k", every.type)], [pa.field("v", pa.int64())])
    stored = Counter[tuple[Any, int]]()
    for turn in range(4):
        keys = _some(draw, every)
        touched = TouchedKeys(keys, key_hashes([keys["k"]], keys.num_rows), keys.num_rows)
        before = log.lookup(touched)
        names = keys["k"].to_pylist()
        pairs = zip(before.of.tolist(), before.rows["v"].to_pylist(), before.counts.tolist(), strict=True)
        mine = set(names)
        assert {(names[of], v): n for of, v, n in pairs} == {pair: n for pair, n in stored.items() if pair[0] in mine}
        rows = pa.table({"v": pa.array([turn % 2] * keys.num_rows), ROWS: pa.array([1] * keys.num_rows)})
        log.append(touched, CountedRows.of_table(rows, np.arange(keys.num_rows)))
        stored.update((name, turn % 2) for name in names)


def test_places_are_those_of_the_keys() -> None:
    keys, rows = pa.table({"k": [7, 3, 5, 4]}), pa.table({"k": [5, 7, 9, 4, 3, 6, 5]})
    assert places_among(["k"], keys, rows).tolist() == [2, 0, -1, 3, 1, -1, 2]


@attrs.define
class Counted:
    """The number of rows of a key."""

    rows: int = 0


class Counting:
    """Give the number of rows of a key so far."""

    def on_row(self, row: Row, state: Counted, ctx: Context) -> Any:
        """Count a row."""
        state.rows += 1
        return [{"rows": state.rows}]


@pytest.mark.parametrize("of", [150, 400, 3_000])
def test_a_part_of_the_ids_in_each_batch(of: int) -> None:
    draw, width = random.Random(of), 5 * of // 2
    batches = [[{"id": i, "n": 1} for i in draw.sample(range(width), of)] for _ in range(5)]
    rows = stream_of("id bigint, n bigint")
    totals, newest = Driver(rows.key_by("id").agg(n=count(), s=sum("n"))), Driver(rows.latest("id", by="n"))
    calls = Driver(
        rows.watermark("n", 0).key_by("id").process(Counting(), returns="rows bigint", state=Counted, order="arrival")
    )
    so_far = Counter[int]()
    content: dict[int, int] = {}
    for batch in batches:
        so_far.update(row["id"] for row in batch)
        given = [row for row in totals.send(batch).results.to_pylist() if row["op"] != "-U"]
        content |= {row["id"]: row["n"] for row in given}
        assert all(row["n"] == row["s"] == so_far[row["id"]] for row in given)
        assert {row["id"]: row["rows"] for row in calls.send(batch).results.to_pylist()} == {
            row["id"]: so_far[row["id"]] for row in batch
        }
        newest.send([{"id": row["id"], "n": so_far[row["id"]]} for row in batch])
    assert content == so_far
    assert {row["id"]: row["n"] for row in newest.state().to_pylist()} == so_far
