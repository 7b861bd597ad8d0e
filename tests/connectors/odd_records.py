"""One odd thing in a line of CSV, a record of Avro, a row of Python objects or a text of a time, of each kind."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

_UTC: Final = dt.timezone.utc
_START: Final = dt.datetime(2024, 5, 1, 10, tzinfo=_UTC)
Row = Mapping[str, Any]


def csv_row(i: int) -> bytes:
    """Return a line of CSV in the columns of `odd_texts.SCHEMA`, without anything odd."""
    return (f"u{i % 97},{i},{i * 0.25},2024-05-01T10:{i // 60 % 60:02d}:{i % 60:02d}.5Z,2024-05-{i % 28 + 1:02d}").encode()


def _field(place: int, value: bytes) -> Callable[[bytes], bytes]:
    def change(line: bytes) -> bytes:
        fields = line.split(b",")
        fields[place] = value
        return b",".join(fields)

    return change


CSV: Final[dict[str, Callable[[bytes], bytes]]] = {
    "empty": lambda _: b"",
    "blank": lambda _: b"  ",
    "junk": lambda _: b"no row",
    "fewer fields": lambda line: line.rpartition(b",")[0],
    "more fields": lambda line: line + b",1",
    "word as number": _field(1, b"many"),
    "plus": _field(1, b"+5"),
    "fraction": _field(1, b"1.5"),
    "huge number": _field(1, b"99999999999999999999"),
    "nineteen digits": _field(1, b"1712345678901234567"),
    "word as float": _field(2, b"much"),
    "NaN": _field(2, b"NaN"),
    "float with a letter": _field(2, b"1.5d"),
    "nulls": lambda _: b",,,,",
    "quotes around": _field(0, b'"u5"'),
    "separator in quotes": _field(0, b'"u,5"'),
    "quote within": _field(0, b'u"5'),
    "quotes, then more": _field(0, b'"u"5'),
    "doubled quotes": _field(0, b'"u""5"'),
    "escaped quote": _field(0, b'"u\\"5"'),
    "open quote": _field(0, b'"u5'),
    "not UTF-8": _field(0, b"u\xff"),
    "end of Windows": lambda line: line + b"\r",
    "no zone": lambda line: line.replace(b"Z", b""),
    "blank for T": lambda line: line.replace(b"T", b" "),
    "named zone": lambda line: line.replace(b"Z", b" Europe/Paris"),
    "other offset": lambda line: line.replace(b"Z", b"+0130"),
    "epoch": _field(3, b"1714557600000"),
    "30 February": _field(3, b"2024-02-30T10:00:00Z"),
    "no date": _field(4, b"today"),
}

AVRO_SCHEMA: Final = pa.schema(
    [("user", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
_RECORD: Final[dict[str, Any]] = {
    "type": "record",
    "name": "t",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "n", "type": ["null", "long"]},
        {"name": "x", "type": ["null", "double"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
AVRO_TEXT: Final = json.dumps(_RECORD)
"""The schema of :func:`avro_row`."""


def avro_row(i: int) -> bytes:
    """Return a record of Avro."""
    import fastavro

    out = io.BytesIO()
    record = {"user": f"u{i % 97}", "n": i, "x": i * 0.25, "at": 1_714_557_600_000_000 + i * 1_000_000}
    fastavro.schemaless_writer(out, _RECORD, record)
    return out.getvalue()


AVRO: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "tombstone": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda value: value[:-3],
    "bytes left over": lambda value: value + b"\x02",
    "junk": lambda _: b"\xff" * 12,
    "JSON": lambda _: b'{"user": "u1", "n": 5}',
    "not UTF-8": lambda value: value.replace(b"u", b"\xff", 1),
    "far time": lambda value: value[:-8] + b"\xfe" * 8 + b"\x01",
    "nulls": lambda _: b"\0\0\0\0",
}

SENT_TYPES: Final = {"user": pa.string(), "n": pa.int64(), "x": pa.float64(), "at": pa.timestamp("us", "UTC"), "d": pa.date32()}


def sent_row(i: int) -> Row:
    """Return a row as a program sends it."""
    moment = _START + dt.timedelta(seconds=i)
    return {"user": f"u{i % 97}", "n": i, "x": i * 0.25, "at": moment.isoformat(), "d": moment.date()}


def _value(name: str, change: Callable[[Any], Any]) -> Callable[[Row], Row]:
    return lambda row: {**row, name: change(row[name])}


SENT: Final[dict[str, Callable[[Row], Row]]] = {
    "whole float": _value("n", float),
    "NumPy number": _value("n", np.int64),
    "decimal": _value("n", Decimal),
    "NumPy float": _value("x", np.float64),
    "NumPy null": _value("at", lambda _: np.datetime64("NaT")),
    "Z for +00:00": _value("at", lambda text: text.replace("+00:00", "Z")),
    "no zone": _value("at", lambda text: text.replace("+00:00", "")),
    "blank for T": _value("at", lambda text: text.replace("T", " ")),
    "no seconds": _value("at", lambda text: text[:16] + "Z"),
    "nine digits": _value("at", lambda text: text.replace("+", ".123456000+")),
    "datetime": _value("at", dt.datetime.fromisoformat),
    "datetime without zone": _value("at", lambda text: dt.datetime.fromisoformat(text).replace(tzinfo=None)),
    "other zone": _value("at", lambda text: dt.datetime.fromisoformat(text).astimezone(dt.timezone(dt.timedelta(hours=2)))),
    "NumPy time": _value("at", lambda text: np.datetime64(text[:19])),
    "date as text": _value("d", dt.date.isoformat),
    "NumPy date": _value("d", np.datetime64),
    "nulls": lambda row: dict.fromkeys(row),
}


def time_text(i: int) -> str:
    """Return a time as most write it."""
    return (_START + dt.timedelta(seconds=i)).isoformat().replace("+00:00", "Z")


TIMES: Final[dict[str, Callable[[str], str | None]]] = {
    "offset": lambda text: text.replace("Z", "+02:00"),
    "no zone": lambda text: text.replace("Z", ""),
    "blank for T": lambda text: text.replace("T", " "),
    "fraction": lambda text: text.replace("Z", ".123456Z"),
    "epoch": lambda _: "1714557600000",
    "day": lambda text: text[:10],
    "blanks around": lambda text: f" {text} ",
    "30 February": lambda text: text.replace("05-01", "02-30"),
    "no time": lambda _: "yesterday",
    "null": lambda _: None,
}

FIT_SCHEMA: Final = pa.schema([("user", pa.string()), ("n", pa.int32()), ("k", pa.int32()), ("x", pa.float64())])
_ANY: Final = ["null", "long", "string", "double", "bytes"]
_UNFIT: Final[dict[str, Any]] = {
    "type": "record",
    "name": "t",
    "fields": [
        {"name": "user", "type": _ANY},
        {"name": "n", "type": _ANY},
        {"name": "k", "type": "long"},
        {"name": "x", "type": "double"},
    ],
}
FIT_TEXT: Final = json.dumps(_UNFIT)
"""The schema of :func:`fit_row` and of the records of `FIT`."""


def _in_avro(record: Row) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, _UNFIT, record)
    return out.getvalue()


def fit_row(i: int) -> bytes:
    """Return a record of Avro that fits the columns of `FIT_SCHEMA`, though its schema does not say so."""
    return _in_avro({"user": f"u{i % 97}", "n": i, "k": i, "x": i * 0.25})


FIT: Final[dict[str, Callable[[bytes], bytes]]] = {
    "out of range": lambda _: _in_avro({"user": "u1", "n": 1 << 40, "k": 5, "x": 0.5}),
    "wider column": lambda _: _in_avro({"user": "u1", "n": 5, "k": 1 << 40, "x": 0.5}),
    "other type": lambda _: _in_avro({"user": "u1", "n": "many", "k": 5, "x": 0.5}),
    "whole float": lambda _: _in_avro({"user": "u1", "n": 1.0, "k": 5, "x": 0.5}),
    "fraction": lambda _: _in_avro({"user": "u1", "n": 1.5, "k": 5, "x": 0.5}),
    "bytes as text": lambda _: _in_avro({"user": b"u1", "n": 5, "k": 5, "x": 0.5}),
    "several": lambda _: _in_avro({"user": b"u1", "n": 1.5, "k": 1 << 40, "x": 0.5}),
    "null": lambda _: _in_avro({"user": None, "n": None, "k": 5, "x": 0.5}),
}
