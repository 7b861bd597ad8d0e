"""Aggregates with a range of their own in a look-back window: as if each had a query of its own (SEMANTICS §11.4)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import Driver, stream_of
from tests.kernels.ranged.per_row import Plan, plans
from tests.kernels.ranged.test_lookback import rows_of

SCHEMA = "id bigint, key string, at bigint, value bigint"
CALLS = {
    "n": kv.count(),
    "total": kv.sum("value"),
    "low": kv.min("value"),
    "first": kv.first("id"),
    "ids": kv.collect_list("id"),
    "kinds": kv.count_distinct("value"),
    "middle": kv.percentile("value"),
    "spread": kv.variance("value"),
}


def keyed(plan: Plan) -> KeyedStream:
    timed = stream_of(SCHEMA).watermark("at", plan.lag).key_by("key").emit(plan.emit)
    return timed.allowed_lateness(plan.lateness) if plan.lateness else timed


def results_of_plan(
    plan: Plan, stream: KeyedStream, size: int, over: int | None, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """The result of every row, by the row; bounds left out, which are those of the window."""
    calls = [c.alias(name) if over is None else c.over(over).alias(name) for name, c in CALLS.items()]
    driver = Driver(stream.lookback_window(size, with_row=True, **options).agg(calls))
    actual = []
    for number, batch in enumerate(rows_of(plan)):
        driver = driver.restarted() if number % 2 else driver
        actual += driver.send(batch).results.to_pylist()
    actual += driver.close().results.to_pylist()
    return sorted(({n: v for n, v in row.items() if not n.startswith("window_")} for row in actual), key=lambda r: r["id"])


@given(
    plan=plans(rows=st.integers(0, 40), batches=st.integers(1, 4), lateness=st.integers(0, 4)),
    over=st.integers(0, 12),
    two_sided=st.booleans(),
    exclude_self=st.booleans(),
    emit=st.sampled_from(["watermark", "arrival"]),
)
def test_a_range_of_its_own_is_that_of_a_query_of_its_own(
    plan: Plan, over: int, two_sided: bool, exclude_self: bool, emit: Literal["watermark", "arrival"]
) -> None:
    options = {"two_sided": two_sided and emit == "arrival", "exclude_self": exclude_self, "emit": emit}
    wide = results_of_plan(plan, keyed(plan), plan.size + over, plan.size, options)
    assert wide == results_of_plan(plan, keyed(plan), plan.size, None, options)


def test_several_ranges_in_one_pass() -> None:
    stream = stream_of("at bigint, x bigint").watermark("at", 0).lookback_window("1 min", emit="arrival")
    driver = Driver(stream.agg(kv.count(), kv.count().over("10 s"), kv.sum("x").over("30 s"), kv.max("x").over(0).alias("now")))
    rows = driver.send([{"at": s * 1_000, "x": s} for s in (0, 25, 30, 40, 61)]).results
    assert rows.schema.names == ["window_start", "window_end", "count", "count_10_s", "sum_x_30_s", "now"]
    assert rows.select([2, 3, 4, 5]).to_pylist()[-1] == {"count": 4, "count_10_s": 1, "sum_x_30_s": 61 + 40, "now": 61}


def test_the_state_shows_what_each_range_holds() -> None:
    driver = Driver(
        stream_of("at bigint").watermark("at", 100).lookback_window(50).agg(kv.count(), kv.count().over(5).alias("n"))
    )
    driver.send([{"at": t} for t in (0, 10, 14)])
    assert [(r["count"], r["n"]) for r in driver.state().to_pylist()] == [(1, 1), (2, 1), (3, 2)]


def test_what_has_no_range_is_refused_and_a_checkpoint_knows_it() -> None:
    stream = stream_of("at bigint").watermark("at", 0)
    with pytest.raises(PlanError, match=r"(?s)look-back windows only.*tumbling"):
        stream.tumbling_window(10).agg(kv.count().over(5))
    with pytest.raises(PlanError, match=r"(?s)further than its window.*Hint: write \.lookback_window\(\"20 ms\"\)"):
        stream.lookback_window(10).agg(kv.count().over(20))
    for wrong in (-1, 1.5, True, "soon"):
        with pytest.raises(DurationError):
            kv.count().over(wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="one output name"):
        stream.lookback_window(10).agg(kv.count().over(5), kv.count().over(5))
    with_range, without = (fingerprint(stream.lookback_window(10).agg(c)._spec()) for c in (kv.count().over(5), kv.count()))
    assert differences(without, with_range) != []
    assert "OVER 5 ms" in stream.lookback_window(10).agg(kv.count().over(5)).explain()
