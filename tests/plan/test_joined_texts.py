"""``concat_ws``, and constants that are lists."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ExpressionError, col, func
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.testing import collect, stream_of

ROWS = pa.table({"s": ["a", None, "", None], "t": ["x", "y", None, None], "l": [["p", None, "q"], [], None, None]})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("concat_ws('-', s, t)", ["a-x", "y", "", ""]),
        ("concat_ws('-', s, NULL, t, '')", ["a-x-", "y-", "-", ""]),
        ("concat_ws('/', s, l, t)", ["a/p/q/x", "y", "", ""]),
        ("concat_ws(t, s, 'b')", ["axb", "b", None, None]),
        ("concat_ws(NULL, s)", [None] * 4),
        ("concat_ws('-')", [""] * 4),
        ("concat_ws('-', NULL)", [""] * 4),
        ("concat_ws('-', split('1 2', ' '), s)", ["1-2-a", "1-2", "1-2-", "1-2"]),
    ],
)
def test_texts_are_joined_with_a_separator(text: str, wanted: list[Any]) -> None:
    assert evaluate(parse_expr(text), ROWS).to_pylist() == wanted
    assert evaluate(parse_expr(text), ROWS.slice(0, 0)).to_pylist() == []


def test_only_texts_are_joined() -> None:
    for wrong in ("concat_ws('-', 1)", "concat_ws(1, s)", "concat_ws('-', named_struct('a', s))"):
        with pytest.raises(ExpressionError, match="do not fit"):
            evaluate(parse_expr(wrong), ROWS)
    assert parse_expr("concat_ws('-', s, t)").same_as(func("concat_ws", "-", col("s"), col("t")))


def test_a_constant_that_is_a_list_is_a_column_like_others() -> None:
    rows = stream_of("n bigint")
    parts = rows.with_column("parts", "split('a,b', ',')")
    read = rows.with_column("read", """from_json('{"l": [1]}', 'l array<int>')""")
    actual, json = collect([parts, read], [{"n": 1}, {"n": 2}])
    assert actual["parts"].to_pylist() == [["a", "b"]] * 2
    assert json["read"].to_pylist() == [{"l": [1]}] * 2
