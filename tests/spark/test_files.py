"""Which files count as input, and what becomes of files that do not fit (docs/sources.md)."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Query, Session, Stream, Trigger, count
from krishiv_py.errors import KrishivError, PlanError, SourceError
from krishiv_py.runtime.reading import PathLocation
from krishiv_py.spark.scan import listing
from krishiv_py.spark.tasks.failures import as_own
from tests.spark.conftest import DDL, per_second, row

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
WEEK_S = 7 * 86_400


def write(path: Path, *rows: dict[str, Any], at_s: int | None = None, schema: pa.Schema = SCHEMA) -> Path:
    """One parquet file, which is complete with its time before a query can see it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.Table.from_pylist(list(rows), schema), hidden)
    if at_s is not None:
        os.utime(hidden, (at_s, at_s))
    return hidden.rename(path)


def online(stream: Stream) -> Query:
    """A streaming query over all that is there, done; every row has given a result."""
    plan = per_second(stream).trigger(Trigger.on_every_element())
    query = plan.start(MemorySink(), batches=Batches.available_now())
    query.await_termination()
    return query


def seen(session: Session, path: Path, **options: Any) -> set[str]:
    """The users whose rows a bounded run and a streaming query read, which must be the same."""
    bounded = set(per_second(session.read_parquet(path, DDL, **options)).collect()["user"].to_pylist())
    rows = online(session.read_parquet(path, DDL, streaming=True, **options)).results()
    assert set(rows["user"].to_pylist()) == bounded
    return bounded


NAMES = [
    "plain",
    "X.PARQUET",
    "a b.parquet",
    "a#b.parquet",
    "a%20b.parquet",
    "a?b.parquet",
    "a*b.parquet",
    "a[1].parquet",
    "a{b}.parquet",
    "ä.parquet",
    "a\nb.parquet",
    "a:b.parquet",
    "back\\slash.parquet",
    "deep/er/plain",
    "one/same.parquet",
    "two/same.parquet",
]


def test_every_file_is_read_whatever_its_name_and_age(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "in [1]*?#%41"
    for n, name in enumerate(NAMES):
        write(folder / name, row(name, 10), at_s=1_700_000_000 - n * WEEK_S * 2)
    for name in ("_x.parquet", ".x.parquet", "_folder/x.parquet", ".folder/x.parquet", "x.parquet.tmp", "x.inprogress"):
        write(folder / name, row(name, 10), at_s=1_700_000_000)
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "nothing.parquet").write_bytes(b"")
    assert seen(session, folder, max_files_per_batch=3) == set(NAMES)


@pytest.mark.slow
def test_a_file_older_than_what_was_read_is_read(session: Session, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", row("a", 10))
    plan = session.read_parquet(tmp_path / "in", DDL, streaming=True).watermark("at", 0).tumbling_window(10).agg(count())
    query = plan.start(MemorySink())
    query.process_all_available()
    write(tmp_path / "in/b.parquet", row("b", 20), at_s=1_000)  # as cp -p and rsync -t leave it
    query.process_all_available()
    assert query.progress.rows == 2
    query.stop()


def test_patterns_single_files_and_relative_paths(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.parquet", "b.parquet", "c.other"):
        write(tmp_path / "in" / name, row(name, 10))
    assert seen(session, tmp_path / "in" / "{a,c}.*") == {"a.parquet", "c.other"}
    assert set(per_second(session.read_parquet(tmp_path / "in" / "*.parquet")).collect()["user"].to_pylist()) == {
        "a.parquet",
        "b.parquet",
    }
    assert per_second(session.read_parquet(tmp_path / "in" / "a.parquet")).collect()["user"].to_pylist() == ["a.parquet"]
    monkeypatch.chdir(tmp_path)
    assert per_second(session.read_parquet(Path("in/b.*"))).collect().num_rows == 1
    assert per_second(session.read_parquet(f"file://{tmp_path}/in/b.parquet")).collect().num_rows == 1


def test_folders_that_name_a_column_give_its_value(session: Session, tmp_path: Path) -> None:
    rest = pa.schema([SCHEMA.field("at"), SCHEMA.field("amount")])
    write(tmp_path / "in/user=a%2Fb/x.parquet", row("", 10, 1), schema=rest)
    write(tmp_path / "in/user=7/x.parquet", row("", 20, 2), schema=rest)
    write(tmp_path / "in/user=__HIVE_DEFAULT_PARTITION__/x.parquet", row("", 30, 3), schema=rest)
    write(tmp_path / "in/x.parquet", row("root", 40, 4))
    expected = {("a/b", 1), ("7", 2), (None, 3), ("root", 4)}
    stream = session.read_parquet(tmp_path / "in", DDL)
    assert {(r["user"], r["sum_amount"]) for r in per_second(stream).collect().to_pylist()} == expected
    (tmp_path / "in/x.parquet").unlink()
    assert session.read_parquet(tmp_path / "in").schema.field("user").type == pa.string()
    with pytest.raises(SourceError, match=r"user=.*gives no bigint"):
        per_second(session.read_parquet(tmp_path / "in", "user bigint, at bigint, amount bigint")).collect()


def test_a_damaged_file_is_named_by_both_engines(session: Session, tmp_path: Path) -> None:
    whole = write(tmp_path / "in/a.parquet", row("a", 1))
    whole.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"a\.parquet: not a whole parquet file.*Hint") as bounded:
        per_second(session.read_parquet(tmp_path / "in", DDL)).collect()
    with pytest.raises(SourceError) as streaming:  # the type the task raised, as in the bounded run
        online(session.read_parquet(tmp_path / "in", DDL, streaming=True))
    said = str(bounded.value).partition("window-aggregate, prepare: ")[2]
    assert said and said in str(streaming.value)
    with pytest.raises(SourceError, match=r'Hint: repair or remove it, or pass schema=.* on_malformed="side_output"'):
        session.read_parquet(tmp_path / "in")


def test_instants_of_older_writers_are_utc(session: Session, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    instants = pa.array([1_000_000, 2_500_000], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": instants}), tmp_path / "in/a.parquet", use_deprecated_int96_timestamps=True)
    for schema in ("at timestamp", None):
        stream = session.read_parquet(tmp_path / "in", schema)
        assert stream.watermark("at", 0).tumbling_window(1_000).agg(count()).collect()["window_start"].cast(
            pa.int64()
        ).to_pylist() == [1_000_000, 2_000_000]


def test_a_file_that_goes_before_it_is_read_is_named(session: Session, tmp_path: Path) -> None:
    gone = write(tmp_path / "in/gone #1.parquet", row("a", 10))
    listed = listing(session.spark, PathLocation(str(tmp_path / "in"), True), streaming=False, max_files=None)
    gone.unlink()
    with pytest.raises(SourceError, match=r"went before it was read .*gone #1\.parquet"), as_own("the listing"):
        listed.collect()  # Spark looks at every file in the task


@pytest.mark.parametrize(
    ("path", "error"),
    [(5, PlanError), (None, PlanError), ("", PlanError), (["a", "b"], PlanError), (b"x", PlanError), ("a\0b", PlanError)],
)
def test_a_path_that_is_none_is_refused_at_the_call(session: Session, path: Any, error: type[KrishivError]) -> None:
    for read in (session.read_parquet, session.read_json, session.read_csv):
        with pytest.raises(error, match="Hint"):
            read(path, DDL)


def test_what_is_not_there_is_refused_at_the_call(session: Session, tmp_path: Path) -> None:
    single = write(tmp_path / "in/a.parquet", row("a", 10))
    (tmp_path / "empty").mkdir()
    for read in (session.read_parquet, session.read_json, session.read_csv):
        for streaming in (False, True):
            with pytest.raises(SourceError, match="no such file or folder"):
                read(tmp_path / "nowhere", DDL, streaming=streaming)
            with pytest.raises(SourceError, match="columns"):
                read(tmp_path / "empty", streaming=streaming)
        with pytest.raises(SourceError, match="no file matches"):
            read(tmp_path / "in" / "*.none", DDL)
        with pytest.raises(SourceError, match="needs a folder"):
            read(single, DDL, streaming=True)
        with pytest.raises(PlanError, match="streaming"):
            read(tmp_path / "in", DDL, streaming="yes")  # type: ignore[arg-type]
        with pytest.raises(KrishivError, match="not a schema"):
            read(tmp_path / "in", 5)
    with pytest.raises(PlanError, match="missing_columns"):
        session.read_parquet(tmp_path / "in", DDL, missing_columns="ignore")  # type: ignore[arg-type]
    assert per_second(session.read_parquet(tmp_path / "empty", DDL)).collect().num_rows == 0


@pytest.mark.slow
def test_after_a_flush_every_row_is_late_and_that_is_said(session: Session, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", row("a", 10))
    plan = per_second(session.read_parquet(tmp_path / "in", DDL, streaming=True))

    def once() -> Query:
        batches = Batches.available_now(flush=True)
        query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"), batches=batches)
        query.await_termination()
        return query

    assert "every row that comes later" in once().explain()
    write(tmp_path / "in/b.parquet", row("b", 9_000))
    with pytest.warns(UserWarning, match="every row that comes now is late"):
        assert once().progress.late["late"] == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{}, {"multiLine": "true"}])
def test_folders_give_the_columns_of_json_whoever_reads_it(session: Session, tmp_path: Path, options: dict[str, Any]) -> None:
    lines = {
        "USER=7/a.json": ['{"at": 10, "amount": 1}', '{"user": "own", "at": 20, "amount": 2}'],
        "user=a%2Fb %25/b.json": ['{"user": null, "at": 30, "amount": 3}'],
        "user=__HIVE_DEFAULT_PARTITION__/c.json": ['{"at": 40, "amount": 4}'],
        "d.json": ['{"at": 50, "amount": 5}'],
        "x=y/e.json": ['{"at": 60, "amount": 6}'],
    }
    for name, rows in lines.items():
        for n, line in enumerate(rows):
            path = tmp_path / "in" / name.replace(".json", f"{n}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line + "\n")
    for streaming in (False, True):
        plan = per_second(session.read_json(tmp_path / "in", DDL, streaming=streaming, **options)).trigger(
            Trigger.on_every_element()
        )
        if streaming:
            query = plan.start(MemorySink(), batches=Batches.available_now(flush=True))
            query.await_termination()
        actual = query.results() if streaming else plan.collect()
        sums: dict[str | None, int] = {}
        for r in actual.to_pylist():
            sums[r["user"]] = max(sums.get(r["user"], 0), r["sum_amount"])
        assert sums == {"7": 1, "own": 2, "a/b %": 3, None: 15}
    (tmp_path / "in/user=x").mkdir()
    (tmp_path / "in/user=x/a.json").write_text('{"at": 70}')
    numbers = session.read_json(tmp_path / "in", "user bigint, at bigint", on_malformed="side_output", **options)
    run = numbers.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count()).run()
    assert (run.counters["malformed"], run.counters["rows"]) == (3, 7)
    assert {(r["user"], r["count"]) for r in run.table.to_pylist()} == {(7, 1), (None, 3)}


def test_a_query_that_goes_on_warns_of_files_that_were_changed(session: Session, tmp_path: Path) -> None:
    for n in range(6):
        write(tmp_path / f"in #1%20/{n} ä.parquet", row("a", n * 1_000), at_s=1_000 + n)
    stream = session.read_parquet(tmp_path / "in #1%20", DDL, streaming=True)

    def go_on() -> list[str]:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            query = per_second(stream).start(
                MemorySink(), checkpoint=str(tmp_path / "checkpoint"), batches=Batches.available_now()
            )
            query.await_termination()
        return [str(w.message) for w in given]

    assert go_on() == go_on() == []
    write(tmp_path / "in #1%20/0 ä.parquet", row("b", 9_000))
    (tmp_path / "in #1%20/1 ä.parquet").unlink()
    (only,) = go_on()
    assert "changed after they were read: " in only and "0 ä.parquet'. They are not read again" in only
    for n in range(2, 6):
        os.utime(tmp_path / f"in #1%20/{n} ä.parquet", (5, 5))
    assert "3 ä.parquet' and 2 more." in go_on()[0]


def test_a_file_without_bytes_is_read_once_it_has_some_and_read_files_are_put_away(session: Session, tmp_path: Path) -> None:
    """One running query; each file is its own batch, of equal times, and goes when its batch is committed."""
    (tmp_path / "in").mkdir()
    for n in (2, 0, 1):
        (tmp_path / f"in/{n}.json").write_text("" if n == 1 else f'{{"user": "{n}", "at": {n}}}\n')
        os.utime(tmp_path / f"in/{n}.json", (5, 5))
    stream = session.read_json(
        tmp_path / "in", DDL, streaming=True, max_files_per_batch=1, after_read="archive", archive=tmp_path / "done"
    )
    query = (
        stream.watermark("at", 0)
        .key_by("user")
        .tumbling_window(1)
        .agg(count())
        .start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    )
    query.process_all_available()
    assert (query.progress.rows, query.progress.late["late"]) == (2, 0)
    (tmp_path / "in/1.json").write_text('{"user": "1", "at": 7}\n')
    query.process_all_available()
    assert query.progress.rows == 3
    query.stop()
    assert sorted(p.name for p in (tmp_path / "done").iterdir()) == ["0.json", "1.json", "2.json"]
    assert list((tmp_path / "in").iterdir()) == []
