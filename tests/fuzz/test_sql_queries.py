"""Random SQL over random rows: what a plan gives is what DuckDB says of the same rows, however they come in batches."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest

from krishiv_py import KrishivError
from krishiv_py.plan.schema import as_schema
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of
from tests.fuzz.queries import DDL, Pair, Queries

SCHEMA: Final = as_schema(DDL)
TABLE: Final = pa.table({"k": ["a", "a", "b", None], "n": [1, 2, 3, 4]}, pa.schema([("k", pa.string()), ("n", pa.int64())]))
QUERIES: Final = int(os.environ.get("KRISHIV_QUERIES", "90"))
"""How many queries are tried; ``python -m nox -s queries`` tries thousands."""
SEED: Final = int(os.environ.get("KRISHIV_SEED", "1"))
BLOCK: Final = 30


def rows_of(chance: random.Random) -> list[dict[str, Any]]:
    times = [chance.randrange(0, 200_000, chance.choice([1, 500, 10_000])) for _ in range(chance.randint(0, 30))]
    return [
        {
            "k": chance.choice(["a", "b", "c", None]),
            "s": chance.choice(["a", "B", None]),
            "v": chance.choice([None, *range(-3, 12)]),
            "w": chance.choice([None, *range(5)]),
            "ts": ts,
            "nr": nr,
        }
        for nr, ts in enumerate(times)
    ]


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    plain = [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows]
    return sorted(plain, key=lambda row: [(v is not None, str(type(v)), str(v)) for v in row])


def ours(pair: Pair, sides: dict[str, list[dict[str, Any]]], chance: random.Random) -> list[tuple[Any, ...]]:
    context = SqlContext()
    late = chance.random() < 0.3  # the lag comes from a setting
    for name in sides:
        stream = stream_of(DDL)
        context.register(name, stream, event_time="ts", lag=0 if late else 400_000)
    context.register("d", TABLE)
    if late:
        context.sql("SET watermark.lag = INTERVAL '400' SECOND")
    try:
        query = context.sql(pair.ours)
    except KrishivError as problem:
        if not late or "has no watermark" not in str(problem):
            raise
        query = context.sql(pair.ours)
    assert query is not None
    driver = Driver(query)
    step, read = chance.randint(1, 12), pair.reads
    results: list[dict[str, Any]] = []
    for begin in range(0, max(map(len, sides.values())), step):
        cut = {name: sides[name][begin : begin + step] for name in read}
        names = ("left", "right") if "UNION ALL" not in pair.ours else ("a", "b")
        sent: Any = cut[read[0]] if len(read) == 1 else dict(zip(names, cut.values(), strict=True))
        results += driver.send(sent).results.to_pylist()
    return [tuple(row.values()) for row in [*results, *driver.close().results.to_pylist()]]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("block", range(-(-QUERIES // BLOCK)))
def test_random_queries_give_what_duckdb_gives(block: int) -> None:
    seen: Counter[str] = Counter()
    with duckdb.connect() as db:
        db.register("d", TABLE)
        for number in range(block * BLOCK, (block + 1) * BLOCK):
            seed = SEED * 1_000_000 + number
            chance, pair = random.Random(seed), Queries(seed).one()
            sides = {"a": rows_of(chance), "b": rows_of(chance)}
            for name, rows in sides.items():
                db.register(name, pa.Table.from_pylist(rows, SCHEMA))
            wanted = in_order(db.execute(pair.theirs).fetchall())
            try:
                actual = in_order(ours(pair, sides, chance))
            except KrishivError as problem:
                raise AssertionError(f"seed {seed}: {pair.ours}\n{problem}") from problem
            assert actual == wanted, f"seed {seed}: {pair.ours}\n{pair.theirs}\n{sides}"
            seen["rows"] += len(actual)
    assert seen["rows"] > 0
