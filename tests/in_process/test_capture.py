"""Captures: the last batches of a query, run again without its sources, equal to production bit for bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import CheckpointError, MemorySink, PlanError, SchemaError, Session, SideOutputLateEventHandler, count
from krishiv_py.cli.main import main
from krishiv_py.plan.durations import show_instant
from krishiv_py.runtime.capture import OpenCapture, begin_capture
from krishiv_py.testing import Capture, Driver, stream_of

SCHEMA = "user string, email string, at bigint, amount bigint"
ROWS: list[list[dict[str, Any]]] = [
    [
        {
            "user": f"u{i % 3}",
            "email": f"{i}@secret.example",
            "at": (n * 40 + i) * 1_000 - (90_000 if i % 11 == 0 else 0),
            "amount": i,
        }
        for i in range(60)
    ]
    for n in range(5)
]


def job(stream: Any, late: MemorySink | None = None) -> Any:
    """Totals of users by minute."""
    rows = stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).allowed_lateness(20_000)
    made = rows.agg(count(), kv.sum("amount").alias("total"))
    return made.with_late_event_handler(SideOutputLateEventHandler(MemorySink() if late is None else late))


def read(sink: MemorySink) -> list[dict[str, Any]]:
    """All rows of a sink."""
    table = sink.table()
    return [] if table is None else table.to_pylist()


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def ran(session: Session, home: Path) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]], int, int]:
    """A query that has run, with a savepoint after its second batch: its stream, results and late rows, and those before."""
    live, sender = session.memory_stream(SCHEMA, name="orders")
    sink, late = MemorySink(), MemorySink()
    query = job(live, late).start(sink, checkpoint=str(home / "checkpoint"))
    before = (0, 0)
    for number, rows in enumerate(ROWS):
        sender.send(rows)
        query.process_all_available()
        if number == 1:
            query.savepoint(str(home / "savepoint"))
            before = len(read(sink)), len(read(late))
    query.stop()
    return live, read(sink), read(late), *before


def again(path: str, stream: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Results and late rows of a capture."""
    driver, results, late = Driver.from_capture(path, stream), list[dict[str, Any]](), list[dict[str, Any]]()
    while (output := driver.next_batch()) is not None:
        results += output.results.to_pylist()
        late += output.late.to_pylist()
    assert (driver.batches_left, driver.next_batch()) == (0, None)
    return results, late


def test_a_capture_runs_again_without_its_sources(session: Session, tmp_path: Path) -> None:
    live, results, late, n_results, n_late = ran(session, tmp_path)
    whole = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "whole"))
    part = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "p"), savepoint=str(tmp_path / "savepoint"))
    shutil.rmtree(tmp_path / "checkpoint")
    assert results and late
    assert again(whole, job(stream_of(SCHEMA))) == (results, late)
    assert again(part, job(stream_of(SCHEMA))) == (results[n_results:], late[n_late:])
    assert 0 < n_results < len(results)


def test_columns_are_hidden(session: Session, tmp_path: Path) -> None:
    live, results, _, _, _ = ran(session, tmp_path)
    given: Any = {"checkpoint": str(tmp_path / "checkpoint"), "stream": job(live)}
    path = session.capture(**given, path=str(tmp_path / "a"), leave_out=["email"], hashes=["user"])
    files = b"".join(file.read_bytes() for file in Path(path).rglob("*") if file.is_file())
    assert b"secret.example" not in files and b"u1" not in files
    got, late = again(path, job(stream_of(SCHEMA)))
    assert sorted(row["total"] for row in got) == sorted(row["total"] for row in results)
    assert {row["email"] for row in late} == {None}
    for wrong, match in (
        ({"leave_out": ["user"]}, "results need"),
        ({"leave_out": ["nothing"]}, "no such column"),
        ({"hashes": ["user"], "savepoint": str(tmp_path / "savepoint")}, "in the state"),
        ({"leave_out": "email"}, "list of columns"),
    ):
        with pytest.raises(PlanError, match=match):
            session.capture(**given, path=str(tmp_path / "b"), **wrong)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("hidden", "step", "match"),
    [
        ("hashes", lambda s: s.filter("email like '%@%'"), "to be hashed(.|\n)*'email'(.|\n)*FILTER"),
        ("leave_out", lambda s: s.filter("email is not null"), "results need(.|\n)*'email'"),
        ("hashes", lambda s: s.with_column("amount", "length(email)"), "to be hashed(.|\n)*'email'(.|\n)*AGGREGATION"),
        ("leave_out", lambda s: s.with_column("amount", "length(email)"), "results need(.|\n)*'email'"),
        ("hashes", lambda s: s.filter("user <> 'u1'"), "to be hashed(.|\n)*'user'"),
    ],
)
def test_columns_that_decide_or_are_computed_with_cannot_be_hidden(
    session: Session, tmp_path: Path, hidden: str, step: Callable[[Any], Any], match: str
) -> None:
    stream, sender = session.memory_stream("user string, at bigint, amount bigint, email string")
    plan = step(stream).watermark("at", 0).key_by("user").tumbling_window(10).agg(kv.sum("amount"))
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "c"))
    sender.send([{"user": "u1", "at": 1, "amount": 1, "email": "a@b"}])
    query.process_all_available()
    query.stop()
    column = "user" if "'user'" in match else "email"
    with pytest.raises(PlanError, match=match):
        session.capture(str(tmp_path / "c"), plan, str(tmp_path / "out"), **{hidden: [column]})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_what_a_capture_needs_is_what_results_and_watermarks_are_made_of(session: Session, tmp_path: Path) -> None:
    """A watermark needs the column that names its sources; results need no column that they share nothing but a name with."""
    stream, sender = session.memory_stream("site string, at bigint, amount bigint, k string")
    each = kv.WatermarkSpec.fixed_lag(0)
    spec = kv.MultiSourceWatermarkSpec.new().source("north", each).source("south", each)
    timed = stream.select("site", "at", "amount", kv.col("k").alias("note")).with_column("k", "at % 7")
    windows = timed.with_watermark(spec, "at", source_column="site").key_by("k").tumbling_window(10)
    plan = windows.agg(count(), kv.sum("amount").alias("total")).select("k", "count")
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "c"))
    sender.send([{"site": site, "at": moment, "amount": 1, "k": "x"} for moment in (1, 25) for site in ("north", "south")])
    query.process_all_available()
    expected = query.results().to_pylist()
    query.stop()
    given: Any = {"checkpoint": str(tmp_path / "c"), "stream": plan}
    for how, match in (("hashes", "to be hashed(.|\n)*'site'(.|\n)*WINDOW"), ("leave_out", "results need(.|\n)*'site'")):
        wrong: Any = {"path": str(tmp_path / how), how: ["site"]}
        with pytest.raises(PlanError, match=match):
            session.capture(**given, **wrong)
    path = session.capture(**given, path=str(tmp_path / "out"), leave_out=["k", "amount"])
    assert expected and again(path, plan)[0] == expected


def test_inputs_that_are_gone_are_named(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    query = job(session.read_parquet(str(folder), streaming=True, schema=Driver(job(stream_of(SCHEMA)))._spec.source_schema))
    running = query.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    for n, rows in enumerate(ROWS[:3]):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "new.parquet")
        os.replace(tmp_path / "new.parquet", folder / f"{n}.parquet")
        running.process_all_available()
    running.stop()
    session.capture(str(tmp_path / "checkpoint"), query, str(tmp_path / "good"))
    (folder / "1.parquet").unlink()
    with pytest.raises(CheckpointError, match="read of 'orders' is gone"):
        session.capture(str(tmp_path / "checkpoint"), query, str(tmp_path / "bad"))
    with pytest.raises(CheckpointError, match="no capture is here"):
        Driver.from_capture(str(tmp_path / "bad"), job(stream_of(SCHEMA)))


def test_damaged_captures_are_named(session: Session, tmp_path: Path) -> None:
    live, *_ = ran(session, tmp_path)
    path = Path(session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "a")))
    for file in [file for file in path.rglob("*") if file.is_file()]:
        data = file.read_bytes()
        file.write_bytes(data[:-9])
        with pytest.raises(CheckpointError, match=file.name.replace(".", r"\.")):
            again(str(path), job(stream_of(SCHEMA)))
        file.write_bytes(data)
    with pytest.raises(CheckpointError, match="not empty"):
        session.capture(str(tmp_path / "checkpoint"), job(live), str(path))
    with pytest.raises(CheckpointError, match="a capture is inside the checkpoint that it is of"):
        session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "checkpoint" / "capture"))
    with pytest.raises(PlanError, match="no capture"):
        Driver(job(stream_of(SCHEMA))).next_batch()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "orders").mkdir()
    rows = [{key: value for key, value in row.items() if key != "email"} for row in ROWS[0]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "orders/0.parquet")
    (tmp_path / "capjobs.py").write_text(
        "from krishiv_py import MemorySink, count\n"
        "def orders(session):\n"
        f"    rows = session.read_parquet({str(tmp_path / 'orders')!r}, streaming=True)\n"
        "    return rows.watermark('at', 0).key_by('user').tumbling_window(60_000).agg(count()).to(MemorySink())\n"
    )
    home, job_name = str(tmp_path / "checkpoint"), f"{tmp_path / 'capjobs.py'}:orders"
    assert main(["run", job_name, "--checkpoint", home, "--until-idle"]) == 0
    given = ["capture", home, str(tmp_path / "out"), "--job", job_name]
    assert main([*given, "--last", "50", "batches", "--hash", "user"]) == 0
    assert "Driver.from_capture" in capsys.readouterr().out
    assert main([*given, "--last", "all"]) == 1
    assert "Hint: write --last 50" in capsys.readouterr().err


def test_which_rows_came_into_a_result(session: Session, tmp_path: Path) -> None:
    live, results, late, _, _ = ran(session, tmp_path)
    path = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "a"))
    capture = Capture(path, job(stream_of(SCHEMA)))
    for row in [row for row in results if row["user"] == "u1"]:
        explained = capture.why("u1", row["window_start"] + 1)
        last = [one for one in explained.results.to_pylist() if one["window_start"] == row["window_start"]][-1]
        fates = explained.rows["fate"].to_pylist()
        assert fates.count("in") == last["count"]
        start, end = row["window_start"], row["window_end"]
        mine = [one for one in late if one["user"] == "u1" and start <= one["at"] < end]
        assert len(fates) - fates.count("in") == len(mine)
        for one in explained.rows.to_pylist():
            assert ROWS[one["batch"]][one["row"]]["user"] == "u1"
        window = f"window {show_instant(start * 1_000)} to {show_instant(end * 1_000)}"
        assert f"{window}: fired in batch {last['batch']}, and gave count=" in str(explained)
    assert "was refused (late)" in str(capture.why(late[0]["user"], late[0]["at"]))
    assert "<table" in capture.why("u0", 1_000)._repr_html_()
    assert "no row of this key" in str(capture.why("nobody", 1_000))


def test_two_plans_are_compared(session: Session, tmp_path: Path) -> None:
    live, results, *_ = ran(session, tmp_path)
    path = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "a"))
    old = job(stream_of(SCHEMA))
    capture = Capture(path, old)
    assert capture.compare(old, old).counts == {"same": len(results), "changed": 0, "only_old": 0, "only_new": 0}
    few = job(stream_of(SCHEMA).filter("amount <> 7 AND user <> 'u0'"))
    actual = capture.compare(old, few)
    gone = len([row for row in results if row["user"] == "u0"])
    assert (actual.counts["only_old"], actual.counts["changed"] > 0, actual.counts["only_new"]) == (gone, True, 0)
    changed = [row for row in actual.rows.to_pylist() if row["change"] == "changed"]
    assert all(row["total_old"] != row["total_new"] for row in changed)
    assert "only old" in str(actual) and "<table" in actual._repr_html_()
    assert actual.uncompared == ()
    renamed = capture.compare(old, job(stream_of(SCHEMA)).rename(total="sum"))
    assert renamed.counts["same"] == len(results) and renamed.uncompared == ("total", "sum")
    assert "not compared, as only one plan has them: total, sum" in str(renamed)


def test_columns_of_another_kind_are_refused(session: Session, tmp_path: Path) -> None:
    live, results, *_ = ran(session, tmp_path)
    path = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "a"))
    for columns in (SCHEMA.replace("at bigint", "at timestamp"), SCHEMA.replace("amount bigint", "amount string")):
        assert columns != SCHEMA
        tops = stream_of(columns).watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(kv.max("amount"))
        driver = Driver.from_capture(path, tops)
        with pytest.raises(SchemaError, match="the capture does not run under this plan"):
            driver.next_batch()
    wider = job(stream_of(SCHEMA.replace("amount bigint", "amount decimal(20,2)")))
    assert Capture(path, wider).compare(job(stream_of(SCHEMA)), wider).counts["same"] == len(results)


def test_other_lags_are_tried(session: Session, tmp_path: Path) -> None:
    live, results, late, *_ = ran(session, tmp_path)
    path = session.capture(str(tmp_path / "checkpoint"), job(live), str(tmp_path / "a"))
    tried = Capture(path, job(stream_of(SCHEMA))).what_if(lag=["5 s", "2 min", 0])
    assert tried["late_rows"].to_pylist()[:2] == [len(late), 0]
    assert tried["results"][0].as_py() == len(results)
    assert tried.slice(0, 1).select(["changed", "only_old", "only_new"]).to_pylist()[0] == dict.fromkeys(
        ["changed", "only_old", "only_new"], 0
    )
    plain = Driver(job(stream_of(SCHEMA).select("user", "email", "at", "amount")))
    want = sum(plain.send(rows).late.num_rows for rows in ROWS)
    assert (want, tried["late_rows"][2].as_py() >= want) == (len(late), True)
    with pytest.raises(kv.DurationError):
        Capture(path, job(stream_of(SCHEMA))).what_if(lag=[])


def test_a_capture_that_was_broken_off_makes_room_for_the_next(tmp_path: Path) -> None:
    folder = begin_capture(str(tmp_path / "new"), str(tmp_path / "checkpoint"))
    (tmp_path / "new" / "part").write_text("of the first try")
    with pytest.raises(CheckpointError, match="no capture is here"):
        OpenCapture.open(folder)
    assert begin_capture(folder, str(tmp_path / "checkpoint")) == folder
    assert not (tmp_path / "new" / "part").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("of somebody")
    with pytest.raises(CheckpointError, match="the folder of the capture is not empty"):
        begin_capture(str(tmp_path / "other"), str(tmp_path / "checkpoint"))


def test_each_stage_on_the_way_of_a_result_is_explained(session: Session, tmp_path: Path) -> None:
    """Each result of the last stage comes of rows of the first, which a plain recomputation gives."""

    def chain(stream: Any) -> Any:
        one = stream.watermark("at", 5_000).key_by("user").tumbling_window(20_000).agg(kv.sum("amount").alias("n")).named("one")
        two = one.key_by("user").tumbling_window(60_000)
        return two.agg(kv.sum("n").alias("total"), count()).named("two")

    live, sender = session.memory_stream(SCHEMA, name="orders")
    sink = MemorySink()
    query = chain(live).start(sink, checkpoint=str(tmp_path / "checkpoint"))
    for rows in ROWS:
        sender.send(rows)
        query.process_all_available()
    query.stop()
    capture = Capture(session.capture(str(tmp_path / "checkpoint"), chain(live), str(tmp_path / "a")), chain(stream_of(SCHEMA)))
    assert read(sink)
    for row in read(sink):
        explained = capture.why(row["user"], row["window_start"] + 1)
        assert explained.results.select(["user", "total", "count"]).to_pylist() == [
            {name: row[name] for name in ("user", "total", "count")}
        ]
        by_stage: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}
        for one in explained.rows.to_pylist():
            by_stage[one["stage"]].append(one)
        assert len(by_stage["two"]) == row["count"] and {one["source"] for one in by_stage["two"]} == {"one"}
        taken = [ROWS[one["batch"]][one["row"]] for one in by_stage["one"] if one["fate"] == "in"]
        assert sum(one["amount"] for one in taken) == row["total"]
        assert {one["user"] for one in taken} == {row["user"]}
    first = capture.why("u1", 1_000, stage="one")
    assert set(first.rows["stage"].to_pylist()) == {"one"}
    assert "one: batch" in str(capture.why("u1", 61_000))
    with pytest.raises(PlanError, match="no such stage"):
        capture.why("u1", 1_000, stage="three")


@pytest.mark.parametrize("kind", ["session", "counted"])
def test_keys_that_were_closed_are_closed_again(session: Session, tmp_path: Path, kind: str) -> None:
    def job(stream: Any) -> Any:
        keyed = stream.watermark("at", 5_000).key_by("user")
        windows = keyed.session_window(30_000) if kind == "session" else keyed.count_window(25)
        return windows.agg(count(), kv.sum("amount").alias("total"))

    live, sender = session.memory_stream(SCHEMA, name="orders")
    sink = MemorySink()
    query = job(live).start(sink, checkpoint=str(tmp_path / "checkpoint"))
    for number, rows in enumerate(ROWS):
        if number == 3:
            query.close_key("u1")
        sender.send(rows)
        query.process_all_available()
    sender.send([{"user": "u0", "email": "", "at": 900_000, "amount": 1}])
    query.process_all_available()
    query.stop()
    given: Any = {"checkpoint": str(tmp_path / "checkpoint"), "stream": job(live)}
    results, _ = again(session.capture(**given, path=str(tmp_path / "a")), job(stream_of(SCHEMA)))
    assert results == read(sink)
    assert results != [row for rows in [*ROWS] for row in Driver(job(stream_of(SCHEMA))).send(rows).results.to_pylist()]
    with pytest.raises(PlanError, match="was closed in these batches"):
        session.capture(**given, path=str(tmp_path / "b"), hashes=["user"])
