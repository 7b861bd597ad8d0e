"""A function by columns alone, over keys with many rows: events one after the other give what rounds give."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import attrs
import numpy as np
import pytest

from krishiv_py import Events, RoundContext
from krishiv_py.kernels.process import rounds
from krishiv_py.kernels.process.hot_keys import HotKey
from krishiv_py.testing import Driver, stream_of

DDL = "k string, at timestamp, v bigint, f double, text string"
RETURNS = "n bigint, what string, f double, seen timestamp, key string"

_ZERO = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


@attrs.define
class Numbers:
    """State of plain numbers."""

    n: int = 5
    f: float = 0.5
    odd: bool = False


class Random:
    """A function whose every choice follows from what it gets."""

    def __init__(self, seed: int, *, fails: bool) -> None:
        self.seed, self.fails = seed, fails

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        """Take a round."""
        rows = events.is_row
        state.n = state.n + events.v
        state.f[rows] += 1
        state.odd = state.n % 2 == 1
        choice = np.where(rows, (self.seed + events.v + state.n) % 9, -1)
        ctx.timer("idle", after="10 s", where=choice == 0)
        ctx.timer("back", at=events.time - np.timedelta64(3, "s"), where=choice == 1)
        ctx.timer("idle", after=events.v * 1_000, where=choice == 2)
        ctx.cancel("idle", where=choice == 3)
        ctx.forget(where=(choice == 4) & (events.v > 6))
        ctx.timer("late", after=20_000, where=choice == 5)
        if self.seed % 3 == 0:
            ctx.timer("clock", after=5, clock="processing", where=(choice == 6) & (events.v == 3))
        if self.fails:
            ctx.refuse("seven", where=choice == 7)
            if ((choice == 8) & (events.v == 2)).any():
                raise ValueError
        what = np.array(
            [text if row else name for text, row, name in zip(events.text, rows, events.timer, strict=True)], object
        )
        ctx.emit(n=state.n, what=what, f=state.f, seen=events.time, key=events.k, where=choice != 2)
        ctx.emit({"n": 1, "what": None, "f": 2.5, "seen": None, "key": "x"}, where=choice == 8)


def _rows(draw: random.Random) -> list[dict[str, Any]]:
    rows, now = [], 0
    for _ in range(draw.randint(20, 60)):
        now += draw.choice([0, 0, 1, 3, 12])
        f = draw.choice([None, 1.5, -0.0])
        row = {
            "k": draw.choice(["a", None]),
            "at": _ZERO + dt.timedelta(seconds=max(0, now - draw.randint(0, 4))),
            "v": draw.randint(0, 9),
            "f": f,
        }
        rows.append({**row, "text": draw.choice(["x", None, ""])})
    return rows


@pytest.mark.one_in(13)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_events_of_a_hot_key_are_those_of_rounds(seed: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given, taken, plain = [], list[bool](), HotKey.take
    monkeypatch.setattr(HotKey, "take", lambda *args: taken.append(plain(*args)) or taken[-1])  # type: ignore[func-returns-value]
    for long in (1 << 30, 1):
        draw = random.Random(seed)
        rows = _rows(draw)
        monkeypatch.setattr(rounds, "LONG", long)
        taken.clear()
        stream = stream_of(DDL).watermark("at", "5 s").key_by("k")
        options: Any = {"on_error": "side_output"} if fails else {}
        results = stream.process(Random(seed, fails=fails), returns=RETURNS, state=Numbers, **options)
        driver, n = Driver(results), draw.choice([7, 99])
        outs = [driver.send(rows[i : i + n]) for i in range(0, len(rows), n)] + [driver.state()]
        outs[-1:] = [driver.close()]
        given.append(
            [(out.results.to_pylist(), sorted(map(repr, out.late.to_pylist()))) for out in outs]
            + [sorted(driver.counters.items())]
        )
    assert any(taken)
    assert repr(given[0]) == repr(given[1])


class Wrong:
    """Gives what no column holds at the row with a 3."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        """Take a round."""
        state.n = state.n + 1
        ctx.emit(n=np.array(["x" if v == 3 else 1 for v in events.v], object))


def test_a_hot_key_that_gives_what_does_not_fit_goes_on_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LONG", 1)
    stream = stream_of("k string, at bigint, v bigint").watermark("at", 0).key_by("k")
    driver = Driver(stream.process(Wrong(), returns="n bigint", state=Numbers, on_error="side_output"))
    outs = [driver.send([{"k": "a", "at": n, "v": n} for n in range(9)]), driver.close()]
    assert sum(out.results.num_rows for out in outs) == 8
    assert [row["v"] for out in outs for row in out.late.to_pylist()] == [3]


def test_a_hot_key_whose_every_event_needs_a_round_is_tried_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        calls = 0

        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            self.calls += 1
            ctx.refuse("no")

    function = Refuses()
    monkeypatch.setattr(rounds, "LONG", 8)
    stream = stream_of("k string, at bigint, v bigint").watermark("at", 0).key_by("k")
    driver = Driver(stream.process(function, returns="n bigint"))
    outs = [driver.send([{"k": "a", "at": n, "v": n} for n in range(1_000)]), driver.close()]
    assert sum(out.late.num_rows for out in outs) == 1_000 and function.calls < 1_010
