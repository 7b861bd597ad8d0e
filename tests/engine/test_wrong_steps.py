"""Wrong keys, sides and columns of pipelines: what the errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from krishiv_py import ColumnError, KrishivError, OrderError, PlanError, count, sum
from krishiv_py.testing import collect, stream_of

ROWS = stream_of("k string, n bigint, at bigint, s struct<x: bigint>, l array<int>").watermark("at", 0)
ANYTHING: Any = ROWS
WINDOWED: Any = ROWS.key_by("k").tumbling_window(5)
COUNTED: Any = WINDOWED.agg(count())

CALLS: list[tuple[type[KrishivError], str, Callable[[], object]]] = [
    (ColumnError, r"column 's' cannot be a key .*Hint: key by a field", lambda: ROWS.key_by("s")),
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
    (PlanError, r"list of pipelines \(got: one AggregatedStream\).*Hint: write collect\(\[", lambda: collect(COUNTED)),
    (OrderError, r"got: an AggregatedStream", lambda: COUNTED.agg(count())),
]


@pytest.mark.parametrize(("kind", "told", "call"), CALLS, ids=[c[1][:30] for c in CALLS])
def test_the_error_says_what_to_write(kind: type[KrishivError], told: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=f"(?s){told}"):
        call()
