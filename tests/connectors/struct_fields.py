"""Differences between what comes in and a schema, at every depth: for columns and for fields of structs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

Outcome: TypeAlias = Literal["same", "null", "skip", "refused"]
"""A field is taken, is null, is left out; or the row, batch or file is refused."""

WANTED: Final = pa.struct([("id", pa.int64()), ("n", pa.string())])
DIFFERENCES: Final[dict[str, tuple[dict[str, Any], pa.DataType]]] = {
    "same": ({"id": 1, "n": "x"}, pa.struct([("id", pa.int64()), ("n", pa.string())])),
    "other order": ({"n": "x", "id": 1}, pa.struct([("n", pa.string()), ("id", pa.int64())])),
    "narrower": ({"id": 1, "n": "x"}, pa.struct([("id", pa.int32()), ("n", pa.large_string())])),
    "missing": ({"id": 1}, pa.struct([("id", pa.int64())])),
    "further": ({"id": 1, "n": "x", "z": 5}, pa.struct([("id", pa.int64()), ("n", pa.string()), ("z", pa.int64())])),
    "misspelt": ({"id": 1, "m": "x"}, pa.struct([("id", pa.int64()), ("m", pa.string())])),
    "other case": ({"id": 1, "N": "x"}, pa.struct([("id", pa.int64()), ("N", pa.string())])),
    "case twice": ({"id": 1, "N": "x", "n": "y"}, pa.struct([("id", pa.int64()), ("N", pa.string()), ("n", pa.string())])),
    "other type": ({"id": "1", "n": "x"}, pa.struct([("id", pa.string()), ("n", pa.string())])),
    "too large": ({"id": 2**63, "n": "x"}, pa.struct([("id", pa.uint64()), ("n", pa.string())])),
}
ROWS: Final[dict[Outcome, dict[str, Any]]] = {
    "same": {"id": 1, "n": "x"},
    "null": {"id": 1, "n": None},
    "skip": {"id": 1, "n": "y"},
}
DEPTHS: Final[dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]]] = {
    "field": (lambda t: t, lambda v: v),
    "field of a field": (lambda t: pa.struct([("in", t)]), lambda v: {"in": v}),
    "field in a list": (lambda t: pa.list_(t), lambda v: [None, v]),
    "field in a map": (lambda t: pa.map_(pa.string(), t), lambda v: [("k", v), ("none", None)]),
    "field in a list in a field": (lambda t: pa.struct([("in", pa.list_(t))]), lambda v: {"in": [v, v]}),
    "field in a list of maps": (lambda t: pa.list_(pa.map_(pa.string(), t)), lambda v: [[("k", v)], None]),
}


def wanted(depth: str) -> pa.Schema:
    """The schema of a stream."""
    if depth == "column":
        return pa.schema([*WANTED, ("at", pa.int64())])
    return pa.schema([("u", DEPTHS[depth][0](WANTED)), ("at", pa.int64())])


def came(depth: str, difference: str) -> pa.Table:
    """Two rows as they come in, the second with nulls only where there may be some."""
    value, type_ = DIFFERENCES[difference]
    if depth == "column":
        return pa.Table.from_pylist([{**value, "at": 1}], pa.schema([*type_, ("at", pa.int64())]))
    make, hold = DEPTHS[depth]
    schema = pa.schema([("u", make(type_)), ("at", pa.int64())])
    return pa.Table.from_pylist([{"u": hold(value), "at": 1}, {"u": None, "at": 2}], schema)


def expected(depth: str, outcome: Outcome) -> Any:
    """The rows that come out."""
    row = ROWS[outcome]
    if depth == "column":
        return [{**row, "at": 1}]
    hold = DEPTHS[depth][1]
    return pa.Table.from_pylist([{"u": hold(row), "at": 1}, {"u": None, "at": 2}], wanted(depth)).to_pylist()
