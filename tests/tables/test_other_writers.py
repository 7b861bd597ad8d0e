"""Tables that others write, change or made: what a sink finds there, and what it does then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from krishiv_py import CheckpointError, DeltaSink, IcebergSink, OperatorError, PlanError, PostgresSink, SchemaError, SourceError
from krishiv_py.connectors import TransactionalSink, delta_source
from krishiv_py.connectors.publish import OutputOf, TablePublisher, check_sink
from tests.tables.server import Server
from tests.tables.stores import delta_rows, iceberg, iceberg_rows

PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])


def to(sink: TransactionalSink, query: str = "q", schema: pa.Schema = PLAIN) -> TablePublisher:
    """A query that writes to a sink."""
    check_sink(sink, "results", schema)
    return TablePublisher(sink, OutputOf(query, "a query", "results", schema))


def rows(*pairs: tuple[str, int]) -> list[pa.Table]:
    """A batch."""
    return [pa.Table.from_pylist([{"k": k, "n": n} for k, n in pairs], PLAIN)]


def at_once(write: Callable[[int], None], many: int) -> list[BaseException]:
    """Run in so many threads; what they raise."""
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            write(number)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.parametrize("key", [["k"], []])
def test_queries_write_into_one_delta_table_at_once(key: Sequence[str], tmp_path: Path) -> None:
    queries = [to(DeltaSink(tmp_path / "t", key=key), f"q{n}") for n in range(3)]
    queries[0].publish(0, rows(("first", 0)), is_replay=False)

    def write(number: int) -> None:
        for batch in range(1, 4):
            queries[number].publish(batch, rows((f"{number} {batch}", batch)), is_replay=False)

    assert not at_once(write, 3)
    assert len(delta_rows(tmp_path / "t")) == 10


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["delta", "iceberg", "postgres"])
@pytest.mark.parametrize("key", [["k"], []])
def test_queries_that_share_one_sink_object_lose_nothing(
    kind: str, key: Sequence[str], server: Server, table: Callable[[], str], tmp_path: Path
) -> None:
    name = table()
    sinks: dict[str, Callable[[], TransactionalSink]] = {
        "delta": lambda: DeltaSink(tmp_path / "t", key=key),
        "iceberg": lambda: iceberg(tmp_path, "t", key),
        "postgres": lambda: PostgresSink(server.address(), name, key=key),
    }
    sink = sinks[kind]()
    queries = [to(sink, f"q{n}") for n in range(3)]

    def write(number: int) -> None:
        for batch in range(6):
            tables = [rows((f"{number} {batch} {part}", batch))[0] for part in range(20)]
            queries[number].publish(batch, tables, is_replay=False)

    failed = at_once(write, 3)
    assert not failed, failed
    if kind == "postgres":
        actual = {k for (k,) in server.rows(f"SELECT k FROM {name}")}
    else:
        actual = {row["k"] for row in (delta_rows(tmp_path / "t") if kind == "delta" else iceberg_rows(tmp_path, "t"))}
    assert actual == {f"{q} {batch} {part}" for q in range(3) for batch in range(6) for part in range(20)}


def test_a_second_writer_of_one_query_doubles_nothing_in_delta(tmp_path: Path) -> None:
    first, second = (to(DeltaSink(tmp_path / "t")) for _ in range(2))
    first.publish(0, rows(("a", 1)), is_replay=False)
    second._begun = True  # it looked before the first one wrote
    with pytest.raises(CheckpointError, match="holds batch 0 of this query already"):
        second.publish(0, rows(("a", 1)), is_replay=False)
    assert delta_rows(tmp_path / "t") == [{"k": "a", "n": 1}]


@pytest.mark.parametrize("key", [["k"], []])
def test_a_column_that_only_the_delta_table_has_stays(key: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"k": ["z"], "n": [1], "more": [5]}))
    to(DeltaSink(path, key=key)).publish(0, rows(("a", 2)), is_replay=False)
    assert sorted(map(str, delta_rows(path))) == ["{'k': 'a', 'n': 2, 'more': None}", "{'k': 'z', 'n': 1, 'more': 5}"]


def test_names_that_delta_confuses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="would read another folder"):
        DeltaSink(tmp_path / "a%20b")
    with pytest.raises(SchemaError, match=r"no upper from lower case \(got: A, a\)"):
        to(DeltaSink(tmp_path / "t"), schema=pa.schema([("A", pa.int64()), ("b", pa.int64()), ("a", pa.int64())]))


def test_both_zeros_are_one_key(server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    schema, name = pa.schema([("x", pa.float64()), ("n", pa.int64())]), table()
    batch = [pa.table([[0.0, -0.0, float("nan"), float("nan")], [1, 2, 3, 4]], schema=schema)]
    for sink in (PostgresSink(server.address(), name, key="x"), DeltaSink(tmp_path / "t", key="x")):
        for number in range(2):
            publisher = to(sink, f"q{number}", schema)
            publisher.publish(0, batch, is_replay=False)
    assert [str(row) for row in server.rows(f"SELECT * FROM {name} ORDER BY n")] == ["(0.0, 2)", "(nan, 4)"]
    assert sorted(map(str, delta_rows(tmp_path / "t"))) == ["{'x': 0.0, 'n': 2}", "{'x': nan, 'n': 4}"]


def test_queries_of_one_postgres_table_do_not_block_each_other(server: Server, table: Callable[[], str]) -> None:
    name = table()
    queries = [to(PostgresSink(server.address(), name, key="k"), f"q{n}") for n in range(4)]

    def write(number: int) -> None:
        for batch in range(5):
            ordered = [(f"k{n * (number * 2 + 1) % 1_000}", batch) for n in range(1_000)]
            queries[number].publish(batch, rows(*ordered), is_replay=False)

    assert not at_once(write, 4)
    assert server.rows(f"SELECT count(*) FROM {name}") == [(1_000,)]


def test_what_takes_no_rows_is_refused(server: Server, table: Callable[[], str]) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k text, n bigint GENERATED ALWAYS AS (1) STORED)")
    with pytest.raises(SchemaError, match="column n is computed"):
        to(PostgresSink(server.address(), name))
    server.rows(f"CREATE VIEW {name}_seen AS SELECT k, n FROM {name}")
    with pytest.raises(PlanError, match=f"{name}_seen is not a table"):
        to(PostgresSink(server.address(), f"{name}_seen"))


def test_a_table_may_be_called_as_the_sink_calls_its_own(server: Server) -> None:
    publisher = to(PostgresSink(server.address(), "krishiv_put", key="k"))
    publisher.publish(0, rows(("a", 1)), is_replay=False)
    publisher.publish(1, rows(("a", 2), ("b", 3)), is_replay=False)
    assert server.rows("SELECT * FROM krishiv_put ORDER BY k") == [("a", 2), ("b", 3)]


@pytest.mark.parametrize("there", [True, False])
def test_a_partition_that_delta_rs_cannot_read_again_is_refused(there: bool, tmp_path: Path) -> None:
    schema = pa.schema([("price", pa.decimal128(9, 2)), ("n", pa.int64())])
    if there:
        deltalake.write_deltalake(tmp_path / "t", pa.table([[Decimal("1.50")], [1]], schema=schema), partition_by=["price"])
    with pytest.raises(SchemaError, match=r"partitioned by it .*price is decimal\(9, 2\)"):
        to(DeltaSink(tmp_path / "t", partition_by=[] if there else ["price"]), schema=schema)


def test_a_delta_table_that_lost_columns_is_not_read_on(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [1], "b": [2]}))
    source = delta_source(tmp_path / "t", streaming=True, on_change="skip")
    first = source.plan(None)
    assert first is not None
    deltalake.write_deltalake(tmp_path / "t", pa.table({"c": [3]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SourceError, match=r"has lost columns .*a, b, in version 1"):
        source.plan(first.position)


def test_a_delta_table_that_lost_fields_is_not_read_on(tmp_path: Path) -> None:
    def batch(**value: int) -> pa.Table:
        return pa.table(
            {"u": pa.array([[{"v": value}]]), "m": pa.array([[("k", value)]], pa.map_(pa.string(), pa.array([value]).type))}
        )

    deltalake.write_deltalake(tmp_path / "t", batch(a=1, b=2))
    source = delta_source(tmp_path / "t", streaming=True, on_change="skip")
    first = source.plan(None)
    assert first is not None
    deltalake.write_deltalake(tmp_path / "t", batch(a=1, b=2, c=3), mode="overwrite", schema_mode="overwrite")
    next_planned = source.plan(first.position)
    deltalake.write_deltalake(tmp_path / "t", batch(a=1), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SourceError, match=r"has lost columns .*u.v.b, m.b, in version 2"):
        source.plan(first.position if next_planned is None else next_planned.position)


def test_what_a_store_says_is_one_plain_line() -> None:
    given = {"account_name": "me", "account_key": "hunter2"}
    with pytest.raises(OperatorError) as refused:
        check_sink(DeltaSink("az://container/table", storage_options=given), "results", PLAIN)
    assert "hunter2" not in str(refused.value) and str(refused.value).isprintable()
    with pytest.raises(PlanError, match="`catalog` is not a catalog"):
        IcebergSink("a.b", catalog=5)
