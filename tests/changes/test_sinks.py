"""Sinks hold the content of results that change, over restarts; those that only add refuse them (SEMANTICS §16.9)."""

from __future__ import annotations

import builtins
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from krishiv_py import (
    DeltaSink,
    IcebergSink,
    MemorySink,
    PlanError,
    PostgresSink,
    ResultStream,
    Session,
    SqliteSink,
    count,
    sum,
)
from krishiv_py.testing import Driver, stream_of
from krishiv_py.testing.broker import Broker
from tests.changes import held
from tests.changes.held import Held, Make, counted_rows
from tests.connectors.sinks import CsvSink
from tests.examples import scaled
from tests.kernels.changes.reference import Content, Row, Rows, first_rows, grouped, joined
from tests.outputs.keyed import TableInMemory
from tests.tables.server import Server

DDL = "op string, id bigint, shop string, kind bigint, amount bigint, price double, seq bigint"
SHOPS = "op string, shop string, city string, seq bigint"


@attrs.frozen
class Query:
    """A plan over orders and shops, the columns that tell its rows apart, and what it gives for the contents."""

    plan: Callable[[Any, Any], ResultStream]
    key: tuple[str, ...]
    of: Callable[[Rows, Rows], Rows]


def _totals(orders: Any, _shops: Any) -> ResultStream:
    made: ResultStream = orders.key_by("shop", "kind").agg(n=count(), total=sum("amount"), price=sum("price"))
    return made


def _sum(name: str) -> Callable[[Rows], Any]:
    return lambda rows: builtins.sum(row[name] for row in rows)


def _totals_of(orders: Rows, _shops: Rows) -> Rows:
    return grouped(orders, ("shop", "kind"), {"n": len, "total": _sum("amount"), "price": _sum("price")})


def _place(row: Row) -> Any:
    return (-row["amount"], row["id"])


OWN = ("id", "shop", "amount")
QUERIES = {
    "totals": Query(_totals, ("shop", "kind"), _totals_of),
    "join": Query(
        lambda orders, shops: (
            orders.select(*OWN).join(shops.select("shop", "city"), on="shop", how="left").filter("amount > 2")
        ),
        ("id", "shop"),
        lambda orders, shops: [
            row for row in joined(orders, shops, "shop", "left", (("id", "amount"), ("city",))) if row["amount"] > 2
        ],
    ),
    "ranked": Query(
        lambda orders, _: orders.select(*OWN).key_by("shop").top_rows(2, by="amount", rank="place"),
        ("shop", "place"),
        lambda orders, _: first_rows([{n: row[n] for n in OWN} for row in orders], "shop", 2, _place, "place"),
    ),
}
LOCAL: dict[str, Make] = {
    "memory": held.in_memory,
    "own": held.own,
    "sqlite": held.sqlite,
    "sqlite log": held.sqlite_log,
    "delta": held.delta,
    "delta log": held.delta_log,
    "iceberg": held.iceberg_table,
}


def batches_of(draw: random.Random) -> list[tuple[Rows, Rows]]:
    """Return batches of changes of orders and shops: some come twice, some late, some take back what is not there."""
    made = list[tuple[Rows, Rows]]()
    for number in range(draw.randrange(4, 9)):
        batch: tuple[Rows, Rows] = ([], [])
        for place in range(draw.randrange(1, 12)):
            at = 20 * number + place - (draw.randrange(30) if draw.random() < 0.2 else 0)
            op = draw.choice(("+I", "+U", "+U", "-D"))
            if draw.random() < 0.2:
                city = draw.choice(("Ulm", "Rom", None))
                batch[1].append({"op": op, "shop": draw.choice("xyz"), "city": city, "seq": at})
            else:
                row = {"shop": draw.choice(("x", "y", None)), "kind": draw.randrange(2), "amount": draw.randrange(9)}
                batch[0].append({"op": op, "id": draw.randrange(8), "price": draw.randrange(9) / 4, "seq": at} | row)
        made.append(batch)
    return made


def run(query: Query, table: Held, folder: Path, draw: random.Random) -> None:
    """Run a query over batches, with restarts; the sink holds the query over the contents, whenever it is read."""
    contents, batches = (Content("id", "seq"), Content("shop", "seq")), batches_of(draw)
    with Session.in_process(workers=draw.choice((1, 2))) as session:
        orders, to_orders = session.memory_stream(DDL, name="orders")
        shops, to_shops = session.memory_stream(SHOPS, name="shops")
        sides = orders.from_changelog("log", "id", sequence="seq"), shops.from_changelog("log", "shop", sequence="seq")
        plan = query.plan(*sides)
        checks = {*draw.sample(range(len(batches)), 2), len(batches) - 1}
        running = plan.start(table.make(), checkpoint=folder / "checkpoint")
        for number, (of_orders, of_shops) in enumerate(batches):
            for rows, sender, content in zip((of_orders, of_shops), (to_orders, to_shops), contents, strict=True):
                if rows and ("shops" in running.explain() or sender is to_orders):
                    sender.send(rows)
                for row in rows:
                    content.apply(row)
            running.process_all_available()
            if draw.random() < 0.4:
                running.stop()
                running = plan.start(table.make(), checkpoint=folder / "checkpoint")
            if number in checks:
                assert counted_rows(table.rows()) == counted_rows(query.of(*(content.rows for content in contents)))
        running.stop()


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("seed", range(scaled(2)))
def test_a_sink_holds_the_content(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    run(QUERIES[name], LOCAL[kind](tmp_path, QUERIES[name].key), tmp_path, random.Random(f"{name} {seed}"))


@pytest.mark.parametrize("name", QUERIES)
def test_a_table_of_postgresql_holds_the_content(name: str, server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    for seed in range(scaled(2)):
        made = held.postgres(server, f"held_{table()}")(tmp_path / str(seed), QUERIES[name].key)
        run(QUERIES[name], made, tmp_path / str(seed), random.Random(f"{name} {seed}"))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", [held.kafka_upserts, held.kafka_log])
@pytest.mark.parametrize("name", QUERIES)
def test_a_topic_holds_the_content(
    kind: Callable[[Broker, str], Make], name: str, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    for seed in range(scaled(1)):
        partitions = 1 if kind is held.kafka_log else 3
        made = kind(broker, topic(partitions, cleanup_policy="compact" if partitions > 1 else "delete"))
        run(QUERIES[name], made(tmp_path / str(seed), QUERIES[name].key), tmp_path / str(seed), random.Random(f"{name} {seed}"))


def test_a_compacted_topic_gets_a_tombstone_for_a_row_that_goes(
    broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(1, cleanup_policy="compact")
    made = held.kafka_upserts(broker, name)(tmp_path, ["shop", "kind"])
    row = {"op": "+I", "id": 1, "shop": "x", "kind": 1, "amount": 2, "price": 1.0, "seq": 1}
    with Session.in_process() as session:
        orders, sender = session.memory_stream(DDL)
        running = _totals(orders.from_changelog("log", "id"), None).start(made.make())
        for change in (row, row | {"amount": 3}, {**row, "op": "-D"}):
            sender.send([change])
            running.process_all_available()
        running.stop()
    values = [value for _, value in held.records(broker, name)]
    assert [value is None for value in values] == [False, False, True]


ORDERS = stream_of(DDL).from_changelog("log", "id", sequence="seq")
CITIES = stream_of(SHOPS).from_changelog("log", "shop", sequence="seq").select("shop", "city")
PEOPLE = stream_of("op string, person bigint, shop string").from_changelog("log", "person")
TOTALS = _totals(ORDERS, None)
PLAIN = ORDERS.select(*OWN)


@pytest.mark.parametrize(
    ("plan", "key"),
    [
        (TOTALS, ["shop", "kind"]),
        (TOTALS.filter("total > 3").rename(shop="store"), ["store", "kind"]),
        (ORDERS, ["id"]),
        (PLAIN.join(CITIES, on="shop"), ["id"]),
        (PLAIN.join(CITIES, on="shop", how="left"), ["id"]),
        (PLAIN.join(CITIES, on="shop", how="full"), ["id", "shop"]),
        (PLAIN.join(CITIES, on="shop", how="semi"), ["id"]),
        (PLAIN.join(PEOPLE, on="shop"), ["id", "person"]),
        (PLAIN.key_by("shop").top_rows(1, by="amount"), ["shop"]),
        (PLAIN.key_by("shop").top_rows(2, by="amount"), ["id"]),
        (PLAIN.key_by("shop").top_rows(2, by="amount", rank="place"), ["shop", "place"]),
        (PLAIN.key_by("shop").top_rows(2, by="amount", rank="place"), ["id"]),
        (TOTALS.key_by("kind").top_rows(3, by="total"), ["shop", "kind"]),
        (stream_of("id bigint, n bigint").key_by("id").top_rows(2, by="n"), ["id", "n"]),
        (stream_of("id bigint, n bigint").latest("id", by="n"), ["id"]),
    ],
)
def test_keys_that_the_key_of_the_result_determines_are_taken(plan: ResultStream, key: list[str]) -> None:
    Driver(plan, sink=TableInMemory(key))


@pytest.mark.parametrize(
    ("plan", "key", "hint"),
    [
        (TOTALS, ["shop"], 'pass key=["shop", "kind"]'),
        (TOTALS.rename(shop="store"), ["kind"], 'pass key=["kind", "store"]'),
        (
            TOTALS.select("shop", "n"),
            ["shop"],
            'keep kind in the last .select(...) of the pipeline, and pass key=["shop", "kind"]',
        ),
        (ORDERS, ["shop"], 'pass key=["id"]'),
        (PLAIN.join(CITIES, on="shop"), ["shop"], 'pass key=["shop", "id"]'),
        (PLAIN.join(CITIES, on="shop", how="full"), ["id"], 'pass key=["id", "shop"]'),
        (PLAIN.join(PEOPLE, on="shop"), ["id"], 'pass key=["id", "person"]'),
        (PLAIN.key_by("shop").top_rows(2, by="amount"), ["shop"], 'pass key=["shop", "id"]'),
        (PLAIN.key_by("shop").top_rows(2, by="amount", rank="place"), ["shop"], 'pass key=["shop", "place"]'),
    ],
)
def test_a_key_narrower_than_that_of_the_result_is_refused_with_the_one_to_use(
    plan: ResultStream, key: list[str], hint: str
) -> None:
    """Case C34."""
    with pytest.raises(PlanError, match="does not tell results apart") as refused:
        Driver(plan, sink=TableInMemory(key))
    assert hint in str(refused.value)


def test_sinks_that_only_add_refuse_results_that_change(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    adding = (
        DeltaSink(tmp_path / "t"),
        IcebergSink("lake.t", catalog=catalog),
        PostgresSink("postgresql://nowhere/shop", "t"),
        SqliteSink(tmp_path / "s.db", "t"),
    )
    for sink in adding:
        with pytest.raises(PlanError, match=r"adds rows, and these results change.*pass key=\[\"shop\", \"kind\"\].*log=True"):
            Driver(TOTALS, sink=sink)
    with pytest.raises(PlanError, match="holds the content by a key, or the changes"):
        DeltaSink(tmp_path / "t", key="shop", log=True)
    Driver(TOTALS, sink=CsvSink(str(tmp_path / "csv")))  # files keep the changes, with `op`
    Driver(TOTALS, sink=MemorySink())
    assert not (tmp_path / "t").exists()


def test_a_total_of_all_rows_is_written_by_any_of_its_columns(tmp_path: Path) -> None:
    """There is one row, so a key that changes tells it as well."""
    with Session.in_process() as session:
        stream, sender = session.memory_stream("shop string, amount bigint, op string")
        total = stream.from_changelog("log", key="shop").agg(count())
        with pytest.raises(PlanError, match=r'pass key=\["count"\]'):
            total.start(SqliteSink(tmp_path / "t.db", "t"))
        query = total.start(SqliteSink(tmp_path / "t.db", "t", key=["count"]))
        for shop in "abc":
            sender.send([{"shop": shop, "amount": 1, "op": "+I"}])
            query.process_all_available()
        query.stop()
    with sqlite3.connect(tmp_path / "t.db") as database:
        assert database.execute("SELECT * FROM t").fetchall() == [(3,)]
