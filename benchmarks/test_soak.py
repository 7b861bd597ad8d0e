"""A query holds no more after many batches than after some: a short soak of some jobs, and what a long one calls growth."""

from __future__ import annotations

import pytest

from benchmarks.soak import JOBS, SLACK, Load, Sample, drawn, growing, quarters, soak
from krishiv_py import Session
from krishiv_py.in_process import outputs

SHORT = Load(batches=120, rows=40, keys=15, trimmed=30)
MORE = {"arrow_mb": 0.02, "objects": 40, "handles": 20, "files": 6}
"""By how much the process may hold more after 120 batches than after 60: less than one object or handle for each.

Clients that other tests left in the process open and close a few handles meanwhile.
"""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("job", ["tumbling", "lookback", "join", "process", "absence", "pattern"])
def test_a_short_soak_is_flat(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_TOGETHER", 1)
    with Session.in_process(lookup_results=100) as session:  # of a million each batch would leave more
        result = soak(session, JOBS[job], SHORT)
    medians = {name: quarters(result, name) for name in MORE}
    assert len(result) == 4
    assert {name: pair for name, pair in medians.items() if pair[1] > pair[0] + MORE[name]} == {}


def run_of(**growth: float) -> list[Sample]:
    """A run of which some figures rise."""
    return [Sample(n, n, {name: 100 + n * growth.get(name, 0) for name in SLACK}) for n in range(200)]


@pytest.mark.parametrize("name", SLACK)
def test_what_rises_without_an_end_is_named_and_drawn(name: str) -> None:
    assert growing(run_of()) == []
    assert growing(run_of(**{name: 10})) == [name]
    assert f">{name}<" in drawn(run_of(**{name: 10}))
