"""The time to live of each side of a join of tables: results are the join of the rows that are left, after every batch."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from krishiv_py import MemorySink, PlanError, Session, StateTtlConfig
from krishiv_py.plan.sides import JOIN_TYPES, JoinType
from krishiv_py.testing import Driver, ManualClock, stream_of

LEFT, RIGHT = stream_of("pk bigint, k string, a bigint"), stream_of("k string, b bigint")
TTL = (16_000, 32_000)
"""A key is looked at 16 times in its life: each second of the clock on the left, every two on the right."""


@attrs.define
class Side:
    """Rows of a side by key, each key with when a row of it came last."""

    ttl: int | None
    rows: dict[str, Counter[Any]] = attrs.field(factory=dict)
    touched: dict[str, int] = attrs.field(factory=dict)

    def change(self, key: str | None, value: Any, number: int, now: int) -> None:
        if key is None:
            return
        self.touched[key] = now
        rows = self.rows.setdefault(key, Counter())
        rows[value] = max(rows[value] + number, 0)

    def forget(self, now: int) -> None:
        for key in [key for key, at in self.touched.items() if self.ttl is not None and at <= now - self.ttl]:
            del self.touched[key], self.rows[key]

    def of(self, key: str) -> list[Any]:
        return list(self.rows.get(key, Counter()).elements())


def joined(left: Side, right: Side, how: JoinType) -> Counter[Any]:
    pairs: list[Any] = []
    for key in {*left.rows, *right.rows}:
        ours, theirs = left.of(key), right.of(key)
        if how in ("semi", "anti"):
            pairs += [(key, *row) for row in ours if bool(theirs) == (how == "semi")]
            continue
        pairs += [(key, *one, other) for one in ours for other in theirs]
        pairs += [(key, *one, None) for one in ours if not theirs and how in ("left", "full")]
        pairs += [(key, None, None, other) for other in theirs if not ours and how in ("right", "full")]
    return Counter(pairs)


def without_key(known: dict[int, Any], lone: list[Any], how: JoinType) -> Counter[Any]:
    """Return rows without a key, which never meet, and are not kept."""
    ours = [(None, *value) for key, value in known.values() if key is None]
    if how == "anti":
        return Counter(ours)
    left = [(*row, None) for row in ours if how in ("left", "full")]
    return Counter([*left, *((None, None, None, b) for b in lone if how in ("right", "full"))])


def content_of(changes: list[dict[str, Any]], how: JoinType) -> Counter[Any]:
    return _folded(changes, ("k", "pk", "a") if how in ("semi", "anti") else ("k", "pk", "a", "b"))


def _folded(changes: list[dict[str, Any]], names: tuple[str, ...]) -> Counter[Any]:
    content = Counter[Any]()
    for row in changes:
        content[tuple(row[name] for name in names)] += 1 if row["op"][0] == "+" else -1
        assert min(content.values()) >= 0, f"{row} is withdrawn and was not given"
    return +content


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ttl", [TTL, (None, 16_000), (16_000, None)])
@pytest.mark.parametrize("how", JOIN_TYPES)
def test_results_are_the_join_of_the_rows_that_are_left(how: JoinType, ttl: tuple[int | None, int | None], seed: int) -> None:
    rng, clock = random.Random(f"{how} {seed}"), ManualClock()
    table = LEFT.from_changelog("upsert", "pk")
    driver = Driver(table.join(RIGHT, on="k", how=how, ttl=ttl), clock=clock)
    sides, known, lone = (Side(ttl[0]), Side(ttl[1])), dict[int, Any](), list[Any]()
    changes, forgot, now = list[Any](), 0, 0
    for _ in range(25):
        now += rng.choice([0, 2_000, 2_000, 8_000, 20_000])
        clock.set(now)
        ours, theirs = rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1])
        sent: dict[str, list[dict[str, Any]]] = {
            "left": [{"pk": rng.randrange(5), "k": rng.choice(["x", "y", None]), "a": rng.randrange(3)} for _ in range(ours)],
            "right": [{"k": rng.choice(["x", "y", "z", None]), "b": rng.randrange(3)} for _ in range(theirs)],
        }
        before = dict(known)
        known |= {row["pk"]: (row["k"], (row["pk"], row["a"])) for row in sent["left"]}
        for pk, new in known.items():
            if before.get(pk) != new:
                for (key, value), number in ([(before[pk], -1)] if pk in before else []) + [(new, 1)]:
                    sides[0].change(key, value, number, now)
        lone += [row["b"] for row in sent["right"] if row["k"] is None]
        for row in sent["right"]:
            sides[1].change(row["k"], row["b"], 1, now)
        out = driver.send(sent) if sent["left"] or sent["right"] else driver.tick()
        changes += out.results.to_pylist()
        for side in sides:
            held = len(side.rows)
            side.forget(now)
            forgot += held - len(side.rows)
        assert content_of(changes, how) == joined(*sides, how) + without_key(known, lone, how)
        driver = driver.restarted() if rng.random() < 0.2 else driver
    assert forgot > 0


def test_each_side_goes_at_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    driver = Driver(LEFT.select("k", "a").join(RIGHT, on="k", how="full", ttl=("20 s", "5 s")), clock=clock)
    driver.send({"left": [{"k": "x", "pk": 0, "a": 1}, {"k": "y", "pk": 0, "a": 2}], "right": [{"k": "x", "b": 3}]})
    clock.advance("8 s")
    assert ops(driver.tick()) == [("-D", "x", 1, 3), ("+I", "x", 1, None)]
    assert ops(driver.send({"right": [{"k": "x", "b": 4}]})) == [("-D", "x", 1, None), ("+I", "x", 1, 4)]
    clock.advance("30 s")  # both sides in one batch: what one gives and the other takes back is not given
    assert ops(driver.tick()) == [("-D", "x", 1, 4), ("-D", "y", 2, None)]
    assert driver.counters["ttl_dropped"] == 4 and driver.progress.open_rows == 0


def ops(out: Any) -> list[tuple[Any, ...]]:
    return [(row["op"], *(v for n, v in row.items() if n != "op")) for row in out.results.to_pylist()]


PLAIN = LEFT.select("k", "a").join(RIGHT, on="k", how="left")
SENT = {"left": [{"k": "x", "pk": 0, "a": 1}], "right": [{"k": "x", "b": 3}]}
SIDES = LEFT.select("k", "a").join(RIGHT, on="k", how="left", ttl=(None, "5 s"))


OTHERS = {
    "none": PLAIN,
    "of keys": PLAIN.with_state_ttl(StateTtlConfig("1 h", clock="processing")),
    "of sides": LEFT.select("k", "a").join(RIGHT, on="k", how="left", ttl=("1 s", "1 h")),
}


@pytest.mark.parametrize("before", OTHERS.values(), ids=OTHERS)
def test_the_time_to_live_changes_over_a_savepoint(tmp_path: Path, before: Any) -> None:
    clock = ManualClock()
    driver = Driver(before, clock=clock)
    driver.send(SENT)
    driver = Driver(SIDES, clock=clock, savepoint=driver.savepoint(str(tmp_path / "one")))
    clock.advance("1 s")
    assert ops(driver.send({"left": [{"k": "z", "pk": 0, "a": 1}]})) == [("+I", "z", 1, None)]
    clock.advance("10 s")
    assert ops(driver.tick()) == [("-D", "x", 1, 3), ("+I", "x", 1, None)]
    driver = Driver(PLAIN, clock=clock, savepoint=driver.savepoint(str(tmp_path / "two")))
    clock.advance("1 day")
    assert ops(driver.send({"right": [{"k": "x", "b": 4}]})) == [("-D", "x", 1, None), ("+I", "x", 1, 4)]


def test_the_text_of_a_plan_says_what_becomes_of_the_time_to_live(tmp_path: Path) -> None:
    with Session.in_process() as session:
        left, sender = session.memory_stream("k string, a bigint", name="left")
        right, _ = session.memory_stream("k string, b bigint", name="right")
        query = left.join(right, on="k").start(MemorySink(), checkpoint=tmp_path)
        sender.send([{"k": "x", "a": 1}])
        query.process_all_available()
        query.stop()
        plan = left.join(right, on="k", ttl=(None, "5 s"))
        text = plan.explain(against=tmp_path)
    assert "no time to live becomes one by right processing time, which begins with the next batch" in text
    assert "ttl=right 5 s (processing time)" in plan.explain()


@pytest.mark.parametrize("workers", [1, 3])
def test_in_process_over_a_restart(tmp_path: Path, workers: int) -> None:
    now = 0
    with Session.in_process(workers=workers) as session:
        session.use_clock(lambda: now * 1_000_000)
        left, of_left = session.memory_stream("k string, a bigint", name="left")
        right, of_right = session.memory_stream("k string, b bigint", name="right")
        plan, sink = left.join(right, on="k", how="left", ttl=("60 s", "16 s")), MemorySink()
        query = plan.start(sink, checkpoint=tmp_path)
        of_left.send([{"k": key, "a": 1} for key in "abcdef"])
        of_right.send([{"k": key, "b": 2} for key in "abc"])
        query.process_all_available()
        query.stop()
        now = 20
        query = plan.start(sink, checkpoint=tmp_path)
        of_right.send([{"k": "d", "b": 5}])
        query.process_all_available()
        assert content(sink) == {**dict.fromkeys("abcef"), "d": 5}
        now = 100
        of_left.send([{"k": "z", "a": 9}])
        query.process_all_available()
        assert content(sink) == {"z": None}
        query.stop()


def content(sink: MemorySink) -> dict[str, Any]:
    """Return the right value of each key, whose row is there once."""
    table = sink.table()
    assert table is not None
    return {k: b for (k, _, b), number in _folded(table.to_pylist(), ("k", "a", "b")).items() for _ in range(number)}


@pytest.mark.parametrize("ttl", ["1 day", ("1 day",), (None, None), 5])
def test_a_time_to_live_of_sides_is_two(ttl: Any) -> None:
    with pytest.raises(PlanError, match="a join has a time to live for each side"):
        LEFT.join(RIGHT, on="k", ttl=ttl)
