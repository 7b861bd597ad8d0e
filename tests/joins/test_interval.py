"""Interval joins against nested loops (SEMANTICS §9.1): any batches, any order of arrival, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.joins import sides
from krishiv_py.kernels.state import time_log
from krishiv_py.testing import Driver, StepOutput, stream_of
from tests.reference.joins import SIDES, Clock, Given, How, IntervalJoin, Result, Row, Side

LEFT, RIGHT = "lid bigint, key string, at bigint", "rid bigint, key string, seen bigint"


@attrs.frozen
class Plan:
    """A join and its input."""

    how: How
    lower: int
    upper: int
    lags: dict[Side, int]
    lateness: int
    batches: list[list[Row]]
    restarts: set[int]
    idle_batches: bool

    def joined(self) -> ResultStream:
        left = stream_of(LEFT).watermark("at", self.lags["left"])
        right = stream_of(RIGHT).watermark("seen", self.lags["right"])
        joined = left.interval_join(right, "key", lower=self.lower, upper=self.upper, how=self.how)
        return joined.allowed_lateness(self.lateness)

    def reference(self) -> IntervalJoin:
        return IntervalJoin(self.lower, self.upper, self.how, self.lateness, Clock(self.lags), self.idle_batches)


@st.composite
def inputs(draw: st.DrawFn) -> list[list[Row]]:
    """Batches of rows of both sides, in any order or nearly in that of time."""
    rows = st.tuples(st.sampled_from(SIDES), st.sampled_from(["a", "b", None]), st.integers(-5, 25))
    actual = draw(st.lists(st.lists(rows, max_size=8), max_size=7))
    if draw(st.booleans()):
        flat = sorted((r for batch in actual for r in batch), key=lambda r: r[2])
        actual = [flat[i : i + 4] for i in range(0, len(flat), 4)]
    number = iter(range(1_000))
    return [[Row(side, next(number), key, t) for side, key, t in batch] for batch in actual]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    lower, upper = sorted(draw(st.tuples(st.integers(-6, 6), st.integers(-6, 6))))
    return Plan(
        draw(st.sampled_from(get_args(How))),
        lower,
        upper,
        {"left": draw(st.integers(0, 4)), "right": draw(st.integers(0, 4))},
        draw(st.integers(0, 4)),
        draw(inputs()),
        draw(st.sets(st.integers(0, 7), max_size=3)),
        draw(st.booleans()),
    )


def sent(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Rows as a driver takes them; each side in its order of arrival."""
    return {
        "left": [{"lid": r.id, "key": r.key, "at": r.t} for r in rows if r.side == "left"],
        "right": [{"rid": r.id, "key": r.key, "seen": r.t} for r in rows if r.side == "right"],
    }


def results_of(out: StepOutput) -> list[Result]:
    return [
        Result(row["lid"], row.get("rid"), row["join_time"] if "join_time" in row else row["at"])
        for row in out.results.to_pylist()
    ]


def ordered(results: Sequence[Result]) -> list[tuple[Any, ...]]:
    return sorted((r.t, r.left is None, r.left, r.right is None, r.right) for r in results)


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
        assert driver.progress.open_rows <= len(reference.held), "what meets nobody any more is not held"
    assert driver.progress.open_rows == 0
    assert not driver._store.tables, "nothing is left behind"


@given(plans())
def test_results_are_those_of_nested_loops(plan: Plan) -> None:
    check(plan)


def few_hashes(columns: list[Any], n_rows: int) -> Any:
    """A hash that every key shares."""
    return np.full(n_rows, 7)


@given(plans())
def test_pieces_of_a_few_rows_and_hashes_that_collide(plan: Plan) -> None:
    """The same with runs cut after three rows, so that keys run over from one piece into the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_log, "PIECE", 3)
        patch.setattr(time_log, "_TRIMMED", 2)
        patch.setattr(sides, "key_hashes", few_hashes)
        check(plan)
