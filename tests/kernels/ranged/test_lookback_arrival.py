"""Look-back results on arrival (SEMANTICS §11.4): against the plain reference, and however rows are divided."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.kernels.windows.ranged import lookback
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.ranged.per_row import AGGS, Plan, expected, observed, plans
from tests.kernels.ranged.test_lookback import run

SCHEMA = "id bigint, key string, at bigint, value bigint"


@given(plan=plans(lateness=st.integers(0, 8)), two_sided=st.booleans(), exclude_self=st.booleans(), few=st.booleans())
def test_each_row_has_one_result_as_in_the_reference(plan: Plan, two_sided: bool, exclude_self: bool, few: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(lookback, "_COPIED", 7)
        seen = observed(
            plan,
            lambda s: s.lookback_window(plan.size, two_sided=two_sided, exclude_self=exclude_self, emit="arrival").agg(AGGS),
        )
    assert seen == expected(plan, ref.LookBack(plan.size, two_sided, exclude_self=exclude_self, on_arrival=True))


@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(-3, 3)), min_size=1, max_size=40),
    in_time=st.booleans(),
    unit=st.sampled_from([1, 1_000]),
    keyed=st.booleans(),
    near=st.none() | st.integers(0, 39),
)
def test_rows_in_order_of_time_are_laid_out_as_others_are(
    rows: list[tuple[int, int | None]], in_time: bool, unit: int, keyed: bool, near: int | None
) -> None:
    rows = sorted(rows, key=lambda row: row[0]) if in_time else rows
    table = pa.table({"__t": pa.array([time * unit for time, _ in rows]), "k0": pa.array([key for _, key in rows], pa.int64())})
    mask = None if near is None else np.arange(len(rows)) >= min(near, len(rows) - 1)

    def laid_out(by_key: Any) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookback, "_FALLS", 1)
            patch.setattr(lookback, "_by_key", by_key)
            o = lookback.ordered(table, ["k0"] if keyed else [], 5 * unit, 7 * unit, near=mask)
        return [o.rows.to_pylist(), o.times.tolist(), o.picked.tolist(), o.ids.tolist(), o._places.tolist()]

    assert laid_out(lookback._by_key) == laid_out(lambda ids, times: None)


EVERY = [
    kv.count(),
    kv.sum("value"),
    kv.avg("f"),
    kv.variance("f"),
    kv.first("id"),
    kv.last("id"),
    kv.count_distinct("value"),
    kv.approx_count_distinct("value"),
    kv.percentile("f"),
    kv.min("f"),
    kv.max("value"),
    kv.collect_list("id"),
    kv.collect_set("value"),
]


def results(rows: list[dict[str, Any]], cuts: list[int], **options: Any) -> list[dict[str, Any]]:
    """Results of rows of which none is late, cut into batches with a restart now and then; by number of row."""
    schema = "id bigint, key string, at bigint, value bigint, f double"
    driver = Driver(
        stream_of(schema)
        .watermark("at", 1_000)
        .key_by("key")
        .lookback_window(9, emit="arrival", with_row=True, **options)
        .agg(EVERY)
    )
    actual = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        actual += driver.send(rows[start:stop]).results.to_pylist()
        driver = driver.restarted() if start % 3 == 0 else driver
    assert driver.close().results.num_rows == 0
    assert driver.open_windows == 0
    return sorted(actual, key=lambda r: r["id"])


@given(plan=plans(lateness=st.just(0), rows=st.integers(0, 25)), two_sided=st.booleans(), exclude_self=st.booleans())
def test_batches_make_no_difference_to_the_last_bit(plan: Plan, two_sided: bool, exclude_self: bool) -> None:
    batches = [s.rows for s in plan.steps() if isinstance(s, ref.Batch)]
    rows: list[dict[str, Any]] = [
        {"id": n, "key": r.key, "at": r.t, "value": r.value, "f": None if r.value is None else r.value / 7}
        for n, r in enumerate(r for b in batches for r in b)
    ]
    cuts, moment = [], 0
    for batch in batches[:-1]:
        moment += len(batch)
        cuts.append(moment)
    whole = results(rows, [], two_sided=two_sided, exclude_self=exclude_self)
    assert whole == results(rows, cuts, two_sided=two_sided, exclude_self=exclude_self)
    assert whole == results(rows, list(range(1, len(rows))), two_sided=two_sided, exclude_self=exclude_self)


def numbered(plan: Plan) -> list[list[dict[str, Any]]]:
    ids = iter(range(10**6))
    batches = [s.rows for s in plan.steps() if isinstance(s, ref.Batch)]
    return [[{"id": next(ids), "key": r.key, "at": r.t, "value": r.value} for r in b] for b in batches]


@given(plan=plans(lateness=st.integers(0, 5)))
def test_each_pair_comes_with_the_later_arrival_and_once(plan: Plan) -> None:
    keyed = stream_of(SCHEMA).watermark("at", plan.lag).key_by("key").allowed_lateness(plan.lateness)
    driver = Driver(keyed.lookback_window(plan.size, emit="arrival").pairs("left_id <> right_id"))
    kept: list[dict[str, Any]] = []
    for batch in numbered(plan):
        out = driver.send(batch)
        late = set(out.late["id"].to_pylist())
        new = [r for r in batch if r["id"] not in late]
        wanted = Counter(
            (a["id"], b["id"])
            for a, b in combinations(sorted([*kept, *new], key=lambda r: (r["at"], r["id"])), 2)
            if a["key"] == b["key"] and b["at"] - a["at"] <= plan.size and (a in new or b in new)
        )
        assert Counter((p["left_id"], p["right_id"]) for p in out.results.to_pylist()) == wanted
        kept += new
    assert driver.close().results.num_rows == 0


@given(plan=plans(lateness=st.integers(0, 5)), two_sided=st.booleans())
def test_matches_are_what_step_of_the_lesson_returns(plan: Plan, two_sided: bool) -> None:
    keyed = stream_of(SCHEMA).watermark("at", plan.lag).key_by("key").allowed_lateness(plan.lateness)
    actual, late = run(keyed.lookback_window(plan.size, two_sided=two_sided, emit="arrival").matches(), numbered(plan))
    kept = [r for b in numbered(plan) for r in b if r["id"] not in late]
    after = plan.size if two_sided else 0
    wanted = {
        r["id"]: sorted(
            (o for o in kept[:n] if o["key"] == r["key"] and -plan.size <= o["at"] - r["at"] <= after),
            key=lambda o: (o["at"], o["id"]),
        )
        for n, r in enumerate(kept)
    }
    assert {r["row"]["id"]: r["matches"] for r in actual} == wanted
    assert len(actual) == len(kept)


def test_results_of_a_batch_come_in_order_of_time_then_arrival() -> None:
    driver = Driver(stream_of(SCHEMA).watermark("at", 50).lookback_window(10, emit="arrival", with_row=True).agg(kv.count()))
    rows = [{"id": i, "key": "a", "at": t, "value": 1} for i, t in enumerate([30, 10, 30, 20, 25, 10])]
    assert driver.send(rows).results["id"].to_pylist() == [1, 5, 3, 4, 0, 2]


def test_state_keeps_what_a_row_to_come_can_see_and_no_more() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 10).lookback_window(100, emit="arrival").agg(kv.count()))
    held = []
    for index in range(0, 40_000, 100):
        driver.send([{"at": index + i} for i in range(100)])
        held.append(sum(t.num_rows for t in driver._store.tables.values()))
    assert max(held) < 4 * (10 + 100 + 100)
    driver.advance_watermark(10**9)
    assert not driver._store.tables
    assert driver.state().num_rows == 0


def test_a_key_whose_time_to_live_is_over_begins_again() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("key").with_state_ttl(kv.StateTtlConfig(5))
    driver = Driver(keyed.lookback_window(100, emit="arrival").agg(kv.count()))
    counts = [
        driver.send([{"id": 0, "key": k, "at": t, "value": 1}]).results["count"].to_pylist()
        for k, t in [("a", 0), ("b", 20), ("a", 21)]
    ]
    assert counts == [[1], [1], [1]]
    assert driver.counters["ttl_dropped"] == 0, "every row has had its result"


def test_what_cannot_be_is_refused_where_it_is_written() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("key")
    with pytest.raises(PlanError, match="emit"):
        keyed.lookback_window(5, emit="at once")  # type: ignore[arg-type]
    for mode in ("updates", "retractions"):
        with pytest.raises(PlanError, match=r"(?s)never changes.*Hint"):
            keyed.emit(mode).lookback_window(5, emit="arrival")
    assert keyed.allowed_lateness(5).lookback_window(5, emit="arrival").agg(kv.count())._spec().options.emit_mode == "final"
    assert pa.types.is_int64(keyed.lookback_window(5, emit="arrival").agg(kv.count()).schema.field("count").type)


def test_what_would_never_end_is_refused_with_the_key() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 1_000).key_by("key").max_listed(100)
    rows: list[dict[str, Any]] = [{"id": n, "key": "hot", "at": (n * 37) % 101, "value": 1} for n in range(101)]
    driver = Driver(keyed.lookback_window(1_000, emit="arrival").agg(kv.count()))
    with pytest.raises(OperatorError, match=r"(?s)out of order would look at more than 4,000.*hot.*fewer rows.*max_listed\("):
        driver.send(rows)
    in_turn = sorted(rows, key=lambda r: r["at"])
    assert Driver(keyed.lookback_window(1_000, emit="arrival").agg(kv.count())).send(in_turn).results.num_rows == 101
    assert sum(len(Driver(keyed.lookback_window(1_000, emit="arrival").agg(kv.count())).send([r]).results) for r in rows) == 101
