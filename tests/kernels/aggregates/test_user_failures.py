"""Errors of user code name what they were about: aggregate, method, key, window; function, handler, operator, step."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import LateRows, ResultStream, SlidingWindows, TimeIntervalWindowOptions, Trigger, count, udaf
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.compat import Pane, PaneHandler
from krishiv_py.errors import OperatorError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.options.late import LateWanted
from krishiv_py.testing import Driver, stream_of

BAD = 99
DDL = "user string, at bigint, v bigint"


class Faulty:
    """Collects values; one method fails where the bad one is among them."""

    def __init__(self, step: str, problem: BaseException | None = None) -> None:
        self.step, self.problem = step, problem or ValueError("boom")

    def _checked(self, step: str, *values: int) -> None:
        if step == self.step and (BAD in values or step == "create"):
            raise self.problem

    def create(self) -> list[int]:
        self._checked("create")
        return []

    def add(self, state: list[int], value: int) -> list[int]:
        self._checked("add", value)
        return [*state, value]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        self._checked("merge", *left, *right)
        return left + right

    def finish(self, state: list[int]) -> int:
        self._checked("finish", *state)
        return len(state)


def faulty(step: str, problem: BaseException | None = None) -> AggCall:
    return udaf(Faulty(step, problem), "v", pa.int64())


def row(user: str, at: int, v: int = 1) -> dict[str, Any]:
    return {"user": user, "at": at, "v": v}


WINDOWS: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "hopping": lambda s: s.hopping_window(10, 5),
    "session": lambda s: s.session_window(5),
    "capped session": lambda s: s.session_window(5, max_duration=20),
    "look-back": lambda s: s.lookback_window(100),
    "look-back without itself": lambda s: s.lookback_window(100, exclude_self=True),
    "count": lambda s: s.count_window(2),
    "distinct": lambda s: s.windowed_by(SlidingWindows.of(10).grace(1_000)),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(0.01)),
}
FIRING: dict[str, Callable[[ResultStream], ResultStream]] = {
    "by watermark": lambda s: s,
    "retracting": lambda s: s.emit("retractions"),
    "row by row": lambda s: s.trigger(Trigger.on_every_element()),
    "row by row, retracting": lambda s: s.trigger(Trigger.on_every_element()).emit("retractions"),
    "row by row, discarding": lambda s: s.trigger(Trigger.on_every_element()).accumulation("discarding"),
    "discarding": lambda s: s.trigger(Trigger.on_count(2)).accumulation("discarding"),
}
KNOWN = {"look-back": 2, "look-back without itself": 2, "distinct": 4}
"""Kinds that do not know every way to fire."""
NOT_MERGED = ("count", "look-back", "look-back without itself", "distinct")
"""Kinds that keep rows: few of them are not merged."""


@pytest.mark.parametrize("step", ["add", "merge", "finish"])
@pytest.mark.parametrize("firing", FIRING)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_failing_aggregate_names_itself_method_and_key(window: str, firing: str, step: str) -> None:
    if list(FIRING).index(firing) >= KNOWN.get(window, len(FIRING)):
        return
    keyed = stream_of(DDL).watermark("at", 3).key_by("user")
    plan = FIRING[firing](WINDOWS[window](keyed).agg(count(), faulty(step)))
    if window not in ("distinct", "panes"):
        plan = plan.allowed_lateness(20)
    driver = Driver(plan)
    try:
        driver.send([row("b", 1), row("a", 1, 2), row("a", 2, BAD), row("b", 3, 3)])
        driver.send([row("a", 3, 4), row("c", 11)])
        driver.send([row("a", 4, 5), row("c", 40)])
        driver.send([row("a", 23, 6), row("a", 2, 7)])
        driver.close()
    except OperatorError as problem:
        said = str(problem)
        assert re.match(rf"operator \S+, (prepare|window step), batch \d: Faulty\(.*failed in `{step}` for key user='a'", said)
        assert "ValueError: boom" in said and "in _checked" in said
        if step == "finish":
            known = "( in the window .*)?" if "session" in window else r" in (the window|rows) -?\d+ to \d+"
            assert re.search(rf"user='a'{known} \(got", said), said
        return
    assert step == "merge" and (window in NOT_MERGED or "discarding" in firing)


@pytest.mark.parametrize("window", ["look-back", "look-back without itself", "distinct"])
def test_a_failing_merge_of_long_ranges_names_the_key(window: str) -> None:
    driver = Driver(WINDOWS[window](stream_of(DDL).watermark("at", 0).key_by("user")).agg(count(), faulty("merge")))
    with pytest.raises(OperatorError, match=r"failed in `merge` for key user='b' in the window -?\d+ to \d+ \(got"):
        driver.send([row(user, n // 50, BAD if (user, n) == ("b", 70) else 1) for n in range(200) for user in "abc"])
        driver.close()


def test_times_and_several_keys_are_reported_as_they_are() -> None:
    keyed = stream_of("user string, n int, at timestamp, v bigint").watermark("at", 0).key_by("user", "n")
    driver = Driver(keyed.tumbling_window(10_000).agg(faulty("add")))
    with pytest.raises(OperatorError, match=r"user=None, n=7 in the window 1970-01-01T00:00:10\+00:00 to .*:20\+00:00 "):
        driver.send([{"user": None, "n": 7, "at": dt.datetime(1970, 1, 1, 0, 0, 15, tzinfo=dt.timezone.utc), "v": BAD}])
    everything = Driver(stream_of(DDL).watermark("at", 0).tumbling_window(10).agg(faulty("finish")))
    everything.send([row("a", 1, BAD)])
    with pytest.raises(OperatorError, match=r"failed in `finish` in the window 0 to 10 \(got: \[99\]\)"):
        everything.close()


def test_no_secret_is_reported() -> None:
    stream = stream_of("api_key string, n_token bigint, password bigint, at bigint").watermark("at", 0)
    keyed = stream.key_by("api_key", "n_token")
    for step in ("add", "merge", "finish"):
        driver = Driver(keyed.tumbling_window(10).agg(udaf(Faulty(step), "password", pa.int64())))
        with pytest.raises(OperatorError) as caught:
            driver.send([{"api_key": "hunter2", "n_token": 4711, "password": BAD, "at": 1}])
            driver.send([{"api_key": "hunter2", "n_token": 4711, "password": 98, "at": 2}])
            driver.close()
        assert "hunter2" not in str(caught.value) and "4711" not in str(caught.value) and "[99" not in str(caught.value)
        assert f"`{step}` for key api_key=[redacted], n_token=[redacted]" in str(caught.value)


def test_what_is_cut_shows_no_half_of_a_secret() -> None:
    plan = stream_of("user string, at bigint, v string").watermark("at", 0).key_by("user").tumbling_window(10)

    class Refuses(Faulty):
        def add(self, state: list[int], value: Any) -> list[int]:
            raise ValueError("x" * 1_990 + f" password='{value[-40:]}'")

    with pytest.raises(OperatorError) as caught:
        secret = "S3CR3T" * 7
        Driver(plan.agg(udaf(Refuses(""), "v", pa.int64()))).send(
            [{"user": "a", "at": 1, "v": "y" * 180 + f" password='{secret}'"}, {"user": "a", "at": 1, "v": "y" * 180}]
        )
    assert "S3C" not in str(caught.value) and "R3T" not in str(caught.value)


class UnspeakableError(Exception):
    """An exception that can be neither shown nor pickled."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


PROBLEMS: dict[str, tuple[BaseException, str]] = {
    "that cannot be shown": (UnspeakableError(), "UnspeakableError: its text cannot be shown: RuntimeError"),
    "of megabytes": (ValueError("x" * 5_000_000), "ValueError: xxx"),
    "that cannot be encoded": (ValueError("half \ud800"), r"half \ud800"),
    "that leaves the process": (SystemExit(3), "SystemExit: 3"),
}


def failing(problem: BaseException) -> dict[str, tuple[Callable[[], Any], str]]:
    """Pipelines whose user code raises `problem`, and what has to be named."""

    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise problem

    class Late:
        wants: LateWanted = "rows"

        def handle(self, late: LateRows) -> None:
            raise problem

    class Panes(PaneHandler):
        def window_trigger(self, pane: Pane) -> None:
            raise problem

    def windows(stream: Any) -> Any:
        return stream.watermark("at", 0).key_by("user").tumbling_window(10)

    schema = stream_of(DDL).schema
    panes = TimeIntervalWindowOptions(0.01)
    return {
        "map": (lambda: windows(stream_of(DDL).map_batches(broken, schema)).agg(count()), "batch 0: map_batches(broken"),
        "late": (lambda: windows(stream_of(DDL)).agg(count()).with_late_event_handler(Late()), "late handler Late failed"),
        "panes": (
            lambda: stream_of(DDL).watermark("at", 0).key_by("user").time_interval_window(panes).on_events(Panes()),
            "pane handler Panes.window_trigger failed (got: pane 0 to 10, key user='a')",
        ),
        "aggregate": (lambda: windows(stream_of(DDL)).agg(faulty("add", problem)), "failed in `add` for key user='a'"),
    }


@pytest.mark.parametrize("place", ["map", "late", "panes", "aggregate"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_whatever_is_raised_is_reported(kind: str, place: str) -> None:
    problem, said = PROBLEMS[kind]
    plan, named = failing(problem)[place]
    driver = Driver(plan())
    with pytest.raises(OperatorError) as caught:
        driver.send([row("a", 1, BAD), row("a", 30)])
        driver.send([row("a", 2)])
    actual = str(caught.value)
    assert said in actual and named in actual and len(actual.encode()) < 3_500
    assert driver.operator in actual


def test_control_c_stays_what_it_is() -> None:
    for place in ("map", "late", "panes", "aggregate"):
        driver = Driver(failing(KeyboardInterrupt())[place][0]())
        with pytest.raises(KeyboardInterrupt):
            driver.send([row("a", 1, BAD), row("a", 30)])
            driver.send([row("a", 2)])


def test_a_vectorised_form_that_gives_too_few_is_refused() -> None:
    class TooFew(Faulty):
        def partial(self, values: pa.Array, groups: Any, n_groups: int) -> Any:
            return [[1]]

    class Nothing(Faulty):
        def partial(self, values: pa.Array, groups: Any, n_groups: int) -> Any:
            return None

    windowed = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(10)
    for aggregator, said in ((TooFew(""), "1 for 2 groups"), (Nothing(""), "failed in `partial`.*TypeError")):
        with pytest.raises(OperatorError, match=said):
            Driver(windowed.agg(udaf(aggregator, "v", pa.int64()))).send([row("a", 1), row("b", 2)])


def test_a_result_of_another_type_names_the_key() -> None:
    windowed = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(10)
    driver = Driver(windowed.agg(udaf(Texts(""), "v", pa.int64())))
    driver.send([row("a", 1), row("b", 2, BAD), row("c", 2)])
    with pytest.raises(OperatorError, match=r"failed in `finish` for key user='b' in the window 0 to 10 \(got: 'text'\)"):
        driver.close()


class Texts(Faulty):
    """Gives a text where the bad value is."""

    def finish(self, state: list[int]) -> Any:
        return "text" if BAD in state else 0
