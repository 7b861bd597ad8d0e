"""What readers make of files that do not fit the schema, or are not files of their kind (docs/sources.md)."""

from __future__ import annotations

import gzip
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors import json_lines as jsonlines
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import SourceError
from krishiv_py.runtime.reading import JsonReader, ParquetReader, Rules

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
STRICT = Rules(missing_null=False)
ASIDE = Rules(aside=True, missing_null=False)


def write(path: Path, *rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> Path:
    """One parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


def read(path: Path, rules: Rules = STRICT, schema: pa.Schema = SCHEMA) -> tuple[list[dict[str, Any]], list[Malformed]]:
    """The rows of a file, and what was set aside."""
    scanned = list(ParquetReader(schema, rules)(pa.record_batch([[f"file:{path}"]], names=["path"])))
    return [r for s in scanned if s.batch is not None for r in s.batch.to_pylist()], [m for s in scanned for m in s.malformed]


def refused(path: Path, schema: pa.Schema = SCHEMA) -> str:
    """The text of the error, which the file set aside has too."""
    with pytest.raises(SourceError) as raised:
        read(path, schema=schema)
    said = str(raised.value)
    assert str(path) in said
    assert "Hint" in said
    assert len(said.splitlines()) == 1
    (aside,) = read(path, ASIDE, schema)[1]
    assert (aside.file, aside.line, aside.text) == (str(path), None, None)
    assert " ".join(aside.problem.split()) in said
    return said


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", *[{"user": f"u{n}", "at": n, "amount": 1} for n in range(5_000)])
    data = whole.read_bytes()
    for cut in (data[: len(data) // 2], data[:-1], b"user,at\na,1\n", data[:2_000] + bytes(2_000) + data[4_000:]):
        whole.write_bytes(cut)
        assert "not a whole parquet file" in refused(whole)


def test_rows_before_the_damage_are_reported(tmp_path: Path) -> None:
    whole = tmp_path / "a.parquet"
    rows = [{"user": f"u{n}", "at": n, "amount": n * n} for n in range(300_000)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), whole, row_group_size=270_000, use_dictionary=False)
    data = bytearray(whole.read_bytes())
    start = pq.ParquetFile(whole).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    whole.write_bytes(bytes(data))
    actual, (aside,) = read(whole, ASIDE)
    assert actual == rows[: len(actual)]
    assert 0 < len(actual) <= 270_000
    assert f"after {len(actual)} rows" in aside.problem


def test_bytes_changed_within_a_page_are_found_by_its_checksum(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"user": ["abcdefgh"] * 9, "at": range(9), "amount": range(9)}, SCHEMA)
    for checksum, problem in ((True, "CRC"), (False, "UTF8")):
        pq.write_table(table, file, compression="none", write_page_checksum=checksum, use_dictionary=False)
        file.write_bytes(file.read_bytes().replace(b"abcdefgh", b"abcd\xfffgh"))
        assert problem in refused(file)


def test_a_footer_that_counts_fewer_rows_loses_none(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"user": ["a"] * 60, "at": range(60), "amount": range(60)}, SCHEMA), file, row_group_size=30)
    data = file.read_bytes()
    actual: set[str] = set()
    for i in (n for n, byte in enumerate(data) if byte == 60):  # among them 30, as footers write it
        file.write_bytes(data[:i] + bytes([data[i] ^ 8]) + data[i + 1 :])
        rows, aside = read(file, ASIDE)
        assert len(rows) == 60 or aside
        actual.update(a.problem[:50] for a in aside if "row groups" in a.problem)
    assert actual


def test_what_says_nothing_about_rows_is_never_put_aside(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="went before it was read"):
        read(tmp_path / "gone #1.parquet", ASIDE)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="cannot be opened"):
        read(tmp_path / "folder", ASIDE)


def test_a_file_without_a_column_is_refused_or_its_rows_have_nulls(tmp_path: Path) -> None:
    other = pa.schema([("usr", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
    file = write(tmp_path / "b.parquet", {"usr": "b", "at": 20, "amount": 2}, schema=other)
    assert "no column 'user'; it has: usr, at, amount" in refused(file)
    assert read(file, Rules())[0] == [{"user": None, "at": 20, "amount": 2}]
    assert read(file, schema=pa.schema([SCHEMA.field("at")]))[0] == [{"at": 20}]  # nobody asked for it


def test_case_of_names_is_ignored_as_in_spark(tmp_path: Path) -> None:
    shouted = pa.schema([(n.upper(), t) for n, t in zip(SCHEMA.names, SCHEMA.types, strict=True)])
    file = write(tmp_path / "a.parquet", {"USER": "a", "AT": 10, "AMOUNT": 1}, schema=shouted)
    assert read(file) == ([{"user": "a", "at": 10, "amount": 1}], [])
    upper, mixed, lower = (pa.field(n, pa.string()) for n in ("USER", "User", "user"))
    rest = [SCHEMA.field("at"), SCHEMA.field("amount")]
    both = write(tmp_path / "b.parquet", {"User": "a"}, schema=pa.schema([mixed, upper, *rest]))
    assert "'User' and 'USER'" in refused(both)
    one = write(tmp_path / "c.parquet", {"user": "a"}, schema=pa.schema([lower, upper, *rest]))
    assert read(one)[0] == [{"user": "a", "at": None, "amount": None}]


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["at", "at"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "'at' appears twice" in refused(tmp_path / "a.parquet", pa.schema([("at", pa.int64())]))


def test_a_column_of_another_type_is_named_unless_there_is_no_row(tmp_path: Path) -> None:
    texts = pa.schema([("user", pa.string()), ("at", pa.string()), ("amount", pa.int64())])
    assert read(write(tmp_path / "empty.parquet", schema=texts)) == ([], [])
    narrow = pa.schema([("user", pa.large_string()), ("at", pa.int32()), ("amount", pa.int8())])
    file = write(tmp_path / "small.parquet", {"user": "b", "at": 20, "amount": 2}, schema=narrow)
    assert read(file)[0] == [{"user": "b", "at": 20, "amount": 2}]
    bad = write(tmp_path / "b.parquet", {"user": "b", "at": "10"}, schema=texts)
    assert "column 'at' is string" in refused(bad)
    too_large = write(tmp_path / "c.parquet", {"user": "b", "at": 2**40})
    assert "column 'at' is bigint" in refused(too_large, pa.schema([("at", pa.int32())]))


@pytest.mark.parametrize("coerced", [True, False], ids=["INT96", "INT64"])
def test_instants_of_older_writers_are_instants_at_any_depth(tmp_path: Path, coerced: bool) -> None:
    """Leaves are counted over the whole file, so columns of every shape come before."""
    plain, zoned = pa.timestamp("us"), pa.timestamp("us", "UTC")

    def schema(type_: pa.DataType) -> pa.Schema:
        inner = pa.struct([("n", pa.int32()), ("t", type_)])
        return pa.schema(
            [
                ("before", pa.struct([("a", pa.list_(pa.int64())), ("b", pa.map_(pa.string(), pa.int8()))])),
                ("fixed", pa.list_(pa.int16(), 2)),
                ("u", pa.list_(inner)),
                ("m", pa.map_(pa.string(), inner)),
                ("at", type_),
                ("local", plain),
            ]
        )

    row = {"before": {"a": [1], "b": []}, "fixed": [1, 2], "u": [{"n": 1, "t": 5}], "m": [("k", {"n": 1, "t": 6})], "at": 7}
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([row | {"local": 8}], schema(plain)), file, use_deprecated_int96_timestamps=coerced)
    wanted = pa.schema([schema(zoned).field(n) for n in ("at", "m", "u", "local")])
    if not coerced:  # a time without a zone is not an instant
        assert "is timestamp_ntz, and its values do not fit timestamp of" in refused(file, wanted)
        return
    (actual,), _ = read(file, schema=wanted)
    assert pa.Table.from_pylist([actual], wanted).to_pylist() == pa.Table.from_pylist([row | {"local": 8}], wanted).to_pylist()


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_nanoseconds_are_refused_or_cut_at_any_depth(tmp_path: Path, zone: str | None) -> None:
    fine, micro = pa.timestamp("ns", zone), pa.timestamp("us", zone and "UTC")
    span = pa.duration("ns")
    table = pa.table(
        {
            "at": pa.array([1_999, -1_001, None], fine),
            "u": pa.array([{"t": [1_999]}, {"t": [-1, None]}, None], pa.struct([("t", pa.list_(fine))])),
            "d": pa.array([1_999, -1, None], span),
        }
    )
    file = tmp_path / "a.parquet"
    pq.write_table(table, file)
    schema = pa.schema([("at", micro), ("u", pa.struct([("t", pa.list_(micro))])), ("d", pa.duration("us"))])
    assert 'nanoseconds="cut" would cut its times' in refused(file, schema)
    rows, aside = read(file, Rules(cut=True), schema)
    cut = pa.Table.from_pylist(rows, schema)
    assert not aside
    assert cut["at"].cast(pa.int64()).to_pylist() == [1, -2, None]
    assert cut["d"].cast(pa.int64()).to_pylist() == [1, -1, None]
    assert pc.list_flatten(pc.struct_field(cut["u"], "t")).cast(pa.int64()).to_pylist() == [1, -1, None]
    other = pa.schema([("at", pa.timestamp("us", None if zone else "UTC"))])
    said = refused(file, other)
    assert "nanoseconds=" not in said
    assert f"declare it {'timestamp' if zone else 'timestamp_ntz'} there" in said


def test_folders_give_columns_that_the_file_has_not(tmp_path: Path) -> None:
    rest = pa.schema([SCHEMA.field("at")])
    schema = pa.schema([("day", pa.date32()), ("user", pa.int64()), ("at", pa.int64())])
    file = write(tmp_path / "day=2024-02-29/USER=7/x.parquet", {"at": 1}, schema=rest)
    assert [str(v) for v in read(file, schema=schema)[0][0].values()] == ["2024-02-29", "7", "1"]
    null = write(tmp_path / "day=2024-02-29/user=__HIVE_DEFAULT_PARTITION__/x.parquet", {"at": 1}, schema=rest)
    assert read(null, schema=schema)[0][0]["user"] is None
    wrong = write(tmp_path / "day=2024-02-30/user=1/x.parquet", {"at": 1}, schema=rest)
    assert "day=2024-02-30 gives no date" in refused(wrong, schema)


def lines(path: Path, data: bytes, schema: pa.Schema = SCHEMA) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """The rows of a file of JSON lines, and line, text and problem of what is not a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    scanned = list(JsonReader(schema, ASIDE, tuple(SCHEMA.names))(pa.record_batch([[f"file:{path}"]], names=["path"])))
    aside = [(m.line, m.text, m.problem) for s in scanned for m in s.malformed]
    if aside:
        with pytest.raises(SourceError) as raised:
            list(JsonReader(schema, STRICT, tuple(SCHEMA.names))(pa.record_batch([[f"file:{path}"]], names=["path"])))
        assert f"{path}, line {aside[0][0]}: " in str(raised.value) or aside[0][0] is None
        assert len(str(raised.value).splitlines()) == 1
    return [r for s in scanned if s.batch is not None for r in s.batch.to_pylist()], aside


GOOD = b'{"user":"a","at":1,"amount":2}\n'
ROW = {"user": "a", "at": 1, "amount": 2}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b'{"user":"a","at":1', "incomplete JSON object"),
        (b'{"user":"a","at":"1"}', "column 'at': a text is not a bigint"),
        (b'{"user":"a","at":1.5}', "a number is not a bigint"),
        (b'{"user":"a","at":1.0}', "a number is not a bigint"),
        (b'{"user":"a","at":true}', "a boolean is not a bigint"),
        (b'{"user":"a","at":9223372036854775808}', "not a bigint"),
        (b'{"user":"a","at":[1]}', "a list is not a bigint"),
        (b'{"user":"a","at":1,"at":2}', "column 'at' appears twice"),
        (b'{"user":"a"}{"user":"b"}', "incomplete JSON object"),
        (b'{"user":"a","at":1} x', "incomplete JSON object"),
        (b'{"usr":"a"}', "none of the columns user, at, amount; it has: usr"),
        (b"{}", "it has: nothing"),
        (b"null", "no JSON object"),
        (b"5", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"user":"\xff"}', "not UTF-8"),
        (b'{"user":"\\ud800"}', "surrogate"),
        (b"user,at,amount", "incomplete JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x":' * 100_000, "nested too deeply"),
        (b'{"user":"a\x00"}', "incomplete JSON object"),
    ],
)
def test_a_line_that_is_no_row_is_reported_and_no_other_is_lost(tmp_path: Path, bad: bytes, problem: str) -> None:
    for data, line in ((bad, 1), (GOOD + bad + b"\n" + GOOD, 2), (GOOD * 3 + b"\r\n" + bad, 5)):
        rows, aside = lines(tmp_path / "a.json", data)
        assert rows == [ROW] * data.count(GOOD)
        ((moment, text, said),) = aside
        assert (moment, text) == (line, bad.decode("utf-8", "backslashreplace"))
        assert problem in said


@pytest.mark.parametrize("neighbour", [b"", b"broken\n"])
def test_a_line_is_no_row_whatever_is_next_to_it(tmp_path: Path, neighbour: bytes) -> None:
    """Arrow takes any bytes for the name of some other column, and a lone CR for a blank."""
    rows, aside = lines(tmp_path / "a.json", GOOD + b'{"user":"a","at\xff":1}\n' + GOOD + neighbour)
    assert (rows, [a[0] for a in aside][:1]) == ([ROW] * 2, [2])
    rows, aside = lines(tmp_path / "a.json", GOOD + b'{"user":"a",\r"at":1}\n' + GOOD + neighbour)
    assert (rows, [a[0] for a in aside][:2]) == ([ROW] * 2, [2, 3])


def test_lines_are_counted_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "BLOCK_BYTES", 50)
    rows, aside = lines(tmp_path / "a.json", (GOOD * 5 + b"broken\n") * 4 + GOOD + b'{"user":"a"')
    assert rows == [ROW] * 21
    assert [a[0] for a in aside] == [6, 12, 18, 24, 26]


def test_what_json_files_may_look_like(tmp_path: Path) -> None:
    for data in (b"\xef\xbb\xbf" + GOOD, GOOD.rstrip(), GOOD.replace(b"\n", b"\r\n"), b"\n\n" + GOOD + b"\n  \n"):
        assert lines(tmp_path / "a.json", data) == ([ROW], [])
    assert lines(tmp_path / "a.json", b"[" + GOOD.strip() + b"," + GOOD.strip() + b"]\n") == ([ROW] * 2, [])
    assert lines(tmp_path / "a.json", GOOD.strip() + b"\r" + GOOD.strip()) == ([ROW] * 2, [])
    assert lines(tmp_path / "a.json", GOOD.upper().replace(b'"A"', b'"a"')) == ([ROW], [])
    assert lines(tmp_path / "a.json", b'{"at":7,"more":{"at":"x"}}\n')[0] == [{"user": None, "at": 7, "amount": None}]
    assert lines(tmp_path / "a.json.gz", gzip.compress(GOOD * 2)) == ([ROW] * 2, [])
    assert lines(tmp_path / "user=b/a.json", b'{"at":1}\n')[0] == [{"user": "b", "at": 1, "amount": None}]
    ((line, text, problem),) = lines(tmp_path / "b.json.gz", gzip.compress(GOOD * 2)[:-9])[1]
    assert (line, text) == (None, None)
    assert "not a whole JSON file" in problem


def test_both_ways_to_read_a_block_give_the_same(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("n", pa.timestamp("us")),
            ("d", pa.date32()),
            ("f", pa.float64()),
            ("g", pa.float32()),
            ("b", pa.bool_()),
            ("s", pa.string()),
            ("l", pa.list_(pa.int64())),
            ("r", pa.struct([("x", pa.int32())])),
        ]
    )
    stamps = ["2024-02-29T01:02:03Z", "2024-02-29T01:02:03.5+02:00", "2024-02-29 01:02", "2024-02-29", "1969-12-31T23:59:59.1Z"]
    stamps += ["2024-02-29T01:02:03.123456789Z", "1969-12-31T23:59:59.9999999Z"]
    rows: list[dict[str, Any]] = [
        {"t": s, "n": s, "d": "2024-02-29", "f": f, "g": f, "b": True, "s": "ä\n", "l": [1, None], "r": {"x": 1}}
        for s in stamps
        for f in (1, -0.5, 1e300, 16777217)
    ] + [{"t": None}, {"f": float("nan"), "t": stamps[0]}]
    for row in rows:
        data = (json.dumps({k: v for k, v in row.items() if v is not None} | {"s": row.get("s", "x")}) + "\n").encode()
        fast = list(jsonlines.JsonLines(schema, tuple(schema.names)).read(io.BytesIO(data)))
        slow = jsonlines.JsonLines(schema, tuple(schema.names)).one_by_one(data.splitlines())
        assert [p.bad for p in fast] == [[]] and slow.bad == []
        assert repr(fast[0].batch.to_pylist()) == repr(slow.batch.to_pylist())


_NAMES = st.sampled_from(
    ["k", "K", "\\u004b", "\u212a", "at", "AT", "aT", "a\\u0054", "\u00e4", "\u00c4", "\\u00C4", "x", "k "]
)
_OBJECTS = st.lists(
    st.tuples(_NAMES, st.sampled_from(['"K"', '"k"', "null", '"\\"k\\":"', '"\u00c4"'])), min_size=1, max_size=4
)


@given(
    rows=st.lists(_OBJECTS, min_size=1, max_size=4),
    columns=st.sampled_from([("k",), ("k", "at"), ("K", "\u00e4"), ("At", "k")]),
)
def test_a_row_depends_on_no_other_whatever_the_case_of_its_names(
    rows: list[list[tuple[str, str]]], columns: tuple[str, ...]
) -> None:
    schema = pa.schema([(name, pa.string()) for name in columns])
    texts = [("{" + ",".join(f'"{name}":{value}' for name, value in row) + "}\n").encode() for row in rows]

    def read(data: bytes) -> tuple[list[Any], list[str]]:
        actual = list(jsonlines.JsonLines(schema, columns).read(io.BytesIO(data)))
        return [row for p in actual for row in p.batch.to_pylist()], [b.problem for p in actual for b in p.bad]

    alone = [read(text) for text in texts]
    by_line = [jsonlines.JsonLines(schema, columns).one_by_one([text]) for text in texts]
    assert alone == [(rows.batch.to_pylist(), [why for _, why in rows.bad]) for rows in by_line]
    assert read(b"".join(texts)) == ([r for rows, _ in alone for r in rows], [b for _, bad in alone for b in bad])


@given(
    rows=st.lists(st.tuples(st.sampled_from(["u", "U", "k"]), _OBJECTS, st.booleans()), min_size=1, max_size=4),
    fields=st.sampled_from([("k",), ("k", "at"), ("K", "\u00e4"), ("At", "k")]),
    as_written=st.booleans(),
)
def test_fields_depend_on_no_other_row_whatever_the_case_of_their_names(
    rows: list[tuple[str, list[tuple[str, str]], bool]], fields: tuple[str, ...], as_written: bool
) -> None:
    inner = pa.struct([(name, pa.string()) for name in fields])
    schema = pa.schema([("u", inner), ("l", pa.list_(inner)), ("k", pa.string())])
    texts = []
    for name, row, listed in rows:
        held = "{" + ",".join(f'"{n}":{value}' for n, value in row) + "}"
        texts.append((f'{{"{name}":{held},"k":"x"' + (f',"l":[{held},null]' if listed else "") + "}\n").encode())

    def read(data: bytes) -> tuple[list[Any], list[str]]:
        lines = (
            jsonlines.JsonLines.exact(schema, ("u", "l", "k")) if as_written else jsonlines.JsonLines(schema, ("u", "l", "k"))
        )
        actual = list(lines.read(io.BytesIO(data)))
        return [row for p in actual for row in p.batch.to_pylist()], [b.problem for p in actual for b in p.bad]

    alone = [read(text) for text in texts]
    lines = jsonlines.JsonLines(schema, ("u", "l", "k"), as_written)
    by_line = [lines.one_by_one([text]) for text in texts]
    assert alone == [(rows.batch.to_pylist(), [why for _, why in rows.bad]) for rows in by_line]
    assert read(b"".join(texts)) == ([r for rows, _ in alone for r in rows], [b for _, bad in alone for b in bad])


def test_names_of_another_case_are_read_fast_where_all_lines_spell_them_alike() -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    lines = jsonlines.JsonLines(schema, ("k", "at"))
    for block, fast in ((b'{"K":"k","at":1}\n{"K":"a","at":2}\n', True), (b'{"K":"a"}\n{"k":"b"}\n', False)):
        lines._spelling = lines._spelt(block)
        assert (lines.by_arrow(block) is not None) == fast
    (parsed,) = jsonlines.JsonLines(schema, ("k", "at")).read(io.BytesIO(b'{"K":"a","At":1,"AT":2}\n{"K":"a","k":"b"}\n'))
    assert parsed.batch.to_pylist() == [{"k": "b", "at": None}]
    assert [b.problem for b in parsed.bad] == ["column 'at' appears twice"]


def test_types_arrow_reads_otherwise(tmp_path: Path) -> None:
    kinds = [pa.map_(pa.string(), pa.int64()), pa.decimal128(10, 2), pa.binary(), pa.string()]
    schema = pa.schema(list(zip("mdbs", kinds, strict=True)))
    data = b'{"m":{"x":1},"d":1.25,"b":"aGk=","s":1.10}\n{"d":"2.5","s":{"k":[1.0,null,"y"]}}\n{"d":1.234}\n{"b":"*"}\n'
    (parsed,) = jsonlines.JsonLines(schema, tuple(schema.names)).read(io.BytesIO(data))
    assert [list(r.values()) for r in parsed.batch.to_pylist()] == [
        [[("x", 1)], Decimal("1.25"), b"hi", "1.10"],
        [None, Decimal("2.50"), None, '{"k":[1.0,null,"y"]}'],
    ]
    assert [b.line for b in parsed.bad] == [3, 4]
