"""Each table sink by itself: batches that come again, crashes around a commit, types, and what is refused at the start."""

from __future__ import annotations

import datetime as dt
import random
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import DeltaSink, OperatorError, PlanError, PostgresSink, SchemaError
from krishiv_py.connectors import TransactionalSink
from krishiv_py.connectors.publish import OutputOf, TablePublisher, check_sink
from tests.tables.server import PASSWORD, Server
from tests.tables.stores import delta_rows, iceberg, iceberg_rows

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("op", pa.string())])
UTC = dt.timezone.utc


class Died(BaseException):
    """Stands for the death of the process."""


def sink_of(kind: str, server: Server, name: str, folder: Path, keyed: bool) -> TransactionalSink:
    """A sink for a table, with the key ``k`` or without."""
    key = ["k"] if keyed else []
    if kind == "postgres":
        return PostgresSink(server.address(), name, key=key)
    return DeltaSink(folder / name, key=key) if kind == "delta" else iceberg(folder, name, key)


def rows_of(kind: str, server: Server, name: str, folder: Path) -> list[dict[str, Any]]:
    """What the table holds."""
    if kind == "postgres":
        return [actual for (actual,) in server.rows(f"SELECT row_to_json(t) FROM {name} t")]
    return delta_rows(folder / name) if kind == "delta" else iceberg_rows(folder, name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "keyed"),
    [("postgres", True), ("postgres", False), ("delta", True), ("delta", False), ("iceberg", True), ("iceberg", False)],
)
def test_every_row_is_there_once_whenever_it_dies(
    kind: str, keyed: bool, server: Server, table: Callable[[], str], tmp_path: Path
) -> None:
    name, seeded = table(), random.Random(f"{kind} {keyed}")
    batches: list[list[dict[str, Any]]] = []
    valid: dict[str | None, int] = {}
    log: list[dict[str, Any]] = []
    for _ in range(8):
        lines: list[dict[str, Any]] = []
        for _ in range(seeded.randrange(1, 5)):
            key = seeded.choice(["a", "b", None])
            if key in valid:
                lines.append({"k": key, "n": valid.pop(key), "op": "-U"})
            if seeded.random() < 0.7:
                valid[key] = seeded.randrange(100)
                lines.append({"k": key, "n": valid[key], "op": "+U"})
        batches.append(lines)
        log += lines
    begun = done = -1
    while done < len(batches) - 1:
        sink, output = sink_of(kind, server, name, tmp_path, keyed), OutputOf("q", "a query", "results", SCHEMA)
        check_sink(sink, "results", SCHEMA)
        publisher, replayed = TablePublisher(sink, output), begun
        try:
            for number in range(done + 1, len(batches)):
                begun = max(begun, number)
                tables = [pa.Table.from_pylist(batches[number], SCHEMA)] if batches[number] else []
                point = seeded.choice(["before", "after", "none", "none"])
                if point == "before" and tables:
                    sink.begin(output.batch(number, is_replay=False))
                    sink.write(output.batch(number, is_replay=False), tables[0])
                    sink.abort(output.batch(number, is_replay=False))  # as the end of the process does
                    raise Died
                publisher.publish(number, tables, is_replay=number <= replayed)
                if point == "after":
                    raise Died
                done = number
        except Died:
            continue
    actual = rows_of(kind, server, name, tmp_path)
    expected = [{"k": k, "n": n} for k, n in valid.items()] if keyed else log
    assert sorted(map(str, actual)) == sorted(map(str, expected))


VALUES = pa.schema(
    [
        ("x", pa.float64()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("l", pa.timestamp("us")),
        ("d", pa.decimal128(10, 2)),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("list", pa.list_(pa.string())),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])),
    ]
)
ROW = {
    "x": 1.5,
    "t": dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
    "l": dt.datetime(1, 1, 1),
    "d": Decimal("-12345678.90"),
    "s": "a\n\\.\n\t'\"\\N",
    "b": b"\x00\\\xff",
    "day": dt.date(9999, 12, 31),
    "list": ["x", None, '"\\,{}\n', ""],
    "inner": {"a": 1, "b": [1.5, None]},
}


@pytest.mark.parametrize("kind", ["postgres", "delta", "iceberg"])
def test_values_come_back_as_they_were(kind: str, server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    name, nothing = table(), dict.fromkeys(ROW)
    sink = sink_of(kind, server, name, tmp_path, keyed=False)
    check_sink(sink, "results", VALUES)
    rows = pa.Table.from_pylist([ROW, nothing, {**nothing, "x": float("nan")}, {**nothing, "s": ""}], VALUES)
    TablePublisher(sink, OutputOf("q", "a query", "results", VALUES)).publish(0, [rows], is_replay=False)
    if kind == "postgres":
        actual = [dict(zip(ROW, row, strict=True)) for row in server.rows(f"SELECT * FROM {name}")]
    else:
        actual = rows_of(kind, server, name, tmp_path)
    assert (
        sorted(map(str, actual)) == sorted(map(str, rows.to_pylist()))
        or [{k: v.astimezone(UTC) if k == "t" and v else v for k, v in row.items()} for row in actual][:2]
        == rows.to_pylist()[:2]
    )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_types_that_a_table_has_not_are_refused_at_the_start(kind: str, server: Server, tmp_path: Path) -> None:
    sink = sink_of(kind, server, "t", tmp_path, keyed=False)
    for kind_of in (pa.duration("us"), pa.null(), pa.list_(pa.duration("us"))):
        with pytest.raises(SchemaError, match="Hint"):
            check_sink(sink, "results", pa.schema([("n", pa.int64()), ("c", kind_of)]))


def test_a_table_that_does_not_fit_is_refused(server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k text, n integer, op text)")
    with pytest.raises(SchemaError, match=r"n is integer, and values are bigint.*Hint: make it bigint"):
        check_sink(PostgresSink(server.address(), name), "results", SCHEMA)
    server.rows(f"ALTER TABLE {name} ALTER n TYPE bigint")
    with pytest.raises(SchemaError, match="no unique index"):
        check_sink(PostgresSink(server.address(), name, key=["k"]), "results", SCHEMA)
    with pytest.raises(PlanError, match="no such table"):
        check_sink(PostgresSink(server.address(), table(), create=False), "results", SCHEMA)
    server.rows(f"CREATE ROLE reader LOGIN PASSWORD 'x'; GRANT SELECT ON {name} TO reader")
    with pytest.raises(PlanError, match=r"INSERT.*for reader.*GRANT"):
        check_sink(PostgresSink(server.address("reader", "x"), name), "results", SCHEMA)


def test_no_password_is_reported(server: Server, table: Callable[[], str]) -> None:
    wrong = PostgresSink(server.address(password="wr0ng pass/word"), table())
    with pytest.raises(OperatorError, match="cannot be reached") as error:
        check_sink(wrong, "results", SCHEMA)
    for text in (str(error.value), repr(wrong), wrong.title, repr(error.value.__cause__)):
        assert "wr0ng" not in text and PASSWORD not in text
    with pytest.raises(PlanError) as given_too:
        PostgresSink("host=x pass word=s3cret", "t")
    assert "s3cret" not in str(given_too.value)


def test_a_server_that_crashes_under_a_batch(server: Server, table: Callable[[], str]) -> None:
    name = table()
    sink, output = PostgresSink(server.address(), name, key=["k"]), OutputOf("q", "a query", "results", SCHEMA)
    check_sink(sink, "results", SCHEMA)
    publisher, rows = TablePublisher(sink, output), pa.table([["a"], [1], ["+I"]], schema=SCHEMA)
    publisher.publish(0, [rows], is_replay=False)
    batch = output.batch(1, is_replay=False)
    sink.begin(batch)
    sink.write(batch, rows)
    server.stop(signal.SIGQUIT)
    with pytest.raises(OperatorError, match="went away"):
        sink.commit(batch)
    sink.abort(batch)
    server.start()
    TablePublisher(sink, output).publish(1, [pa.table([["a"], [2], ["+U"]], schema=SCHEMA)], is_replay=True)
    assert server.rows(f"SELECT * FROM {name}") == [("a", 2)]
