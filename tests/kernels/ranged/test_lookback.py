"""Look-back windows against the plain reference (SEMANTICS §3.4)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import DurationError, ExpressionError, PlanError
from krishiv_py.kernels.windows.ranged import lookback
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.examples import scaled
from tests.kernels.ranged.per_row import AGGS, Plan, Seen, expected, observed, plans

SCHEMA = "key string, at bigint, value bigint"


def same(plan: Plan, two_sided: bool, exclude_self: bool) -> None:
    seen = observed(plan, lambda s: s.lookback_window(plan.size, two_sided=two_sided, exclude_self=exclude_self).agg(AGGS))
    assert seen == expected(plan, ref.LookBack(plan.size, two_sided, exclude_self=exclude_self))


@given(plan=plans(), two_sided=st.booleans(), exclude_self=st.booleans())
def test_one_result_per_row_as_in_the_reference(plan: Plan, two_sided: bool, exclude_self: bool) -> None:
    same(plan, two_sided, exclude_self)


EMITS = st.sampled_from(["final", "updates", "retractions"])


@given(plan=plans(lateness=st.integers(0, 8), emit=EMITS), two_sided=st.booleans(), exclude_self=st.booleans())
def test_mildly_late_rows_change_results_as_in_the_reference(plan: Plan, two_sided: bool, exclude_self: bool) -> None:
    same(plan, two_sided, exclude_self)


@given(plan=plans(lateness=st.integers(1, 8), emit=st.just("retractions")), two_sided=st.booleans())
def test_folding_the_change_log_gives_the_final_results(plan: Plan, two_sided: bool) -> None:
    written, _ = observed(plan, lambda s: s.lookback_window(plan.size, two_sided=two_sided).agg(AGGS))
    standing: Seen = Counter()
    for step in written:
        changes = sorted(step.elements(), key=lambda row: row[-1] not in ("-U", "-D"))
        for *row, op in changes:
            standing[tuple(row)] += -1 if op in ("-U", "-D") else 1
            assert standing[tuple(row)] >= 0
    final = Plan(**{**vars(plan), "emit": "final"})
    once, _ = observed(final, lambda s: s.lookback_window(plan.size, two_sided=two_sided).agg(AGGS))
    assert +standing == sum(once, Counter())


@given(plan=plans(jitter=st.just(0), advances=st.just(False)), cuts=st.integers(1, 9))
def test_results_do_not_depend_on_batches_while_nothing_is_late(plan: Plan, cuts: int) -> None:
    one = observed(plan, lambda s: s.lookback_window(plan.size).agg(AGGS))
    other = observed(Plan(**{**vars(plan), "batches": cuts}), lambda s: s.lookback_window(plan.size).agg(AGGS))
    assert not sum(one[1], Counter()) and sum(one[0], Counter()) == sum(other[0], Counter())


def rows_of(plan: Plan) -> list[list[dict[str, Any]]]:
    """The batches of a plan, every row with a number of its own."""
    batches = [s.rows for s in plan.steps() if isinstance(s, ref.Batch)]
    numbered = iter(range(10**6))
    return [[{"id": next(numbered), "key": r.key, "at": r.t, "value": r.value} for r in b] for b in batches]


def met(plan: Plan, emit: Any = "final") -> Any:
    keyed = stream_of("id bigint, " + SCHEMA).watermark("at", plan.lag).key_by("key").emit(emit)
    return keyed.allowed_lateness(plan.lateness).lookback_window(plan.size)


def run(stream: Any, batches: list[list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], set[int]]:
    """All results, and the numbers of the late rows."""
    driver = Driver(stream)
    outs = [driver.send(b) for b in batches] + [driver.close()]
    late = {i for out in outs for i in out.late["id"].to_pylist()}
    return [r for out in outs for r in out.results.to_pylist()], late


@given(plan=plans(lateness=st.integers(0, 5)), emit=EMITS)
def test_each_pair_of_rows_that_met_comes_out_once(plan: Plan, emit: Any) -> None:
    batches = rows_of(plan)
    condition = "left_value < right_value OR left_value IS NULL"
    pairs, late = run(met(plan, emit).pairs(condition), batches)
    kept = sorted((r for b in batches for r in b if r["id"] not in late), key=lambda r: (r["at"], r["id"]))
    wanted = [
        (a["id"], b["id"])
        for a, b in combinations(kept, 2)
        if a["key"] == b["key"]
        and b["at"] - a["at"] <= plan.size
        and (a["value"] is None or (b["value"] is not None and a["value"] < b["value"]))
    ]
    assert sorted((p["left_id"], p["right_id"]) for p in pairs) == sorted(wanted)


@given(plan=plans(), two_sided=st.booleans())
def test_matches_are_the_other_rows_in_the_window(plan: Plan, two_sided: bool) -> None:
    batches = rows_of(plan)
    keyed = stream_of("id bigint, " + SCHEMA).watermark("at", plan.lag).key_by("key")
    results, late = run(keyed.lookback_window(plan.size, two_sided=two_sided).matches(), batches)
    kept = sorted((r for b in batches for r in b if r["id"] not in late), key=lambda r: (r["at"], r["id"]))
    after = plan.size if two_sided else 0
    wanted = {
        a["id"]: [b for b in kept if b is not a and b["key"] == a["key"] and -plan.size <= b["at"] - a["at"] <= after]
        for a in kept
    }
    assert {r["row"]["id"]: r["matches"] for r in results} == wanted
    assert len(results) == len(kept)


def test_panes_say_when_a_result_came() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("key").allowed_lateness(10).emit("retractions").with_pane()
    driver = Driver(keyed.lookback_window(10).agg(kv.count()))
    actual = driver.send([{"key": "a", "at": t, "value": 1} for t in (0, 5)]).results
    actual = pa.concat_tables([actual, driver.send([{"key": "a", "at": -2, "value": 1}]).results])
    columns = actual.select(["window_end", "count", "op", "pane_timing", "pane_index"]).to_pylist()
    assert [tuple(row.values()) for row in columns] == [
        (0, 1, "+I", "on_time", None),
        (0, 1, "-U", "late", None),
        (-2, 1, "+I", "late", None),
        (0, 2, "+U", "late", None),
    ]


def test_results_come_in_ascending_order_of_end_and_are_not_held_back() -> None:
    driver = Driver(stream_of(SCHEMA).watermark("at", 0).key_by("key").lookback_window(10).agg(kv.count()))
    rows = [{"key": k, "at": t, "value": 1} for k, t in [("a", 30), ("b", 10), ("a", 20), ("b", 25), ("a", 10)]]
    assert driver.send(rows).results["window_end"].to_pylist() == [10, 10, 20, 25]
    assert driver.open_windows == 1
    assert driver.close().results.to_pylist() == [{"key": "a", "window_start": 20, "window_end": 30, "count": 2}]


def test_state_stays_bounded_by_rate_times_size() -> None:
    """One row per batch runs far ahead of the others it shares a chunk with; they must not stay as long as it does."""
    driver = Driver(stream_of("at bigint").watermark("at", 1_000).lookback_window(100).agg(kv.count()))
    held = []
    for index in range(0, 40_000, 100):
        driver.send([{"at": index + i} for i in range(100)] + [{"at": index + 900}])
        held.append(sum(t.num_rows for t in driver._store.tables.values()))
    assert max(held) < 4 * (1_000 + 100 + 900)  # one row a millisecond, over lag, size and the runner ahead


def test_a_row_limit_leaves_the_newest_rows_in_a_window() -> None:
    limited = stream_of(SCHEMA).watermark("at", 0).key_by("key").lookback_window(100, max_rows_per_key=3).agg(kv.count())
    driver = Driver(limited)
    first = [{"key": "a", "at": t, "value": 1} for t in range(10)] + [{"key": "b", "at": 5, "value": 1}]
    out = driver.send(first)
    counts = [(r["window_end"], r["count"]) for r in out.results.to_pylist() if r["key"] == "a"]
    assert counts == [(0, 1), (1, 2), *((t, 3) for t in range(2, 9))]
    assert driver.counters["limited_results"] == 6
    assert driver.send([{"key": "a", "at": 20, "value": 1}]).results["count"].to_pylist() == [3]
    assert driver.close().results["count"].to_pylist() == [3]
    assert driver.counters["limited_results"] == 8


@pytest.mark.parametrize("emit", ["watermark", "arrival"])
@pytest.mark.parametrize("two_sided", [False, True])
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60)), max_size=40),
    st.lists(st.integers(1, 39), max_size=6, unique=True),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=scaled(40), deadline=None)
def test_a_limit_of_keys_does_not_depend_on_batches(
    emit: Any, two_sided: bool, rows: list[tuple[str | None, int]], cuts: list[int], most: int, exclude: bool, in_order: bool
) -> None:
    """Every row against those of its key that it sees; rows in order fire, and are let go of, batch by batch."""
    size, expected, cut = 20, Counter[Any](), 0
    rows = sorted(rows, key=itemgetter(1)) if in_order else rows
    for number, (key, i) in enumerate(rows):
        near = [
            (t, n)
            for n, (k, t) in enumerate(rows)
            if k == key and i - size <= t <= i + size * two_sided and (n <= number or emit == "watermark")
        ]
        near.sort()
        own = near.index((i, number))
        low = min(max(len(near) - most, 0), own)
        seen = near[low : low + most]
        cut += len(near) > most
        expected[key, i, tuple(n for _, n in seen if n != number or not exclude)] += 1
    keyed = stream_of(SCHEMA).watermark("at", 0 if in_order else 1_000).key_by("key")
    window = keyed.lookback_window(size, two_sided=two_sided, max_rows_per_key=most, emit=emit, exclude_self=exclude)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookback, "_FEW", 0)
        driver = Driver(window.agg(kv.collect_list("value").alias("seen")))
        given = []
        ends = [0, *sorted(c for c in cuts if c < len(rows)), len(rows)]
        for low, high in pairwise(ends):
            batch = [{"key": k, "at": t, "value": n} for n, (k, t) in enumerate(rows)][low:high]
            given += driver.send(batch).results.to_pylist()
            if low and two_sided:
                driver = driver.restarted()
        given += driver.close().results.to_pylist()
    actual = Counter((r["key"], r["window_end"] - size * two_sided, tuple(r["seen"])) for r in given)
    assert actual == expected
    assert driver.counters.get("limited_results", 0) == cut


@pytest.mark.parametrize("emit", ["watermark", "arrival"])
def test_of_a_hot_key_so_many_rows_are_kept_and_read_a_few_times(emit: Any) -> None:
    """Rows come in order of time, and the windows of hours hold a hundred of them; 50 other keys have a row each."""
    keyed = stream_of(SCHEMA).watermark("at", 10).key_by("key")
    driver = Driver(keyed.lookback_window("10 h", max_rows_per_key=100, emit=emit).agg(kv.sum("value")))
    driver.send([{"key": str(i), "at": 0, "value": 1} for i in range(50)])
    held, rewritten = [], 0
    for batch in range(100):
        before = set(driver._store.tables)
        results = driver.send([{"key": "a", "at": 100 * batch + i, "value": 1} for i in range(100)]).results
        held.append(sum(t.num_rows for t in driver._store.tables.values()))
        rewritten += sum(driver._store.tables[name].num_rows for name in set(driver._store.tables) - before)
        if batch > 2:
            assert set(results["sum_value"].to_pylist()) == {100}
    assert max(held) <= 1_024 + 100 + 50
    assert rewritten <= 4 * 100 * 100
    assert driver.counters["limited_results"] > 9_000


@pytest.mark.parametrize("emit", ["watermark", "arrival"])
@pytest.mark.parametrize("two_sided", [False, True])
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60)), max_size=40),
    st.lists(st.integers(1, 39), max_size=6, unique=True),
    st.integers(1, 4),
)
@settings(max_examples=scaled(60), deadline=None)
def test_a_limit_of_windows_does_not_depend_on_batches(
    emit: Any, two_sided: bool, rows: list[tuple[str | None, int]], cuts: list[int], most: int
) -> None:
    """Rows are taken in order of arrival: with fewer than so many within reach that were taken before."""
    size, lag = 7, 20
    timed = stream_of(SCHEMA).watermark("at", lag).key_by("key")
    plan = timed.lookback_window(size, two_sided=two_sided, max_rows_per_window=most, emit=emit).agg(kv.count())
    taken: list[tuple[str | None, int]] = []
    limited, expected = 0, Counter[Any]()
    rows = [(key, max(i + n, 0)) for n, (key, i) in enumerate(rows)]  # time goes on, by less than the disorder
    driver, out = Driver(plan), []
    bounds = [0, *sorted(c for c in cuts if c < len(rows)), len(rows)]
    late = 0
    for low, high in pairwise(bounds):
        mark = driver.watermark_us
        batch = []
        for key, i in rows[low:high]:
            batch.append({"key": key, "at": i, "value": 1})
            if i * 1_000 < mark:
                late += 1
                continue
            reach = size * (1 + two_sided)
            if sum(k == key and abs(t - i) <= reach for k, t in taken) < most:
                taken.append((key, i))
            else:
                limited += 1
        out += driver.send(batch).results.to_pylist()
    out += driver.close().results.to_pylist()
    assert driver.counters["late"] == late and driver.counters.get("limited", 0) == limited
    assert len(out) == len(taken) and all(r["count"] <= most for r in out)
    if emit == "watermark":
        for key, i in taken:
            ahead = size if two_sided else 0
            expected[key, i, sum(k == key and i - size <= t <= i + ahead for k, t in taken)] += 1
        ends = Counter((r["key"], r["window_end"] - (size if two_sided else 0), r["count"]) for r in out)
        assert ends == expected


def test_a_limit_of_windows_at_restarts_and_with_matches() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 1_000).key_by("key")
    for plan in (
        keyed.lookback_window(10, max_rows_per_window=2).matches(),
        keyed.lookback_window(10, max_rows_per_window=2).pairs(),
        keyed.allowed_lateness(5).emit("retractions").lookback_window(10, max_rows_per_window=2).agg(kv.count()),
    ):
        driver = Driver(plan)
        driver.send([{"key": "a", "at": moment, "value": 1} for moment in (0, 1, 2)])
        driver = driver.restarted()
        driver.send([{"key": "a", "at": moment, "value": 1} for moment in (3, 10, 11, 12)])
        assert driver.counters["limited"] == 3  # 2, 3 and 10, which meet 0 and 1
        assert "at most 2 rows a window" in plan.explain()
    with pytest.raises(PlanError, match="max_rows_per_window"):
        keyed.lookback_window(1, max_rows_per_window=True)


def test_times_to_the_microsecond_over_many_years_and_keys() -> None:
    """So far apart that key and time do not fit in one number."""
    schema = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    driver = Driver(stream_of(schema).watermark("at", 0).key_by("key").lookback_window("30 days").agg(kv.count()))
    times = [1 + i * 17 * 86_400_000_000 for i in range(100)] * 100
    keys = [i for i in range(100) for _ in range(100)]
    driver.send(pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC"))}, schema=schema))
    counts = Counter(driver.close().results["count"].to_pylist())
    assert counts + Counter() == Counter({2: 100})


def test_what_cannot_run_is_refused_where_it_is_written() -> None:
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("key")
    with pytest.raises(DurationError):
        keyed.lookback_window(-1)
    with pytest.raises(PlanError, match="max_rows_per_key"):
        keyed.lookback_window(1, max_rows_per_key=0)
    with pytest.raises(KeyError, match="left_valu"):
        keyed.lookback_window(1).pairs("left_valu > 3")
    with pytest.raises(ExpressionError, match="true or false"):
        keyed.lookback_window(1).pairs("left_value + right_value")
    with pytest.raises(PlanError, match="retract"):
        keyed.allowed_lateness(5).emit("retractions").lookback_window(1, max_rows_per_key=3).agg(kv.count())
