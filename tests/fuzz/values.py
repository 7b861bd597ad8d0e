"""Values nobody should pass, and some that fit by chance."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from krishiv_py import SlidingWindows, StateTtlConfig, Trigger, WatermarkSpec, col, count, lit
from krishiv_py.testing import stream_of

UTC = dt.timezone.utc


class Mute:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Fickle:
    """Answers every question about equality with an array."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


class SparkColumn:
    """Behaves as a column of PySpark: has any attribute, and raises where Python asks for members or a truth value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: object) -> Any:
        return self

    def __iter__(self) -> Any:
        raise TypeError("Column is not iterable")

    def __bool__(self) -> bool:
        raise ValueError("Cannot convert column into bool")

    def __eq__(self, other: object) -> Any:
        return self

    def __repr__(self) -> str:
        return "Column<'x'>"

    __hash__ = None  # type: ignore[assignment]


WRONG: Final[dict[str, Callable[[], Any]]] = {
    "a column of PySpark": SparkColumn,
    "None": lambda: None,
    "zero": lambda: 0,
    "five": lambda: 5,
    "minus one": lambda: -1,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "1e300": lambda: 1e300,
    "True": lambda: True,
    "False": lambda: False,
    "empty text": lambda: "",
    "blank": lambda: " ",
    "text": lambda: "wobble",
    "column name": lambda: "at",
    "number text": lambda: "5",
    "long text": lambda: "5 s " * 400,
    "NUL": lambda: "\x00",
    "lone surrogate": lambda: "\ud800",
    "format text": lambda: "{0} %s",
    "bytes": lambda: b"at",
    "list": lambda: [],
    "list of five": lambda: [5],
    "list of texts": lambda: ["at"],
    "list of None": lambda: [None],
    "tuple": lambda: (),
    "dict": lambda: {},
    "dict of five": lambda: {"at": 5},
    "dict by five": lambda: {5: "at"},
    "set": lambda: {1},
    "frozenset": lambda: frozenset({"at"}),
    "object": object,
    "a type": lambda: int,
    "a function": lambda: len,
    "lambda": lambda: lambda: None,
    "generator": lambda: (i for i in range(2)),
    "complex": lambda: 1j,
    "decimal": lambda: decimal.Decimal("1.5"),
    "decimal nan": lambda: decimal.Decimal("NaN"),
    "datetime": lambda: dt.datetime(2024, 1, 1, tzinfo=UTC),
    "least datetime": lambda: dt.datetime.min,
    "date": lambda: dt.date(2024, 1, 1),
    "timedelta": lambda: dt.timedelta(seconds=1),
    "longest timedelta": lambda: dt.timedelta.max,
    "numpy array": lambda: np.array([1, 2]),
    "numpy int": lambda: np.int64(5),
    "numpy text": lambda: np.str_("at"),
    "Arrow array": lambda: pa.array([1, 2]),
    "Arrow scalar": lambda: pa.scalar(5),
    "Arrow type": lambda: pa.int64(),
    "Arrow schema": lambda: pa.schema([("at", pa.int64())]),
    "Arrow table": lambda: pa.table({"at": [1]}),
    "column": lambda: col("at"),
    "odd column": lambda: col("nowhere"),
    "star": lambda: col("*"),
    "literal": lambda: lit(5),
    "comparison": lambda: col("at") > 3,
    "aggregate": count,
    "an aggregate function": lambda: count,
    "stream": lambda: stream_of("at bigint"),
    "watermark": lambda: WatermarkSpec.fixed_lag(5),
    "trigger": lambda: Trigger.on_count(2),
    "windows": lambda: SlidingWindows.of(10),
    "TTL": lambda: StateTtlConfig(5),
    "mute": Mute,
    "fickle": Fickle,
    "an exception": lambda: ValueError("x"),
}
