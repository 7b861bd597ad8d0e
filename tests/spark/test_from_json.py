"""``from_json`` gives what Spark gives in its permissive mode, value by value (docs/expressions.md)."""

from __future__ import annotations

import os
import random

import pyarrow as pa

from krishiv_py import Session, col
from krishiv_py.kernels.columns.evaluate import evaluate

SCHEMA = (
    "a int, b string, c double, d boolean, e struct<f:bigint,g:array<string>>, "
    "i tinyint, g array<int>, f float, h array<struct<x:int>>"
)
VALUES = [
    *[
        "1",
        "-1",
        "0",
        "-0",
        "1.0",
        "1.5",
        "1.50",
        "1e2",
        "1e10",
        "1e400",
        "-0.0",
        "300",
        "-128",
        "01",
        ".5",
        "12345678901234567890",
        "null",
        "true",
        "false",
        "NaN",
        "nope",
    ],
    *[
        '"true"',
        '"5"',
        '""',
        '"x"',
        '"é"',
        '"\\u00e9\\n"',
        '"\\ud800"',
        '"\\q"',
        '"a\tb"',
        '"NaN"',
        '"Infinity"',
        '"-INF"',
        '"+INF"',
        '"Inf"',
    ],
    *["[]", "[1]", "[1,2.5]", "[1, null]", '["x",null,2]', "{}", '{"f":1}', '{"f":"x","g":5}', '{"f":3,"g":["x", {"q": 1.0}]}'],
    *['{"x": 1, "y" :[1, 2]}', '[{"x":1}]', '[{"x":"q"},{"x":2}]', '[{"x":1},5]', "[null]", "[[1]]"],
]
WHOLE = [
    "",
    " ",
    "\n",
    "null",
    "5",
    '"x"',
    "true",
    "[]",
    "[1]",
    '[{"a":1}]',
    "{",
    "{}",
    "x",
    "}",
    '{"a":1',
    '{"a":1,}',
    '{"a":1}}',
]
WHOLE += [
    '{"a":1} xyz',
    '{"a":1} , "v":{"a":2}',
    '{"a":1}{"a":2}',
    '{"a":1,"a":2}',
    '{"A":1}',
    "{a:1}",
    '\n{"a":\n1}\n',
    '{"a" 1}',
]


def texts() -> list[str]:
    """Every value in every field, and objects of several."""
    actual = [*WHOLE, *(f'{{"{name}":{value}}}' for name in "abcdegfih" for value in VALUES)]
    chance = random.Random(os.environ.get("KRISHIV_SEED", "1"))
    for _ in range(300):
        fields = [f'"{chance.choice("abcdegfihz")}": {chance.choice(VALUES)}' for _ in range(chance.randrange(1, 4))]
        text = "{" + ", ".join(fields) + "}"
        actual.append(text[: chance.randrange(len(text))] if chance.random() < 0.1 else text)
    return actual


def test_values_are_those_of_spark(session: Session) -> None:
    rows = pa.table({"t": [*texts(), None]})
    theirs = session.spark.createDataFrame(rows).selectExpr(f"from_json(t, '{SCHEMA}') AS j").collect()
    actual = evaluate(col("t").from_json(SCHEMA), rows).to_pylist()
    wanted = [None if row.j is None else row.j.asDict(True) for row in theirs]
    wrong = [(t, w, f) for t, w, f in zip(rows["t"].to_pylist(), wanted, actual, strict=True) if repr(w) != repr(f)]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(f"{t!r}\n  Spark {w}\n  ours  {f}" for t, w, f in wrong[:12])
