"""SPL's timeInterval windows: intervalDuration(10.0), creationPeriod(5.0), discardAge(15.0)."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.api.stages.windowed import PaneStream
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.testing import Driver, stream_of

S = 1_000
OPTIONS = kv.TimeIntervalWindowOptions(interval_duration=10.0, creation_period=5.0, discard_age=15.0)


def panes(options: kv.TimeIntervalWindowOptions = OPTIONS) -> PaneStream:
    return stream_of("key string, at bigint").watermark("at", 0).key_by("key").time_interval_window(options)


def rows(*seconds: float, key: str = "k") -> list[dict[str, Any]]:
    return [{"key": key, "at": round(t * S)} for t in seconds]


@attrs.define(eq=False)
class Log(compat.PaneHandler):
    """What the text's handlers would see."""

    lines: list[tuple[Any, ...]] = attrs.field(factory=list)

    def _say(self, event: str, pane: compat.Pane, *more: Any) -> None:
        self.lines.append((event, pane.interval_start // S, pane.interval_end // S, pane.state, *more))

    def before_tuple_insertion(self, pane: compat.Pane, row: dict[str, Any]) -> None:
        self._say("before", pane)

    def after_tuple_insertion(self, pane: compat.Pane, row: dict[str, Any]) -> None:
        self._say("after", pane)

    def window_initial_full(self, pane: compat.Pane) -> None:
        self._say("full", pane)

    def window_trigger(self, pane: compat.Pane) -> None:
        assert pane.data is not None
        self._say("trigger", pane, pane.timing, pane.index, [t // S for t in pane.data["at"].to_pylist()])

    def window_close(self, pane: compat.Pane) -> None:
        self._say("close", pane)


#   [0 ..... 10)
#        [5 ..... 15)
#             [10 ..... 20)
#                  [15 ..... 25)
@pytest.mark.parametrize(
    ("t", "intervals"),
    [
        (7, [(0, 10), (5, 15)]),
        (0, [(-5, 5), (0, 10)]),
        (10, [(5, 15), (10, 20)]),
        (9.999, [(0, 10), (5, 15)]),
        (15, [(10, 20), (15, 25)]),
    ],
)
def test_tuples_are_assigned_to_the_intervals_of_their_time(t: float, intervals: list[tuple[int, int]]) -> None:
    driver = Driver(panes().agg(kv.count()))
    tables = [driver.send(rows(t)).results, driver.close().results]
    actual = [(r["window_start"] // S, r["window_end"] // S) for table in tables for r in table.to_pylist()]
    assert actual == intervals


def test_events_in_the_order_of_execution() -> None:
    log = Log()
    driver = Driver(panes(kv.TimeIntervalWindowOptions(10.0, discard_age=15.0)).on_events(log))
    driver.send(rows(7))
    driver.advance_watermark(9_999)
    assert [line[0] for line in log.lines] == ["before", "after"]
    assert {line[3] for line in log.lines} == {"incomplete"}
    log.lines.clear()
    driver.advance_watermark(10 * S)
    assert log.lines == [("full", 0, 10, "complete"), ("trigger", 0, 10, "complete", "on_complete", 0, [7])]
    log.lines.clear()
    driver.advance_watermark(11 * S)
    assert log.lines == []  # nothing was inserted since
    driver.send(rows(3))  # mildly late, within the discard age
    driver.advance_watermark(24 * S)
    assert log.lines == [
        ("before", 0, 10, "complete"),
        ("after", 0, 10, "complete"),
        ("trigger", 0, 10, "complete", "late", 1, [3, 7]),
    ]
    log.lines.clear()
    driver.advance_watermark(25 * S)  # 10 + 15
    assert log.lines == [("close", 0, 10, "closed")]
    assert driver.open_windows == 0


def test_only_updated_partitions_trigger_again() -> None:
    driver = Driver(panes(kv.TimeIntervalWindowOptions(10.0, discard_age=15.0)).agg(kv.count()))
    driver.send([*rows(1, key="a"), *rows(2, key="b")])
    first = driver.advance_watermark(12 * S).results
    driver.send(rows(7, key="b"))
    second = driver.advance_watermark(13 * S).results
    brief = ["key", "count", "pane_timing", "pane_index"]
    assert sorted(tuple(r.values()) for r in first.select(brief).to_pylist()) == [
        ("a", 1, "on_complete", 0),
        ("b", 1, "on_complete", 0),
    ]
    assert [tuple(r.values()) for r in second.select(brief).to_pylist()] == [("b", 2, "late", 1)]


def test_rows_older_than_the_discard_age_are_refused() -> None:
    driver = Driver(panes().agg(kv.count()))
    driver.advance_watermark(30 * S)
    assert driver.send(rows(14)).late["reason"].to_pylist() == ["late"]  # 14 < 30 - 15
    assert driver.send(rows(15)).late.num_rows == 0


def test_a_creation_period_beyond_the_duration_leaves_rows_without_pane() -> None:
    driver = Driver(panes(kv.TimeIntervalWindowOptions(5.0, creation_period=10.0)).agg(kv.count()))
    driver.send(rows(4, 5, 12))
    driver.close()
    assert driver.counters["unassigned"] == 1


def test_the_options_offset_moves_all_intervals() -> None:
    driver = Driver(panes(kv.TimeIntervalWindowOptions(10.0, interval_offset=3.0)).agg(kv.count()))
    driver.send(rows(12.5))
    assert [r["window_start"] for r in driver.close().results.to_pylist()] == [3 * S]


def test_the_whole_operator_of_the_text() -> None:
    """The trigger handler reads the interval's end and walks over the tuples of the partition."""

    class MyOperator(compat.PaneHandler):
        def window_trigger(self, pane: compat.Pane) -> None:
            assert pane.data is not None
            ends.append((pane.key["key"], pane.interval_end, [row["at"] for row in pane.data.to_pylist()]))

    ends: list[Any] = []
    driver = Driver(panes().on_events(MyOperator()))
    driver.send([*rows(7, key="x"), *rows(8, key="y")])
    driver.advance_watermark(15 * S)
    assert sorted(ends) == [("x", 10_000, [7_000]), ("x", 15_000, [7_000]), ("y", 10_000, [8_000]), ("y", 15_000, [8_000])]


def test_a_trigger_handler_submits_tuples() -> None:
    """What ``submit(tuple, port)`` is for: results are the tuples of the handler, several for a firing or none."""

    class Busy(compat.PaneHandler):
        def window_trigger(self, pane: compat.Pane) -> list[dict[str, Any]]:
            assert pane.data is not None
            return [{"n": pane.data.num_rows, "last": max(pane.data["at"].to_pylist())}] if pane.data.num_rows > 1 else []

        def window_close(self, pane: compat.Pane) -> dict[str, Any]:
            return {"n": -1}

    options = kv.TimeIntervalWindowOptions(10.0, discard_age=15.0)
    plan = panes(options).on_events(Busy(), submits="n bigint, last bigint")
    assert plan.schema.names == ["key", "window_start", "window_end", "n", "last", "pane_timing", "pane_index"]
    driver = Driver(plan)
    driver.send([*rows(7, 8, key="x"), *rows(9, key="y")])
    first = driver.advance_watermark(10 * S).results.to_pylist()
    assert first == [
        {
            "key": "x",
            "window_start": 0,
            "window_end": 10_000,
            "n": 2,
            "last": 8_000,
            "pane_timing": "on_complete",
            "pane_index": 0,
        }
    ]
    driver = driver.restarted()
    driver.send(rows(3, key="y"))
    second = [tuple(r.values()) for r in driver.advance_watermark(30 * S).results.to_pylist()]
    assert sorted(second) == [
        ("x", 0, 10_000, -1, None, None, None),
        ("y", 0, 10_000, -1, None, None, None),
        ("y", 0, 10_000, 2, 9_000, "late", 1),
    ]
    assert driver.progress.firings == 4
    assert driver.send(rows(31)).results.schema == plan.schema


def submitted(given: Any, pane: compat.Pane) -> Any:
    return given


def test_what_is_submitted_must_have_the_schema() -> None:
    for wrong, given in ([{"m": 1}, "column that is not in the stream"], [{"n": "text"}, "not a bigint"], [5, "not a mapping"]):
        driver = Driver(panes().on_events(window_trigger=partial(submitted, wrong), submits="n bigint"))
        driver.send(rows(1))
        with pytest.raises(OperatorError, match=f"(?s)another form.*{given}"):
            driver.close()
    driver = Driver(panes().on_events(window_trigger=lambda pane: {"n": 1}))
    driver.send(rows(1))
    with pytest.raises(OperatorError, match="submits=schema"):
        driver.close()
    with pytest.raises(PlanError, match="named like another"):
        panes().on_events(Log(), submits="Key string")
    with pytest.raises(PlanError, match="cannot be combined"):
        panes().on_events(Log(), submits="n bigint", aggs=[kv.count()])
    with pytest.raises(PlanError, match="not retracted"):
        panes().emit("retractions").on_events(Log(), submits="n bigint")
    with pytest.raises(PlanError, match="tells no handler"):
        Driver(panes().on_events(Log(), submits="n bigint")).snapshot()


def test_several_single_handlers_are_called_in_order() -> None:
    """``registerWindowTriggerHandler`` and its like: one function for one event, next to objects that handle several."""
    log, seen = Log(), []
    stream = panes(kv.TimeIntervalWindowOptions(10.0)).on_events(
        log,
        Log(),
        window_trigger=lambda pane: seen.append(("trigger", pane.interval_end, len(log.lines))),
        before_tuple_insertion=lambda pane, row: seen.append(("before", row["at"], len(log.lines))),
        window_close=lambda pane: seen.append(("close", pane.interval_end, len(log.lines))),
    )
    driver = Driver(stream)
    driver.send(rows(7))
    driver.close()
    assert seen == [("before", 7_000, 1), ("trigger", 10_000, 4), ("close", 10_000, 5)], "after the objects, event by event"
    assert [line[0] for line in log.lines] == ["before", "after", "full", "trigger", "close"]
    assert "events to Log, Log, <lambda>, <lambda>, <lambda>" in stream.explain()
    with pytest.raises(PlanError, match="needs a handler"):
        panes().on_events()
    with pytest.raises(PlanError, match="takes a function"):
        panes().on_events(window_trigger=5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="not a PaneHandler"):
        panes().on_events(Log)  # type: ignore[arg-type]


def test_aggregates_are_next_to_the_tuples_of_a_handler() -> None:
    log = Log()
    driver = Driver(panes(kv.TimeIntervalWindowOptions(10.0)).on_events(log, aggs=[kv.count(), kv.max("at").alias("last")]))
    driver.send(rows(7, 3))
    actual = driver.close().results.to_pylist()
    assert [(r["count"], r["last"], [t["at"] for t in r["tuples"]]) for r in actual] == [(2, 7_000, [3_000, 7_000])]
    assert [line[0] for line in log.lines][-3:] == ["full", "trigger", "close"]


def test_the_window_itself_has_no_storage() -> None:
    with pytest.raises(kv.OrderError, match=r"(?s)no storage of its own.*pane\.data"):
        panes().get_window_data("k")  # type: ignore[attr-defined]  # a name of the text


def test_a_stage_behind_submitted_tuples_does_not_wait_for_their_last_one() -> None:
    """Every firing submits, so nothing is reported of results that come late, or of a trigger without effect."""
    submitting = panes().on_events(window_trigger=lambda pane: {"n": 1}, submits="n bigint")
    explained = submitting.key_by("n").tumbling_window(5 * S).count().explain()
    assert "results come" not in explained and "have no effect" not in explained
    assert "results come 15 s later" in panes().emit("final").on_events(Log()).explain()


@pytest.mark.parametrize("submits", [None, "n bigint"])
def test_tuples_that_were_discarded_are_not_in_the_data_of_a_handler(submits: str | None) -> None:
    seen: list[tuple[str, list[int]]] = []

    def tell(event: str) -> Any:
        def given(pane: compat.Pane) -> Any:
            assert pane.data is not None
            seen.append((event, pane.data["at"].to_pylist()))
            return None if submits is None else {"n": pane.data.num_rows}

        return given

    options = kv.TimeIntervalWindowOptions(10.0, discard_age=15.0)
    stream = panes(options).accumulation("discarding")
    driver = Driver(stream.on_events(window_trigger=tell("trigger"), window_close=tell("close"), submits=submits))
    driver.send(rows(1, 12))
    driver.send(rows(2, 13))
    driver.close()
    assert seen == [("trigger", [1 * S]), ("trigger", [2 * S]), ("close", []), ("trigger", [12 * S, 13 * S]), ("close", [])]


def test_an_operator_may_stand_behind_another_one() -> None:
    """What the first one submits is inserted into the panes of the second one, whose handlers see its columns and no others."""

    def tuples(pane: compat.Pane) -> list[dict[str, Any]]:
        assert pane.data is not None
        actual: list[dict[str, Any]] = pane.data.to_pylist()
        return actual

    log: list[Any] = []
    first = panes(kv.TimeIntervalWindowOptions(10.0)).on_events(
        window_trigger=lambda pane: [{"n": len(tuples(pane)), "half": h} for h in (1, 2)], submits="n bigint, half bigint"
    )
    second = (
        first.key_by("half")
        .time_interval_window(kv.TimeIntervalWindowOptions(20.0))
        .on_events(
            before_tuple_insertion=lambda pane, row: log.append((pane.key["half"], list(row))),
            window_trigger=lambda pane: {"sum": sum(t["n"] for t in tuples(pane)), "rows": len(tuples(pane))},
            submits="sum bigint, rows bigint",
        )
    )
    driver = Driver(second)
    driver.send([*rows(1, 2, key="x"), *rows(3, key="y")])
    driver.send(rows(11, 12, 13, key="x"))
    driver = driver.restarted()
    actual = driver.send(rows(20)).results.select(["half", "window_start", "window_end", "sum", "rows"]).to_pylist()
    assert sorted(tuple(r.values()) for r in actual) == [(1, 0, 20 * S, 6, 3), (2, 0, 20 * S, 6, 3)]
    names = ["key", "window_start", "window_end", "n", "half", "pane_timing", "pane_index", "window_time"]
    assert sorted(log) == sorted((half, names) for half in (1, 2) for _ in range(3))
