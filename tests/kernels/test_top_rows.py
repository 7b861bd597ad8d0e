"""Rows with ranks: lists of top_k as rows of their own, against a plain reading of SEMANTICS §5.6. No Spark needed."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import col, collect_list, count, first, sum, top_k
from krishiv_py.errors import KrishivError
from krishiv_py.kernels.columns.steps import Unnest
from krishiv_py.testing import Driver, stream_of

ROWS = st.lists(
    st.fixed_dictionaries(
        {"user": st.sampled_from(["a", "b", None]), "n": st.sampled_from([None, -1, 0, 1, 2]), "at": st.integers(-50, 50)}
    ),
    max_size=30,
).map(lambda rows: [{**row, "nr": nr} for nr, row in enumerate(rows)])


def ranked(rows: list[dict[str, Any]], k: int, smallest: bool) -> list[tuple[Any, ...]]:
    """The first `k` rows of each user and window of 20, one by one."""
    actual: list[tuple[Any, ...]] = []
    for start in sorted({row["at"] // 20 * 20 for row in rows}):
        for user in (None, "a", "b"):
            own = [row for row in rows if row["user"] == user and row["at"] // 20 * 20 == start]
            own.sort(key=lambda row: (row["n"] is None, (row["n"] or 0) * (1 if smallest else -1), row["at"], row["nr"]))
            actual += [(user, start, start + 20, row["n"], row["nr"], place) for place, row in enumerate(own[:k], 1)]
    return actual


def run(stream: Any, rows: list[dict[str, Any]], cut: int, restarts: bool = False) -> list[tuple[Any, ...]]:
    driver, actual = Driver(stream), []
    for i in range(0, len(rows), cut):
        actual += driver.send(rows[i : i + cut]).results.to_pylist()
        driver = driver.restarted() if restarts else driver
    actual += driver.close().results.to_pylist()
    return [tuple(row.values()) for row in actual]


@given(rows=ROWS, k=st.integers(1, 4), smallest=st.booleans(), cut=st.integers(1, 9), restarts=st.booleans())
def test_ranks_are_those_of_the_rows_in_order(
    rows: list[dict[str, Any]], k: int, smallest: bool, cut: int, restarts: bool
) -> None:
    windowed = stream_of("user string, n bigint, at bigint, nr bigint").watermark("at", 200).key_by("user").tumbling_window(20)
    actual = run(windowed.top_rows(k, "n", "nr", smallest=smallest), rows, cut, restarts)
    assert sorted(actual, key=repr) == sorted(ranked(rows, k, smallest), key=repr)


@given(rows=ROWS, k=st.integers(1, 4), turned=st.booleans(), cut=st.integers(1, 9), restarts=st.booleans())
def test_equal_rows_go_by_what_follows(rows: list[dict[str, Any]], k: int, turned: bool, cut: int, restarts: bool) -> None:
    windowed = stream_of("user string, n bigint, at bigint, nr bigint").watermark("at", 200).tumbling_window(20)
    then: Any = [("user", "smallest" if turned else "largest"), (col("n").alias("again"), "smallest"), ("nr", "largest")]
    actual = run(windowed.top_rows(k, "n", "at", smallest=turned, then=then), rows, cut, restarts)
    wanted = []
    for start in sorted({row["at"] // 20 * 20 for row in rows}):
        own = [row for row in rows if row["at"] // 20 * 20 == start]
        own.sort(key=lambda row: -row["nr"])
        own.sort(key=lambda row: row["user"] or "", reverse=not turned)
        own.sort(key=lambda row: row["user"] is None)
        own.sort(key=lambda row: (row["n"] is None, (row["n"] or 0) * (1 if turned else -1)))
        wanted += [
            (start, start + 20, r["n"], r["user"], r["n"], r["nr"], r["at"], place) for place, r in enumerate(own[:k], 1)
        ]
    assert sorted(actual, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("then", ["user", ["user"], [("user", "ASC")], [("user",)], 5, [(5, "smallest")]])
def test_what_is_no_order_is_refused(then: Any) -> None:
    with pytest.raises(KrishivError, match=r"`then` is a list of columns|takes columns"):
        top_k(2, "n", then=then)


@given(rows=ROWS, cut=st.integers(1, 9))
def test_a_stage_takes_the_ranked_rows_in_their_order(rows: list[dict[str, Any]], cut: int) -> None:
    windowed = stream_of("user string, n bigint, at bigint, nr bigint").watermark("at", 200).tumbling_window(20)
    best = windowed.top_rows(3, "n", "nr", rank="place").filter("place > 1")
    chained = best.tumbling_window(40).agg(count(), sum("place").alias("places"), collect_list("place"), first("nr"))
    for _, _, rows_in, places, listed, _ in run(chained, rows, cut):
        assert len(listed) == rows_in and functools.reduce(operator.add, listed) == places
        assert listed[0] == 2 and all(after == 2 for place, after in itertools.pairwise(listed) if place == 3)


def test_empty_and_null_lists_and_plain_items() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, 3, 4], "v": pa.array([[5, 6], None, [], [7]], pa.list_(pa.int32()))})
    for part in (batch, batch.slice(1), batch.slice(0, 0)):
        made = Unnest("v", "n")(part)
        rows = [(r["k"], v, n) for r in part.to_pylist() for n, v in enumerate(r["v"] or [], 1)]
        assert [tuple(r.values()) for r in made.to_pylist()] == rows
        assert made.schema.names == ["k", *(f.name for f in Unnest("v", "n").fields(part.schema))]


WINDOWED = (
    stream_of("user string, n bigint, at bigint, window_time bigint").watermark("at", 0).key_by("user").tumbling_window(20)
)


@pytest.mark.parametrize(
    "call",
    [
        lambda: WINDOWED.top_rows(2, "n", "user"),
        lambda: WINDOWED.top_rows(2, "n", "n"),
        lambda: WINDOWED.top_rows(2, "n", rank="N"),
        lambda: WINDOWED.top_rows(2, "n", rank="window_end"),
        lambda: WINDOWED.top_rows(2, "n", rank=""),
        lambda: WINDOWED.top_rows(0, "n"),
        lambda: WINDOWED.top_rows(2, "nn"),
        lambda: WINDOWED.top_rows(2, "n", "window_time").filter("rank > 1").tumbling_window(50),
        lambda: WINDOWED.top_rows(2, "n", smallest="yes"),  # type: ignore[arg-type]
        lambda: WINDOWED.agg(count()).results().unnest("count"),
        lambda: WINDOWED.agg(count()).results().unnest("nothing"),
        lambda: WINDOWED.agg(top_k(2, "n").alias("top")).results().unnest("top", rank="count").select("nothing"),
    ],
)
def test_wrong_calls_have_errors_with_a_hint(call: Any) -> None:
    with pytest.raises(KrishivError, match="Hint:"):
        call()


def test_updates_withdraw_each_row() -> None:
    stream = stream_of("n bigint, at bigint").watermark("at", 0).tumbling_window(10).allowed_lateness(100)
    log = Driver(stream.agg(top_k(2, "n").alias("top")).emit("retractions").results().unnest("top", rank="rank"))
    log.send([{"n": 1, "at": 1}, {"n": 2, "at": 30}])
    lines = log.send([{"n": 5, "at": 2}]).results.to_pylist()
    assert [(r["op"], r["n"], r["rank"]) for r in lines] == [("-U", 1, 1), ("+U", 5, 1), ("+U", 1, 2)]
