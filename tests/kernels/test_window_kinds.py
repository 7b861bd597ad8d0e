"""What holds of aggregates whatever the kind of window: nothing to aggregate, and the order in which accumulators meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.testing import Driver, stream_of

KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda k: k.tumbling_window(1_000),
    "hopping": lambda k: k.hopping_window(1_000, 250),
    "counted firings": lambda k: k.trigger(kv.Trigger.on_count(2)).tumbling_window(1_000),
    "every element": lambda k: k.trigger(kv.Trigger.on_every_element()).hopping_window(1_000, 500),
    "session": lambda k: k.session_window(1_000),
    "session, every element": lambda k: k.trigger(kv.Trigger.on_every_element()).session_window(1_000),
    "capped session": lambda k: k.session_window(1_000, max_duration=2_000),
    "count": lambda k: k.count_window(3),
    "look-back": lambda k: k.lookback_window(1_000),
    "distinct-set": lambda k: k.windowed_by(kv.SlidingWindows.of(1_000).grace(10_000)),
    "panes": lambda k: k.time_interval_window(kv.TimeIntervalWindowOptions("1 s", "250 ms", "10 s")),
}
EMPTY = [
    (kv.count("x"), 0),
    (kv.count_distinct("x"), 0),
    (kv.approx_count_distinct("x"), 0),
    (kv.collect_list("x"), []),
    (kv.collect_set("x"), []),
    (kv.sum("x"), None),
    (kv.avg("x"), None),
    (kv.min("x"), None),
    (kv.max("x"), None),
    (kv.first("x"), None),
    (kv.last("x"), None),
    (kv.variance("x"), None),
    (kv.stddev("x"), None),
    (kv.percentile("x"), None),
    (kv.approx_percentile("x"), None),
    (kv.approx_percentile("x", [0.1, 0.9]), None),
    (kv.histogram("x", [1, 2]), [0, 0, 0]),
]


@pytest.mark.parametrize("type_", ["double", "bigint"])
@pytest.mark.parametrize("kind", KINDS)
def test_over_nothing_counts_are_0_lists_empty_and_all_else_null(kind: str, type_: str) -> None:
    keyed = stream_of(f"key string, at bigint, x {type_}").watermark("at", 0).key_by("key")
    aggs = [call.alias(f"a{i}") for i, (call, _) in enumerate(EMPTY)]
    driver = Driver(KINDS[kind](keyed).agg(aggs))
    sent = [driver.send([{"key": "k", "at": t, "x": None}]).results for t in (1, 5, 9)] + [driver.close().results]
    rows = [row for table in sent for row in table.to_pylist()]
    assert rows
    for row in rows:
        assert [row[f"a{i}"] for i in range(len(EMPTY))] == [value for _, value in EMPTY]


class Listed:
    """Values one after the other: shows the order in which they came."""

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [*accumulator, value]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right

    def finish(self, accumulator: list[int]) -> list[int]:
        return accumulator


BY_TIME = ("hopping", "capped session", "look-back", "distinct-set", "panes")
ORDERED = [k for k in KINDS if k not in BY_TIME]


@pytest.mark.parametrize("kind", BY_TIME)
def test_other_windows_lose_no_value_and_take_none_twice(kind: str) -> None:
    keyed = stream_of("key string, at bigint, n bigint").watermark("at", 5_000).key_by("key")
    driver = Driver(KINDS[kind](keyed).agg(kv.udaf(Listed(), "n", pa.list_(pa.int64())).alias("came")))
    times = [500, 900, 0, 300, 600]
    sent = [driver.send([{"key": "k", "at": t, "n": i}]).results for i, t in enumerate(times)] + [driver.close().results]
    actual = [row["came"] for table in sent for row in table.to_pylist()]
    assert all(len(set(came)) == len(came) for came in actual)
    assert max(map(len, actual)) == len(times)


@pytest.mark.parametrize("kind", ORDERED)
@given(times=st.lists(st.integers(0, 900), min_size=1, max_size=9), width=st.integers(1, 4))
def test_earlier_arrivals_are_on_the_left(kind: str, times: list[int], width: int) -> None:
    """Of sessions, as long as no row joins two of them: all rows here lie within one gap."""
    keyed = stream_of("key string, at bigint, n bigint").watermark("at", 5_000).key_by("key")
    driver = Driver(KINDS[kind](keyed).agg(kv.udaf(Listed(), "n", pa.list_(pa.int64())).alias("came")))
    rows = [{"key": "k", "at": t, "n": i} for i, t in enumerate(times)]
    sent = [driver.send(rows[i : i + width]).results for i in range(0, len(rows), width)] + [driver.close().results]
    actual = [row["came"] for table in sent for row in table.to_pylist()]
    assert actual or kind == "count"  # a count window that was not filled has no result
    for came in actual:
        assert came == sorted(came)
