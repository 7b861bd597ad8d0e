"""Keys that could be taken for others, or for one: nulls, forms of NaN, rows of a log that a key does not tell apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import DeltaSink, OperatorError, PostgresSink, SchemaError
from krishiv_py.connectors import TransactionalSink
from tests.tables.server import Server
from tests.tables.stores import delta_rows, iceberg, iceberg_rows
from tests.tables.test_other_writers import PLAIN, rows, to

LOG = pa.schema([("k", pa.string()), ("n", pa.int64()), ("op", pa.string())])
FLOATS = pa.schema([("k", pa.float64()), ("n", pa.int64()), ("op", pa.string())])
NANS = np.array([0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1], np.uint64).view(np.float64)
"""Python's NaN, that of a division of zeros on most processors, and one with a number in it."""


def sinks(server: Server, name: str, folder: Path) -> list[tuple[TransactionalSink, Callable[[], list[tuple[Any, ...]]]]]:
    """Each sink with the key ``k``, and what is in its table."""
    return [
        (PostgresSink(server.address(), name, key="k"), lambda: server.rows(f"SELECT k, n FROM {name}")),
        (DeltaSink(folder / "t", key="k"), lambda: [(row["k"], row["n"]) for row in delta_rows(folder / "t")]),
        (iceberg(folder, "t", ["k"]), lambda: [(row["k"], row["n"]) for row in iceberg_rows(folder, "t")]),
    ]


def test_all_forms_of_nan_are_one_key(server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    for sink, actual in sinks(server, table(), tmp_path):
        publisher = to(sink, schema=FLOATS)
        for batch, (values, ops) in enumerate([(NANS[:1], ["+I"]), (NANS[1:], ["-U", "+U"]), (NANS[2:], ["-D"])]):
            numbers = list(range(len(ops)))
            publisher.publish(batch, [pa.table([pa.array(values), numbers, ops], schema=FLOATS)], is_replay=False)
            assert [n for _, n in actual()] == [[0], [1], []][batch], sink.title


def test_two_valid_rows_of_a_key_are_an_error_though_one_is_withdrawn(
    server: Server, table: Callable[[], str], tmp_path: Path
) -> None:
    log = pa.table([["b", "a", "a", "a"], [0, 1, 2, 1], ["+I", "+I", "+I", "-U"]], schema=LOG)
    for sink, _ in sinks(server, table(), tmp_path):
        with pytest.raises(OperatorError, match=r"does not tell results apart .got: several valid rows of .'k': 'a'."):
            to(sink, schema=LOG).publish(0, [log], is_replay=False)


def test_nulls_are_equal_under_an_index_that_tells_them_apart(server: Server, table: Callable[[], str]) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k text UNIQUE, n bigint, more text DEFAULT 'x')")
    publisher = to(PostgresSink(server.address(), name, key="k"))
    for batch in range(2):
        publisher.publish(batch, [*rows(("a", batch)), pa.table([[None], [batch]], schema=PLAIN)], is_replay=False)
        assert sorted(server.rows(f"SELECT k, n, more FROM {name}"), key=str) == [("a", batch, "x"), (None, batch, "x")]
        server.rows(f"UPDATE {name} SET more = 'x'")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        *((column, pa.string()) for column in ("char(5)", '"char"', "name", "money", "tsvector", "xid")),
        ("interval(0)", pa.duration("us")),
        ("char(5)[]", pa.list_(pa.string())),
        ("interval(3)[]", pa.list_(pa.duration("us"))),
    ],
)
def test_columns_that_would_pad_cut_or_round_are_refused(
    server: Server, table: Callable[[], str], column: str, kind: pa.DataType
) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (c {column})")
    with pytest.raises(SchemaError, match="does not take the rows"):
        to(PostgresSink(server.address(), name), schema=pa.schema([("c", kind)]))


def test_a_key_of_blank_padded_text_is_refused(server: Server, table: Callable[[], str]) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k bpchar UNIQUE, n bigint)")
    with pytest.raises(SchemaError, match="takes several texts of a key for one"):
        to(PostgresSink(server.address(), name, key="k"))
