"""Process functions against the plain reference, and the named cases of their design."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from krishiv_py import Context, OperatorError, Row
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.process.reference import END, process

DDL = "k string, at bigint, v bigint"


@attrs.define
class Count:
    """The state of a key."""

    n: int = 0
    seen: list[int] = attrs.field(factory=list)


class Random:
    """A function whose every choice follows from what it gets."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_row(self, row: Any, state: Count, ctx: Any) -> Iterator[dict[str, Any]]:
        v = row["v"]
        state.n += v
        state.seen.append(v)
        choice = (self.seed + v + state.n) % 7
        if choice == 0:
            ctx.timer("idle", after=10)
        elif choice == 1:
            ctx.timer("back", at=ctx.time - 3)
        elif choice == 2:
            ctx.timer("now", at=ctx.time)
            ctx.timer("idle", after=v)
        elif choice == 3:
            ctx.cancel("idle")
        elif choice == 4 and v > 6:
            ctx.forget()
        elif choice == 5:
            yield {"what": "row", "n": state.n}
        if choice in (5, 6):
            ctx.timer(f"t{v % 3}", after=20 - v)
            yield {"what": "seen", "n": len(state.seen)}

    def on_timer(self, name: str, state: Count, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"what": name, "n": state.n}
        state.n += 1
        if name == "idle" and state.n % 3:
            ctx.timer("idle", after=7)
        if name == "t1" and state.n % 4 == 0:
            ctx.forget()


def _rows(draw: random.Random) -> list[dict[str, Any]]:
    rows, now = [], 0
    for _ in range(draw.randint(1, 40)):
        now += draw.choice([0, 0, 1, 3, 12])
        key = draw.choice(["a", "b", None])
        rows.append({"k": key, "at": max(0, now - draw.randint(0, 8)), "v": draw.randint(0, 9)})
    return rows


def _cut(rows: list[dict[str, Any]], draw: random.Random) -> list[list[dict[str, Any]]]:
    batches = []
    while rows:
        n = draw.randint(1, 6)
        batches.append(rows[:n])
        rows = rows[n:]
    return batches


def _given(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["at"], row["k"], row["what"], row["n"]) for row in rows]


def _wanted(results: list[tuple[float, Any, Any]]) -> list[tuple[Any, ...]]:
    return [(at, key, result["what"], result["n"]) for at, key, result in results]


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_every_step_is_that_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    lag, lateness, ttl, fire = draw.choice([0, 3, 8]), draw.choice([0, 4]), draw.choice([None, 15]), draw.random() < 0.7
    batches = _cut(_rows(draw), draw)
    steps, late, keys = process(
        batches, Random(seed), Count, lag=lag, lateness=lateness, ttl=END if ttl is None else ttl, fire=fire
    )
    stream = stream_of(DDL).watermark("at", lag).allowed_lateness(lateness).null_keys("group").key_by("k")
    driver = Driver(
        stream.process(Random(seed), returns="what string, n bigint", state=Count, at_end="fire" if fire else "seen", ttl=ttl)
    )
    for batch, wanted, refused in zip(batches, steps[:-1], late, strict=True):
        out = driver.send(batch)
        assert _given(out.results.to_pylist()) == _wanted(wanted)
        assert [(row["k"], row["at"], row["v"]) for row in out.late.to_pylist()] == [
            (row["k"], row["at"], row["v"]) for row in refused
        ]
    assert _given(driver.close().results.to_pylist()) == _wanted(steps[-1])
    assert driver.counters.get("timers_dropped", 0) == sum(one.ctx.dropped for one in keys.values())
