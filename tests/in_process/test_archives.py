"""Archives of a topic by columns: lane by lane in their order, whatever the files are and however rows lie in them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from krishiv_py import (
    ColumnError,
    KrishivError,
    MemorySink,
    OperatorError,
    PlanError,
    Session,
    SourceError,
    collect_list,
    count,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.options.watermarks import RowsClock

SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("user", pa.string()), ("at", pa.int64())])
Row = dict[str, Any]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.in_process() as made:
        yield made


def windows(rows: Stream) -> ResultStream:
    timed = rows.watermark("at", "2 s", clock="row").key_by("partition", "user")
    return timed.tumbling_window("10 s").agg(count(), collect_list("offset").alias("offsets"))


def topic(seed: int, most: int = 120) -> list[Row]:
    """Return the rows of three partitions, each out of order by up to six seconds; they are not equally far."""
    rng = random.Random(seed)
    rows = []
    for partition in range(3):
        for offset in range(most // (1 + partition)):
            at = 500 * (1 + partition) * offset - rng.randrange(6_000) + 20_000
            rows.append({"partition": partition, "offset": offset, "user": rng.choice("ab"), "at": at})
    return rows


def expected(rows: Sequence[Row]) -> tuple[list[str], int]:
    """Return the windows of a loop over each lane, and how many rows are late."""
    newest, windows_of, late = dict[int, int](), dict[tuple[int, str, int], list[int]](), 0
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        before = newest.get(row["partition"])
        if before is not None and row["at"] < before - 2_000:
            late += 1
        else:
            windows_of.setdefault((row["partition"], row["user"], row["at"] // 10_000 * 10_000), []).append(row["offset"])
        newest[row["partition"]] = max(row["at"], before if before is not None else row["at"])
    texts = [repr((*key, len(offsets), sorted(offsets))) for key, offsets in windows_of.items()]
    return sorted(texts), late


def texts(table: pa.Table) -> list[str]:
    rows = table.select(["partition", "user", "window_start", "count", "offsets"]).to_pylist()
    return sorted(repr((*list(row.values())[:-1], sorted(row["offsets"]))) for row in rows)


def written(rows: Sequence[Row], folder: Path, seed: int) -> None:
    """Write files that each hold a stretch of some lanes; names, times and rows are in any order."""
    rng, parts = random.Random(seed), list[list[Row]]()
    for partition in range(3):
        mine, size = [row for row in rows if row["partition"] == partition], rng.randint(9, 50)
        parts += [mine[begin : begin + size] for begin in range(0, len(mine), size)]
    rng.shuffle(parts)
    folder.mkdir()
    number = 0
    while parts:
        some = [parts.pop()]
        while (
            parts
            and rng.random() < 0.5
            and {row["partition"] for row in parts[-1]} - {row["partition"] for p in some for row in p}
        ):
            some.append(parts.pop())
        held = [row for part in some for row in part]
        rng.shuffle(held)
        pq.write_table(pa.Table.from_pylist(held, SCHEMA), file := folder / f"{number:03d}.parquet", row_group_size=7)
        os.utime(file, (100, rng.randrange(100)))
        number += 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [None, 1, 2])
def test_rows_are_classified_lane_by_lane_in_their_order(session: Session, tmp_path: Path, seed: int, most: int | None) -> None:
    rows = topic(seed)
    written(rows, tmp_path / "archive", seed)
    archive = session.read_parquet(tmp_path / "archive", lane="partition", order="offset", max_files_per_batch=most)
    wanted, late = expected(rows)
    assert late > 10
    result = windows(archive).run()
    assert texts(result.table) == wanted and result.counters["late"] == late
    if most is not None:
        plain = windows(session.read_parquet(tmp_path / "archive", max_files_per_batch=most)).run()
        assert plain.counters["late"] != late


@pytest.mark.parametrize("changed", [False, True])
def test_a_query_over_an_archive_goes_on_after_a_restart(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    rows, put, sink = topic(1), MemorySink.put, MemorySink()
    written(rows, tmp_path / "archive", 1)

    def failing(to: MemorySink, batch_id: int, tables: list[pa.Table]) -> None:
        if batch_id == 2:
            raise RuntimeError("the machine stops here")
        put(to, batch_id, tables)

    def run() -> int:
        archive = session.read_parquet(tmp_path / "archive", lane="partition", order="offset", max_files_per_batch=1)
        query = windows(archive).start(sink, checkpoint=tmp_path / "checkpoint")
        query.process_all_available()
        query.stop()
        return query.progress.late["late"]

    with monkeypatch.context() as patched, pytest.raises(OperatorError, match="the machine stops here"):
        patched.setattr(MemorySink, "put", failing)
        run()
    if changed:
        more = {"partition": 0, "offset": 1_000, "user": "a", "at": 99_000}
        pq.write_table(pa.Table.from_pylist([more], SCHEMA), tmp_path / "archive" / "more.parquet")
        with pytest.raises(SourceError, match="the archive has changed since its first batch"):
            run()
    else:
        late = run()
        table = sink.table()
        assert table is not None and (texts(table), late) == expected(rows)


def test_files_that_lie_between_one_another_are_named(session: Session, tmp_path: Path) -> None:
    for name, offsets in (("a", [1, 5]), ("b", [3, 9])):
        rows = [{"partition": 0, "offset": offset, "user": "a", "at": offset} for offset in offsets]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / f"{name}.parquet")
    with pytest.raises(SourceError, match=r"got: partition=0: 1 to 5 and 3 to 9, in .*b\.parquet"):
        windows(session.read_parquet(tmp_path, lane="partition", order="offset")).collect()


def test_one_lane_may_be_ordered_by_a_time(session: Session, tmp_path: Path) -> None:
    schema = pa.schema([("came", pa.timestamp("us", "UTC")), ("at", pa.int64())])
    for number, (came, times) in enumerate([([7, 5], [9_000, 1_000]), ([4, 3], [20_000, 5_000])]):
        table = pa.table({"came": pa.array(came, pa.timestamp("us", "UTC")), "at": times}, schema)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    rows = session.read_parquet(tmp_path, order="came")
    assert rows.collect()["at"].to_pylist() == [5_000, 20_000, 1_000, 9_000]
    assert "rows by came" in rows.explain()
    late = rows.watermark("at", "1 s", clock="row").tumbling_window("10 s").agg(count()).run()
    assert late.counters["late"] == 2


def test_the_lane_may_be_in_the_names_of_folders(session: Session, tmp_path: Path) -> None:
    rows = topic(3)
    for partition in range(3):
        mine = pa.Table.from_pylist([row for row in rows if row["partition"] == partition], SCHEMA).drop_columns("partition")
        (folder := tmp_path / f"partition={partition}").mkdir()
        for number, begin in enumerate(range(0, mine.num_rows, 40)):
            pq.write_table(mine.slice(begin, 40), folder / f"{9 - number}.parquet")
    for most in (None, 1):
        read = session.read_parquet(tmp_path, lane="partition", order="offset", max_files_per_batch=most)
        whole = windows(read).run()
        assert (texts(whole.table), whole.counters["late"]) == expected(rows)


def test_files_may_lack_columns_and_have_finer_times_on_request(session: Session, tmp_path: Path) -> None:
    came = pa.array([1_500, 2_500], pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"offset": [2, 1], "came": came, "v": [7, None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"offset": [4, 3], "came": came}), tmp_path / "b.parquet")
    given: dict[str, Any] = {"schema": "offset bigint, came timestamp, v bigint", "order": "offset"}
    refused: list[tuple[dict[str, Any], str]] = [({}, "came"), ({"nanoseconds": "cut"}, 'missing_columns="null" would take')]
    for options, text in refused:
        with pytest.raises(SourceError, match=text):
            session.read_parquet(tmp_path, **given, **options).collect()
    rows = session.read_parquet(tmp_path, **given, nanoseconds="cut", missing_columns="null").collect()
    assert rows.select(["offset", "v"]).to_pylist() == [
        {"offset": offset, "v": v} for offset, v in ((1, None), (2, 7), (3, None), (4, None))
    ]
    assert rows["came"].cast(pa.int64()).to_pylist() == [2, 1, 2, 1]
    with pytest.raises(SourceError, match="column 'place' of an archive has nulls"):
        wider = f"{given['schema']}, place bigint"
        session.read_parquet(tmp_path, wider, order="place", nanoseconds="cut", missing_columns="null").collect()


REFUSED: list[tuple[dict[str, Any], type[KrishivError], str]] = [
    ({"lane": "partition"}, PlanError, "a lane needs an order"),
    ({"order": "no"}, ColumnError, "no column 'no'"),
    ({"lane": "no", "order": "offset"}, ColumnError, "no column 'no'"),
    ({"order": "user"}, ColumnError, "column 'user' cannot be the order of rows"),
    ({"order": "offset", "streaming": True}, PlanError, "all files of an archive are read lane by lane"),
    ({"order": "offset", "on_malformed": "side_output"}, PlanError, "all files of an archive are read lane by lane"),
]


@pytest.mark.parametrize(("given", "error", "text"), REFUSED)
def test_what_cannot_be_read_lane_by_lane_is_refused(
    session: Session, tmp_path: Path, given: dict[str, Any], error: type[KrishivError], text: str
) -> None:
    written(topic(0), tmp_path / "archive", 0)
    with pytest.raises(error, match=text):
        session.read_parquet(tmp_path / "archive", **given)


def test_rows_without_a_place_stop_the_run(session: Session, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"partition": 0, "offset": None, "user": "a", "at": 1}], SCHEMA)
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="column 'offset' of an archive has nulls"):
        windows(session.read_parquet(tmp_path, lane="partition", order="offset")).collect()
    (tmp_path / "a.parquet").write_text("no file of Parquet")
    with pytest.raises(SourceError, match="a file of an archive cannot be read"):
        windows(session.read_parquet(tmp_path, SCHEMA, lane="partition", order="offset")).collect()


def test_a_run_says_once_how_many_rows_the_row_clock_calls_late(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row in topic(2) if row["partition"] == 0]
    for number, begin in enumerate(range(0, len(rows), 50)):
        pq.write_table(pa.Table.from_pylist(rows[begin : begin + 50], SCHEMA), file := tmp_path / f"{number}.parquet")
        os.utime(file, (number, number))

    def run(clock: RowsClock, **options: Any) -> int:
        files = session.read_parquet(tmp_path, **options)
        timed = files.with_column("t", "at").watermark("t", "2 s", clock=clock).key_by("user")
        return timed.tumbling_window("10 s").agg(count()).run().counters["late"]

    late = run("row")
    assert not caplog.records and late > 10
    assert run("batch") == 0
    (record,) = caplog.records
    assert record.getMessage().split(": ")[1].startswith(f"{late} of {len(rows)} rows are late by the row clock, and 0 by the")
    assert 0 < run("batch", max_files_per_batch=1) < late and len(caplog.records) == 2


def in_delta(folder: Path, parts: Sequence[pa.Table]) -> dict[str, Any]:
    for part in parts:
        deltalake.write_deltalake(str(folder / "table"), part, mode="append", partition_by=["partition"])
    return {"path": folder / "table"}


def in_iceberg(folder: Path, parts: Sequence[pa.Table]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    where = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = load_catalog("default", **where)
    catalog.create_namespace("topics")
    table = catalog.create_table("topics.payments", parts[0].schema)
    for part in parts:
        table.append(part)
    return {"table": "topics.payments", "catalog": where}


TABLES: dict[str, tuple[Callable[[Path, Sequence[pa.Table]], dict[str, Any]], Callable[..., Stream]]] = {
    "delta": (in_delta, Session.read_delta),
    "iceberg": (in_iceberg, Session.read_iceberg),
}


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("kind", TABLES)
def test_an_archive_in_a_table_is_read_lane_by_lane(session: Session, tmp_path: Path, kind: str, most: int | None) -> None:
    rng, rows = random.Random(7), topic(3)
    parts = [some for partition in range(3) if (some := [row for row in rows if row["partition"] == partition])]
    halves = [half for some in parts for half in (some[: len(some) // 2], some[len(some) // 2 :])]
    rng.shuffle(halves)  # commits in any order, and rows of each in any
    for half in halves:
        rng.shuffle(half)
    write, read = TABLES[kind]
    where = write(tmp_path, [pa.Table.from_pylist(half, SCHEMA) for half in halves])
    archive = read(session, **where, lane="partition", order="offset", max_files_per_batch=most)
    wanted, late = expected(rows)
    result = windows(archive).run()
    assert texts(result.table) == wanted and result.counters["late"] == late
    with pytest.raises(PlanError, match="order of commits"):
        windows(read(session, **where))
    with pytest.raises(PlanError, match="leave out streaming"):
        read(session, **where, lane="partition", order="offset", streaming=True)
    with pytest.raises(PlanError, match="a lane needs an order"):
        read(session, **where, lane="partition")
