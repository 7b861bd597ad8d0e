"""Late handlers and pane handlers that raise: by default the query stops; else rows go aside and it goes on."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import LateRows, MemorySink, Session, SideOutputLateEventHandler, TimeIntervalWindowOptions, count
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.plan.options.late import LateWanted
from krishiv_py.testing import Driver, stream_of

DDL = "user string, at bigint"


@attrs.define(eq=False)
class Post:
    """Takes late rows, but none of user 'bad'."""

    wants: LateWanted = "rows"
    taken: list[int] = attrs.field(factory=list)

    def handle(self, late: LateRows) -> None:
        if "user" in late.table.column_names and "bad" in late.table["user"].to_pylist():
            raise ConnectionError("the service is away")
        self.taken.append(late.table.num_rows)


def windows(rows: Any, handler: Any, **more: Any) -> Any:
    """Rows in windows of a second, whose late rows a handler takes."""
    timed = rows.watermark("at", 0).with_late_event_handler(handler, **more).key_by("user")
    return timed.tumbling_window(1_000).agg(count())


def event(when: int, user: str = "good") -> dict[str, Any]:
    return {"user": user, "at": when}


def test_by_default_a_late_handler_that_raises_stops_the_query() -> None:
    driver = Driver(windows(stream_of(DDL), Post()))
    driver.send([event(5_000)])
    with pytest.raises(OperatorError, match=r"late handler Post failed .*ConnectionError: the service is away"):
        driver.send([event(1, "bad")])


@given(
    batches=st.lists(st.lists(st.sampled_from(["good", "bad"]), max_size=3), max_size=6),
    wants=st.sampled_from(["rows", "keys"]),
)
def test_the_rows_of_a_late_handler_that_raises_are_counted_kept_and_named(batches: list[list[str]], wants: LateWanted) -> None:
    post = Post(wants)
    stream = windows(stream_of(DDL), post, on_error="side_output")
    driver = Driver(stream)
    driver.send([event(5_000)])
    for users in batches:
        assert driver.send([event(n, user) for n, user in enumerate(users)]).late.num_rows == len(users)
    failed = [users for users in batches if "bad" in users]
    n = len([user for users in failed for user in users])
    assert post.taken == [len(users) for users in batches if users and "bad" not in users]
    assert driver.progress.counters.get("failed_handler:Post", 0) == n
    assert driver.progress.late["late"] == len([user for users in batches for user in users])
    doubts = [doubt for doubt in driver.progress.doubts if doubt.startswith("late handler Post raised")]
    assert len(doubts) == bool(n)
    if n:
        assert f"for {n} rows, the last time ConnectionError: the service is away" in doubts[0]
        rows = stream.late_handler.table().to_pylist()
        assert [row["user"] for row in rows] == [user for users in failed for user in users]
        assert {row["reason"] for row in rows} == {"ConnectionError: the service is away"}


@pytest.mark.parametrize("engine", ["in process", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_query_goes_on_and_shows_the_rows(engine: str, request: pytest.FixtureRequest) -> None:
    session: Session = Session.in_process() if engine == "in process" else request.getfixturevalue("session")
    rows, sender = session.memory_stream(DDL)
    query = windows(rows, Post(), on_error="side_output").start(MemorySink())
    sender.send([event(5_000)])
    query.process_all_available()
    sender.send([event(1, "bad"), event(6_000)])
    query.process_all_available()
    assert query.status == "running"
    assert query.late_rows().select(["user", "at", "reason"]).to_pylist() == [
        {"user": "bad", "at": 1, "reason": "ConnectionError: the service is away"}
    ]
    assert query.progress.counters["failed_handler:Post"] == 1 and "late handler Post raised once" in str(query.progress)
    query.stop()
    if engine == "in process":
        session.stop()


class Away:
    """Takes nothing."""

    wants: LateWanted = "keys"

    def handle(self, late: LateRows) -> None:
        raise ConnectionError("away")


def test_stages_of_one_stream_share_a_handler_whatever_the_columns_of_their_rows_are() -> None:
    with Session.in_process() as session:
        rows, sender = session.memory_stream("user string, shop string, at bigint")
        timed = rows.watermark("at", 0).with_late_event_handler(Away(), on_error="side_output")
        counts = {key: timed.key_by(key).tumbling_window(1_000).agg(count()).named(f"by {key}") for key in ("user", "shop")}
        query = session.start([stream.to(MemorySink()) for stream in counts.values()])
        for when in (5_000, 1, 2):
            sender.send([{"user": "ann", "shop": "north", "at": when}])
            query.process_all_available()
        assert query.status == "running"
        for key, value in (("user", "ann"), ("shop", "north")):
            assert (
                query.late_rows(f"by {key}").select([key, "reason"]).to_pylist()
                == [{key: value, "reason": "ConnectionError: away"}] * 2
            )
        assert query.progress.counters["failed_handler:Away"] == 4
        query.stop()


def test_queries_of_one_stream_each_count_their_own() -> None:
    with Session.in_process() as session:
        rows, sender = session.memory_stream(DDL)
        stream = windows(rows, Post(), on_error="side_output")
        sent = [[event(5_000)], [event(1, "bad"), event(6_000)], [event(2, "bad")]]
        for batch in sent[:2]:
            sender.send(batch)
        first = stream.start(MemorySink())
        first.process_all_available()
        second = session.start([stream.to(MemorySink())])
        second.process_all_available()
        for query in (first, second):
            assert query.progress.counters["failed_handler:Post"] == 1 and query.late_rows().num_rows == 1
        first.stop()
        sender.send(sent[2])
        second.process_all_available()
        assert [q.progress.counters["failed_handler:Post"] for q in (first, second)] == [1, 2]
        assert [q.late_rows().num_rows for q in (first, second)] == [1, 2]
        assert "for 2 rows" in str(second.progress) and "for 1 rows" in str(first.progress)
        second.stop()


def test_both_sides_of_a_join_may_have_one_handler() -> None:
    def side(handler: Any, **more: Any) -> Any:
        return stream_of(DDL).watermark("at", 0).with_late_event_handler(handler, **more)

    away, on_error = Away(), {"on_error": "side_output"}
    side(away, **on_error).interval_join(side(away, **on_error), on="user", lower=-10, upper=10)
    for other in (side(Away(), **on_error), side(away)):
        with pytest.raises(PlanError, match="different late handlers"):
            side(away, **on_error).interval_join(other, on="user", lower=-10, upper=10)


def test_the_last_thousand_rows_are_kept() -> None:
    stream = windows(stream_of(DDL), Post(), on_error="side_output")
    driver = Driver(stream)
    driver.send([event(5_000)])
    for begin in range(0, 3_000, 600):
        driver.send([event(n % 1_000, "bad") for n in range(begin, begin + 600)])
    kept = stream.late_handler.table()
    assert (kept.num_rows, kept["at"][0].as_py(), driver.progress.counters["failed_handler:Post"]) == (1_000, 0, 3_000)


def test_a_side_output_and_other_words_are_refused() -> None:
    with pytest.raises(PlanError, match="a side output has no other output for its rows"):
        windows(stream_of(DDL), SideOutputLateEventHandler(MemorySink()), on_error="side_output")
    with pytest.raises(PlanError, match="on_error"):
        windows(stream_of(DDL), Post(), on_error="drop")
    with pytest.raises(PlanError, match="on_error"):
        panes(window_trigger=print, on_error="drop")


def panes(**handlers: Any) -> Any:
    """Panes of 10 ms with handlers, whose late rows are kept."""
    timed = stream_of(DDL).watermark("at", 0).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    return timed.key_by("user").time_interval_window(TimeIntervalWindowOptions("10 ms")).on_events(**handlers)


def size(pane: Any) -> dict[str, int]:
    """Submits the number of tuples, but of no pane of user 'bad'."""
    if pane.key["user"] == "bad":
        raise ValueError("no pane of bad")
    return {"n": pane.data.num_rows}


@given(users=st.lists(st.sampled_from(["good", "bad"]), max_size=8))
def test_the_tuples_of_a_pane_for_which_a_handler_raises_go_aside(users: list[str]) -> None:
    driver = Driver(panes(window_trigger=size, submits="n bigint", on_error="side_output"))
    driver.send([event(n, user) for n, user in enumerate(users)])
    out = driver.close()
    assert out.late["user"].to_pylist() == ["bad"] * users.count("bad")
    assert set(out.late["reason"].to_pylist()) <= {"ValueError: no pane of bad"}
    assert [(row["user"], row["n"]) for row in out.results.to_pylist()] == [("good", users.count("good"))] * ("good" in users)
    assert driver.progress.late.get("size", 0) == users.count("bad") and driver.lateness().rows == len(users)


def test_a_tuple_goes_aside_as_it_came_and_stays_in_its_pane() -> None:
    def broken(pane: Any, row: dict[str, Any]) -> None:
        row["at"] = "no number"
        if row["user"] == "bad":
            raise KeyError("bad")

    driver = Driver(panes(before_tuple_insertion=broken, after_tuple_insertion=broken, on_error="side_output"))
    late = driver.send([event(1), event(2, "bad")]).late
    assert late.select(["user", "at", "reason"]).to_pylist() == [{"user": "bad", "at": 2, "reason": "KeyError: 'bad'"}] * 2
    assert [row["tuples"] for row in driver.close().results.to_pylist()] == [[event(1)], [event(2, "bad")]]
    assert driver.progress.late["broken"] == 2
