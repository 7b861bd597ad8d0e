"""JSON values: what the sink writes the source reads back; what is not a row is found among any others."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors.json_texts import objects
from krishiv_py.connectors.kafka.formats.decoding import decode_json

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
GOOD = st.fixed_dictionaries({"user": st.none() | st.text(), "n": st.integers(-(2**63), 2**63 - 1)})
BAD: tuple[bytes | None, ...] = (
    None,
    b"",
    b" ",
    b"{",
    b"null",
    b"{}",
    b"5",
    b'{"other": 1}',
    b'{"user": "a", "n": 1}{"user": "a", "n": 1}',
    b'{"user": "a", "n": 1}\n{"user": "a", "n": 1}',
    b'[{"user": "a", "n": 1}]',
    b'{"n": 1.5}',
    b'{"n": 9223372036854775808}',
    b'{"n": 1, "n": 2}',
    b'{"user": "\xff", "n": 1}',
    b"[" * 5_000,
    b'{"n":' * 5_000,
)
LAID_OUT = st.sampled_from([None, 1])


@given(st.lists(st.tuples(GOOD, LAID_OUT, st.sampled_from(["", " ", "\n"])) | st.sampled_from(BAD), max_size=60))
def test_every_value_is_a_row_or_is_reported(given_: Sequence[Any]) -> None:
    values = [
        (json.dumps(each[0], indent=each[1], ensure_ascii=False) + each[2]).encode() if isinstance(each, tuple) else each
        for each in given_
    ]
    actual = decode_json(SCHEMA, ("user", "n"), values)
    assert actual.batch.to_pylist() == [each[0] for each in given_ if isinstance(each, tuple)]
    assert [i for i, _ in actual.bad] == [i for i, each in enumerate(given_) if not isinstance(each, tuple)]
    assert all(problem for _, problem in actual.bad)


EVERY = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("f32", pa.float32()),
        ('odd "name\n', pa.string()),
        ("us", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("day", pa.date32()),
        ("dec", pa.decimal128(20, 4)),
        ("b", pa.binary()),
        ("o", pa.bool_()),
        ("list", pa.list_(pa.string())),
        ("rec", pa.struct([("x", pa.int64()), ("at", pa.timestamp("us", "UTC"))])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
LONG = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
UTC_TIMES = TIMES.map(lambda t: t.replace(tzinfo=dt.timezone.utc))
ROWS = st.fixed_dictionaries(
    {
        "i": LONG,
        "f": st.none() | st.floats(allow_nan=False),
        "f32": st.none() | st.floats(width=32, allow_nan=False),
        'odd "name\n': st.none() | st.text(),
        "us": st.none() | UTC_TIMES,
        "ntz": st.none() | TIMES,
        "day": st.none() | st.dates(dt.date(1000, 1, 1)),
        "dec": st.none() | st.decimals(-(10**15), 10**15, places=4).map(Decimal),
        "b": st.none() | st.binary(),
        "o": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | st.text(), max_size=3),
        "rec": st.none() | st.fixed_dictionaries({"x": st.none() | LONG, "at": st.none() | UTC_TIMES}),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.none() | LONG, max_size=3).map(lambda d: list(d.items())),
    }
)


@given(st.lists(ROWS, max_size=12))
def test_what_the_sink_writes_the_source_reads_back(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, EVERY)
    texts = objects(table, table.column_names)
    for text in texts.to_pylist():
        assert list(json.loads(text)) == table.column_names, "any other reader can read it"
    actual = decode_json(EVERY, tuple(EVERY.names), [text.encode() for text in texts.to_pylist()])
    assert actual.bad == ()
    assert actual.batch.to_pylist() == table.to_pylist()


def test_the_frame_of_a_json_schema_serializer_is_left_out() -> None:
    schema = pa.schema([("k", pa.string())])
    frame = b"\x00\x00\x00\x00\x0a"
    values = [frame + b'{"k": "a"}', b'{"k": "b"}', None, frame, frame + b'["k"]', frame[:3] + b'{"k": "c"}']
    actual = decode_json(schema, ("k",), values)
    assert actual.batch.to_pylist() == [{"k": "a"}, {"k": "b"}]
    assert [moment for moment, _ in actual.bad] == [2, 3, 4, 5]
    actual = decode_json(schema, ("k",), values[:2] * 20)
    assert actual.bad == () and actual.batch.to_pylist() == [{"k": "a"}, {"k": "b"}] * 20
