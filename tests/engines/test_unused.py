"""Only what is needed is computed, on the driver too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import CountByKeyLateEventHandler, MemorySink, SideOutputLateEventHandler, col, count, lit, max
from krishiv_py.errors import OperatorError
from krishiv_py.testing import Driver, stream_of

BAD = [{"at": 1, "code": "x"}, {"at": 2, "code": "7"}]


def stream() -> Any:
    return stream_of("at bigint, code string").with_column("number", col("code").cast("int"))


def test_a_column_that_cannot_be_computed_and_is_not_used_stops_nothing() -> None:
    driver = Driver(stream().watermark("at", 0).tumbling_window(10).agg(count()))
    driver.send(BAD)
    late = driver.send(BAD).late
    assert late.select(["at", "code", "reason"]).to_pylist() == [{"at": 1, "code": "x", "reason": "late"}]
    assert driver.close().results["count"].to_pylist() == [3]


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.watermark("at", 0).tumbling_window(10).agg(max("number")),
        lambda s: s.watermark("at", 0).key_by("number").tumbling_window(10).agg(count()),
        lambda s: s.filter(col("number") > 0).watermark("at", 0).tumbling_window(10).agg(count()),
        lambda s: s.watermark("at", 0).tumbling_window(10).agg(count().filter(col("number") > 0)),
        lambda s: s.with_column("twice", col("number") * 2).watermark("at", 0).tumbling_window(10).agg(max("twice")),
        lambda s: (
            s.watermark("at", 0)
            .tumbling_window(10)
            .agg(count())
            .with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
        ),
        lambda s: s.map_batches(lambda b: b).watermark("at", 0).tumbling_window(10).agg(count()),
    ],
)
def test_one_that_is_used_stops_it(use: Any) -> None:
    with pytest.raises(OperatorError, match="cannot be computed"):
        Driver(use(stream())).send(BAD)


def test_late_rows_show_what_needs_no_computing_or_is_computed_anyway() -> None:
    plan = (
        stream()
        .with_column("twice", col("at") * 2)
        .with_column("b", col("code"))
        .rename(at="t", b="c")
        .watermark("t", 0)
        .tumbling_window(10)
        .agg(max("twice"))
    )
    driver = Driver(plan)
    driver.send(BAD)
    assert driver.send(BAD).late.schema.names == ["t", "code", "twice", "c", "reason", "watermark", "lateness"]


def test_keys_are_shown_to_a_handler_that_wants_them() -> None:
    handler = CountByKeyLateEventHandler()
    plan = stream().with_column("k", col("at") % 2).watermark("at", 0).key_by("k").tumbling_window(10).agg(count())
    driver = Driver(plan.with_late_event_handler(handler))
    driver.send(BAD)
    driver.send(BAD)
    assert handler.by_key == {(1,): 1}


def test_rows_are_counted_though_nothing_of_a_step_is_read() -> None:
    plan = (
        stream_of("code string")
        .with_column("number", col("code").cast("int"))
        .select("number")
        .select(at=lit(5))
        .watermark("at", 0)
        .tumbling_window(10)
        .agg(count())
    )
    driver = Driver(plan)
    driver.send([{"code": "x"}, {"code": "y"}])
    assert driver.close().results["count"].to_pylist() == [2]


def test_a_step_before_a_mapping_function_is_computed() -> None:
    seen: list[list[str]] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema.names)
        return batch

    looked = stream_of("at bigint").with_column("x", col("at") + 1).map_batches(look)
    Driver(looked.watermark("at", 0).tumbling_window(1).agg(count())).send([{"at": 1}])
    assert seen == [["at", "x"]]
