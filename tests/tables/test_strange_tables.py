"""Tables and arguments that would lose, double or change rows: refused at the call or at the start, or reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from krishiv_py import DeltaSink, OperatorError, PlanError, PostgresSink, SchemaError
from tests.tables.server import Server
from tests.tables.stores import delta_rows
from tests.tables.test_other_writers import PLAIN, rows, to

NOWHERE = "postgresql://user@nowhere/db"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("k text, n bigint, UNIQUE (k) DEFERRABLE", 'no unique index over `key`.*ON "{t}" \\("k"\\)'),
        ("k char(3) UNIQUE, n bigint", "k is character.3., and takes several texts of a key for one"),
        ('k text COLLATE "loose" UNIQUE, n bigint', "k is text, and takes several texts of a key for one"),
        ("k text UNIQUE, n bigint GENERATED ALWAYS AS IDENTITY", "its column n is computed"),
    ],
)
def test_a_table_in_which_a_key_would_not_be_found_is_refused(
    server: Server, table: Callable[[], str], columns: str, message: str
) -> None:
    if "loose" in columns:
        loose = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
        server.rows(f"CREATE COLLATION IF NOT EXISTS loose ({loose})")
    name = table()
    server.rows(f"CREATE TABLE {name} ({columns})")
    with pytest.raises(SchemaError, match=f"(?s){message.replace('{t}', name)}"):
        to(PostgresSink(server.address(), name, key="k"))


def test_an_index_may_have_more_columns_next_to_the_key(server: Server, table: Callable[[], str]) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k text, n bigint); CREATE UNIQUE INDEX ON {name} (k) INCLUDE (n)")
    publisher = to(PostgresSink(server.address(), name, key="k"))
    for batch in range(2):
        publisher.publish(batch, rows(("a", batch), ("b", 1)), is_replay=False)
    assert sorted(server.rows(f"SELECT k, n FROM {name}")) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("key", [[], ["k"]])
def test_rows_that_a_trigger_leaves_out_are_reported(server: Server, table: Callable[[], str], key: list[str]) -> None:
    name = table()
    server.rows(f"CREATE TABLE {name} (k text UNIQUE, n bigint)")
    body = "BEGIN IF NEW.n > 1 THEN RETURN NULL; END IF; RETURN NEW; END"
    server.rows(f"CREATE FUNCTION f_{name}() RETURNS trigger AS $$ {body} $$ LANGUAGE plpgsql")
    server.rows(f"CREATE TRIGGER t BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION f_{name}()")
    publisher = to(PostgresSink(server.address(), name, key=key))
    with pytest.warns(RuntimeWarning, match=f"table {name} took 1 of 2 rows: a trigger or a rule"):
        publisher.publish(0, rows(("a", 1), ("b", 2)), is_replay=False)
    assert server.rows(f"SELECT k FROM {name}") == [("a",)]


def test_a_ledger_that_is_none_is_refused(server: Server, table: Callable[[], str]) -> None:
    for given in ({"ledger": "t"}, {"ledger": "a.b"}, {"ledger": ""}):
        with pytest.raises(PlanError, match="`ledger`"):
            PostgresSink(NOWHERE, "t", **given)
    assert PostgresSink(NOWHERE, "other.krishiv_batches", ledger="t").ledger == "t"
    server.rows("CREATE TABLE mine (query_id text, output text, target text, batch_id bigint)")
    with pytest.raises(SchemaError, match="`ledger` is another table"):
        to(PostgresSink(server.address(), table(), ledger="mine"))


def test_a_type_that_postgres_has_not_is_named(server: Server, table: Callable[[], str]) -> None:
    with pytest.raises(SchemaError, match=r"PostgreSQL has no such type .got: x is time64.us.\).*Hint: write .with_column\("):
        to(PostgresSink(server.address(), table()), schema=pa.schema([("x", pa.time64("us"))]))


@pytest.mark.parametrize("name", ["[x]", "a|b", "a^b", "back\\slash", "new\nline", "nul\0", "a%20b"])
def test_folders_that_delta_rs_takes_for_others_are_refused(tmp_path: Path, name: str) -> None:
    why = "`path` is not a path" if "\0" in name else "would read another folder, or none"  # no folder has that name
    with pytest.raises(PlanError, match=why):
        DeltaSink(tmp_path / name)


def test_what_delta_would_not_give_back_is_refused(tmp_path: Path) -> None:
    for name in ("a\tb", "x" * 121):
        with pytest.raises(SchemaError, match="cannot be partitioned by it"):
            to(DeltaSink(tmp_path / "t", partition_by=[name]), schema=pa.schema([(name, pa.string()), ("n", pa.int64())]))
    own = pa.schema([("k", pa.string()), ("__krishiv_gone", pa.bool_())])
    with pytest.raises(SchemaError, match="has a name of the library"):
        to(DeltaSink(tmp_path / "t", key="k"), schema=own)
    deltalake.write_deltalake(tmp_path / "only", rows(("z", 1))[0], configuration={"delta.appendOnly": "true"})
    with pytest.raises(SchemaError, match=r"takes new rows only .delta\.appendOnly."):
        to(DeltaSink(tmp_path / "only", key="k"))
    to(DeltaSink(tmp_path / "only")).publish(0, rows(("a", 2)), is_replay=False)
    assert len(delta_rows(tmp_path / "only")) == 2
    with pytest.raises(PlanError, match="`storage_options` is not a text"):
        DeltaSink(tmp_path / "t", storage_options={1: "a"})


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_text_in_a_key_that_is_a_partition_stops_the_query(tmp_path: Path, there: bool) -> None:
    if there:
        deltalake.write_deltalake(tmp_path / "t", rows(("z", 1))[0], partition_by=["k"])
    publisher = to(DeltaSink(tmp_path / "t", key="k", partition_by="k"))
    with pytest.raises(OperatorError, match="an empty text cannot be in a key that is a partition"):
        publisher.publish(0, rows(("", 1)), is_replay=False)
    publisher.publish(0, rows(("a", 1)), is_replay=True)
    assert sorted(row["k"] for row in delta_rows(tmp_path / "t")) == (["a", "z"] if there else ["a"])


def test_a_rule_of_a_delta_table_is_named(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table(rows(("z", 1))[0], PLAIN))
    deltalake.DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(OperatorError, match=r"(?s)a rule of the Delta table refuses rows.*Hint: drop its constraint"):
        to(DeltaSink(tmp_path / "t")).publish(0, rows(("a", 1), ("b", -1)), is_replay=False)
    assert len(delta_rows(tmp_path / "t")) == 1, "a batch is there whole or not at all"
