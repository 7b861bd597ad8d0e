"""Names of columns that could clash with the library's own. No Spark needed; what Spark adds is in test_frames.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import (
    CountByKeyLateEventHandler,
    CountingLateEventHandler,
    MemorySink,
    SideOutputLateEventHandler,
    col,
    collect_list,
    count,
    first,
    max,
)
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.testing import Driver, stream_of

ODD = [
    "reason",
    "late_reason",
    "watermark",
    "lateness",
    "__t",
    "__g",
    "__d",
    "k0",
    "a0",
    "l0",
    "p0_0",
    "bucket",
    "kind",
    "seq",
    "a.b",
    "a`b",
    "`",
    ".",
    "x y",
    "värde",
    "東京",
    "source",
    "batch",
    "count",
    "key",
    "time",
    "slice",
    "id",
    "n",
    "start",
    "end",
    "pane_index",
    "pane_timing",
    "row",
    "rank",
    "null",
    "select",
    "a'b",
    'a"b',
    "a,b;{}()=",
    "new\nline",
    "now_us",
]
RESULT_ONLY = {"window_start", "window_end", "op"}


def rows(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1, 2, 3])] * (len(names) + 1), names=["at", *names])


def stream(*names: str) -> Any:
    return stream_of(rows(*names).schema)


@pytest.mark.parametrize(
    "handler", [CountingLateEventHandler, CountByKeyLateEventHandler, lambda: SideOutputLateEventHandler(MemorySink())]
)
@pytest.mark.parametrize("window", ["fixed", "session", "count"])
def test_odd_names_are_keys_values_and_late_rows(handler: Any, window: str) -> None:
    names = [*ODD, *RESULT_ONLY]
    keyed = stream(*names).watermark("at", 0).key_by(*ODD)
    windowed = {
        "fixed": lambda: keyed.tumbling_window(10),
        "count": lambda: keyed.count_window(1),
        "session": lambda: keyed.late_rule("window").session_window(10),
    }[window]()
    taken = handler()
    driver = Driver(windowed.agg(*(collect_list(col(n)).alias(f"of {n}") for n in names)).with_late_event_handler(taken))
    driver.send(rows(*names))
    driver.send(pa.RecordBatch.from_arrays([pa.array([500])] * (len(names) + 1), names=["at", *names]))
    late = driver.send(rows(*names)).late
    if window != "count":
        assert late.num_rows == 3
        assert late.schema.names[-3:] == ["late_late_reason", "late_watermark", "late_lateness"]
        assert late["late_late_reason"].to_pylist() == ["late"] * 3
    if window == "fixed" and not isinstance(taken, SideOutputLateEventHandler):
        assert taken.total == 3
    results = driver.close().results
    assert set(ODD) <= set(results.schema.names)


def test_reasons_are_counted_though_a_column_has_their_name() -> None:
    handler = CountingLateEventHandler()
    driver = Driver(stream("reason").watermark("at", 0).tumbling_window(1).agg(count()).with_late_event_handler(handler))
    driver.send(rows("reason"))
    driver.send(rows("reason"))
    assert handler.by_reason == Counter({"late": 2})


def test_the_added_names_ignore_case() -> None:
    driver = Driver(stream("Reason", "LATE_reason").watermark("at", 0).tumbling_window(1).agg(count()))
    driver.send(rows("Reason", "LATE_reason"))
    late = driver.send(rows("Reason", "LATE_reason")).late
    assert late.schema.names == ["at", "Reason", "LATE_reason", "late_late_reason", "watermark", "lateness"]


@pytest.mark.parametrize("name", ["", "*", "__krishiv_x", "AT"])
def test_names_that_cannot_be_are_refused_where_they_are_given(name: str) -> None:
    for call in (
        lambda: stream_of(pa.schema([("at", pa.int64()), (name, pa.int64())])),
        lambda: stream().with_column(name, col("at")),
        lambda: stream("x").rename(x=name),
        lambda: stream().select("at", col("at").alias(name)),
    ):
        with pytest.raises((SchemaError, PlanError), match="Hint"):
            call()


@pytest.mark.parametrize("name", [*sorted(RESULT_ONLY), "WINDOW_START"])
def test_keys_and_aggregates_named_like_the_results_own_are_refused(name: str) -> None:
    keyed = stream(name).watermark("at", 0)
    with pytest.raises(PlanError, match="named like a window column"):
        keyed.key_by(name).tumbling_window(1).agg(count())
    with pytest.raises(PlanError, match="named like a window column"):
        keyed.tumbling_window(1).agg(max(col(name)).alias(name))
    with pytest.raises(PlanError, match="named like a key column"):
        stream("x").watermark("at", 0).key_by("x").tumbling_window(1).agg(first("at").alias("X"))
