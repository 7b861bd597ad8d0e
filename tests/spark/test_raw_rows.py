"""Rows of frames that go on in plain Spark, without a JVM: what would go to a late output is an error there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from krishiv_py import OperatorError, count
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.spark.tasks.pack import RawPack
from krishiv_py.testing import Driver, stream_of

ROWS = pa.record_batch({"amount": [1, -1, 2], "at": [1, 2, 3]})


@pytest.mark.parametrize("on_fail", ["side_output", "drop"])
def test_a_row_that_fails_an_expectation(on_fail: str) -> None:
    plan = stream_of("amount bigint, at bigint").expect("amount > 0", on_fail=on_fail)  # type: ignore[arg-type]
    driver = Driver(plan.watermark("at", 0).tumbling_window(10).agg(count()))
    pack = RawPack(driver._plan.stage.spec, lambda batch: iter([ScannedRows(batch)]), (0,))  # type: ignore[arg-type]
    if on_fail == "drop":
        assert [batch.column("kind").to_pylist() for batch in pack._rows(iter([ROWS]), 0)] != []
        return
    with pytest.raises(OperatorError, match=r"1 rows have to go to the late output.*on_fail=\"drop\""):
        list(pack._rows(iter([ROWS]), 0))
