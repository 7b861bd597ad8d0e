"""As-of joins against nested loops (SEMANTICS §9.2): any batches, any order of arrival, restarts."""

from __future__ import annotations

from typing import get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.joins import sides
from krishiv_py.kernels.state import time_log, window_log
from krishiv_py.plan.joins import AsofType, Direction
from krishiv_py.testing import Driver, stream_of
from tests.joins.test_interval import LEFT, RIGHT, few_hashes, inputs, ordered, results_of, sent
from tests.reference.joins import AsofJoin, Clock, Given, Row, Side


@attrs.frozen
class Plan:
    """A join and its input."""

    direction: Direction
    tolerance: int | None
    how: AsofType
    lags: dict[Side, int]
    lateness: int
    batches: list[list[Row]]
    restarts: set[int]
    idle_batches: bool
    allow_exact: bool

    def joined(self) -> ResultStream:
        left = stream_of(LEFT).watermark("at", self.lags["left"])
        right = stream_of(RIGHT).watermark("seen", self.lags["right"])
        joined = left.asof_join(
            right, "key", direction=self.direction, tolerance=self.tolerance, how=self.how, allow_exact=self.allow_exact
        )
        return joined.allowed_lateness(self.lateness)

    def reference(self) -> AsofJoin:
        clock = Clock(self.lags)
        return AsofJoin(self.direction, self.tolerance, self.how, self.lateness, clock, self.idle_batches, self.allow_exact)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    direction = draw(st.sampled_from(get_args(Direction)))
    tolerance = draw(st.integers(0, 8) | (st.none() if direction == "backward" else st.nothing()))
    return Plan(
        direction,
        tolerance,
        draw(st.sampled_from(get_args(AsofType))),
        {"left": draw(st.integers(0, 4)), "right": draw(st.integers(0, 4))},
        draw(st.integers(0, 4)),
        draw(inputs()),
        draw(st.sets(st.integers(0, 7), max_size=3)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def check(plan: Plan) -> None:
    driver, reference = Driver(plan.joined(), idle_batches=plan.idle_batches), plan.reference()
    for number, batch in enumerate([*plan.batches, None]):
        if number in plan.restarts:
            driver = driver.restarted()
        before = driver.counters.get("unmatched", 0)
        out = driver.close() if batch is None else driver.send(sent(batch))
        wanted: Given = reference.close() if batch is None else reference.send(batch)
        assert ordered(results_of(out)) == ordered(wanted.results)
        late = [r["lid"] if r["side"] == "left" else r["rid"] for r in out.late.to_pylist()]
        assert sorted(late) == sorted(wanted.late)
        assert driver.counters.get("unmatched", 0) - before == wanted.unmatched
    assert driver.progress.open_rows == 0
    assert not driver._store.tables, "nothing is left behind"


@given(plans())
def test_results_are_those_of_nested_loops(plan: Plan) -> None:
    check(plan)


@given(plans())
def test_pieces_of_a_few_rows_and_hashes_that_collide(plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_log, "PIECE", 3)
        patch.setattr(time_log, "_TRIMMED", 2)
        patch.setattr(window_log, "PIECE", 3)
        patch.setattr(sides, "key_hashes", few_hashes)
        check(plan)


def test_the_newest_row_of_a_key_is_all_that_stays() -> None:
    left = stream_of("key bigint, at bigint").watermark("at", 0)
    right = stream_of("key bigint, seen bigint, price bigint").watermark("seen", 0)
    driver = Driver(left.asof_join(right, "key"))
    for second in range(200):
        driver.send({"right": [{"key": k, "seen": second * 1_000, "price": second} for k in range(20)]})
        driver.send({"left": [{"key": 0, "at": second * 1_000}]})
    assert driver.progress.open_rows < 200
    assert (
        driver.send({"left": [{"key": 3, "at": 199_500}], "right": [{"key": 4, "seen": 200_000, "price": 0}]}).results.num_rows
        == 1
    )
    given_last = driver.send({"left": [{"key": 3, "at": 200_000}]}).results.to_pylist()
    assert given_last == [{"key": 3, "at": 199_500, "seen": 199_000, "price": 199}]
