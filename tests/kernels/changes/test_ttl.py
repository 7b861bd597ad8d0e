"""The time to live of tables that change: what is forgotten is withdrawn, and withdrawals of it are counted."""

from __future__ import annotations

from typing import Any

import pytest

from krishiv_py import PlanError, StateTtlConfig, count, max, sum
from krishiv_py.testing import Driver, ManualClock, stream_of


def _ops(out: Any) -> list[tuple[Any, ...]]:
    return [(row["op"], *(v for n, v in row.items() if n != "op")) for row in out.results.to_pylist()]


def test_a_total_of_a_quiet_key_is_withdrawn_by_event_time() -> None:
    rows = stream_of("user string, n bigint, at bigint").watermark("at", 0).key_by("user")
    driver = Driver(rows.agg(total=sum("n")).with_state_ttl(StateTtlConfig(1_000)))
    driver.send([{"user": "ann", "n": 5, "at": 0}, {"user": "bob", "n": 1, "at": 900}])
    out = driver.send([{"user": "bob", "n": 1, "at": 1_500}])
    assert _ops(out) == [("-U", "bob", 1), ("+U", "bob", 2), ("-D", "ann", 5)]
    assert driver.counters["ttl_dropped"] == 1
    assert _ops(driver.send([{"user": "ann", "n": 2, "at": 1_600}])) == [("+I", "ann", 2)]


def test_a_row_that_is_older_than_the_watermark_is_no_late_row() -> None:
    driver = Driver(stream_of("user string, at bigint").watermark("at", 0).key_by("user").agg(n=count()))
    driver.send([{"user": "ann", "at": 50_000}])
    assert _ops(driver.send([{"user": "ann", "at": 3}])) == [("-U", "ann", 1), ("+U", "ann", 2)]
    assert driver.counters.get("late", 0) == 0


def test_rows_without_event_time_have_a_time_to_live_by_the_clock() -> None:
    totals = stream_of("user string, n bigint").key_by("user").agg(total=sum("n"), most=max("n"))
    with pytest.raises(PlanError, match="no time to live by it"):
        totals.with_state_ttl(StateTtlConfig("1 s"))
    clock = ManualClock()
    driver = Driver(totals.with_state_ttl(StateTtlConfig("1 s", clock="processing")), clock=clock)
    driver.send([{"user": "ann", "n": 5}])
    clock.advance("2 s")
    assert _ops(driver.send([{"user": "bob", "n": 1}])) == [("+I", "bob", 1, 1), ("-D", "ann", 5, 5)]


@pytest.mark.parametrize("aggregate", [sum("v"), max("v")])
def test_withdrawals_of_what_was_forgotten_are_counted(aggregate: Any) -> None:
    table = stream_of("pk bigint, k string, v bigint").from_changelog("upsert", "pk")
    clock = ManualClock()
    totals = table.key_by("k").agg(aggregate.alias("a"), n=count()).with_state_ttl(StateTtlConfig("10 s", clock="processing"))
    driver = Driver(totals, clock=clock)
    driver.send([{"pk": 1, "k": "x", "v": 5}, {"pk": 2, "k": "x", "v": 7}])
    clock.advance("20 s")
    gone = driver.send([{"pk": 9, "k": "y", "v": 1}])
    assert ("-D", "x", 12 if aggregate.func == "sum" else 7, 2) in _ops(gone)
    assert _ops(driver.send([{"pk": 1}, {"pk": 3, "k": "x", "v": 1}])) == [("+I", "x", 1, 1)]
    assert list(driver.progress.stages.values())[-1].counters["expired"] == 1


def test_pairs_and_first_rows_of_a_quiet_key_are_withdrawn() -> None:
    ttl = StateTtlConfig("10 s", clock="processing")
    left, right = stream_of("k string, a bigint"), stream_of("k string, b bigint")
    clock = ManualClock()
    driver = Driver(left.join(right, on="k", how="full").with_state_ttl(ttl), clock=clock)
    driver.send({"left": [{"k": "x", "a": 1}, {"k": "y", "a": 2}], "right": [{"k": "x", "b": 3}]})
    clock.advance("20 s")
    out = driver.send({"right": [{"k": "z", "b": 4}]})
    assert sorted(map(str, _ops(out))) == sorted(map(str, [("+I", "z", None, 4), ("-D", "x", 1, 3), ("-D", "y", 2, None)]))
    top = Driver(left.key_by("k").top_rows(1, by="a", rank="r").with_state_ttl(ttl), clock=clock)
    top.send([{"k": "x", "a": 1}, {"k": "x", "a": 2}])
    clock.advance("20 s")
    assert _ops(top.send([{"k": "y", "a": 1}])) == [("+I", "y", 1, 1), ("-D", "x", 2, 1)]


def test_tombstones_are_forgotten_after_their_time() -> None:
    clock = ManualClock()
    table = stream_of("op string, pk bigint, v bigint").from_changelog("log", "pk", sequence="v", tombstones="10 s")
    driver = Driver(table, clock=clock)
    driver.send([{"op": "+I", "pk": 1, "v": 5}, {"op": "-D", "pk": 1, "v": 7}])
    assert _ops(driver.send([{"op": "+I", "pk": 1, "v": 6}])) == []
    clock.advance("20 s")
    driver.send([])
    assert _ops(driver.send([{"op": "+I", "pk": 1, "v": 6}])) == [("+I", 1, 6)]


def test_a_total_stays_as_it_was_where_that_is_wanted() -> None:
    rows = stream_of("user string, n bigint, at bigint").watermark("at", 0).key_by("user")
    driver = Driver(rows.agg(total=sum("n")).with_state_ttl(StateTtlConfig(1_000, on_expiry="keep")))
    driver.send([{"user": "ann", "n": 5, "at": 0}, {"user": "bob", "n": 1, "at": 900}])
    assert _ops(driver.send([{"user": "bob", "n": 1, "at": 1_500}])) == [("-U", "bob", 1), ("+U", "bob", 2)]
    assert driver.counters["ttl_dropped"] == 1
    assert _ops(driver.send([{"user": "ann", "n": 2, "at": 1_600}])) == [("+I", "ann", 2)]
