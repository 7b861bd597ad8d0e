"""Files damaged at random: every row is a result, a late row or malformed, or the reader names the file (docs/sources.md)."""

from __future__ import annotations

import gzip
import io
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.connectors import json_lines as jsonlines
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import SourceError
from krishiv_py.runtime.reading import FileReader, JsonReader, ParquetReader, Rules
from krishiv_py.testing import Driver, stream_of

TRIED: Final = settings.default.max_examples if settings.default else 40
MANY: Final = settings(max_examples=TRIED * 2 if TRIED < 1_000 else TRIED)
SCHEMA: Final = pa.schema([("id", pa.int64()), ("user", pa.string()), ("at", pa.int64()), ("x", pa.float64())])
TOKENS: Final = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\r",
    b"\r\n",
    b"\\",
    b"\x00",
    b"\xff",
    b"\xe4",
    b" ",
    b"\t",
    b"-",
    b"+",
    b".",
    b"0",
    b"9" * 20,
    b"e5",
    b"1e999",
    b"null",
    b"true",
    b"NaN",
    b"\\u0000",
    b"\\ud800",
    b"//",
    b"\xef\xbb\xbf",
    b'"at"',
    b'"at":7,',
)
NAMES: Final = tuple(SCHEMA.names)
ASIDE: Final = Rules(aside=True, missing_null=False)
AS_WRITTEN: Final = "a list or an object, as it was written"
Choose = random.Random
Row = dict[str, Any]


def rows_of(draw: Choose, count: int) -> list[Row]:
    """Rows that can be distinguished, some out of order and some with nulls."""
    return [
        {
            "id": n,
            "user": draw.choice(["a", "bä", "", None]),
            "at": n * 100 - draw.choice([0, 0, 700]),
            "x": draw.choice([0.5, -1e300, 3.0, None]),
        }
        for n in range(count)
    ]


def damaged(draw: Choose, data: bytes, spare: int = 0) -> bytes:
    """One to three accidents, none in the first bytes that are to be spared."""
    actual = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        i = draw.randrange(spare, len(actual) + 1)
        end = min(len(actual), i + draw.choice([1, 2, 8, 40]))
        kind = draw.randrange(7)
        if kind == 0 and i < len(actual):
            actual[i] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del actual[i:end]
        elif kind == 2:
            actual[i:i] = actual[i:end]
        elif kind in (3, 4):
            actual[i:i] = draw.choice(TOKENS)
        elif kind == 5 and draw.random() < 0.3:
            del actual[i:]
        else:
            actual[i:end] = draw.randbytes(end - i)
    return bytes(actual)


def read(reader: type[FileReader], path: Path, rules: Rules, **more: Any) -> tuple[list[pa.RecordBatch], list[Malformed]]:
    """The batches of a file, and what was set aside."""
    scanned = list(reader(SCHEMA, rules, **more)(pa.record_batch([[f"file:{path}"]], names=["path"])))
    batches = [s.batch for s in scanned if s.batch is not None]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
    return batches, [m for s in scanned for m in s.malformed]


def refused(reader: type[FileReader], path: Path, **more: Any) -> str | None:
    """What a reader that may put nothing aside says."""
    try:
        read(reader, path, Rules(missing_null=False), **more)
    except SourceError as problem:
        assert "Hint" in str(problem)
        return str(problem)
    return None


def counted(batches: list[pa.RecordBatch]) -> int:
    """Rows in results and in the late output after a run over the batches."""
    driver = Driver(stream_of(SCHEMA).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(kv.count()))
    outs = [*(driver.send(batch) for batch in batches), driver.close()]
    return sum(sum(out.results["count"].to_pylist()) + out.late.num_rows for out in outs)


class Number(str):
    """A number as written."""


def expected_fate(line: bytes) -> list[Row] | None:
    """The rows of a line by Python's own reader; None where a line is none."""
    try:
        actual = json.loads(line.decode(), object_pairs_hook=list, parse_int=Number, parse_float=Number, parse_constant=Number)
    except (ValueError, RecursionError):
        return None
    objects = [actual] if line.strip().startswith(b"{") else actual
    if not isinstance(objects, list) or not objects or not all(isinstance(o, list) for o in objects):
        return None
    out = [_row(pairs) for pairs in objects]
    return None if None in out else [row for row in out if row is not None]


def _row(pairs: Any) -> Row | None:
    if not all(isinstance(p, tuple) for p in pairs):
        return None
    values = {name: _of_name(name, pairs) for name in SCHEMA.names}
    if not any(values.values()) or any(len(actual) > 1 for actual in values.values()):
        return None
    row: Row = dict.fromkeys(SCHEMA.names)
    for name, actual in values.items():
        try:
            row[name] = None if not actual or actual[0] is None else READ[name](actual[0])
        except (ValueError, TypeError, UnicodeError):
            return None
    return row


def _of_name(name: str, pairs: Any) -> list[Any]:
    """The values under a name as it is written, else under those that differ in case only."""
    exact = [value for other, value in pairs if other == name]
    return exact or [value for other, value in pairs if other.lower() == name.lower()]


def _whole(value: Any) -> int:
    if not isinstance(value, Number) or not -(2**63) <= int(value) < 2**63:
        raise ValueError
    return int(value)


def _real(value: Any) -> float:
    if not isinstance(value, str) or (not isinstance(value, Number) and value.lstrip("+-") not in ("NaN", "Infinity", "INF")):
        raise ValueError
    if abs(float(value)) == float("inf") and value.lstrip("+-") not in ("Infinity", "INF"):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return AS_WRITTEN
    value.encode()
    return str(value)


READ: Final = {"id": _whole, "at": _whole, "x": _real, "user": _text}


@MANY
@given(st.integers(0, 2**63))
def test_lines_are_rows_or_malformed_whatever_is_next_to_them(seed: int) -> None:
    draw = random.Random(seed)
    whole = [json.dumps(row, ensure_ascii=draw.random() < 0.5).encode() + b"\n" for row in rows_of(draw, 12)]
    data = damaged(draw, b"".join(whole), spare=len(whole[0]))  # the first line says how names are spelt
    lines = [(n, line, expected_fate(line)) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    wanted = [row for _, _, rows in lines for row in rows or ()]
    bad = [(n, line.decode("utf-8", "backslashreplace")) for n, line, rows in lines if rows is None]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(jsonlines, "BLOCK_BYTES", draw.choice([60, 300, 1 << 20])):
        path = Path(folder) / "a.json"
        path.write_bytes(data)
        batches, aside = read(JsonReader, path, ASIDE, known=NAMES)
        said = refused(JsonReader, path, known=NAMES)
    actual = [row for batch in batches for row in batch.to_pylist()]
    assert [(m.line, m.text) for m in aside] == bad
    assert len(actual) == len(wanted) == counted(batches)
    for got, row in zip(actual, wanted, strict=True):
        assert repr(got) == repr(row if row["user"] is not AS_WRITTEN else {**row, "user": got["user"]})
    assert (said is None) == (not bad)
    if said:
        assert f"a.json, line {bad[0][0]}: " in said
    event("malformed" if bad else "whole")


def as_parquet(draw: Choose, rows: list[Row]) -> bytes:
    """A parquet file of some layout."""
    out = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA),
        out,
        row_group_size=draw.choice([7, 30, 100]),
        use_dictionary=draw.random() < 0.5,
        compression=draw.choice(["none", "snappy", "zstd"]),
        write_page_checksum=draw.random() < 0.5,
        data_page_version=draw.choice(["1.0", "2.0"]),
    )
    return out.getvalue()


def as_gzip(draw: Choose, rows: list[Row]) -> bytes:
    """JSON lines, packed."""
    return gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


KINDS: Final[dict[str, tuple[type[FileReader], Callable[[Choose, list[Row]], bytes], dict[str, Any]]]] = {
    "parquet": (ParquetReader, as_parquet, {}),
    "json.gz": (JsonReader, as_gzip, {"known": NAMES}),
}


@pytest.mark.parametrize("number", ["-199999999999999999999e+300", "199999999999999999999e300", "1e999"])
@pytest.mark.parametrize("lines", [1, 300])
def test_a_number_beyond_all_doubles_is_malformed(number: str, lines: int, tmp_path: Path) -> None:
    """Arrow refuses one with few digits, and reads one with many as infinite."""
    rows = [f'{{"id": {n}, "user": "a", "at": {n}, "x": {n}.5}}' for n in range(lines)]
    (tmp_path / "a.json").write_text("\n".join([*rows, f'{{"id": 7, "user": "a", "at": 7, "x": {number}}}']) + "\n")
    batches, aside = read(JsonReader, tmp_path / "a.json", ASIDE, known=NAMES)
    assert [m.line for m in aside] == [lines + 1]
    assert [x for batch in batches for x in batch["x"].to_pylist()] == [n + 0.5 for n in range(lines)]


@pytest.mark.parametrize("kind", KINDS)
@MANY
@given(st.integers(0, 2**63))
def test_a_file_gives_all_its_rows_or_is_reported_to_break_off(kind: str, seed: int) -> None:
    """Values within a page may be others where no checksum guards them; their number may not, nor may any be no value."""
    draw = random.Random(seed)
    reader, written, more = KINDS[kind]
    rows = rows_of(draw, 60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{kind}"
        path.write_bytes(damaged(draw, written(draw, rows)))
        nothing = path.stat().st_size == 0  # not written yet, as far as a reader can tell
        batches, aside = read(reader, path, ASIDE, **more)
        said = refused(reader, path, **more)
    actual = sum(batch.num_rows for batch in batches)
    assert (said is None) == (not aside)
    assert counted(batches) == actual
    if aside:
        assert actual == 0 or aside[-1].line is not None or f"after {actual} rows" in aside[-1].problem
        assert said and f"/a.{kind}" in said
    else:
        assert actual == (0 if nothing else len(rows))
    event("malformed" if aside else "whole")
