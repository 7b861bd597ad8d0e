"""``query.subscribe()``: changes as they come, whoever reads, however slowly; ``query.lookup`` of a table that changes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import MemorySink, OperatorError, PlanError, Query, Session, Subscription, count, sum
from tests.kernels.changes.reference import Row, counted, folded
from tests.kernels.changes.test_content import DDL, QUERIES, batches_of

ORDERS = "user string, amount bigint"


@pytest.fixture
def session() -> Iterator[Session]:
    """A session without Spark."""
    with Session.in_process() as made:
        yield made


def totals(session: Session, sink: MemorySink | None = None, **start: Any) -> tuple[Query, Any]:
    """A running total, and what sends to it."""
    orders, sender = session.memory_stream(ORDERS)
    return orders.key_by("user").agg(total=sum("amount")).start(sink or MemorySink(), **start), sender


def buy(query: Query, sender: Any, *amounts: int) -> None:
    """Send an order of ann, and wait for its batch, one after another."""
    for amount in amounts:
        sender.send([{"user": "ann", "amount": amount}])
        query.process_all_available()


def last_totals(changes: Subscription) -> list[int]:
    """The totals that a subscriber gets, to the end."""
    return [table["total"].to_pylist()[-1] for table in changes]


@pytest.mark.parametrize("name", ["sums", "ranked rows", "left join"])
def test_what_subscribers_fold_is_the_content(name: str, session: Session) -> None:
    made = [session.memory_stream(DDL, name=side) for side in ("left", "right")[: QUERIES[name].sides]]
    sink = MemorySink()
    query = QUERIES[name].plan(*(stream.from_changelog("log", "pk", sequence="seq") for stream, _ in made)).start(sink)
    subscribed = [query.subscribe() for _ in range(3)]
    for batch in batches_of(random.Random(name), QUERIES[name].sides):
        for (_, sender), rows in zip(made, batch.values(), strict=True):
            if rows:
                sender.send(rows)
        query.process_all_available()
    query.stop()
    content = sink.content()
    assert content is not None
    for changes in subscribed:
        given: list[Row] = [row for table in changes for row in table.to_pylist()]
        assert folded(given) == counted(content.to_pylist())


def test_a_reader_in_a_thread_gets_each_batch_while_the_query_runs(session: Session) -> None:
    query, sender = totals(session)
    given: list[list[int]] = [[], []]
    threads = [
        threading.Thread(target=lambda changes, to: to.extend(last_totals(changes)), args=(query.subscribe(), to))
        for to in given
    ]
    for thread in threads:
        thread.start()
    buy(query, sender, *range(1, 30))
    query.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert given == [list(itertools.accumulate(range(1, 30)))] * 2


def test_tasks_of_a_loop_get_each_batch_and_others_go_on(session: Session) -> None:
    query, sender = totals(session)
    ticks = 0

    async def read(changes: Subscription) -> list[int]:
        return [table["total"].to_pylist()[-1] async for table in changes]

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def program() -> list[list[int]]:
        readers = [asyncio.create_task(read(query.subscribe())) for _ in range(2)]
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(buy, query, sender, *range(1, 20))
        await asyncio.to_thread(query.stop)
        given = await asyncio.wait_for(asyncio.gather(*readers), 20)
        ticking.cancel()
        return list(given)

    assert asyncio.run(program()) == [list(itertools.accumulate(range(1, 20)))] * 2
    assert ticks > 5


def test_a_task_that_is_cancelled_leaves_its_table_for_the_next(session: Session) -> None:
    query, sender = totals(session)
    changes = query.subscribe()

    async def program() -> int:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(changes.__anext__(), 0.05)
        await asyncio.to_thread(buy, query, sender, 5)
        table = await changes.__anext__()
        return int(table["total"][0].as_py())

    assert asyncio.run(program()) == 5


def test_a_slow_reader_gets_what_waits_and_then_an_error_and_the_query_goes_on(session: Session) -> None:
    query, sender = totals(session)
    slow, quick = query.subscribe(buffer=4), query.subscribe()
    buy(query, sender, 1, 2, 3, 4, 5)  # a row, and then two each
    assert next(slow)["total"].to_pylist() == [1]
    assert next(slow)["total"].to_pylist() == [1, 3]
    with pytest.raises(OperatorError, match=r"does not keep up with its query.*3 rows wait for it, and 2 more.*when_slow"):
        list(slow)
    query.stop()
    assert last_totals(quick) == [1, 3, 6, 10, 15]
    assert slow.dropped == 0


def test_a_reader_may_have_the_oldest_dropped_and_counted(session: Session) -> None:
    query, sender = totals(session)
    changes = query.subscribe(buffer=4, when_slow="drop")
    buy(query, sender, 1, 2, 3, 4, 5)
    query.stop()
    assert last_totals(changes) == [10, 15]
    assert changes.dropped == 5


def test_a_batch_that_is_larger_than_the_buffer_is_given(session: Session) -> None:
    query, sender = totals(session)
    changes = query.subscribe(buffer=1)
    sender.send([{"user": str(number), "amount": 1} for number in range(50)])
    query.process_all_available()
    table = changes.next("5 s")
    assert table is not None and table.num_rows == 50


def test_a_subscription_ends_with_the_query_and_with_its_error(session: Session) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 13 in batch["amount"].to_pylist():
            raise ValueError("unlucky")
        return batch

    orders, sender = session.memory_stream(ORDERS)
    query = orders.map_batches(broken).key_by("user").agg(total=sum("amount")).start(MemorySink())
    changes = query.subscribe()
    buy(query, sender, 1)
    with pytest.raises(OperatorError, match="unlucky"):
        buy(query, sender, 13)
    assert next(changes)["total"].to_pylist() == [1]
    for _ in range(2):
        with pytest.raises(OperatorError, match="unlucky"):
            next(changes)
    with pytest.raises(OperatorError, match="unlucky"):
        next(query.subscribe())
    healthy, _ = totals(session)
    healthy.stop()
    assert list(healthy.subscribe()) == [] and healthy.subscribe().next("1 s") is None


def test_only_what_was_committed_is_given_and_a_restart_goes_on(session: Session, tmp_path: Path) -> None:
    orders, sender = session.memory_stream(ORDERS)
    plan, given = orders.key_by("user").agg(total=sum("amount")), list[int]()
    for amounts in ((1, 2), (3,), (4, 5)):
        query = plan.start(MemorySink(), checkpoint=tmp_path / "c")
        changes = query.subscribe()
        buy(query, sender, *amounts)
        query.stop()
        given += last_totals(changes)
    assert given == [1, 3, 6, 10, 15]


def test_one_that_nobody_holds_is_forgotten_and_one_that_is_closed_ends(session: Session) -> None:
    query, sender = totals(session)
    query.subscribe()
    with query.subscribe() as closed:
        buy(query, sender, 1)
    gc.collect()
    buy(query, sender, 2)
    assert list(closed) == []
    assert not [ref for refs in query._engine.subscribers._of.values() for ref in refs]  # type: ignore[attr-defined]


def test_an_output_is_named_where_there_are_several(session: Session) -> None:
    orders, sender = session.memory_stream(ORDERS)
    keyed = orders.key_by("user")
    query = session.start([keyed.agg(total=sum("amount")).to(MemorySink(), name="sums"), orders.to(MemorySink(), name="all")])
    with pytest.raises(PlanError, match=r"several outputs.*pass one of 'sums', 'all'"):
        query.subscribe()
    with pytest.raises(PlanError, match="no such output"):
        query.subscribe("none")
    changes, rows = query.subscribe("sums"), query.subscribe("all")
    buy(query, sender, 5)
    query.stop()
    assert [t.schema.names for t in changes] == [["user", "total", "op"]]
    assert [t.to_pylist() for t in rows] == [[{"user": "ann", "amount": 5}]]


def test_wrong_values_and_a_query_that_would_wait_for_itself_are_refused(session: Session) -> None:
    query, _ = totals(session)
    with pytest.raises(PlanError, match="buffer"):
        query.subscribe(buffer=0)
    with pytest.raises(PlanError, match="when_slow"):
        query.subscribe(when_slow="wait")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sums", "ranked rows", "left join", "join, then a total", "chained"])
@pytest.mark.parametrize("workers", [1, 2])
def test_lookup_gives_the_rows_of_the_content(name: str, workers: int) -> None:
    with Session.in_process(workers=workers) as session:
        made = [session.memory_stream(DDL, name=side) for side in ("left", "right")[: QUERIES[name].sides]]
        plan = QUERIES[name].plan(*(stream.from_changelog("log", "pk", sequence="seq") for stream, _ in made))
        sink = MemorySink()
        query = plan.start(sink)
        for batch in batches_of(random.Random(name), QUERIES[name].sides):
            for (_, sender), rows in zip(made, batch.values(), strict=True):
                if rows:
                    sender.send(rows)
            query.process_all_available()
            content = sink.content()
            rows = [] if content is None else content.to_pylist()
            keys = plan._plan().stages[-1].spec.keys
            for key in {tuple(row[n] for n in keys) for row in rows}:
                if None in key and name == "left join":  # null keys never meet, so a join has no state of them
                    continue
                wanted = [row for row in rows if tuple(row[n] for n in keys) == key]
                found = query.lookup(key[0] if len(keys) == 1 else key)
                assert counted(found.to_pylist()) == counted(wanted)
        query.stop()


def test_lookup_of_a_total_costs_the_same_for_every_number_of_keys(session: Session) -> None:
    took = []
    for keys in (1_000, 200_000):
        orders, sender = session.memory_stream("user bigint, amount bigint")
        query = orders.key_by("user").agg(count(), total=sum("amount")).start(MemorySink())
        sender.send(pa.table({"user": np.arange(keys), "amount": np.arange(keys)}))
        query.process_all_available()
        assert query.lookup([5, keys]).to_pylist() == [{"user": 5, "count": 1, "total": 5}]
        spent = []
        for key in range(200):
            began = time.perf_counter()
            query.lookup(key)
            spent.append(time.perf_counter() - began)
        took.append(statistics.median(spent))
        query.stop()
    assert took[1] < 5 * took[0] + 0.001, took
