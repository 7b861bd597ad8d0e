"""Which version of a table the rows of a micro-batch meet, on Spark (SEMANTICS §9.3)."""

from __future__ import annotations

import itertools
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.connectors.lookup_table import LookupTable, as_they_stand, tables_are
from krishiv_py.errors import CheckpointError, KrishivError, PlanError, SourceError
from krishiv_py.runtime.tables import LookupTables, TaskTables, read_note


class Shop:
    """A table in a file that changes."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "prices.parquet")
        self.put(0)

    def put(self, price: int) -> None:
        """Another price from now on."""
        columns = {"code": ["A", "A"], "since": [0, 100], "until": [100, None], "price": [price, price + 1]}
        pq.write_table(pa.table(columns), self.path)

    def prices(self) -> pa.Table:
        """What `lookup_join` calls."""
        return pq.read_table(self.path)


def priced(stream: Any, shop: Shop, **more: Any) -> Any:
    """Rows with their price, by a computed key and by when it is valid."""
    valid: dict[str, Any] = {"at": "at", "validity": ("since", "until")}
    return stream.lookup_join(shop.prices, [(col("item").upper(), "code")], columns=["price"], **valid, **more)


def sent(*times: int) -> list[dict[str, Any]]:
    """Rows of one item at these times."""
    return [{"item": "a", "at": t} for t in times]


def joined_rows(query: Any) -> list[tuple[int, int]]:
    """Times and prices."""
    return [(r["at"], r["price"]) for r in query.results().to_pylist()]


def test_a_batch_sees_one_version_and_progress_names_it(session: kv.Session, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    stream, sender = session.memory_stream("item string, at bigint")
    query = priced(stream, shop, reload="1 us").start(kv.MemorySink())
    try:
        versions = []
        for price in (0, 10, 10, 20):
            shop.put(price)
            sender.send(sent(1, 100))
            query.process_all_available()
            given = query.progress.tables["prices"]
            versions.append((given.version, given.rows))
        assert joined_rows(query) == [(1, 0), (100, 1), (1, 10), (100, 11), (1, 10), (100, 11), (1, 20), (100, 21)]
        assert versions == [(1, 2), (2, 2), (2, 2), (3, 2)]
        assert "table prices: version 3" in repr(query)
    finally:
        query.stop()


def test_a_table_without_reload_is_read_when_the_query_starts(session: kv.Session, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    checkpoint = str(tmp_path / "cp")
    stream, sender = session.memory_stream("item string, at bigint")
    keyed = priced(stream, shop).watermark("at", 0).key_by("item", "price").tumbling_window(50).agg(kv.count())
    versions = []
    for price in (5, 7):
        query = keyed.start(kv.MemorySink(), checkpoint=checkpoint)
        try:
            for step in (0, 50):
                shop.put(price + step)
                sender.send(sent(price * 1_000 + step))
                query.process_all_available()
            versions.append(query.progress.tables["prices"].version)
            results = {r["price"] for r in query.results().to_pylist()}
        finally:
            query.stop()
        assert results == {6, *([8] if price == 7 else [])}
    assert versions == [1, 2]
    files = sorted(p.name for p in (tmp_path / "cp/krishiv/tables").iterdir())
    assert len(files) == 2
    assert files[-1] == "_in_use.json"


def test_a_repeated_batch_sees_the_version_it_saw(session: kv.Session, tmp_path: Path) -> None:
    shop, checkpoint = Shop(tmp_path), str(tmp_path / "cp")
    stream, sender = session.memory_stream("item string, at bigint")
    priced_rows = priced(stream, shop, reload="1 us")
    out: list[tuple[int, int | None]] = []
    broken = [True]

    def take(frame: Any, batch_id: int) -> None:
        if broken[0] and batch_id == 1:
            shop.put(1_000)
            raise ValueError("a sink that fails")
        out.extend((batch_id, r["price"]) for r in frame.toArrow().to_pylist())

    for attempt in range(2):
        query = priced_rows.start(kv.ForeachBatchSink(take), checkpoint=checkpoint)
        try:
            if attempt == 0:
                sender.send(sent(1))
                query.process_all_available()
                shop.put(10)
                sender.send(sent(2))
                with pytest.raises(KrishivError, match="a sink that fails"):
                    query.process_all_available()
            else:
                sender.send(sent(3))
                query.process_all_available()
        finally:
            query.stop()
        broken[0] = False
    assert out == [(0, 0), (1, 10), (2, 1_000)]


def test_a_bounded_run_sees_the_table_as_it_is_then(session: kv.Session, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    pq.write_table(pa.Table.from_pylist(sent(*range(0, 200, 50))), tmp_path / "rows.parquet")
    stream = session.read_parquet(str(tmp_path / "rows.parquet"), schema="item string, at bigint")
    plan = priced(stream, shop, reload="1 us")
    for price in (3, 9):
        shop.put(price)
        assert [r["price"] for r in plan.collect().to_pylist()] == [price, price, price + 1, price + 1]
        windows = plan.watermark("at", 0).key_by("price").tumbling_window("1 s").agg(kv.count())
        assert {(r["price"], r["count"]) for r in windows.collect().to_pylist()} == {(price, 2), (price + 1, 2)}


def test_a_table_of_spark_is_read_again(session: kv.Session, tmp_path: Path) -> None:
    folder = str(tmp_path / "codes")

    def put(n: int) -> None:
        session.spark.createDataFrame([("a", n)], "item string, n int").write.mode("overwrite").parquet(folder)

    put(1)
    stream, sender = session.memory_stream("item string, at bigint")
    plan = stream.lookup_join(lambda: session.spark.read.parquet(folder), "item", reload="1 us")
    query = plan.start(kv.MemorySink())
    try:
        for n in (2, 3):
            put(n)
            sender.send(sent(n))
            query.process_all_available()
        assert [(r["at"], r["n"]) for r in query.results().to_pylist()] == [(2, 2), (3, 3)]
        assert query.progress.tables["table"].version == 2
    finally:
        query.stop()


def test_a_function_may_hold_what_cannot_be_sent_to_tasks(session: kv.Session) -> None:
    calls, held = itertools.count(1), threading.Lock()

    def codes() -> pa.Table:
        with held:
            actual = session.spark.range(1).selectExpr("'a' AS item", f"{next(calls)} AS n")
        return actual.toArrow()

    stream, sender = session.memory_stream("item string, at bigint")
    plan = stream.lookup_join(codes, "item", reload="1 us")
    with pytest.raises(PlanError, match=r"codes\(\), which uses Spark"):
        plan.to_dataframe()
    query = plan.start(kv.MemorySink())
    try:
        for n in (1, 2):
            sender.send(sent(n))
            query.process_all_available()
        first, second = (r["n"] for r in query.results().to_pylist())
        assert 1 < first < second
    finally:
        query.stop()


def _table(values: list[int]) -> LookupTable:
    schema = pa.schema({"n": pa.int64()})
    return LookupTable(schema, None, lambda: pa.table({"n": pa.array([values[0]], pa.int64())}), 10)


def test_the_note_of_a_batch_is_kept(tmp_path: Path) -> None:
    values, now = [1], [0]
    table, checkpoint = _table(values), str(tmp_path)
    tables = LookupTables(checkpoint, (table,), lambda: now[0])
    assert tables.begin(0)["table"].version == 1
    values[0] = 2
    assert tables.begin(1)["table"].version == 1  # not old enough
    now[0] = 10
    assert tables.begin(2)["table"].version == 2
    values[0] = 3
    again = _table(values)
    restarted = LookupTables(checkpoint, (again,), lambda: now[0])
    assert restarted.begin(2)["table"].version == 2
    with tables_are(TaskTables(checkpoint, 2)):
        assert again.current()[1].to_pydict() == {"n": [2]}
    assert restarted.begin(3)["table"].version == 3
    with tables_are(TaskTables(checkpoint, 3)):
        assert again.current()[1].to_pydict() == {"n": [3]}
    with tables_are(TaskTables(checkpoint, 2)), pytest.raises(CheckpointError, match="batch 2"):
        again.current()
    note = read_note(checkpoint)
    assert note is not None
    path = tmp_path / "krishiv/tables" / note["tables"][0]["file"]
    path.write_bytes(path.read_bytes()[:-1])
    other = _table(values)
    LookupTables(checkpoint, (other,), lambda: now[0]).begin(3)
    with tables_are(TaskTables(checkpoint, 3)), pytest.raises(CheckpointError, match="damaged"):
        other.current()


def test_a_table_that_cannot_be_loaded_stops_the_query_and_is_loaded_later(session: kv.Session, tmp_path: Path) -> None:
    shop, checkpoint = Shop(tmp_path), str(tmp_path / "cp")
    stream, sender = session.memory_stream("item string, at bigint")
    plan = priced(stream, shop, reload="1 us")
    Path(shop.path).unlink()
    sender.send(sent(1))
    query = plan.start(kv.MemorySink(), checkpoint=checkpoint)
    try:
        with pytest.raises(SourceError, match=r"(?s)cannot be loaded.*Hint: "):
            query.process_all_available()
    finally:
        query.stop()
    shop.put(4)
    query = plan.start(kv.MemorySink(), checkpoint=checkpoint)
    try:
        query.process_all_available()
        assert joined_rows(query) == [(1, 4)]
    finally:
        query.stop()


def test_bounded_runs_of_two_threads_do_not_part_each_other_from_their_table() -> None:
    loads: list[int] = []

    def load() -> pa.Table:
        loads.append(len(loads))
        return pa.table({"version": [loads[-1]]})

    def travelled() -> Any:
        there = pickle.loads(pickle.dumps(table)).table
        return None if there is None else there["version"].to_pylist()

    def other() -> None:
        with as_they_stand([table]):
            seen.append(travelled())

    seen: list[Any] = []
    table = LookupTable(pa.schema([("version", pa.int64())]), load=load)
    with as_they_stand([table]):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert travelled() == [0] and seen == [[1]]
    assert table.table is None and loads == [0, 1]
