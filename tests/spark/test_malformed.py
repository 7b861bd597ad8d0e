"""Input that is not a row: it stops the query, or is set aside, counted, and no other row is lost (docs/sources.md)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import (
    Batches,
    MemorySink,
    ResultStream,
    Session,
    SideOutputLateEventHandler,
    Stream,
    col,
    collect_list,
    func,
    lit,
)
from krishiv_py.errors import PlanError, SourceError
from tests.spark.conftest import DDL, per_second, row, sorted_rows
from tests.spark.test_files import write

JSON = b'{"user":"a","at":10,"amount":1}\n{"user":"b","at":20,"am\n{"user":"c","at":"30","amount":1}\n{"user":"d","at":40}\n'
CSV = b"user,at,amount\na,10,1\nb,20\nc,x,1\nd,40,1\n"
ASIDE = ["malformed_file", "malformed_line", "malformed_text", "reason"]


def to_the_side(stream: Stream) -> ResultStream:
    """Whole late rows, in memory."""
    return per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "data", "options", "wanted"),
    [
        ("json", JSON, {}, [(2, JSON.splitlines()[1]), (3, JSON.splitlines()[2])]),
        ("json", JSON, {"allowComments": "true"}, [(2, JSON.splitlines()[1]), (3, JSON.splitlines()[2])]),
        ("csv", CSV, {"header": True}, [(3, b"b,20"), (4, b"c,x,1")]),
    ],
)
def test_a_line_that_is_no_row(
    session: Session, tmp_path: Path, kind: str, data: bytes, options: dict[str, Any], wanted: list[tuple[int, bytes]]
) -> None:
    file = tmp_path / "in/a #1%20.txt"
    file.parent.mkdir()
    file.write_bytes(data)
    read = getattr(session, f"read_{kind}")
    with pytest.raises(SourceError, match=r"a #1%20.txt, line \d.*Hint"):
        per_second(read(file.parent, DDL, **options)).collect()
    expected = [(str(file), line, text.decode(), "malformed") for line, text in wanted]
    run = to_the_side(read(file.parent, DDL, on_malformed="side_output", **options)).run()
    assert sorted_rows(run.late.select(ASIDE)) == expected
    assert run.late["user"].to_pylist() == [None, None]
    assert all(run.late["malformed_problem"].to_pylist())
    assert set(run.table["user"].to_pylist()) == {"a", "d"}
    assert (run.counters["rows"], run.counters["malformed"]) == (4, 2)
    if options and kind == "json":
        return
    online = to_the_side(read(file.parent, DDL, streaming=True, on_malformed="side_output", **options))
    query = online.start(MemorySink(), batches=Batches.available_now(flush=True))
    query.await_termination()
    assert query.late_rows().schema == run.late.schema
    assert sorted_rows(query.late_rows()) == sorted_rows(run.late)
    assert sorted_rows(query.results()) == sorted_rows(run.table)
    assert (query.progress.rows, query.progress.late["malformed"]) == (4, 2)


def test_a_file_that_cannot_be_read_is_put_aside_next_to_late_rows(session: Session, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", row("a", 5_000), at_s=1_000)
    write(tmp_path / "in/b.parquet", row("b", 10), at_s=2_000)
    bad = write(tmp_path / "in/c.parquet", row("c", 6_000), at_s=3_000)
    bad.write_bytes(bad.read_bytes()[:-1])
    stream = session.read_parquet(tmp_path / "in", DDL, max_files_per_batch=1, on_malformed="side_output")
    late = to_the_side(stream).run().late
    assert {(r["user"], r["reason"], r["malformed_file"]) for r in late.to_pylist()} == {
        ("b", "late", None),
        (None, "malformed", str(bad)),
    }
    counted = per_second(stream).run()
    assert (counted.counters["malformed"], counted.late.num_columns) == (1, 3)


def test_other_headers_are_refused(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"at,user,amount\n10,a,1\n")
    with pytest.raises(SourceError, match=r"a\.csv: the header names other columns"):
        per_second(session.read_csv(tmp_path / "a.csv", DDL, header="true")).collect()
    assert pa.types.is_string(session.read_csv(tmp_path / "a.csv", header="true").schema.field("at").type)
    with pytest.raises(PlanError, match="in silence"):
        session.read_csv(tmp_path / "a.csv", DDL, mode="DROPMALFORMED")
    with pytest.raises(PlanError, match="on_malformed"):
        session.read_json(tmp_path / "a.csv", DDL, on_malformed="drop")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_files_in_batches_are_replayed_as_a_query_took_them(session: Session, tmp_path: Path, limit: int) -> None:
    times = [[0, 900], [2_500, 1_200], [800, 3_000], [1_100, 100], [9_000, 2_950], [2_000], [9_100]]
    for n, batch in enumerate(times):  # some of one time: the order of the folder's listing decides
        write(tmp_path / f"in/{(n * 5) % 7}/x{n}", *[row("ab"[t % 2], t, n) for t in batch], at_s=1_000 + n // 2)
    (tmp_path / "in/empty").write_bytes(b"")

    def plan(streaming: bool) -> ResultStream:
        read = session.read_parquet(tmp_path / "in", DDL, streaming=streaming, max_files_per_batch=limit)
        return to_the_side(read).allowed_lateness(500).emit("updates")

    replayed = plan(False).run()
    query = plan(True).start(MemorySink(), batches=Batches.available_now(flush=True))
    query.await_termination()
    assert replayed.late.num_rows > 0
    assert sorted_rows(replayed.late) == sorted_rows(query.late_rows())
    assert sorted_rows(replayed.table) == sorted_rows(query.results())
    for name in ("rows", "late", "mildly_late", "very_late", "firings"):
        assert replayed.counters[name] == query.progress.counters[name]
    assert plan(False).collect().num_rows == replayed.table.num_rows


def test_bytes_that_are_not_utf8_are_not_read_as_others(session: Session, tmp_path: Path) -> None:
    lines = ["a\ufffd,10,1".encode(), b"b\xe4,20,1", b'"c\xff\nd",30,1', "bä,40,1".encode()]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    with pytest.raises(SourceError, match=r"a\.csv, line 2: bytes that are not UTF-8"):
        per_second(session.read_csv(tmp_path / "a.csv", DDL, multiLine="true")).collect()
    run = to_the_side(session.read_csv(tmp_path / "a.csv", DDL, on_malformed="side_output", multiLine="true")).run()
    assert set(run.table["user"].to_pylist()) == {"a\ufffd", "bä"}  # the first stands so in the file
    assert set(run.late["malformed_text"].to_pylist()) == {r"b\xe4,20,1", None}  # the other is more than a line
    assert set(run.late["malformed_line"].to_pylist()) == {2, None}
    (tmp_path / "whole.csv").write_bytes('"a\ufffd\nb",10,1'.encode())
    assert per_second(session.read_csv(tmp_path / "whole.csv", DDL, multiLine="true")).collect().num_rows == 1
    latin = session.read_csv(tmp_path / "a.csv", DDL, encoding="ISO-8859-1", multiLine="true")
    assert set(per_second(latin).collect()["user"].to_pylist()) == {"aï¿½", "bä", "cÿ\nd", "bÃ¤"}


def test_csv_in_batches_is_refused_where_it_could_not_be_replayed(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(PlanError, match="max_files_per_batch"):
        per_second(session.read_csv(tmp_path, DDL, max_files_per_batch=1)).collect()


WIDE = (
    "n bigint, user string, at bigint, x double, price decimal(7,2), ok boolean, day date, time timestamp, local timestamp_ntz"
)
FIELDS = (
    ("a", '"a,b"', '"a\\"b"', 'a"b', '"a"b', "", '""', " a ", "ä", '"a" ', "NA"),
    ("1000", "2000", "+7", "", "x", " 1", "9" * 19),
    ("1.5", "-0.0", "NaN", "Inf", "1e400", "", "1d", " 2 ", "x"),
    ("1.005", '"1,000"', "99999.99", "100000", "1e2", ""),
    ("true", "FALSE", "1", ""),
    ("2024-02-29", "2024-2", "2023-02-29", "2024-02-29Tx", ""),
    ("2024-02-29 12:34:56.123456", "2024-03-31 02:30:00 Europe/Berlin", "2024-02-29T12:34+01:00", "x", ""),
    ("2024-02-29 12:34:56", "2024-02-29T12:34Z", ""),
)


def test_csv_in_process_is_read_as_on_spark(session: Session, tmp_path: Path) -> None:
    """Lines of odd fields, of wrong length, blank ones, three ends of lines, a header: rows and what is malformed are equal."""
    draw = random.Random(5)
    for n in range(4):
        lines = ["n,user,at,x,price,ok,day,time,local"]
        for k in range(300):
            fields = [str(n * 1_000 + k), *(each[0] if draw.random() < 0.8 else draw.choice(each) for each in FIELDS)]
            lines += [",".join(fields[: draw.choice([9] * 20 + [8])]), *draw.choice([[]] * 20 + [["", "  "]])]
        (tmp_path / f"{n}.csv").write_bytes(["\n", "\r\n", "\r", "\n"][n].join(lines).encode() + [b"", b"\n\xff,,\n"][n % 2])

    names = [part.split()[0] for part in WIDE.split(", ")]

    def read(by: Session) -> tuple[list[str], list[tuple[Any, ...]]]:
        stream = by.read_csv(tmp_path, WIDE, header="true", on_malformed="side_output").watermark("at", 0)
        whole = func("named_struct", *(part for name in names for part in (lit(name), col(name))))
        handled = stream.with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
        run = handled.tumbling_window("1 day").agg(collect_list(whole).alias("rows")).run()
        late = sorted_rows(run.late.drop(["malformed_problem"]))
        return sorted(repr(row) for rows in run.table["rows"].to_pylist() for row in rows), late

    with Session.in_process() as here:
        rows, late = read(here)
    assert (rows, late) == read(session)
    assert len(rows) > 200 and len(late) > 200


def test_a_failing_line_stops_a_query(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(JSON)
    query = per_second(session.read_json(tmp_path, DDL, streaming=True)).start(MemorySink())
    with pytest.raises(SourceError, match=r"batch 0: .*a\.json, line 2: incomplete JSON object"):
        query.process_all_available()


def test_a_frame_has_no_place_for_malformed_input(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(JSON)
    plan = per_second(session.read_json(tmp_path, DDL, streaming=True, on_malformed="side_output"))
    with pytest.raises(PlanError, match=r'one output.*malformed input would be lost.*on_malformed="fail", or use start'):
        plan.to_dataframe()
    assert per_second(session.read_json(tmp_path, DDL, streaming=True)).to_dataframe().isStreaming
    counted = per_second(session.read_json(tmp_path, DDL, on_malformed="side_output"))
    assert counted.to_dataframe().count() == 2  # a bounded run tells its late handler
    assert counted.late_handler.by_reason["malformed"] == 2  # type: ignore[attr-defined]
