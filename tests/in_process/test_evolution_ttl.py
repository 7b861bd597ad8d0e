"""A time to live that was added, or goes by another clock, ends the state of keys from before the change.

The reference keeps when each key was last touched: keys of before the change in the first batch after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from krishiv_py import StateTtlConfig, count
from krishiv_py.testing import Driver, stream_of

DAY, TTL, LAG = 86_400_000, 160_000, 20_000
KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.key_by("user").tumbling_window(DAY).agg(count()),
    "hopping": lambda s: s.key_by("user").hopping_window(2 * DAY, DAY).agg(count()),
    "session": lambda s: s.key_by("user").session_window(DAY).agg(count()),
    "capped session": lambda s: s.key_by("user").session_window(DAY, max_duration=5 * DAY).agg(count()),
    "count": lambda s: s.key_by("user").count_window(100).agg(count()),
    "deduplication": lambda s: s.drop_duplicates("user", within=DAY),
}
Clock = Literal["event", "processing"]


def plan(kind: str, ttl: StateTtlConfig | None) -> Any:
    """A plan whose windows stay open."""
    stream = stream_of("user string, at bigint").watermark("at", LAG)
    return KINDS[kind](stream if ttl is None else stream.with_state_ttl(ttl))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("was", "now"), [(None, "event"), (None, "processing"), ("processing", "event"), ("event", "processing")]
)
def test_keys_of_before_expire_one_length_after_the_change(kind: str, was: Clock | None, now: Clock, tmp_path: Path) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        first = Driver(plan(kind, None if was is None else StateTtlConfig("10 days", was)))
        first.clock.set(0)
        first.send([{"user": user, "at": 1_000} for user in "abcd"])
        first.send([{"user": "a", "at": 30_000}])
        path = first.savepoint(str(tmp_path / f"{seed}"))
        driver = Driver(plan(kind, StateTtlConfig(TTL, now)), savepoint=path)
        driver.clock.set(first.clock.now_us // 1_000)
        touched = dict[str, int | None].fromkeys("abcd")
        newest, dropped = 30_000, set[str]()
        for step in range(14):
            driver = driver.restarted() if step == 4 else driver
            driver.clock.advance(chance.randrange(5_000, 60_000))
            newest += chance.randrange(5_000, 60_000)
            clock = in_force(driver, now)
            rows = [{"user": user, "at": newest} for user in ("n", "b") if user == "n" or chance.random() < 0.5]
            driver.send(rows)
            for row in (row for row in rows if row["user"] not in dropped):
                touched[str(row["user"])] = max(newest, clock) if now == "event" else clock
            touched = {user: clock if last is None else last for user, last in touched.items()}
            clock = in_force(driver, now)  # a batch without rows follows where something is due
            actual = {row["user"] for row in driver.state().to_pylist()}
            for user, last in touched.items():
                assert last is not None
                assert user in actual or clock - last >= TTL, (seed, step)
                assert user not in actual or clock - last < TTL + TTL // 16, (seed, step)
            if kind in ("tumbling", "hopping"):  # a window that lost rows is not shown again before it is over
                dropped |= touched.keys() - actual
            touched = {user: last for user, last in touched.items() if user in actual}
        assert {"a", "c", "d"}.isdisjoint(touched)
        assert driver.progress.counters["ttl_dropped"] >= 3


def in_force(driver: Driver, clock: Clock) -> int:
    """What a clock shows, in milliseconds."""
    return (driver.watermark_us if clock == "event" else driver.clock.now_us) // 1_000
