"""Sessions with a longest duration, fired row by row: rows that come together do what they do one by one, to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.arrays.grouping import rank
from krishiv_py.kernels.windows.session import capped as session_pieces
from krishiv_py.kernels.windows.session import capped_triggered as session_runner
from krishiv_py.kernels.windows.session.capped import Pieces
from krishiv_py.kernels.windows.session.capped_log import Limits, RowState
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

Ints = Any
AGGREGATES = (
    kv.count(),
    kv.sum("v"),
    kv.sum("x").alias("s"),
    kv.stddev("x"),
    kv.collect_list("v"),
    kv.count_distinct("x"),
    kv.percentile("x"),
    kv.first("v"),
    kv.max("v"),
)
TRIED = settings(max_examples=scaled(40))


def singly(state: RowState, held: Ints, coming: Ints, limits: Limits) -> Pieces:
    """Every row alone."""
    return Pieces(rank(state.groups[coming]), np.ones(len(coming), np.bool_))


@attrs.frozen
class Case:
    """A query, and rows in batches; times in ms."""

    gap: int | None
    cap: int
    touch: str
    early: Any
    late: Any
    on_time: bool
    emit: str
    discarding: bool
    lateness: int
    late_rule: str
    ttl: int | None
    batches: list[list[dict[str, Any]]]

    def log(self) -> list[Any]:
        """All that is written, in order, and what remains in state after each batch; restarted now and then."""
        keyed = stream_of("k string, at bigint, v bigint, x double, gap bigint").watermark("at", 20).key_by("k")
        keyed = keyed.allowed_lateness(self.lateness).late_rule(self.late_rule).emit(self.emit)  # type: ignore[arg-type]
        keyed = keyed.trigger(kv.Trigger(self.early, self.on_time, self.late)).with_pane()
        keyed = keyed.accumulation("discarding" if self.discarding else "accumulating")
        if self.ttl is not None:
            keyed = keyed.with_state_ttl(kv.StateTtlConfig(self.ttl))
        gap = "gap" if self.gap is None else self.gap
        driver = Driver(keyed.session_window(gap, touch=self.touch, max_duration=self.cap).agg(*AGGREGATES))  # type: ignore[arg-type]
        log: list[Any] = []
        for number, rows in enumerate(self.batches):
            out = driver.send(rows)
            log += [out.results.to_pylist(), out.late.to_pylist(), driver.open_windows, driver.state().to_pylist()]
            if number % 3 == 2:
                driver = driver.restarted()
        log.append(driver.close().results.to_pylist())
        return log


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    steps = rng.choice([0, 1, 1, 2, 3, 9], n)
    disorder = draw(st.sampled_from([0, 0, 3, 12, 200]))
    times = np.cumsum(steps) + (rng.integers(-disorder, disorder + 1, n) if disorder else 0)
    keys = ["a", None][: draw(st.integers(1, 2))]
    rows: list[dict[str, Any]] = [
        {
            "k": keys[rng.integers(len(keys))],
            "at": int(t),
            "v": i,
            "x": float(rng.choice([0.1, 1e16, -1e16, 0.3, 7.0])),
            "gap": int(rng.choice([1, 3, 8, 25])),
        }
        for i, t in enumerate(times)
    ]
    edges = [0, *sorted(draw(st.lists(st.integers(0, n), max_size=5))), n]
    batches = [rows[a:b] for a, b in pairwise(edges)]
    if draw(st.booleans()):  # in order, but behind what is held
        batches = [sorted(batch, key=lambda row: row["at"]) for batch in batches]
    on_time = draw(st.booleans())
    return Case(
        gap=draw(st.sampled_from([None, 2, 5, 12])),
        cap=draw(st.sampled_from([4, 9, 20, 70])),
        touch=draw(st.sampled_from(["separate", "merge"])),
        early=draw(st.sampled_from(["each", "each", 2, 3, None])),
        late=draw(st.sampled_from([None, "batch", "each", 2] if on_time else [None, "each", 2])),
        on_time=on_time,
        emit=draw(st.sampled_from(["updates", "retractions"])),
        discarding=draw(st.booleans()),
        lateness=draw(st.sampled_from([0, 8, 40])),
        late_rule=draw(st.sampled_from(["event", "window"])),
        ttl=draw(st.sampled_from([None, None, 30])),
        batches=batches,
    )


@TRIED
@given(cases(), st.booleans())
def test_rows_together_write_what_they_write_one_by_one(case: Case, walked: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_pieces, "_MANY", 1 << 30 if walked else 0)
        together = case.log()
        patch.setattr(session_runner, "pieces", singly)
        assert together == case.log()
