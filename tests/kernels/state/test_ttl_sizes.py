"""What is held after a time to live has passed is what a stream without the keys that went would hold (SEMANTICS §6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import Trigger, count, windows
from krishiv_py.kernels.ttl import Expiring
from krishiv_py.testing import Driver, ManualClock, stream_of


class CustomTrigger(kv.WindowTrigger):
    """Fires windows with three rows; asks by the clock, too."""

    @property
    def ask_every(self) -> int:
        return 40

    def fires(self, windows: kv.OpenWindows) -> Any:
        return windows.rows >= 3


EARLY, SLOWLY, BY_CLOCK = Trigger.on_every_element(), Trigger.on_interval(150), Trigger.when(CustomTrigger())


def keyed() -> Any:
    return stream_of("key string, at bigint").watermark("at", 0).key_by("key")


def sides() -> tuple[Any, Any]:
    return (stream_of(f"key string, {moment} bigint").watermark(moment, 0) for moment in ("at", "seen"))  # type: ignore[return-value]


def joined(how: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    return lambda: how(*sides())


KINDS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: keyed().tumbling_window(1_000).agg(count()),
    "tumbling, early": lambda: keyed().trigger(EARLY).tumbling_window(1_000).agg(count()),
    "tumbling, asked by the clock": lambda: keyed().trigger(BY_CLOCK).tumbling_window(1_000).agg(count()),
    "hopping": lambda: keyed().hopping_window(1_000, 500).agg(count()),
    "session": lambda: keyed().session_window(1_000).agg(count()),
    "session, early": lambda: keyed().trigger(EARLY).session_window(1_000).agg(count()),
    "session, by the clock": lambda: keyed().trigger(SLOWLY).session_window(1_000).agg(count()),
    "session, asked by the clock": lambda: keyed().trigger(BY_CLOCK).session_window(1_000).agg(count()),
    "capped session": lambda: keyed().session_window(1_000, max_duration=2_000).agg(count()),
    "capped session, early": lambda: keyed().trigger(EARLY).session_window(1_000, max_duration=2_000).agg(count()),
    "capped session, retractions": lambda: (
        keyed().trigger(EARLY).emit("retractions").session_window(1_000, max_duration=2_000).agg(count())
    ),
    "capped session, asked by the clock": lambda: (
        keyed().trigger(BY_CLOCK).session_window(1_000, max_duration=2_000).agg(count())
    ),
    "count": lambda: keyed().count_window(10).agg(count()),
    "count, early": lambda: keyed().trigger(EARLY).count_window(10).agg(count()),
    "look-back": lambda: keyed().lookback_window(1_000).agg(count()),
    "look-back at arrival": lambda: keyed().lookback_window(1_000, emit="arrival").agg(count()),
    "deduplication": lambda: keyed().drop_duplicates(within=1_000),
    "interval join": joined(lambda left, right: left.interval_join(right, "key", lower=-1_000, upper=1_000)),
    "as-of join": joined(lambda left, right: left.asof_join(right, "key")),
    "window join": joined(lambda left, right: left.window_join(right, "key", window=windows.tumbling(1_000))),
}


def driver_of(kind: str, by: Any, clock: ManualClock) -> Driver:
    return Driver(KINDS[kind]().with_state_ttl(kv.StateTtlConfig(100, by)), clock=clock)


def send(driver: Driver, kind: str, rows: list[tuple[str, int]]) -> None:
    left = [{"key": key, "at": moment} for key, moment in rows]
    driver.send({"left": left, "right": [{"key": key, "seen": moment} for key, moment in rows]} if "join" in kind else left)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by", ["event", "processing"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_what_is_left(kind: str, by: Any) -> None:
    clock = ManualClock()
    actual, alone = (driver_of(kind, by, clock) for _ in range(2))
    for now, gone, stays in ((0, "abcde", []), (10, "", [10]), (300, "", [300]), (301, "", [301])):
        clock.set(now)
        rows = [("z", moment) for moment in stays]
        send(actual, kind, [(key, 0) for key in gone] + rows)
        send(alone, kind, rows)
        if now >= 300:
            assert actual.open_windows == alone.open_windows
            held = actual.progress.open_rows, alone.progress.open_rows
            assert held[0] == held[1] or "clock" in kind, "there a log is written again at other times"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith(("tumbling", "hopping"))])
def test_a_key_that_is_closed_is_held_no_more(kind: str) -> None:
    actual, alone = (driver_of(kind, "event", ManualClock()) for _ in range(2))
    send(actual, kind, [("a", 0), ("z", 0)])
    send(alone, kind, [("z", 0)])
    actual.close_key("a")
    assert actual.open_windows == alone.open_windows
    assert actual.progress.open_rows == alone.progress.open_rows


class Watched:
    """An operator; a step without rows that follows another at the same moment must bring nothing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.at: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, bucket: Any, chunks: Any, moment: Any) -> Any:
        again = not chunks and (moment.watermark_us, moment.now_us) == self.at
        self.at = moment.watermark_us, moment.now_us
        actual = self.inner.step(bucket, chunks, moment)
        assert not (again and (actual.results.num_rows or actual.late is not None or any(actual.counters.values())))
        return actual


@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["event", "processing"]),
    st.lists(st.tuples(st.integers(0, 150), st.lists(st.tuples(st.sampled_from("abc"), st.integers(-60, 60)), max_size=4))),
)
def test_to_look_what_is_left_fires_nothing(kind: str, by: Any, batches: list[tuple[int, list[tuple[str, int]]]]) -> None:
    clock = ManualClock()
    driver = driver_of(kind, by, clock)
    operator: Any = driver._stages[0].stage.operator
    while not isinstance(operator, Expiring):
        operator = operator.inner
    operator.inner = Watched(operator.inner)
    now = 0
    for later, rows in batches:
        now += later
        clock.set(now)
        send(driver, kind, [(key, now + moment) for key, moment in rows])
