"""Joins under odd circumstances: keys of any type, options, wrong calls, hot keys (SEMANTICS §9)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import count, windows
from krishiv_py.errors import ColumnError, DurationError, OperatorError, OrderError, PlanError, SchemaError
from krishiv_py.testing import Driver, StepOutput, stream_of


def left(ddl: str = "key string, at bigint", lag: int = 0) -> Any:
    return stream_of(ddl).watermark("at", lag)


def right(ddl: str = "key string, seen bigint", lag: int = 0) -> Any:
    return stream_of(ddl).watermark("seen", lag)


KEYS: dict[str, list[Any]] = {
    "double": [1.5, float("nan"), -0.0, None],
    "float": [1.5, float("nan"), -0.0, None],
    "decimal(10, 2)": [Decimal("1.50"), Decimal("0.00"), None],
    "binary": [b"\x00", b"", None],
    "string": ["", "ä" * 3_000, "\u0000", None],
    "date": [dt.date(1, 1, 1), dt.date(2024, 2, 29), None],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=dt.timezone.utc), None],
    "boolean": [True, False, None],
    "tinyint": [-128, 127, None],
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_plain_type_meet_themselves_and_null_meets_nothing(kind: str) -> None:
    joined = left(f"key {kind}, at bigint").interval_join(
        right(f"key {kind}, seen bigint"), "key", lower=-5, upper=5, how="full"
    )
    driver = Driver(joined)
    driver.send({"left": [{"key": k, "at": 1} for k in KEYS[kind]]})
    driver = driver.restarted()
    again = [0.0 if k == 0 and isinstance(k, float) else k for k in KEYS[kind]]
    met = driver.send({"right": [{"key": k, "seen": 3} for k in again]}).results
    assert met.num_rows == len(KEYS[kind]) - 1
    assert driver.close().results.num_rows == 2, "the null of each side"


def test_several_keys_one_of_them_null() -> None:
    joined = left("a string, b bigint, at bigint").interval_join(
        right("x string, y bigint, seen bigint"), {"a": "x", "b": "y"}, lower=0, upper=0, how="left"
    )
    driver = Driver(joined)
    out = driver.send(
        {
            "left": [{"a": "p", "b": 1, "at": 5}, {"a": "p", "b": None, "at": 5}, {"a": None, "b": None, "at": 5}],
            "right": [{"x": "p", "y": 1, "seen": 5}, {"x": "p", "y": None, "seen": 5}],
        }
    )
    assert out.results.to_pylist() == [{"a": "p", "b": 1, "at": 5, "seen": 5, "join_time": 5}]
    assert [r["seen"] for r in driver.close().results.to_pylist()] == [None, None]


def test_pairs_of_a_batch_come_by_time_then_key_then_arrival_however_sent() -> None:
    def pairs(batches: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        joined = left("id bigint, key bigint, at bigint", 50).interval_join(
            right("rid bigint, key bigint, seen bigint", 50), "key", lower=-20, upper=20
        )
        driver = Driver(joined)
        return [(r["join_time"], r["key"], r["id"], r["rid"]) for b in batches for r in driver.send(b).results.to_pylist()]

    lefts = [{"id": i, "key": i % 3, "at": 10 + i % 4} for i in range(12)]
    rights = [{"rid": i, "key": i % 3, "seen": 10 + i % 5} for i in range(12)]
    together = pairs([{"left": lefts, "right": rights}])
    assert [t for t, *_ in together] == sorted(t for t, *_ in together)
    assert together == pairs([{"right": rights, "left": lefts}])
    by_key = {k: [p for p in together if p[1] == k] for k in range(3)}
    for pairs_of in by_key.values():
        assert pairs_of == sorted(pairs_of)
    assert sorted(together) == sorted(pairs([{"left": lefts}, {"right": rights}]))


def test_a_key_without_rows_for_its_time_to_live_is_dropped_and_counted() -> None:
    plans = {
        "interval": left().interval_join(right(), "key", lower=-90, upper=90, how="full"),
        "as-of": left().asof_join(right(), "key", direction="nearest", tolerance=90),
        "windows": left().window_join(right(), "key", window=windows.tumbling(200)),
    }
    for plan in plans.values():
        driver = Driver(plan.with_state_ttl(kv.StateTtlConfig(40)))
        driver.send({"left": [{"key": "a", "at": 100}, {"key": "b", "at": 100}], "right": [{"key": "b", "seen": 100}]})
        driver = driver.restarted()
        for i in range(110, 150, 5):
            driver.send({"left": [{"key": "b", "at": i}], "right": [{"key": "b", "seen": i}]})
        assert driver.counters["ttl_dropped"] >= 1
        keys = {row["key"] for row in driver.close().results.to_pylist()}
        assert "a" not in keys


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_options_of_any_query_work(how: Any) -> None:
    joined = left(lag=5).interval_join(right(lag=5), "key", lower=-10, upper=10, how=how)
    plan = joined.null_keys("side_output").late_rule("window").future_tolerance(50, "side_output", "watermark")
    driver = Driver(plan)
    assert driver.send({"left": [{"key": "a", "at": 100}], "right": [{"key": "a", "seen": 101}]}).results.num_rows == 1
    out = driver.send({"left": [{"key": None, "at": 100}, {"key": "a", "at": 500}, {"key": "a", "at": None}]})
    assert sorted(out.late["reason"].to_pylist()) == ["future", "null_key", "null_time"]
    assert set(out.late["side"].to_pylist()) == {"left"}
    assert driver.send({"right": [{"key": "a", "seen": 2}]}).late["reason"].to_pylist() == ["late"]


def test_bounds_as_wide_as_time_itself() -> None:
    joined = left().interval_join(right(), "key", lower="-1000000 hours", upper="1000000 hours", how="full")
    driver = Driver(joined)
    driver.send({"left": [{"key": "a", "at": -(10**13)}], "right": [{"key": "a", "seen": 10**11}]})
    assert driver.close().results.num_rows >= 1


def test_too_many_pairs_of_one_key_are_an_error_that_names_it() -> None:
    driver = Driver(left().interval_join(right(), "key", lower=-5, upper=5).max_listed(50))
    rows = {"left": [{"key": "hot", "at": 1}] * 8, "right": [{"key": "hot", "seen": 1}] * 8}
    with pytest.raises(OperatorError, match=r"64 for key key='hot'.*max_listed\(128\)"):
        driver.send(rows)


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_hot_key_is_bounded_and_what_is_not_kept_is_counted(how: Any) -> None:
    joined = left(lag=1_000).interval_join(right(lag=1_000), "key", lower=-500, upper=500, how=how, max_rows_per_key=5)
    driver = Driver(joined)
    for i in range(40):
        driver.send({"left": [{"key": "hot", "at": i}, {"key": f"cold {i}", "at": i}]})
    assert driver.counters["limited"] == 35
    assert driver.progress.open_rows == 45
    met = driver.restarted().send({"right": [{"key": "hot", "seen": 50}, {"key": "cold 39", "seen": 50}]}).results
    assert sorted(r["at"] for r in met.to_pylist()) == [0, 1, 2, 3, 4, 39]
    beyond = driver.send({"right": [{"key": "hot", "seen": 50}] * 7, "left": [{"key": "hot", "at": 60}]})
    assert beyond.results.num_rows == 5 * 5, "a row over the limit takes part in no pair"
    assert driver.counters["limited"] == 35 + 2 + 1
    rest = driver.close().results
    assert rest.num_rows == (40 if how == "full" else 0), "the cold ones; of the hot key nothing is known for sure"


@pytest.mark.one_in(19)
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_of_a_limited_key_do_not_depend_on_batches(how: Any, seed: int) -> None:
    draw = Random(seed)
    joined = left(lag=1_000).interval_join(right(lag=1_000), "key", lower=-30, upper=20, how=how, max_rows_per_key=4)
    ones, others = ([(draw.choice(["a", "b", None]), draw.randrange(100)) for _ in range(40)] for _ in range(2))
    actual = []
    for most in (1, 3, 40):
        driver, moment, to, rows = Driver(joined), 0, 0, []
        while moment < 40 or to < 40:
            more, much_more = draw.randint(0, most), draw.randint(1, most)
            sent = driver.send(
                {
                    "left": [{"key": key, "at": time} for key, time in ones[moment : moment + more]],
                    "right": [{"key": key, "seen": time} for key, time in others[to : to + much_more]],
                }
            )
            rows += given(sent)
            moment, to = moment + more, to + much_more
        rows += given(driver.close())
        actual.append((sorted(map(repr, rows)), driver.counters["limited"], driver.counters["unmatched"]))
    assert actual[0] == actual[1] == actual[2]
    assert actual[0][1] == sum(sum(key == k for key, _ in side) - 4 for side in (ones, others) for k in "ab")


def test_one_batch_of_a_hot_key_gives_at_most_its_rows_times_the_limit() -> None:
    joined = (
        left(lag=0).interval_join(right(lag=0), "key", lower=-(10**5), upper=10**5, max_rows_per_key=100).max_listed(10_000)
    )
    driver = Driver(joined)
    rows = {"left": [{"key": "hot", "at": i} for i in range(8_000)], "right": [{"key": "hot", "seen": i} for i in range(8_000)]}
    assert driver.send(rows).results.num_rows == 10_000
    assert driver.counters["limited"] == 2 * 7_900


@pytest.mark.parametrize(("how", "at_once", "at_the_end"), [("left", 7, 3), ("anti", 7, 3), ("right", 5, 3), ("full", 12, 6)])
def test_rows_without_a_key_are_given_where_there_is_no_room_for_them(how: Any, at_once: int, at_the_end: int) -> None:
    joined = left(lag=1_000).interval_join(right(lag=1_000), "key", lower=-500, upper=500, how=how, max_rows_per_key=3)
    driver = Driver(joined)
    out = driver.send({"left": [{"key": None, "at": i} for i in range(10)]}).results.num_rows
    out += driver.send({"right": [{"key": None, "seen": i} for i in range(8)]}).results.num_rows
    assert (out, driver.progress.open_rows) == (at_once, at_the_end)
    assert driver.close().results.num_rows == at_the_end
    missing = {"left": 8, "anti": 8, "right": 10, "full": 0}[how]
    assert (driver.counters["limited"], driver.counters["unmatched"]) == (0, missing), "none has missed a partner"


def test_explain_shows_the_steps_of_each_side_of_a_join() -> None:
    once = stream_of("id string, who string, at bigint").watermark("at", 0).drop_duplicates("id", within="1 min")
    named = once.lookup_join(pa.table({"who": ["a"], "country": ["x"]}), "who")
    paid = stream_of("id string, seen bigint, paid bigint").filter("paid > 3").watermark("seen", 0)
    shown = next(line for line in named.interval_join(paid, "id", lower=0, upper=1).explain().splitlines() if "Union" in line)
    assert "→ MapBatches lookup_join, right: " in shown and shown.endswith("→ Filter (paid > 3)") and "__krishiv" not in shown


def test_explain_calls_a_join_a_join() -> None:
    joins = [
        (left().interval_join(right(), "key", lower=0, upper=5, how="left"), "Join left interval join, left + 0 µs"),
        (left().asof_join(right(), "key"), "Join left as-of join"),
        (left().window_join(right(), "key", window=windows.tumbling(10)), "Join inner join in windows"),
    ]
    for joined, line in joins:
        text = joined.results().tumbling_window(10).agg(count()).explain()
        assert line in text and text.count("WindowAggregate") == 1


def given(out: StepOutput) -> list[dict[str, Any]]:
    actual: list[dict[str, Any]] = out.results.to_pylist()
    return actual


def test_names_of_both_sides() -> None:
    one, other = left("key string, at bigint, v bigint"), right("key string, seen bigint, V bigint")
    expected = ["key", "at", "v", "seen", "V_right", "join_time"]
    assert one.interval_join(other, "key", lower=0, upper=5).schema.names == expected
    again = one.interval_join(right("key string, seen bigint, v bigint, v_right bigint"), "key", lower=0, upper=5)
    assert again.schema.names == ["key", "at", "v", "seen", "v_right_right", "v_right", "join_time"]
    actual = one.interval_join(other, "key", lower=0, upper=5, suffixes=("", "_right")).schema.names
    assert actual == ["key", "at", "v", "seen", "V_right", "join_time"]
    with pytest.raises(SchemaError, match="two columns of the result"):
        one.interval_join(right("key string, seen bigint, v bigint, v2 bigint"), "key", lower=0, upper=5, suffixes=("2", "2"))
    odd = left("key string, at bigint, side bigint, join_time bigint")
    out = Driver(odd.interval_join(right(), "key", lower=0, upper=5)).send({"left": [{"key": "a", "at": None, "side": 1}]})
    assert {"side", "side_"} <= set(out.late.column_names)


ENDS = ("window_start_hits", "window_end_hits")


def test_bounds_of_results_next_to_those_of_a_window_join() -> None:
    hits = left("key string, at bigint").key_by("key").tumbling_window(5).agg(count())
    within = windows.tumbling(10)
    own = ["window_start_left", "window_end_left"]
    assert hits.window_join(right(), "key", window=within).results().schema.names[:5] == [
        "key",
        "window_start",
        "window_end",
        *own,
    ]
    with pytest.raises(SchemaError, match="two columns of the result have one name"):
        hits.window_join(right(), "key", window=within, suffixes=("", "_right"))
    driver = Driver(hits.window_join(right(), "key", window=within, suffixes=("_hits", "")))
    driver.send({"left": [{"key": "a", "at": 6}], "right": [{"key": "a", "seen": 1}]})
    row = driver.close().results.to_pylist()[0]
    assert [row[n] for n in ("window_start", "window_end", *ENDS)] == [0, 10, 5, 10]
    late = right().window_join(hits, "key", window=within, how="full", suffixes=("", "_hits"))
    assert late.results().schema.names == ["key", "window_start", "window_end", "seen", *ENDS, "count"]


@pytest.mark.parametrize("named", ["left", "right"])
def test_a_handler_that_one_side_names_takes_the_late_rows_of_both(named: str) -> None:
    counts = kv.CountingLateEventHandler()
    one, other = (
        side.with_late_event_handler(counts) if name == named else side for name, side in (("left", left()), ("right", right()))
    )
    driver = Driver(one.interval_join(other, "key", lower=0, upper=5))
    driver.send({"left": [{"key": "a", "at": 10}], "right": [{"key": "a", "seen": 10}]})
    driver.send({"left": [{"key": "a", "at": 1}], "right": [{"key": "a", "seen": 2}]})
    assert counts.total == 2


def test_a_batch_without_rows_names_no_side() -> None:
    driver = Driver(left().interval_join(right(), "key", lower=0, upper=5, how="left"))
    driver.send({"left": [{"key": "a", "at": 1}], "right": [{"key": "b", "seen": 100}]})
    assert driver.send([]).results.num_rows == driver.send({}).results.num_rows == 0
    driver.advance_watermark(50)
    assert driver.send([]).watermark_us == 50_000
    with pytest.raises(PlanError, match=r'belong to one of its sides \(got: list\)\. Hint: send \{"left":'):
        driver.send([{"key": "a", "at": 1}])


def heard(side: Any) -> Any:
    return side.with_late_event_handler(kv.CountByKeyLateEventHandler())


WRONG: list[tuple[type[Exception], str, Any]] = [
    (OrderError, "no watermark", lambda: left().interval_join(stream_of("key string"), "key", lower=0, upper=1)),
    (PlanError, "lookup_join|event time", lambda: left().interval_join(5, "key", lower=0, upper=1)),
    (PlanError, 'write on="user"', lambda: left().interval_join(right(), lower=0, upper=1)),
    (PlanError, "beyond `upper`", lambda: left().interval_join(right(), "key", lower=2, upper=1)),
    (DurationError, "lower", lambda: left().interval_join(right(), "key", lower=0.5, upper=1)),
    (ColumnError, "other types", lambda: left().interval_join(right("key bigint, seen bigint"), "key", lower=0, upper=1)),
    (ColumnError, "kei", lambda: left().interval_join(right(), "kei", lower=0, upper=1)),
    (PlanError, "same number", lambda: left().key_by("key").interval_join(right().key_by("key", "seen"), lower=0, upper=1)),
    (PlanError, "keyed by other", lambda: left().key_by("at").interval_join(right(), "key", lower=0, upper=1)),
    (PlanError, "twice", lambda: left().interval_join(right(), ["key", "key"], lower=0, upper=1)),
    (PlanError, "finer", lambda: left().interval_join(right(), "key", lower=dt.timedelta(microseconds=1), upper=1)),
    (PlanError, "needs a tolerance", lambda: left().asof_join(right(), "key", direction="nearest")),
    (PlanError, "tumbling or hopping", lambda: left().window_join(right(), "key", window=5)),
    (PlanError, "different late handlers", lambda: heard(left()).interval_join(heard(right()), "key", lower=0, upper=1)),
    (PlanError, "neither triggers", lambda: left().interval_join(right(), "key", lower=0, upper=1).emit("retractions")),
    (PlanError, "left.*right", lambda: Driver(left().interval_join(right(), "key", lower=0, upper=1)).send([{"key": "a"}])),
    (PlanError, "no such stream", lambda: Driver(left().interval_join(right(), "key", lower=0, upper=1)).send({"l": []})),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG, ids=[w[1] for w in WRONG])
def test_what_is_wrong_is_refused_at_the_call_with_a_hint(kind: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(kind, match=f"(?s){message}.*") as caught:
        call()
    assert "Hint: " in str(caught.value)


def test_results_go_on_to_a_window() -> None:
    joined = left().interval_join(right(), "key", lower=0, upper=50, how="left")
    driver = Driver(joined.key_by("key").tumbling_window(100).agg(kv.count(), kv.count("seen").alias("met")))
    actual = []
    for i in range(0, 400, 20):
        out = driver.send({"left": [{"key": "ab"[i // 20 % 2], "at": i}], "right": [{"key": "a", "seen": i + 5}]})
        assert not any(rows.num_rows for rows in out.late_by_stage.values())
        actual += given(out)
    actual += given(driver.close())
    assert sum(r["count"] for r in actual if r["key"] == "b") == 10
    assert sum(r["met"] for r in actual if r["key"] == "b") == 0
    assert isinstance(joined.schema, pa.Schema)


def test_right_rows_that_an_as_of_join_forgets_are_counted() -> None:
    driver = Driver(left().asof_join(right(), "key").with_state_ttl(kv.StateTtlConfig(40)))
    driver.send({"right": [{"key": "a", "seen": 100}, {"key": "a", "seen": 101}, {"key": "b", "seen": 100}]})
    driver.send({"left": [{"key": "b", "at": 100}], "right": [{"key": "b", "seen": 104}]})
    for i in range(110, 150, 5):
        driver.send({"left": [{"key": "b", "at": i}], "right": [{"key": "b", "seen": i}]})
    assert driver.counters["ttl_dropped"] == 1  # of the key a the newest that the watermark had passed
