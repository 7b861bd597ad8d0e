"""Steps after a plan that has steps over its results already: none of them is lost."""

from __future__ import annotations

from typing import Any

import pytest

from krishiv_py import Trigger, count
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

HAVING = "SELECT k, COUNT(*) AS n FROM t GROUP BY k, tumble(at, INTERVAL '1' SECOND) HAVING COUNT(*) > 1"


def built() -> Any:
    counts = stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(1_000).agg(count().alias("n"))
    return counts.filter("n > 1")._as_plan()


def written() -> Any:
    context = SqlContext()
    context.register("t", stream_of("k string, at bigint"), event_time="at", lag=0)
    return context.sql(HAVING)


@pytest.mark.parametrize("plan", [built, written])
def test_steps_come_behind_those_that_are_there(plan: Any) -> None:
    for again, wanted in (
        (plan().filter("n < 9").select("k", "n"), [{"k": "b", "n": 2}]),
        (plan().select(twice="n * 2"), [{"twice": 4}]),
        (plan().tumbling_window(9_000).agg(count().alias("m")).select("m"), [{"m": 1}]),
    ):
        driver = Driver(again)
        driver.send([{"k": k, "at": 1} for k in "abb"])
        assert driver.close().results.to_pylist() == wanted


@pytest.mark.parametrize("plan", [built, written])
def test_an_option_between_steps_is_one_of_the_stage(plan: Any) -> None:
    for again in (plan().emit("updates").filter("n < 9"), plan().filter("n < 9")._as_plan().emit("updates")):
        driver = Driver(again._as_plan().trigger(Trigger.on_every_element()))
        names = ["k", "n"]
        assert driver.send([{"k": k, "at": 1} for k in "abbb"]).results.select(names).to_pylist() == [
            {"k": "b", "n": n} for n in (2, 3)
        ]
        assert driver.send([{"k": "a", "at": 2}]).results.select(names).to_pylist() == [{"k": "a", "n": 2}]


def test_results_that_were_withdrawn_can_be_final_again() -> None:
    retracting = stream_of("k string, at bigint").watermark("at", 0).tumbling_window(9).agg(count()).emit("retractions")
    picked = retracting.select(twice="count * 2")._as_plan()
    assert picked.schema.names == ["twice", "op"]
    assert picked.emit("final").schema.names == ["twice"]


def test_steps_hand_on_which_results_are_withdrawn_whoever_said_so() -> None:
    counts = (
        stream_of("k string, at bigint").watermark("at", 0).key_by("k").preset("ripple").tumbling_window(1_000).agg(count())
    )
    picked = counts.select("k", "count")._as_plan()
    for emit, stream in (
        ("retractions", counts.select("k", "count")),
        ("retractions", counts.emit("retractions").select("k", "count")),
        ("retractions", picked.emit("final").emit("retractions")),
        ("final", counts.emit("final").select("k", "count")),
        ("final", picked.emit("final")),
    ):
        driver = Driver(stream)
        driver.send([{"k": "a", "at": 1}, {"k": "a", "at": 1_000}])
        driver.send([{"k": "a", "at": 2}])
        names = driver.close().results.schema.names
        assert names == (["k", "count", "op"] if emit == "retractions" else ["k", "count"])
