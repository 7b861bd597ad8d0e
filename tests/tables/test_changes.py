"""Delta and Iceberg tables as changes: after every batch the content is the table's, over restarts (SEMANTICS §16.2)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from krishiv_py import ColumnError, MemorySink, PlanError, SchemaError, Session, SourceError, Stream, count, sum
from krishiv_py.connectors import delta_source, iceberg_source
from krishiv_py.testing import Driver, micro_batches, stream_of
from tests.tables.stores import catalog

ROWS = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("paid amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
NAME = "lake.orders"
FEED = {"delta.enableChangeDataFeed": "true"}


def rows_of(*rows: tuple[int, str | None, float | None]) -> pa.Table:
    """Rows of the table."""
    return pa.table([*map(list, zip(*rows, strict=True)), [0] * len(rows)] if rows else [[]] * 4, schema=ROWS)


class Lake(Protocol):
    """A table of a format that a test changes and reads."""

    def change(self, how: str, rows: pa.Table) -> None:
        """Change it."""

    def stream(self, session: Session, **options: Any) -> Stream:
        """Return its changes."""

    def content(self) -> list[dict[str, Any]]:
        """Return its rows."""


class Delta:
    """A Delta table, with or without a change data feed, in partitions or not."""

    def __init__(self, folder: Path, *, feed: bool, parts: list[str]) -> None:
        self.path, self.parts = str(folder / "t"), parts
        write_deltalake(self.path, rows_of(), partition_by=parts or None, configuration=FEED if feed else None)

    def change(self, how: str, rows: pa.Table) -> None:
        """See :class:`Lake`."""
        table, ids = DeltaTable(self.path), ", ".join(map(str, rows["id"].to_pylist()))
        if how == "merge":
            merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        elif how == "delete":
            table.delete(f"id IN ({ids})")
        elif how == "update":
            table.update({"id": "id + 1000"}, predicate=f"id IN ({ids})")  # of the key
        elif how == "overwrite":
            write_deltalake(self.path, rows, mode="overwrite", partition_by=self.parts or None)
        elif how == "compact":
            table.optimize.compact()
        else:
            table.restore(max(0, table.version() - 1))

    def stream(self, session: Session, **options: Any) -> Stream:
        """See :class:`Lake`."""
        return session.read_delta(self.path, changes=True, streaming=True, **options)

    def content(self) -> list[dict[str, Any]]:
        """See :class:`Lake`."""
        return in_order(DeltaTable(self.path).to_pyarrow_table().select(ROWS.names))


class Iceberg:
    """An Iceberg table."""

    def __init__(self, folder: Path) -> None:
        self.settings = catalog(folder)
        self.catalog = load_catalog("default", **self.settings)
        self.catalog.create_namespace("lake")
        self.catalog.create_table(NAME, schema=ROWS)

    def change(self, how: str, rows: pa.Table) -> None:
        """See :class:`Lake`."""
        table, where = self.catalog.load_table(NAME), f"id in ({', '.join(map(str, rows['id'].to_pylist()))})"
        if how == "merge":
            table.upsert(rows, join_cols=["id"])
        elif how == "delete":
            table.delete(where)
        elif how == "update":
            old = table.scan(row_filter=where).to_arrow()
            moved = old.set_column(0, "id", pc.add(old["id"], 1000))
            table.overwrite(moved.cast(ROWS), overwrite_filter=where)
        else:
            table.overwrite(rows)

    def stream(self, session: Session, **options: Any) -> Stream:
        """See :class:`Lake`."""
        return session.read_iceberg(NAME, catalog=self.settings, changes=True, streaming=True, **options)

    def content(self) -> list[dict[str, Any]]:
        """See :class:`Lake`."""
        return in_order(self.catalog.load_table(NAME).scan().to_arrow().select(ROWS.names))


def content_of(sink: MemorySink) -> pa.Table:
    """What a sink holds."""
    content = sink.content()
    assert content is not None
    return content


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows by their key."""
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


MAKES: dict[str, Callable[[Path], Any]] = {
    "delta": lambda folder: Delta(folder, feed=True, parts=[]),
    "delta in partitions": lambda folder: Delta(folder, feed=True, parts=["shop"]),
    "delta without a feed": lambda folder: Delta(folder, feed=False, parts=["shop"]),
    "iceberg": Iceberg,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("seed", range(3))
def test_the_content_is_that_of_the_table_after_every_batch(name: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{name} {seed}")
    lake = MAKES[name](tmp_path)
    ways = ["merge", "merge", "merge", "delete", "update", "overwrite", *(["compact", "restore"] if "delta" in name else [])]

    def change(how: str) -> None:
        ids = draw.sample(range(30), draw.randrange(1, 12))
        shops = ("x", "ü/%20", None, 'q"s')
        lake.change(how, rows_of(*((n, draw.choice(shops), draw.choice((0.1, 1e16, None, -0.5))) for n in ids)))

    change("merge")
    options = {"max_files_per_batch": draw.choice((None, 1, 2)), "parallelism": draw.choice((1, 3))}
    with Session.in_process(workers=draw.choice((1, 2))) as session:
        table = lake.stream(session, **options).from_changelog("cdf", key="id")
        totals = table.key_by("shop").agg(n=count(), paid=sum("paid amount"))
        sinks = MemorySink(), MemorySink()

        def start() -> Any:
            outputs = [table.to(sinks[0], name="rows"), totals.to(sinks[1], name="totals")]
            return session.start(outputs, checkpoint=tmp_path / "checkpoint")

        query = start()
        for _ in range(8):
            for _ in range(draw.randrange(1, 3)):
                change(draw.choice(ways))
            query.process_all_available()
            got, expected = in_order(content_of(sinks[0]).select(ROWS.names)), lake.content()
            assert repr(got) == repr(expected)
            shops = {row["shop"] for row in expected}
            assert {row["shop"]: row["n"] for row in content_of(sinks[1]).to_pylist()} == {
                shop: len([row for row in expected if row["shop"] == shop]) for shop in shops
            }
            if draw.random() < 0.4:
                query.stop()
                change(draw.choice(ways))
                query = start()
        query.stop()


@pytest.mark.parametrize("name", MAKES)
def test_changes_are_read_once_between_two_commits(name: str, tmp_path: Path) -> None:
    lake = MAKES[name](tmp_path)
    for how, rows in (
        ("merge", rows_of((1, "x", 1.0), (2, "y", 2.0))),
        ("merge", rows_of((2, "y", 3.0), (3, "x", 4.0))),
        ("delete", rows_of((1, "x", 1.0))),
    ):
        lake.change(how, rows)
    with Session.in_process() as session:
        if isinstance(lake, Iceberg):
            first, last = (lake.catalog.load_table(NAME).metadata.snapshots[i].snapshot_id for i in (1, -1))
            read: Callable[..., Stream] = lambda **more: session.read_iceberg(  # noqa: E731
                NAME, catalog=lake.settings, changes=True, **more
            )
            once, whole = read(starting=first, snapshot=last), read()
        else:
            read = lambda **more: session.read_delta(lake.path, changes=True, **more)  # noqa: E731
            once, whole = read(starting=2, version=3), read()
        assert whole.from_changelog("cdf", key="id").collect().num_rows == 2
        given = once.collect()
        assert {"_change_type", "_commit_version", "_commit_timestamp"} < set(given.schema.names)
        assert pc.min(given["_commit_timestamp"]).as_py().year > 2024
        if name in ("delta", "delta in partitions"):
            kinds = sorted((r["_commit_version"], r["_change_type"], r["id"], r["paid amount"]) for r in given.to_pylist())
            assert kinds == [
                (2, "insert", 3, 4.0), (2, "update_postimage", 2, 3.0), (2, "update_preimage", 2, 2.0), (3, "delete", 1, 1.0),
            ]  # fmt: skip
        elif name == "iceberg":
            assert set(given["_change_type"].to_pylist()) == {"insert", "delete"}
        assert once.select("_commit_version").collect().num_rows == given.num_rows  # no column of the table is asked for


def test_a_feed_has_its_own_order() -> None:
    feed = stream_of("id bigint, city string, _change_type string, _commit_version bigint, _commit_timestamp timestamp")
    with pytest.raises(PlanError, match="a change feed of a table has its own order"):
        feed.from_changelog("cdf", key="id", sequence="city")
    with pytest.raises(SchemaError, match="has '_commit_version'"):
        stream_of("id bigint, _change_type string").from_changelog("cdf", key="id")
    with pytest.raises(SchemaError, match=r"has '_change_type'.*changes=True"):
        stream_of("id bigint, op string").from_changelog("cdf", key="id")
    driver = Driver(feed.from_changelog("cdf", key="id"))

    def row(kind: str, version: int, id_: int, city: str | None) -> dict[str, Any]:
        return {"id": id_, "city": city, "_change_type": kind, "_commit_version": version, "_commit_timestamp": None}

    # an update of one commit, its new row first; a key that moves; an old commit once more
    driver.send([row("insert", 1, 1, "Ulm")])
    given = driver.send([row("update_postimage", 2, 1, "Rom"), row("update_preimage", 2, 1, "Ulm")]).results
    assert [(r["op"], r["city"]) for r in given.to_pylist()] == [("-U", "Ulm"), ("+U", "Rom")]
    given = driver.send([row("update_preimage", 3, 1, "Rom"), row("update_postimage", 3, 2, "Rom")]).results
    assert sorted((r["op"], r["id"]) for r in given.to_pylist()) == [("+I", 2), ("-D", 1)]
    assert driver.send([row("update_postimage", 2, 1, "Rom")]).results.num_rows == 0
    given = driver.send([row("delete", 4, 2, "Rom"), row("insert", 4, 2, "Rom")]).results  # a file was rewritten
    assert given.num_rows == 0


def test_changes_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    lake = Delta(tmp_path, feed=True, parts=["shop"])
    lake.change("merge", rows_of((1, "x", 1.0), (2, "y", 2.0)))
    for wrong in ({"on_change": "skip"}, {"changes": 1}, {"starting": "latest"}, {"starting": 9}):
        with pytest.raises(PlanError):
            delta_source(lake.path, **{"changes": True, **wrong})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="starting"):
        delta_source(lake.path, starting=1)
    source = delta_source(lake.path, changes=True, streaming=True)
    first = source.plan(None)
    assert first is not None
    lake.change("delete", rows_of((1, "x", 1.0)))
    second = source.plan(first.position)
    assert second is not None
    for file in Path(lake.path).rglob("*.parquet"):  # vacuumed before it was read
        file.unlink()
    with pytest.raises(SourceError, match="a file of a Delta table is gone"):
        [list(source.read(each, source.schema.names)) for each in second.ranges]
    named = str(tmp_path / "named")
    write_deltalake(named, pa.table({"_Change_Type": ["x"]}))
    with pytest.raises(ColumnError, match="a column that is one of its changes"):
        delta_source(named, changes=True)
    assert delta_source(named).schema.names == ["_Change_Type"]


def test_snapshots_that_expired_say_so(tmp_path: Path) -> None:
    lake = Iceberg(tmp_path)
    lake.change("merge", rows_of((1, "x", 1.0), (2, "y", 2.0)))
    source = iceberg_source(NAME, catalog=lake.settings, changes=True, streaming=True)
    first = source.plan(None)
    assert first is not None
    lake.change("delete", rows_of((1, "x", 1.0)))
    table = lake.catalog.load_table(NAME)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(SourceError, match=r"a snapshot of an Iceberg table is gone.*begin with a new checkpoint"):
        source.plan(first.position)
    old = lake.catalog.create_table("lake.old", schema=ROWS, properties={"format-version": "1"})
    old.append(rows_of((1, "x", 1.0)))
    with pytest.raises(SourceError, match="format version 2"):
        iceberg_source("lake.old", catalog=lake.settings, changes=True)
    assert sum_of(iceberg_source("lake.old", catalog=lake.settings)) == 1


def sum_of(source: Any) -> int:
    """How many rows a source has."""
    return len([row for batch in micro_batches(source) for row in batch.to_pylist()])


@pytest.mark.one_in(2)
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("name", ["delta in partitions", "iceberg"])
def test_changes_on_spark(name: str, session: Session, tmp_path: Path) -> None:
    lake, sink = MAKES[name](tmp_path), MemorySink()
    lake.change("merge", rows_of((1, "x", 1.0), (2, "y", 2.0), (4, None, 0.5)))

    def start() -> Any:
        return lake.stream(session).from_changelog("cdf", key="id").start(sink, checkpoint=str(tmp_path / "checkpoint"))

    query = start()
    query.process_all_available()
    lake.change("update", rows_of((2, "y", 2.0)))
    query.process_all_available()
    query.stop()
    lake.change("delete", rows_of((1, "x", 1.0)))
    lake.change("merge", rows_of((4, "x", 0.25), (5, "x", 7.0)))
    query = start()
    query.process_all_available()
    query.stop()
    assert repr(in_order(content_of(sink).select(ROWS.names))) == repr(lake.content())
