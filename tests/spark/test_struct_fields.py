"""Fields of structs are columns on Spark too, and texts and nanoseconds of files are what the docs say (docs/sources.md)."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from krishiv_py import Batches, MemorySink, Session, Stream
from krishiv_py.errors import KrishivError, OperatorError, PlanError, SourceError
from tests.connectors.struct_fields import DEPTHS, DIFFERENCES, WANTED
from tests.connectors.test_struct_fields import Given, json_texts
from tests.spark.conftest import sorted_rows

SCHEMA = pa.schema([*WANTED, *((name, make(WANTED)) for name, (make, _) in DEPTHS.items()), ("at", pa.int64())])
"""A column, and one for each depth."""


def rows(difference: str, *, without: tuple[str, ...] = ()) -> pa.Table:
    """A row in which every column and field has a difference."""
    value, type_ = DIFFERENCES[difference]
    deep = {name: hold(value) for name, (_, hold) in DEPTHS.items()}
    columns = [*type_, *((name, make(type_)) for name, (make, _) in DEPTHS.items()), ("at", pa.int64())]
    table = pa.Table.from_pylist([{**value, **deep, "at": 1}], pa.schema(columns))
    return table.drop_columns(list(without))


def expected(**value: Any) -> list[tuple[Any, ...]]:
    """The row that comes out."""
    deep = {name: hold(value) for name, (_, hold) in DEPTHS.items()}
    return sorted_rows(pa.Table.from_pylist([{**value, **deep, "at": 1}], SCHEMA))


def parquet(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    pq.write_table(given, folder / "a.parquet")
    return session.read_parquet(folder, SCHEMA, **how)


def parquet_or_null(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    return parquet(session, folder, given, missing_columns="null", **how)


def json_lines(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    (folder / "a.json").write_bytes(b"\n".join(json_texts(given)) + b"\n")
    return session.read_json(folder, SCHEMA, **how)


def own_source(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    return session.read_source(Given(given, SCHEMA))


def delta(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    path = folder / "table"
    write_deltalake(str(path), pa.Table.from_pylist([{"at": 1}], SCHEMA))
    (file,) = path.glob("*.parquet")
    pq.write_table(given, file)
    return session.read_delta(str(path), **how)


def mapped(session: Session, folder: Path, given: pa.Table, **how: Any) -> Stream:
    data = pickle.dumps(given)
    pq.write_table(pa.table({"at": [1]}), folder / "a.parquet")
    return session.read_parquet(folder, "at bigint", **how).map_batches(lambda batch: pickle.loads(data), SCHEMA)


Border = Callable[..., Stream]
SAME: dict[str, Any] = {"id": 1, "n": "x"}
NULL: dict[str, Any] = {"id": 1, "n": None}
TAKEN: list[tuple[Border, str, dict[str, Any]]] = [
    (parquet, "other case", SAME),
    (parquet, "further", SAME),
    (parquet_or_null, "misspelt", NULL),
    (json_lines, "other case", SAME),
    (json_lines, "misspelt", NULL),
    (own_source, "further", SAME),
    (delta, "misspelt", NULL),
    (delta, "other case", SAME),
    (mapped, "narrower", SAME),
]
REFUSED: list[tuple[Border, str, str]] = [
    (parquet, "missing", "no column 'n'"),
    (parquet, "other type", "column 'id' is string"),
    (json_lines, "other type", "column 'id'"),
    (own_source, "misspelt", "no column 'n'"),
    (mapped, "further", "unknown: z"),
    (delta, "other type", "column 'id' is string"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("border", "difference", "value"), TAKEN)
def test_all_depths_follow_the_columns(
    session: Session, tmp_path: Path, border: Border, difference: str, value: dict[str, Any]
) -> None:
    given = rows(difference)
    (tmp_path / "in").mkdir()
    assert sorted_rows(border(session, tmp_path / "in", given).collect()) == expected(**value)
    if border is own_source:
        return
    query = border_again(border, session, tmp_path / "again", given).start(MemorySink(), batches=Batches.available_now())
    query.await_termination()
    assert sorted_rows(query.results()) == expected(**value)


def border_again(border: Border, session: Session, folder: Path, given: pa.Table) -> Stream:
    """The same rows, in a stream without an end."""
    folder.mkdir()
    return border(session, folder, given, streaming=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("border", "difference", "said"), REFUSED)
def test_what_is_refused_names_the_path(session: Session, tmp_path: Path, border: Border, difference: str, said: str) -> None:
    with pytest.raises(KrishivError, match=said):
        border(session, tmp_path, rows(difference)).collect()


@pytest.fixture
def in_tokyo(session: Session) -> Iterator[Session]:
    """A session in another zone than UTC."""
    session.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        yield session
    finally:
        session.spark.conf.set("spark.sql.session.timeZone", "UTC")


NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("kind", ["csv", "json", "json with an option", "folder"])
def test_texts_without_a_zone_are_utc_in_every_reader(in_tokyo: Session, tmp_path: Path, kind: str) -> None:
    schema = "at timestamp, n bigint"
    texts = ["2024-02-29 12:00:00", "2024-02-29T12:00:00Z", "2024-02-29T21:00:00+09:00"]
    for number, text in enumerate(texts):
        folder = tmp_path / (f"at={text.replace(':', '%3A')}" if kind == "folder" else "plain")
        folder.mkdir(exist_ok=True)
        if kind == "csv":
            (folder / f"{number}.csv").write_text(f"{text},{number}\n")
        else:
            (folder / f"{number}.json").write_text(
                json.dumps({"n": number} if kind == "folder" else {"at": text, "n": number}) + "\n"
            )
    options: dict[str, Any] = {"allowComments": "true"} if kind == "json with an option" else {}
    read: Callable[..., Stream] = in_tokyo.read_csv if kind == "csv" else in_tokyo.read_json
    assert read(tmp_path, schema, **options).collect()["at"].to_pylist() == [NOON] * 3
    if kind == "csv":
        there = in_tokyo.read_csv(tmp_path, schema, timezone="Asia/Tokyo").collect()
        assert sorted(there["at"].to_pylist()) == [NOON - dt.timedelta(hours=9), NOON, NOON]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("streaming", [False, True])
def test_nanoseconds_are_cut_on_request(session: Session, tmp_path: Path, streaming: bool) -> None:
    type_ = pa.timestamp("ns", "UTC")
    times = pa.array([1_999, -1, None], type_)
    deep = pa.array([[{"t": 1_999}], [{"t": -1}], None], pa.list_(pa.struct([("t", type_)])))
    pq.write_table(pa.table({"at": times, "deep": deep}), tmp_path / "a.parquet")
    schema = "at timestamp, deep array<struct<t: timestamp>>"

    def run(**how: Any) -> pa.Table:
        stream = session.read_parquet(tmp_path, schema, streaming=streaming, **how)
        if not streaming:
            return stream.collect()
        query = stream.start(MemorySink(), batches=Batches.available_now())
        query.await_termination()
        return query.results()

    with pytest.raises((SourceError, OperatorError), match='nanoseconds="cut" would cut'):
        run()
    cut = run(nanoseconds="cut")
    assert cut["at"].cast(pa.int64()).to_pylist() == [1, -1, None]
    micro = [dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=n) for n in (1, -1)]
    assert cut["deep"].to_pylist() == [[{"t": micro[0]}], [{"t": micro[1]}], None]
    with pytest.raises(PlanError, match="nanoseconds"):
        session.read_parquet(tmp_path, schema, nanoseconds="round")  # type: ignore[arg-type]
