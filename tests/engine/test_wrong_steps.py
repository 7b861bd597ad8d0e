"""Wrong keys, sides and columns of pipelines: what the errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from krishiv_py import ColumnError, KrishivError, OrderError, PlanError, TimeIntervalWindowOptions, count, sum
from krishiv_py.missing import answers
from krishiv_py.testing import collect, stream_of

ROWS = stream_of("k string, n bigint, at bigint, s struct<x: bigint>, l array<int>").watermark("at", 0)
ANYTHING: Any = ROWS
WINDOWED: Any = ROWS.key_by("k").tumbling_window(5)
COUNTED: Any = WINDOWED.agg(count())

STAGES: dict[str, Any] = {
    "rows": stream_of("k string, n bigint, at bigint"),
    "keyed rows": stream_of("k string, n bigint, at bigint").key_by("k"),
    "timed": ROWS,
    "keyed": ROWS.key_by("k"),
    "window": WINDOWED,
    "look-back": ROWS.lookback_window(5),
    "panes": ROWS.time_interval_window(TimeIntervalWindowOptions(1.0)),
    "aggregated": COUNTED,
    "results": COUNTED.filter("count > 1"),
    "first rows": ROWS.drop_duplicates("k", within=5),
    "joined": ROWS.interval_join(stream_of("k string, seen bigint").watermark("seen", 0), "k", lower=0, upper=1),
}
STEPS = sorted({n for s in STAGES.values() for n in dir(s) if n[0] != "_" and callable(getattr(type(s), n, None))})


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_of_any_stage_exists_on_each_other_or_says_what_to_write(stage: str) -> None:
    """A call in the wrong place is never a bare AttributeError: a stage without the step has an answer to its name."""
    here = STAGES[stage]
    assert [step for step in STEPS if not hasattr(here, step) and step not in answers(type(here))] == []


@pytest.mark.parametrize(
    ("stage", "step", "message"),
    [
        ("timed", "lookup_join", r"call \.lookup_join\(\.\.\.\) before \.watermark"),
        ("keyed rows", "lookup_join", r"before \.key_by"),
        ("window", "interval_join", r"after \.agg"),
        ("results", "split", r"part results with \.filter"),
        ("rows", "with_state_ttl", r"\.watermark\(.*first"),
        ("window", "explain", r"\.agg\(count\(\)\) first"),
        ("timed", "top_n", r"\.tumbling_window"),
        ("aggregated", "top_n", r"instead of \.agg"),
        ("keyed", "latest", r"before \.key_by"),
        ("keyed rows", "from_changelog", r"before \.key_by"),
    ],
)
def test_a_step_in_the_wrong_place_says_where_it_belongs(stage: str, step: str, message: str) -> None:
    with pytest.raises(OrderError, match=f"Hint: .*{message}"):
        getattr(STAGES[stage], step)()


CALLS: list[tuple[type[KrishivError], str, Callable[[], object]]] = [
    (ColumnError, r"column 's' cannot be a key .*Hint: take a part of it: col", lambda: ROWS.key_by("s")),
    (ColumnError, r"column 'l' cannot be a key", lambda: ROWS.key_by("k", "l")),
    (ColumnError, r'no column \'s\.x\'.*Hint: write col\("s"\)\.field\("x"\)', lambda: ROWS.key_by("s.x")),
    (
        ColumnError,
        r"no column 'n % 3'.*Hint: .*write an expression with col",
        lambda: ROWS.tumbling_window(5).agg(sum("n % 3")),
    ),
    (ColumnError, r"no column 'lower\(k\)'.*Hint: .*write an expression with col", lambda: ROWS.key_by("lower(k)")),
    (
        OrderError,
        r"right side of a join has a window, but no aggregates .*Hint: write left\.interval_join\(.*\.agg\(count",
        lambda: ROWS.interval_join(WINDOWED, on="k", lower=0, upper=1),
    ),
    (PlanError, r"list of pipelines \(got: one KeyedStream\).*Hint: .*\.agg\(", lambda: collect([ANYTHING.key_by("k")])),
    (PlanError, r"list of pipelines \(got: one ResultStream\).*Hint: write collect\(\[", lambda: collect(COUNTED)),
]


@pytest.mark.parametrize(("kind", "message", "call"), CALLS, ids=[c[1][:30] for c in CALLS])
def test_the_error_says_what_to_write(kind: type[KrishivError], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=f"(?s){message}"):
        call()
