"""Expressions next to Spark's: the same text over the same rows, value or error, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from krishiv_py import Session
from krishiv_py.plan.expressions.parse import parse_expr
from tests.spark.test_expressions import Spark, ours, same


def check_rows(session: Session, rows: pa.Table, texts: Sequence[str], equal: Callable[[Any, Any], bool] = same) -> None:
    """Fail with the first row of each text in which ours is not what Spark gives."""
    spark = Spark(session, rows)
    try:
        actual = spark.values(list(texts))
    except AnalysisException:
        pytest.fail("Spark refuses\n" + "\n".join(f"{t}\n    {why}" for t in texts if (why := spark.refuses(t))))
    wrong = []
    for text, (type_, theirs) in zip(texts, actual, strict=True):
        for i, (x, y) in enumerate(zip(ours(parse_expr(text), rows), theirs, strict=True)):
            if not equal(x, y):
                row = {n: rows[n][i].as_py() for n in rows.schema.names if n in text}
                wrong.append(f"{text}\n    ours {x!r}, Spark {y!r} ({type_}), row {row}")
                break
    assert not wrong, f"{len(wrong)} of {len(texts)}:\n" + "\n".join(wrong)
