"""The newest row of a key by a column: what comes late, or is written once more, replaces nothing newer (F11, F12)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ColumnError, PostgresSink, SchemaError, Session, sum
from tests.tables.server import Server
from tests.tables.test_other_writers import to

ROWS = pa.schema([("card", pa.string()), ("at", pa.int64()), ("spent", pa.int64())])
LOG = ROWS.append(pa.field("op", pa.string()))
Row = tuple[str | None, int | None, int]


def written(server: Server, name: str, batches: list[list[tuple[Any, ...]]], query: str = "q", schema: pa.Schema = LOG) -> None:
    publisher = to(PostgresSink(server.address(), name, key="card", newest_by="at"), query, schema)
    for number, batch in enumerate(batches):
        rows = [dict(zip(schema.names, row, strict=True)) for row in batch]
        publisher.publish(number, [pa.Table.from_pylist(rows, schema)], is_replay=False)


def there(server: Server, name: str) -> list[Row]:
    return sorted(server.rows(f"SELECT card, at, spent FROM {name}"), key=repr)


def test_f11_a_newer_row_stays_when_an_older_one_comes(server: Server, table: Callable[[], str]) -> None:
    name = table()
    written(server, name, [[("a", 20, 2)], [("a", 10, 1), ("b", 5, 1)], [("a", 20, 3)]], schema=ROWS)
    assert there(server, name) == [("a", 20, 3), ("b", 5, 1)]
    written(server, name, [[("b", 9, 4), ("a", 19, 9), ("b", 7, 2)]], "a backfill", ROWS)
    assert there(server, name) == [("a", 20, 3), ("b", 9, 4)]


def test_f12_a_key_is_deleted_and_back(server: Server, table: Callable[[], str]) -> None:
    name = table()
    written(server, name, [[("a", 10, 1, "+I")], [("a", 10, 1, "-D")]])
    assert there(server, name) == []
    written(server, name, [[("a", 30, 3, "+I")], [("a", 20, 2, "-D")], [("a", 30, 3, "-U"), ("a", 40, 4, "+U")]], "later")
    assert there(server, name) == [("a", 40, 4)]


@pytest.mark.parametrize("seed", range(6))
def test_a_loop_over_rows_in_any_order_gives_the_same(server: Server, table: Callable[[], str], seed: int) -> None:
    chance, name = random.Random(seed), table()
    batches, kept = list[list[tuple[Any, ...]]](), dict[str | None, tuple[int | None, int]]()
    for _ in range(12):
        batch = []
        for _ in range(chance.randint(1, 6)):
            card, at, spent = chance.choice(["a", "b", None, ""]), chance.choice([None, *range(9)]), chance.randrange(100)
            op = chance.choice(["+I", "+U", "-U", "-D"])
            batch.append((card, at, spent, op))
        batches.append(batch)
        ordered = sorted(batch, key=lambda row: -1 if row[1] is None else row[1])
        last = {row[0]: row for row in ordered if row[3] != "-U"}
        for card, at, spent, op in last.values():
            before = kept.get(card, (None, 0))[0]
            if before is not None and (at is None or at < before):
                continue
            if op == "-D":
                kept.pop(card, None)
            else:
                kept[card] = at, spent
    written(server, name, batches)
    assert there(server, name) == sorted(((card, at, spent) for card, (at, spent) in kept.items()), key=repr)


def test_features_are_served_from_a_table(server: Server, table: Callable[[], str]) -> None:
    name = table()
    with Session.in_process() as session:
        payments, sender = session.memory_stream("card string, at bigint, amount bigint")
        timed = payments.watermark("at", "10 s", clock="row").key_by("card")
        spent = timed.lookback_window("1 h", emit="arrival", with_row=True).agg(sum("amount").alias("spent"))
        query = spent.select("card", "at", "spent").start(PostgresSink(server.address(), name, key="card", newest_by="at"))
        for at, amount in ((5_000, 1), (9_000, 2), (7_000, 4)):
            sender.send([{"card": "a", "at": at, "amount": amount}])
            query.process_all_available()
    assert there(server, name) == [("a", 9_000, 3)]


def test_a_column_without_an_order_is_refused(server: Server, table: Callable[[], str]) -> None:
    for by, error in (("when", ColumnError), ("more", SchemaError)):
        sink = PostgresSink(server.address(), table(), key="card", newest_by=by)
        with pytest.raises(error, match="newest_by"):
            sink.check("results", ROWS.append(pa.field("more", pa.list_(pa.int64()))))
