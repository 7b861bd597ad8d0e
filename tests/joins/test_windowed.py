"""Window joins against nested loops (SEMANTICS §9.3): any batches, any order of arrival, restarts."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import windows
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.testing import Driver, stream_of
from tests.joins.test_interval import LEFT, RIGHT, inputs, sent
from tests.reference.joins import Clock, How, Row, Side, WindowJoin


@attrs.frozen
class Plan:
    """A join and its input."""

    size: int
    slide: int
    how: How
    lags: dict[Side, int]
    lateness: int
    by_window: bool
    batches: list[list[Row]]
    restarts: set[int]
    idle_batches: bool

    def joined(self) -> ResultStream:
        left = stream_of(LEFT).watermark("at", self.lags["left"])
        right = stream_of(RIGHT).watermark("seen", self.lags["right"])
        joined = left.window_join(right, "key", window=windows.hopping(self.size, self.slide), how=self.how)
        return joined.allowed_lateness(self.lateness).late_rule("window" if self.by_window else "event")

    def reference(self) -> WindowJoin:
        clock = Clock(self.lags)
        return WindowJoin(self.size, self.slide, self.how, self.lateness, self.by_window, clock, self.idle_batches)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 9))
    return Plan(
        size,
        draw(st.integers(1, size)),
        draw(st.sampled_from(get_args(How))),
        {"left": draw(st.integers(0, 4)), "right": draw(st.integers(0, 4))},
        draw(st.integers(0, 4)),
        draw(st.booleans()),
        draw(inputs()),
        draw(st.sets(st.integers(0, 7), max_size=3)),
        draw(st.booleans()),
    )


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda r: [(x is None, x) for x in r])


@given(plans())
def test_results_are_those_of_nested_loops(plan: Plan) -> None:
    driver, reference = Driver(plan.joined(), idle_batches=plan.idle_batches), plan.reference()
    for number, batch in enumerate([*plan.batches, None]):
        if number in plan.restarts:
            driver = driver.restarted()
        before = driver.counters.get("unmatched", 0)
        out = driver.close() if batch is None else driver.send(sent(batch))
        results, late, unmatched = reference.close() if batch is None else reference.send(batch)
        actual = [(r["window_start"], r["lid"], r.get("rid")) for r in out.results.to_pylist()]
        assert ordered(actual) == ordered([attrs_of(r) for r in results])
        assert [start for start, *_ in actual] == sorted(start for start, *_ in actual)
        assert all(r["window_end"] - r["window_start"] == plan.size for r in out.results.to_pylist())
        assert sorted(r["lid"] if r["side"] == "left" else r["rid"] for r in out.late.to_pylist()) == sorted(late)
        assert driver.counters.get("unmatched", 0) - before == unmatched
    assert driver.progress.open_rows == 0
    assert not driver._store.tables, "nothing is left behind"


def attrs_of(result: Any) -> tuple[Any, ...]:
    return result.start, result.left, result.right


@pytest.mark.parametrize("idle_batches", [True, False])
def test_a_row_next_to_results_enters_no_window_that_is_over_when_it_comes(idle_batches: bool) -> None:
    """Windows of 10 every 5, the right side deduplicated: at a watermark of 20 the row at 18 is on time for [15, 25) alone."""
    left = stream_of("lid bigint, key string, at bigint").watermark("at", 0)
    right = stream_of("rid bigint, key string, seen bigint").watermark("seen", 0).drop_duplicates("rid", within=100)
    joined = left.window_join(right, "key", window=windows.hopping(10, 5), how="inner").late_rule("window")
    driver = Driver(joined, idle_batches=idle_batches)
    actual = driver.send({"left": [{"lid": 1, "key": "a", "at": 12}], "right": [{"rid": 1, "key": "a", "seen": 16}]}).results
    rows = actual.to_pylist()
    for batch in (
        {"left": [{"lid": 2, "key": "b", "at": 20}], "right": [{"rid": 2, "key": "b", "seen": 20}]},
        {"left": [{"lid": 3, "key": "a", "at": 18}]},
    ):
        rows += driver.send(batch).results.to_pylist()
    rows += driver.close().results.to_pylist()
    assert sorted((r["window_start"], r["lid"]) for r in rows) == [(10, 1), (15, 2), (15, 3), (20, 2)]
