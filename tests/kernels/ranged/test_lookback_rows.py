"""Look-back results that carry their row, or leave it out; ties of time (SEMANTICS §11.3, §11.4)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import PlanError
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import Driver, stream_of
from tests.kernels.ranged.per_row import Plan, plans
from tests.kernels.ranged.test_lookback import rows_of

SCHEMA = "id bigint, key string, at bigint, value bigint"
AGGS = [
    kv.count(),
    kv.sum("value"),
    kv.last("id"),
    kv.first("id"),
    kv.collect_list("id"),
    kv.count_distinct("value"),
    kv.percentile("value"),
    kv.min("value"),
]


def wanted(plan: Plan, rows: list[dict[str, Any]], two_sided: bool, exclude_self: bool) -> dict[int, dict[str, Any]]:
    """The result of every row that was let in, by the number of the row."""
    ordered = sorted(rows, key=lambda r: (r["at"], r["id"]))
    actual = {}
    for row in ordered:
        after = plan.size if two_sided else 0
        seen = [r for r in ordered if r["key"] == row["key"] and -plan.size <= r["at"] - row["at"] <= after]
        if exclude_self:
            seen.remove(row)
        values, ids = sorted(r["value"] for r in seen if r["value"] is not None), [r["id"] for r in seen]
        half = len(values) // 2
        actual[row["id"]] = {
            "key": row["key"],
            "window_start": row["at"] - plan.size,
            "window_end": row["at"] + after,
            "count": len(seen),
            "sum_value": sum(values) if values else None,
            "last_id": ids[-1] if ids else None,
            "first_id": ids[0] if ids else None,
            "collect_list_id": ids,
            "count_distinct_value": len(set(values)),
            "percentile_value": (values[half] + values[-half - 1]) / 2 if values else None,
            "min_value": values[0] if values else None,
            "id": row["id"],
            "at": row["at"],
            "value": row["value"],
        }
    return actual


@given(
    plan=plans(lateness=st.integers(0, 6), emit=st.sampled_from(["final", "updates", "retractions"])),
    two_sided=st.booleans(),
    exclude_self=st.booleans(),
    restart=st.integers(0, 5),
)
def test_results_carry_their_row(plan: Plan, two_sided: bool, exclude_self: bool, restart: int) -> None:
    batches = rows_of(plan)
    keyed = stream_of(SCHEMA).watermark("at", plan.lag).key_by("key").allowed_lateness(plan.lateness).emit(plan.emit)
    driver = Driver(keyed.lookback_window(plan.size, two_sided=two_sided, with_row=True, exclude_self=exclude_self).agg(AGGS))
    standing: dict[int, dict[str, Any]] = {}
    late: set[int] = set()
    for number, batch in enumerate([*batches, None]):
        driver = driver.restarted() if number == restart else driver
        out = driver.close() if batch is None else driver.send(batch)
        late |= set(out.late["id"].to_pylist())
        for row in out.results.to_pylist():
            if row.pop("op", "+I") in ("-U", "-D"):
                assert standing.pop(row["id"]) == row
                continue
            assert plan.emit == "updates" or row["id"] not in standing
            standing[row["id"]] = row
    assert standing == wanted(plan, [r for b in batches for r in b if r["id"] not in late], two_sided, exclude_self)


def test_state_shows_the_rows_that_wait() -> None:
    windowed = stream_of(SCHEMA).watermark("at", 100).key_by("key").lookback_window(5, with_row=True, exclude_self=True)
    driver = Driver(windowed.agg(kv.collect_list("id")))
    driver.send([{"id": i, "key": "a", "at": 1, "value": i * 10} for i in range(2)])
    shown = [(r["id"], r["value"], r["collect_list_id"]) for r in driver.restarted().state().to_pylist()]
    assert shown == [(0, 0, [1]), (1, 10, [0])]


def test_any_type_of_column_rides_along() -> None:
    rows = pa.table(
        {
            "k": ["a"] * 3,
            "at": [1, 1, 2],
            "tags": [["x"], None, []],
            "point": [{"x": 1, "y": None}, None, {"x": 2, "y": "b"}],
            "d": pa.array([b"1", None, b"3"]),
            "a0": [1.5, None, 2.5],
            "r0": [True, None, False],
        }
    )
    windowed = stream_of(rows.schema).watermark("at", 0).key_by("k").lookback_window(0, with_row=True)
    driver = Driver(windowed.agg(kv.sum("a0").alias("total")))
    driver.send(rows)
    actual = driver.close().results
    carried = ["at", "tags", "point", "d", "a0", "r0"]
    assert actual.select(carried).equals(rows.select(carried)[2:])
    assert actual.schema.names == ["k", "window_start", "window_end", "total", *carried]


def test_names_that_would_hide_one_another_are_refused() -> None:
    for column in ("window_start", "Op", "count", "pane_index"):
        keyed = stream_of(f"key string, at bigint, {column} bigint").watermark("at", 0).key_by("key")
        keyed.lookback_window(5).agg(kv.count())
        with pytest.raises(PlanError, match=f"(?s){column}.*Hint: rename"):
            keyed.lookback_window(5, with_row=True).agg(kv.count())
    plain = stream_of(SCHEMA).watermark("at", 0).key_by("key")
    with pytest.raises(PlanError, match="with_row"):
        plain.lookback_window(5, with_row=1)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="aggregates only"):
        plain.lookback_window(5, exclude_self=True).matches()
    with pytest.raises(PlanError, match="aggregates only"):
        plain.lookback_window(5, with_row=True).pairs()


def test_a_checkpoint_knows_whether_rows_are_kept() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("key")
    bare = fingerprint(keyed.lookback_window(5).agg(kv.count())._spec())
    assert not any(("row" in part and "max_rows" not in part) or "self" in part for part in bare), "as in older checkpoints"
    kept = fingerprint(keyed.lookback_window(5, with_row=True).agg(kv.count())._spec())
    assert any("with_row" in change for change in differences(bare, kept))
    other = fingerprint(
        stream_of("id string, key string, at bigint, value bigint")
        .watermark("at", 0)
        .key_by("key")
        .lookback_window(5, with_row=True)
        .agg(kv.count())
        ._spec()
    )
    assert differences(kept, other) == ["column id of the result was int64 and is string"]


TIED: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "tumbling, by row": lambda s: s.trigger(kv.Trigger.on_count(2)).tumbling_window(10),
    "hopping": lambda s: s.hopping_window(10, 3),
    "session": lambda s: s.session_window(10),
    "session, by row": lambda s: s.trigger(kv.Trigger.on_count(2)).session_window(10),
    "session, max_duration": lambda s: s.session_window(10, max_duration=50),
    "session, max_duration, by row": lambda s: s.trigger(kv.Trigger.on_count(2)).session_window(10, max_duration=50),
    "session, window rule": lambda s: s.late_rule("window").session_window(10),
    "look-back": lambda s: s.lookback_window(10),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(10)),
    "panes": lambda s: s.time_interval_window(kv.TimeIntervalWindowOptions(10)),
    "count": lambda s: s.count_window(12),
    "count, by row": lambda s: s.trigger(kv.Trigger.on_count(2)).count_window(12),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cuts", [(12,), (1, 5, 12), tuple(range(1, 13))])
@pytest.mark.parametrize("window", TIED)
def test_ties_of_time_are_broken_by_arrival(window: str, cuts: tuple[int, ...]) -> None:
    windowed = TIED[window](stream_of("key string, at bigint, id bigint").watermark("at", 1_000).key_by("key"))
    driver = Driver(windowed.agg(kv.first("id"), kv.last("id"), kv.collect_list("id")))
    rows = [{"key": "a", "at": 5, "id": (i * 7) % 12} for i in range(12)]
    stated: list[dict[str, Any]] = []
    for start, stop in pairwise((0, *cuts)):
        driver = driver.restarted()
        stated += driver.send(rows[start:stop]).results.to_pylist()
    last = [*stated, *driver.close().results.to_pylist()][-1]
    ids = [r["id"] for r in rows]
    assert (last["first_id"], last["last_id"], last["collect_list_id"]) == (ids[0], ids[-1], ids)
