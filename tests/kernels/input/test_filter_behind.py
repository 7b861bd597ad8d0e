"""Filters after the watermark (SEMANTICS §2.7): what they leave out moves the watermark, and nothing else."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import count, sum
from krishiv_py.errors import ColumnError, OrderError
from krishiv_py.sql.context import SqlContext
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

DDL = "kind string, user string, at bigint, n bigint"
ROW = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["buy", "view", None]),
        "user": st.sampled_from(["a", "b", None]),
        "at": st.one_of(st.none(), st.integers(0, 60)),
        "n": st.integers(-3, 3),
    }
)
BATCHES = st.lists(st.lists(ROW, max_size=6), max_size=5)
BUY = "kind = 'buy'"


def windows(timed: Any, kind: str) -> Any:
    """A stage of each kind over rows with a watermark."""
    keyed = timed.key_by("user")
    return {
        "tumbling": lambda: keyed.tumbling_window(10),
        "hopping": lambda: keyed.late_rule("window").hopping_window(10, 4),
        "session": lambda: keyed.session_window(6),
        "look-back": lambda: keyed.lookback_window(8),
        "patient": lambda: keyed.allowed_lateness(5).tumbling_window(10),
    }[kind]()


def rows_of(driver: Driver, batches: list[list[dict[str, Any]]]) -> tuple[list[str], list[str], list[int]]:
    """Results, late rows, and the watermark after each batch."""
    actual, late, marks = list[str](), list[str](), list[int]()
    for batch in [*batches, None]:
        out = driver.close() if batch is None else driver.send(batch)
        actual += map(repr, out.results.to_pylist())
        late += [repr((r["kind"], r["user"], r["at"], r["reason"])) for r in out.late.to_pylist()]
        marks.append(driver.watermark_us)
    return sorted(actual), sorted(late), marks


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "look-back", "patient"])
@hypothesis.given(BATCHES)
@hypothesis.settings(max_examples=scaled(60), deadline=None)
def test_only_the_watermark_sees_what_is_left_out(kind: str, batches: list[list[dict[str, Any]]]) -> None:
    """As if a second source, which no window reads, had brought the rows that are left out."""
    late_rows = stream_of(DDL).watermark("at", 3).filter(BUY)
    actual, late, marks = rows_of(Driver(windows(late_rows, kind).agg(count(), sum("n"))), batches)
    given = Driver(windows(stream_of(DDL).watermark("at", 3), kind).agg(count()))
    assert marks == rows_of(given, batches)[2]
    reference = Driver(windows(stream_of(DDL).filter(BUY).watermark("at", 3), kind).agg(count(), sum("n")))
    wanted, wanted_late, top = list[str](), list[str](), 0
    for batch in [*batches, None]:
        kept = batch if batch is None else [r for r in batch if r["kind"] == "buy"]
        out = reference.close() if kept is None else reference.send(kept)
        outs = [out]
        if batch is not None:
            top = max([top, *(r["at"] for r in batch if r["at"] is not None)])
            if any(r["at"] is not None for r in batch) and top - 3 > reference.watermark_us // 1_000:
                outs.append(reference.advance_watermark(top - 3))
        for one in outs:
            wanted += map(repr, one.results.to_pylist())
            wanted_late += [repr((r["kind"], r["user"], r["at"], r["reason"])) for r in one.late.to_pylist()]
    assert (actual, late) == (sorted(wanted), sorted(wanted_late))


def test_sql_goes_by_the_rows_of_its_table() -> None:
    context = SqlContext()
    context.register("events", stream_of(DDL).filter("n > 0").watermark("at", 0))
    query: Any = context.sql(
        "SELECT user, window_start, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
        "WHERE kind = 'buy' AND user <> 'x' GROUP BY user, window_start, window_end"
    )
    driver = Driver(query)
    rows = [("buy", "a", 1_000, 1), ("buy", "x", 2_000, 1), ("view", "a", 120_000, 1), ("view", "a", 900_000, 0)]
    given = [dict(zip(("kind", "user", "at", "n"), row, strict=True)) for row in rows]
    assert driver.send(given).results.to_pylist() == [{"user": "a", "window_start": 0, "n": 1}]
    assert driver.watermark_us == 120_000_000, "a step before the watermark comes first"
    assert driver.progress.rows == 1
    assert "(user != 'x')), after the watermark" in query.explain()


def test_joins_deduplication_and_rows_without_a_window() -> None:
    left = stream_of(DDL).watermark("at", 0).filter(BUY)
    right = stream_of("user string, t bigint").watermark("t", 0)
    driver = Driver(left.interval_join(right, on="user", lower=0, upper=10, how="left"))
    far = {"kind": "view", "user": "a", "at": 100, "n": 1}
    near = {"kind": "buy", "user": "a", "at": 1, "n": 1}
    out = driver.send({"left": [near, {**near, "kind": "view"}], "right": [{"user": "a", "t": 100}]})
    assert (out.results.num_rows, driver.watermark_us) == (0, 1_000)
    out = driver.send({"left": [far], "right": []})
    assert [(r["at"], r["t"]) for r in out.results.to_pylist()] == [(1, None)], "the view has closed it"
    once = Driver(left.drop_duplicates("user", within=50))
    assert once.send([far, near]).results.to_pylist() == [near]
    assert once.send([near]).late.num_rows == 1
    assert Driver(left.select("at", "user")).send([far, near]).results.to_pylist() == [{"at": 1, "user": "a"}]


def test_other_steps_keep_the_event_time() -> None:
    marked = stream_of(DDL).watermark("at", 0).filter(BUY).with_column("m", "n * 2")
    timed: Any = marked.filter("m > 2").rename(user="who").drop("n")
    plan = timed.key_by(kv.col("who").upper().alias("WHO_")).tumbling_window(10).agg(sum("m"))
    driver = Driver(plan)
    out = driver.send(
        [{"kind": k, "user": "a", "at": moment, "n": moment} for moment in (1, 2, 3, 40) for k in ("buy", "view")][:-2]
    )
    assert not out.results.num_rows
    out = driver.send([{"kind": "view", "user": "a", "at": 40, "n": 40}])
    assert out.results.to_pylist() == [{"WHO_": "A", "window_start": 0, "window_end": 10, "sum_m": 10}]
    assert "kind" in timed.schema.names and not any(name.startswith("__") for name in timed.schema.names)
    steps: tuple[Callable[[], Any], ...] = (
        lambda: timed.drop("at"),
        lambda: timed.with_column("at", "at + 1"),
        lambda: timed.rename(at="t"),
        lambda: timed.select("kind"),
    )
    for wrong in steps:
        with pytest.raises(OrderError, match=r"what the watermark follows.*Hint: keep it as it is"):
            wrong()
    with pytest.raises(ColumnError):
        timed.filter("nothing > 1")
    with pytest.raises(OrderError, match="before"):
        timed.map_batches(lambda batch: batch)


def _failing(values: Any) -> Any:
    if any(value <= 0 for value in values.to_pylist()):
        raise ValueError("not positive")
    return values


_positive = kv.udf("bigint")(_failing)
LATER: dict[str, Callable[[Any], Any]] = {
    "an expression that fails": lambda rows: rows.with_column("m", "10 div n"),
    "an expectation": lambda rows: rows.expect("n > 0"),
    "a function of a user": lambda rows: rows.with_column("m", _positive(kv.col("n"))),
    "a second filter that fails": lambda rows: rows.filter("10 div n > 0"),
    "a key that fails": lambda rows: rows.key_by(k="10 div n"),
}


@pytest.mark.parametrize("then", LATER)
def test_later_steps_do_not_see_what_a_filter_leaves_out(then: str) -> None:
    """The hint of a failing expression says to leave rows out with a filter, also after the watermark."""
    driver = Driver(LATER[then](stream_of(DDL).watermark("at", 0).filter("n > 0")).tumbling_window(10).agg(sum("n")))
    out = driver.send([{"kind": "buy", "user": "a", "at": moment, "n": n} for moment, n in ((1, 2), (2, 0), (15, 0))])
    assert [row["sum_n"] for row in out.results.to_pylist()] == [2], "the row at 15 has closed the window"
    assert driver.progress.rows == 1 and driver.watermark_us == 15_000


def test_an_aggregate_does_not_see_what_a_filter_leaves_out() -> None:
    function = kv.udf("bigint", on_error="side_output")(_failing)
    rows = stream_of(DDL).watermark("at", 0).filter("n > 0").tumbling_window(10).agg(sum(function(kv.col("n"))).alias("m"))
    driver = Driver(rows)
    out = driver.send([{"kind": "buy", "user": "a", "at": moment, "n": n} for moment, n in ((1, 2), (2, 0), (15, 0))])
    assert ([row["m"] for row in out.results.to_pylist()], out.late.num_rows) == ([2], 0)


def test_sources_of_rows_that_a_filter_leaves_out_go_on() -> None:
    """A union by source, and both sides of a join: times in other columns and units than those of the result."""
    mark = kv.MultiSourceWatermarkSpec.new().source("one", kv.WatermarkSpec.fixed_lag(0))
    mark = mark.source("two", kv.WatermarkSpec.fixed_lag(0))
    rows = stream_of(DDL).with_watermark(mark, column="at", source_column="kind").filter("n > 0")
    driver = Driver(rows.tumbling_window(10).agg(count()))
    given = [{"kind": kind, "user": "a", "at": moment, "n": n} for kind, moment, n in (("one", 1, 1), ("one", 15, 0))]
    assert not driver.send(given).results.num_rows
    assert driver.send([{"kind": "two", "user": "a", "at": 12, "n": 0}]).results.num_rows == 1
    assert driver.watermark_us == 12_000
    left = stream_of("k string, at bigint, n bigint").watermark("at", 0).filter("n > 0")
    right = stream_of("k string, seen timestamp, n bigint").watermark("seen", 0).filter("n > 0")
    both = Driver(left.interval_join(right, on="k", lower=0, upper=10, how="left"))
    seen = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)
    out = both.send({"left": [{"k": "a", "at": 1, "n": 1}, {"k": "a", "at": 900, "n": 0}], "right": []})
    assert not out.results.num_rows
    out = both.send({"left": [], "right": [{"k": "a", "seen": seen, "n": 0}]})
    assert [(row["at"], row["seen"]) for row in out.results.to_pylist()] == [(1, None)]
    assert both.watermark_us == 900_000


@pytest.mark.parametrize("last", ["expect", "with_column", "select", "filter", "nothing"])
def test_a_filter_holds_whatever_comes_after_it(last: str) -> None:
    """An expectation that every row meets made the filter before it void."""
    rows: Any = stream_of(DDL).watermark("at", 0).filter("n > 0").expect("n > -9", "side_output")
    then: Any = {
        "expect": lambda: rows.with_column("m", "n").expect("m > -9", "drop"),
        "with_column": lambda: rows.with_column("m", "n + 1"),
        "select": lambda: rows.select("at", "n"),
        "filter": lambda: rows.filter("n > -9"),
        "nothing": lambda: rows,
    }[last]()
    given = [{"kind": "buy", "user": "a", "at": moment, "n": n} for moment, n in ((1, -1), (2, 1), (15, -1))]
    driver = Driver(then.tumbling_window(10).agg(count()))
    assert [row["count"] for row in driver.send(given).results.to_pylist()] == [1]
    assert driver.watermark_us == 15_000
    assert [row["n"] for row in Driver(then.select("at", "n")).send(given).results.to_pylist()] == [1]
