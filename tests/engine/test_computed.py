"""What ``.agg(...)`` computes of aggregates is what a step computes of their columns, in every kind of window."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import Trigger, coalesce, col, compat, concat, count, lit, when
from krishiv_py.planner.fingerprint import fingerprint
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, n bigint, at bigint"
SENT = [
    ("a", 1, 1),
    ("b", None, 3),
    ("a", 2, 2),
    ("b", 4, 4),
    ("a", 7, 12),
    ("a", 5, 8),
    ("b", 5, 25),
    ("a", 3, 47),
    ("b", 9, 60),
]
SENT += [("a", 6, 5), ("b", 1, 63)]
ROWS = [{"user": user, "n": n, "at": moment} for user, n, moment in SENT]
PLAIN = [count(), kv.sum("n"), kv.max("n"), kv.collect_list("n").alias("all")]
COMPUTED = [
    kv.collect_list("n").alias("all"),
    (kv.sum("n") / count()).alias("mean"),
    coalesce(kv.max("n"), 0).alias("top"),
    when(count() > 1, concat(col("user"), lit("+"))).otherwise(col("user")).alias("who"),
    (kv.sum("n") > 6).alias("big"),
    (col("window_end") - col("window_start") + kv.sum("n")).alias("length"),
    kv.collect_list("n").transform(lambda v: v * count()).alias("scaled"),
    count().alias("n_rows"),
]
BY_STEP = [
    col("all"),
    (col("sum_n") / col("count")).alias("mean"),
    coalesce(col("max_n"), 0).alias("top"),
    when(col("count") > 1, concat(col("user"), lit("+"))).otherwise(col("user")).alias("who"),
    (col("sum_n") > 6).alias("big"),
    (col("window_end") - col("window_start") + col("sum_n")).alias("length"),
    col("all").transform(lambda v: v * col("count")).alias("scaled"),
    col("count").alias("n_rows"),
]
Windows = Callable[[Any], Any]
WINDOWS: dict[str, Windows] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "hopping": lambda s: s.hopping_window(10, 5),
    "cumulating": lambda s: s.cumulate_window(5, 20),
    "session": lambda s: s.session_window(9),
    "capped session": lambda s: s.session_window(9, max_duration=12),
    "count": lambda s: s.count_window(2),
    "look-back": lambda s: s.lookback_window(9, with_row=True).trigger(Trigger()),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(9).grace(100)),
    "updates": lambda s: s.tumbling_window(10).emit("updates").allowed_lateness(100),
    "retractions": lambda s: s.tumbling_window(10).emit("retractions").allowed_lateness(100),
    "session retractions": lambda s: s.session_window(9).emit("retractions").allowed_lateness(100),
    "discarding": lambda s: s.tumbling_window(20).trigger(Trigger.on_count(1)).accumulation("discarding"),
    "panes": lambda s: s.tumbling_window(20).trigger(Trigger.on_count(2)).emit("updates").with_pane(),
    "count updates": lambda s: s.count_window(3).trigger(Trigger.on_count(1)).emit("updates"),
}


def keyed() -> Any:
    return stream_of(SCHEMA).watermark("at", 5).key_by("user")


def sent(stream: Any) -> list[dict[str, Any]]:
    driver = Driver(stream)
    actual = [row for one in ROWS for row in driver.send([one]).results.to_pylist()]
    return [*actual, *driver.close().results.to_pylist()]


@pytest.mark.parametrize("name", WINDOWS)
def test_it_is_what_a_step_computes(name: str) -> None:
    windows = WINDOWS[name](keyed())
    computed, plain = windows.agg(*COMPUTED), windows.agg(*PLAIN)
    about = [n for n in ("op", "pane_timing", "pane_index") if n in plain.schema.names]
    own = ["n", "at"] if name == "look-back" else []
    actual = sent(computed)
    names = ["user", "window_start", "window_end", "all", "mean", "top", "who", "big", "length", "scaled", "n_rows"]
    assert list(actual[0]) == [*names, *own, *about]
    step = plain.select("user", "window_start", "window_end", *BY_STEP, *own, *(n for n in about if n != "op"))
    assert [{k: row[k] for k in sorted(row)} for row in actual] == [{k: row[k] for k in sorted(row)} for row in sent(step)]
    assert any(row["mean"] is not None for row in actual)


def test_options_come_before_and_after() -> None:
    before = keyed().allowed_lateness(100).emit("retractions").with_pane().tumbling_window(10).agg(*COMPUTED)
    after = keyed().tumbling_window(10).agg(*COMPUTED).allowed_lateness(100).emit("retractions").with_pane()
    assert sent(before) == sent(after)
    assert {row["op"] for row in sent(after)} == {"+I", "-U", "+U"}
    changes = [type(change).__name__ for change in compat.changes(Driver(after).send(ROWS).results)]
    assert "Emit" in changes


def test_a_later_stage_reads_it() -> None:
    means = keyed().tumbling_window(10).agg(mean=kv.sum("n") / count(), window_time=count() + 1)
    actual = sent(means.key_by("user").tumbling_window(100).agg(best=kv.max("mean") * 2, most=kv.max("window_time")))
    assert [(row["user"], row["best"], row["most"]) for row in actual] == [("a", 14.0, 4), ("b", 10.0, 3)]


def test_results_of_two_such_stages_are_joined() -> None:
    rows = keyed()
    one = rows.tumbling_window(10).agg(mean=kv.avg("n").round(1)).key_by("user")
    other = rows.tumbling_window(10).agg(twice=count() * 2).key_by("user")
    joined = one.window_join(other, on="user", window=kv.windows.tumbling(10), suffixes=("_l", "_r"))
    assert {(row["mean"], row["twice"]) for row in sent(joined)} == {(2.7, 6), (4.0, 4), (7.0, 2), (5.0, 2), (3.0, 2), (5.0, 4)}


def test_several_outputs_share_the_stage() -> None:
    base = keyed().tumbling_window(10).agg(mean=kv.sum("n") / count())
    sinks = kv.MemorySink(), kv.MemorySink()
    driver = Driver([base.filter("mean > 3").to(sinks[0], name="big"), base.select("user", "mean").to(sinks[1], name="all")])
    assert len(driver._plan.stages) == 1
    actual = [driver.send(ROWS[:5]).by_output, driver.send(ROWS[5:]).by_output, driver.close().by_output]
    every, big = (builtins.sum(part[name].num_rows for part in actual) for name in ("all", "big"))
    assert every > big > 0


def test_state_depends_on_the_aggregates_alone() -> None:
    windows = keyed().tumbling_window(10)
    plain, computed = windows.agg(kv.sum("n"), count()), windows.agg((kv.sum("n") / count()).alias("mean"))
    assert fingerprint(plain._spec()) == fingerprint(computed._spec())


def test_each_aggregate_is_kept_once() -> None:
    total = kv.sum("n")
    stream = keyed().tumbling_window(10).agg(total / count(), total * 2, total.alias("total"), count() + total)
    assert [call.output_name for call in stream._spec().aggs] == ["count", "total"]
    shared = [kv.top_k(2, "n"), kv.top_k(3, "n"), kv.percentile("n", 0.5), kv.percentile("n", 0.9), count("n"), count()]
    stream = keyed().tumbling_window(10).agg(*((call.size() if "k" in call.output_name else call + 1) for call in shared))
    assert len(stream._spec().aggs) == len(shared)


def test_names_do_not_meet() -> None:
    rows = stream_of("sum_n string, n bigint, at bigint").watermark("at", 5).key_by("sum_n")
    actual = sent_of(rows.tumbling_window(100).agg((kv.sum("n") + 1).alias("count"), count() / 2, kv.sum("n") * 1))
    assert actual == [
        {"sum_n": "a", "window_start": 0, "window_end": 100, "count": 4, "(count(*) / 2)": 1.0, "(sum(n) * 1)": 3}
    ]


def sent_of(stream: Any) -> list[dict[str, Any]]:
    driver = Driver(stream)
    driver.send([{"sum_n": "a", "n": 1, "at": 1}, {"sum_n": "a", "n": 2, "at": 2}])
    actual: list[dict[str, Any]] = driver.close().results.to_pylist()
    return actual


def test_sql_computes_in_the_same_place() -> None:
    context = SqlContext()
    context.register("events", stream_of(SCHEMA).watermark("at", 5))
    ten = "at, INTERVAL '10' MILLISECOND"
    made = context.sql(
        f"SELECT user, tumble_start({ten}) AS window_start, tumble_end({ten}) AS window_end, SUM(n) / COUNT(*) AS mean, "
        f"COALESCE(MAX(n), 0) AS top FROM events GROUP BY user, tumble({ten})"
    )
    assert isinstance(made, kv.ResultStream)
    built = keyed().tumbling_window(10).agg(mean=kv.sum("n") / count(), top=coalesce(kv.max("n"), 0))
    assert made.explain() == built.explain()
    retracting = made.allowed_lateness(100).emit("retractions")
    assert sent(retracting) == sent(built.allowed_lateness(100).emit("retractions"))


def test_it_goes_to_other_processes_and_into_texts() -> None:
    call = kv.collect_list("n").filter(col("n") > 1).filter(lambda v: v > 2)
    again = pickle.loads(pickle.dumps(call))
    assert repr(again) == repr(call) == "filter(collect_list(n) FILTER (WHERE (n > 1)), v -> (v > 2))"
    assert again.same_as(call)
    assert str(kv.sum("n").alias("x")) == "sum(n) AS x"


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: kv.sum(kv.sum("n")), "sum of an aggregate"),
    (lambda: kv.top_k(2, kv.sum("n")), "top_k of an aggregate"),
    (lambda: kv.count_if(count() > 1), "count of an aggregate"),
    (lambda: kv.sum("n").filter(count() > 1), "sum of an aggregate"),
    (lambda: keyed().tumbling_window(10).agg(kv.sum("n") + col("n")), "'n' is neither a key nor aggregated.*first"),
    (lambda: keyed().tumbling_window(10).agg(x=count() + 1, y=col("at")), "'at' is neither a key nor aggregated"),
    (
        lambda: keyed().tumbling_window(10).agg(x=count() + col("nowhere")),
        "no column 'nowhere'.*columns are: user, window_start",
    ),
    (lambda: keyed().tumbling_window(10).agg(count(), x=col("window_time")), "no column 'window_time'"),
    (lambda: keyed().tumbling_window(10).agg((count() + 1).alias("a"), (count() + 2).alias("A")), "two columns .* one name"),
    (lambda: keyed().tumbling_window(10).agg(count(), user=count() + 1), "named like a key"),
    (lambda: keyed().tumbling_window(10).agg(count(), window_end=count() + 1), "named like a key or a bound"),
    (lambda: keyed().tumbling_window(10).agg(op=count() + 1), "a name of the library's own"),
    (lambda: keyed().tumbling_window(10).agg(pane_index=count() + 1).with_pane(), "a name of the library's own"),
    (lambda: keyed().tumbling_window(10).agg(col("user").alias("u")), "no aggregate"),
    (lambda: keyed().tumbling_window(10).agg(x="count(*)"), "not an aggregate"),
    (lambda: keyed().tumbling_window(10).agg(count() + "x"), "types .* do not fit"),
    (lambda: keyed().tumbling_window(10).agg(kv.sum("nowhere") + 1), "no column 'nowhere'"),
    (lambda: keyed().tumbling_window(10).agg(count() + count().over("5 s")), "look-back windows only"),
    (lambda: keyed().lookback_window(10, with_row=True).agg(n=count() + 1), "name"),
    (lambda: stream_of(SCHEMA).filter(kv.sum("n") > 1), "computed from many rows"),
    (lambda: stream_of(SCHEMA).with_column("x", kv.sum("n")), "computed from many rows"),
    (lambda: stream_of(SCHEMA).select(x=count() + 1), "computed from many rows"),
    (lambda: stream_of(SCHEMA).split(count() > 1), "computed from many rows"),
    (lambda: stream_of(SCHEMA).watermark("at", 0).key_by(x=count() + 1), "computed from many rows"),
    (lambda: keyed().drop_duplicates(kv.sum("n"), within=5), "computed from many rows"),
    (lambda: keyed().session_window(kv.sum("n")), "reads no column"),
    (lambda: keyed().lookback_window(9).pairs(count() > 1), "computed from many rows"),
    (lambda: keyed().tumbling_window(10).agg(count()).filter(count() > 1), "computed from many rows"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_what_is_wrong_says_so_at_the_call(at: int) -> None:
    call, why = WRONG[at]
    with pytest.raises(kv.KrishivError, match=why):
        call()
