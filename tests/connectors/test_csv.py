"""CSV without Spark: lines and fields as Spark 4 reads them (recorded), files with headers, options that are refused."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from krishiv_py import (
    Batches,
    MemorySink,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    SourceError,
    Stream,
    collect_list,
    count,
)
from krishiv_py.connectors.csv import CsvOptions, fields_of, records, values
from krishiv_py.functions.computing import text as texts
from krishiv_py.functions.computing.text import written
from krishiv_py.plan.schema import as_schema
from krishiv_py.runtime import reading
from tests.connectors.odd_records import CSV, csv_row
from tests.connectors.odd_texts import SCHEMA as COLUMNS

SPARK = json.loads(Path(__file__).with_name("csv_on_spark.json").read_text())
"""What Spark 4 read, each line and each value in a file of its own: null where the record was malformed."""
DDL = "user string, at bigint"
TODAY = ("12:34:56", "T12:34")
"""Times without a date: Spark takes the day on which it reads them, and here they are malformed."""


@pytest.fixture
def session() -> Iterator[Session]:
    """A session without Spark."""
    with Session.in_process() as made:
        yield made


@pytest.mark.parametrize("case", SPARK["records"], ids=lambda case: json.dumps(case["options"]))
def test_lines_are_divided_as_by_spark(case: dict[str, Any]) -> None:
    options = CsvOptions.of(case["options"].items())
    for line, wanted in case["lines"]:
        read = records(pa.array([line]), 2, options)
        assert [column.to_pylist() for column in read.columns] == ([[], []] if wanted is None else [[f] for f in wanted]), line
        assert read.bad.tolist() == ([0] if wanted is None else [])
        alone = fields_of(line, options)  # character by character, also where Arrow reads the line
        fields = None if alone is None or len(alone) != 2 else [None if f == options.null else f for f in alone]
        assert fields == wanted, line
    lines, fits = [line for line, _ in case["lines"]], [wanted for _, wanted in case["lines"] if wanted is not None]
    together = records(pa.array(lines), 2, options)
    assert [list(row) for row in zip(*(c.to_pylist() for c in together.columns), strict=True)] == fits
    assert sorted([*together.lines.tolist(), *together.bad.tolist()]) == list(range(len(lines)))


@pytest.mark.parametrize("type_", SPARK["values"])
def test_fields_are_the_values_of_spark(type_: str) -> None:
    wanted = {text: value for text, value in SPARK["values"][type_] if text not in TODAY}
    arrow = as_schema(f"v {type_}").field("v").type
    fields = pa.array([text or None for text in wanted])
    actual, bad = values(fields, arrow)
    shown = written(actual)[0]
    for i, (text, value) in enumerate(wanted.items()):
        assert bad[i] == (value is None), text
        if value is not None and not (value[0] or "").startswith("+"):  # Spark writes a plus before years of five digits
            assert shown[i].as_py() == value[0], text
        one, alone = values(fields.slice(i, 1), arrow)  # with others or alone, by Arrow or by itself
        assert alone[0] == bad[i] and (bad[i] or pc.equal(one[0], actual[i]).as_py() is not False or text.endswith("NaN"))


def rows(stream: Stream) -> list[dict[str, Any]]:
    """All rows of a bounded stream."""
    actual: list[dict[str, Any]] = stream.collect().to_pylist()
    return actual


@pytest.mark.parametrize(
    ("data", "options", "wanted"),
    [
        (b"user,at\na,1\nb,2\n", {"header": "true"}, [("a", 1), ("b", 2)]),
        (b"USER,At\r\na,1\r\n\r\n  \r\nb,2", {"header": True}, [("a", 1), ("b", 2)]),
        (b'\xef\xbb\xbf"user";"at"\ra;1\r"b;";2', {"header": "true", "sep": ";"}, [("a", 1), ("b;", 2)]),
        (
            b"# c\nuser\tat\n\nNA\t1\n#\n",
            {"header": "true", "delimiter": "\\t", "comment": "#", "nullValue": "NA"},
            [(None, 1)],
        ),
        (b"user,at\n", {"header": "true"}, []),
        (b"", {"header": "true"}, []),
        ("ä,1\n".encode("latin-1"), {"encoding": "ISO-8859-1"}, [("ä", 1)]),
    ],
)
def test_files(session: Session, tmp_path: Path, data: bytes, options: dict[str, Any], wanted: list[Any]) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(data))
    assert [tuple(row.values()) for row in rows(session.read_csv(tmp_path, DDL, **options))] == wanted * 2


def test_blocks_end_anywhere(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'"u{n},",{n}' if n % 3 else f"u{n},{n}" for n in range(500)]
    lines[77], lines[400] = "a,b,c", "x,1.5"
    (tmp_path / "a.csv").write_text("user,at\n" + "\n".join(lines))
    stream = session.read_csv(tmp_path, DDL, header="true", on_malformed="side_output")
    seen = []
    for size in (1 << 20, 97, 10):
        monkeypatch.setattr(reading, "BLOCK_BYTES", size)
        actual = stream.watermark("at", 0).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
        run = actual.tumbling_window(1_000).agg(count(), collect_list("user").alias("users")).run()
        seen.append((run.table.to_pylist(), run.late.select(["malformed_line", "malformed_text", "reason"]).to_pylist()))
    assert seen[0] == seen[1] == seen[2]
    assert [row["malformed_line"] for row in seen[0][1]] == [79, 402]
    assert seen[0][0][0]["count"] == 498 and seen[0][0][0]["users"][:4] == ["u0", "u1,", "u2,", "u3"]


def test_a_stream_reads_files_as_they_come(session: Session, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", str(tmp_path / "checkpoint")
    folder.mkdir()
    (folder / "a.csv").write_text("a,0\nb,100\nbad\n")
    stream = session.read_csv(folder, DDL, streaming=True, on_malformed="side_output", after_read="delete")
    plan = stream.watermark("at", 0).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    windows = plan.key_by("user").tumbling_window(1_000).agg(count())
    results = []
    for name, text in (("b.csv", "a,500\nb,2000\n"), ("c.csv", "a,5000\n")):
        query = windows.start(MemorySink(), checkpoint=checkpoint, batches=Batches.available_now())
        query.await_termination()
        results += query.results().to_pylist()
        (folder / name).write_text(text)
    query = windows.start(MemorySink(), checkpoint=checkpoint, batches=Batches.available_now(flush=True))
    query.await_termination()
    assert sorted((r["user"], r["count"]) for r in [*results, *query.results().to_pylist()]) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 1),
    ]
    assert query.progress.late["malformed"] == 1
    assert not list(folder.glob("*.csv"))


def test_what_is_no_row_stops_the_run(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for data, said in (
        (b"a,1\nb,x\n", "a.csv, line 2: no record of user string, at bigint"),
        (b"a,1\nb\n", "line 2: no record"),
        (b"a,1\n\n\xff,2\n", "line 3: bytes that are not UTF-8"),
    ):
        file.write_bytes(data)
        with pytest.raises(SourceError, match=rf"(?s){said}.*Hint"):
            rows(session.read_csv(file, DDL))
    file.write_bytes(b"at,user\n1,a\n")
    with pytest.raises(SourceError, match="the header names other columns than the schema"):
        rows(session.read_csv(file, DDL, header="true", on_malformed="side_output"))
    file.write_bytes(b"x\xff,1\n")  # where no text is read, the bytes do not matter
    assert rows(session.read_csv(file, DDL).select("at")) == [{"at": 1}]


@pytest.mark.parametrize(
    "options",
    [
        {"multiLine": "true"},
        {"timestampFormat": "yyyy"},
        {"sep": "||"},
        {"sep": ""},
        {"quote": "“"},
        {"header": "yes"},
        {"encoding": "UTF-16"},
        {"timeZone": "Europe/Berlin"},
        {"locale": "de"},
    ],
    ids=str,
)
def test_what_only_spark_follows_is_refused(session: Session, tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "a.csv").write_text("a,1\n")
    stream = session.read_csv(tmp_path, DDL, **options)
    with pytest.raises(PlanError, match=r"(?s)without Spark.*Hint: "):
        stream.collect()
    with pytest.raises(PlanError, match=r"(?s)without Spark.*Hint: "):
        session.read_csv(tmp_path, DDL, streaming=True, **options).start(MemorySink())


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"sep": ";", "SEP": ","},
        {"sep": ";", "delimiter": ","},
        {"Header": "true", "header": "false"},
        {"encoding": "a", "charset": "b"},
    ],
    ids=str,
)
def test_an_option_that_is_given_twice_is_refused(
    session: Session, tmp_path: Path, options: dict[str, Any], streaming: bool
) -> None:
    (tmp_path / "a.csv").write_text("a,1\n")
    first, second = options
    with pytest.raises(PlanError, match=rf"given twice .got: {first}=.* and {second}=.*Hint: leave out {first} or {second}"):
        session.read_csv(tmp_path, DDL, streaming=streaming, **options)


def test_columns_are_found_as_on_spark(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,at\na,1\n")
    assert session.read_csv(tmp_path, header="true").schema == pa.schema([("user", pa.string()), ("at", pa.string())])
    assert session.read_csv(tmp_path).schema.names == ["_c0", "_c1"]
    with pytest.raises(PlanError, match="no form for columns"):
        session.read_csv(tmp_path, "user array<int>, at bigint").collect()
    (tmp_path / "a.csv").write_text("user,,User\na,1,2\n")
    with pytest.raises(SourceError, match="pass schema="):
        session.read_csv(tmp_path, header="true")


_PARTS = [
    "2024-05-01",
    "12024-05-01",
    "0001-01-01",
    "9999-12-31",
    "2024-02-30",
    "T",
    " ",
    "10:00",
    "10:00:00",
    "23:59:59.5",
    "25:00:00",
]
_PARTS += [
    "Z",
    "+01:30",
    "+0130",
    "-2300",
    "+1900",
    " Europe/Paris",
    "CST",
    " Nowhere/City",
    "EST",
    ".",
    "1714557600000",
    "-1",
    "+5",
]
_PARTS += [
    "1.5",
    "1e400",
    "1e39",
    "d",
    "NaN",
    "-Infinity",
    "0x1p3",
    "99999999999999999999",
    "true",
    "FALSE",
    "1,5",
    "\t",
    "ä",
    "today",
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("type_", ["int8", "int64", "float32", "float64", "bool", "date32", "utc", "local", "decimal"], ids=str)
def test_a_field_is_what_it_is_alone(type_: str) -> None:
    more = {"utc": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "decimal": pa.decimal128(6, 2)}
    wanted, chance = more.get(type_) or pa.type_for_alias(type_), random.Random(type_)
    fields = [None, *_PARTS, *("".join(chance.choices(_PARTS, k=chance.randint(1, 5))) for _ in range(200))]
    fields += [day + "T" + clock + zone for day in _PARTS[:5] for clock in _PARTS[7:11] for zone in _PARTS[11:21]]
    together, none = values(pa.array(fields, pa.string()), wanted)
    alone = [values(pa.array([field], pa.string()), wanted) for field in fields]
    assert none.tolist() == [bool(one[1][0]) for one in alone]
    assert [repr(value) for value in together.cast(_written(wanted)).to_pylist()] == [
        repr(one[0].cast(_written(wanted))[0].as_py()) for one in alone
    ]


def _written(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(type_) else pa.int64() if pa.types.is_timestamp(type_) else type_


def test_a_named_zone_is_not_looked_up_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[int]()
    times = texts.times

    def counted(column: pa.Array, type_: pa.DataType) -> texts.Converted:
        parsed.append(len(column))
        return times(column, type_)

    monkeypatch.setattr(texts, "times", counted)
    fields = [f"2024-05-01 10:00:{i % 60:02d} Europe/Paris" if i % 3 else "no time" for i in range(300)]
    result, none = values(pa.array(fields), pa.timestamp("us", "UTC"))
    assert none.sum() == 100 and len(parsed) <= 3
    assert result[1].as_py() == dt.datetime(2024, 5, 1, 8, 0, 1, tzinfo=dt.timezone.utc)


def _read(data: bytes) -> tuple[list[str], list[tuple[int, str, str]]]:
    reader = reading.CsvReader(COLUMNS, reading.Rules(True, False, False), CsvOptions(), COLUMNS)
    rows, bad = list[str](), list[tuple[int, str, str]]()
    for part in reader.scanned(io.BytesIO(data), "file:/a.csv"):
        rows += [repr(row) for row in part.batch.to_pylist()] if part.batch is not None else []
        bad += [(line.line or 0, line.text or "", line.problem) for line in part.malformed]
    return rows, bad


@pytest.mark.one_in(19)
@pytest.mark.parametrize("share", [100, 2, 1])
@pytest.mark.parametrize("kind", CSV)
def test_a_line_is_what_it_is_alone(kind: str, share: int) -> None:
    lines = [CSV[kind](csv_row(i % 31)) if i % share == 0 else csv_row(i % 31) for i in range(600)]
    alone = {line: _read(b"\n" + line) for line in set(lines)}  # in the second line, as the first one may be a header
    rows, bad = _read(b"\n" + b"\n".join(lines))
    assert rows == [row for line in lines for row in alone[line][0]]
    assert bad == [(i, shown, why) for i, line in enumerate(lines, 2) for _, shown, why in alone[line][1]]


@pytest.mark.parametrize("text", ["user,town\na,b\n", "# towns\n\nUSER,town\na,b\n"])
def test_names_of_text_columns_are_no_row(session: Session, tmp_path: Path, text: str) -> None:
    """Nothing else would tell the line of names from a row of texts."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SourceError, match=r"a\.csv, line [13]: the names of the columns; read the file with header=\"true\""):
        session.read_csv(tmp_path, "user string, town string", comment="#").collect()
    headed = session.read_csv(tmp_path, "user string, town string", header="true", comment="#")
    assert headed.collect().to_pylist() == [{"user": "a", "town": "b"}]
    rows = session.read_csv(tmp_path, "user string, town string", header="false", comment="#")
    assert [row["user"].lower() for row in rows.collect().to_pylist()] == ["user", "a"]
    other = session.read_csv(tmp_path, "town string, user string", comment="#")
    assert other.collect().num_rows == 2
