"""The limit of rows a key in interval joins: who takes part follows from rows and event times, not batches (SEMANTICS §9.1)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.arrays.grouping import first_come
from krishiv_py.testing import Driver, StepOutput, stream_of

LAG, LOWER, UPPER, MOST = 20, -30, 15, 3
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
LEFT, RIGHT = "key string, at bigint, n bigint", "key string, seen bigint, m bigint"


def plain(times: list[int], held: list[int], most: int, reach: int) -> list[bool]:
    """Row by row."""
    taken, actual = list(held), []
    for time in times:
        actual.append(sum(abs(t - time) <= reach for t in taken) < most)
        if actual[-1]:
            taken.append(time)
    return actual


@given(
    st.lists(st.integers(0, 60), max_size=120),
    st.lists(st.integers(-20, 60), max_size=8),
    st.integers(1, 4),
    st.integers(0, 40),
    st.integers(1, 5),
)
def test_the_first_to_come_are_those_found_row_by_row(
    times: list[int], held: list[int], most: int, reach: int, refused: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("krishiv_py.arrays.grouping._REFUSED", refused)
        actual = first_come(np.array(times, np.int64), np.array(held, np.int64), most, reach)
    assert actual.tolist() == plain(times, held, most, reach)


def test_many_rows_of_a_hot_key_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    searching = np.searchsorted

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal looked
        looked += 1
        return searching(*args, **options)

    monkeypatch.setattr(np, "searchsorted", counting)
    takes = first_come(np.arange(1_000_000), np.empty(0, np.int64), 100, 10_000_000)
    assert takes.sum() == 100
    assert looked <= 40


Event = tuple[str, str | None, int, int]


def events(seed: int, n: int = 150) -> list[Event]:
    """Rows of both sides in one order of arrival, none of them later than the lag, over many times the reach of the join."""
    draw, now, actual = Random(seed), 0, []
    for number in range(n):
        now += draw.choice([0, 1, 5, 12])
        side, key = draw.choice(["left", "right"]), draw.choice(["a", "a", "b", None])
        actual.append((side, key, now - draw.randint(0, LAG // 2), number))
    return actual


def batch(rows: list[Event]) -> dict[str, list[dict[str, Any]]]:
    names = {"left": ("at", "n"), "right": ("seen", "m")}
    return {
        side: [{"key": key, time: t, name: number} for s, key, t, number in rows if s == side]
        for side, (time, name) in names.items()
    }


def cut(rows: list[Event], most: int, seed: int) -> list[list[Event]]:
    draw, moment, actual = Random(seed), 0, []
    while moment < len(rows):
        to = moment + draw.randint(1, most)
        actual.append(rows[moment:to])
        moment = to
    return actual


def taking_part(rows: list[Event], late: int) -> list[Event]:
    """The plain rule: fewer than so many rows of its side and key before it are closer than rows can stay."""
    reach = UPPER - LOWER + LAG + late
    taken, actual = defaultdict[tuple[str, str], list[int]](list), []
    for side, key, t, number in rows:
        if key is not None:
            near = taken[side, key]
            if sum(abs(t - other) <= reach for other in near) >= MOST:
                continue
            near.append(t)
        actual.append((side, key, t, number))
    return actual


def expected(rows: list[Event], how: str, late: int) -> list[tuple[int | None, int | None]]:
    """Numbers of the rows of each result, by nested loops."""
    some = taking_part(rows, late)
    ones, others = ([row for row in some if row[0] == side] for side in ("left", "right"))
    pairs = [(a[3], b[3]) for a in ones for b in others if a[1] is not None and a[1] == b[1] and LOWER <= b[2] - a[2] <= UPPER]
    met_left, met_right = {a for a, _ in pairs}, {b for _, b in pairs}
    if how in ("semi", "anti"):
        return [(row[3], None) for row in ones if (row[3] in met_left) == (how == "semi")]
    actual: list[tuple[int | None, int | None]] = list(pairs)
    if how in ("left", "full"):
        actual += [(row[3], None) for row in ones if row[3] not in met_left]
    if how in ("right", "full"):
        actual += [(None, row[3]) for row in others if row[3] not in met_right]
    return actual


def joined(how: Any, left: Any, right: Any, late: int) -> Any:
    plan = left.watermark("at", LAG).interval_join(
        right.watermark("seen", LAG), "key", lower=LOWER, upper=UPPER, how=how, max_rows_per_key=MOST
    )
    return plan.allowed_lateness(late)


def numbers(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{row['n']} {row.get('m')}" for row in rows)


def results(steps: list[StepOutput]) -> list[str]:
    return numbers([row for step in steps for row in step.results.to_pylist()])


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("how", "late"),
    [
        pytest.param(how, late, marks=() if late == (25, 0)[n % 2] else pytest.mark.slow)
        for n, how in enumerate(HOWS)
        for late in (0, 25)
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_room_that_the_watermark_frees_does_not_depend_on_batches(how: str, seed: int, late: int) -> None:
    rows = events(seed)
    wanted = sorted(f"{a} {b}" for a, b in expected(rows, how, late))
    limited = len(rows) - len(taking_part(rows, late))
    assert limited > 10
    for most in (1, 7, 40, len(rows)):
        driver = Driver(joined(how, stream_of(LEFT), stream_of(RIGHT), late))
        steps, held = [], 0
        for i, some in enumerate(cut(rows, most, seed)):
            steps.append(driver.send(batch(some)))
            held = max(held, driver.progress.open_rows)
            driver = driver.restarted() if i % 5 == 4 else driver
        steps.append(driver.close())
        assert driver.counters["late"] == 0
        assert results(steps) == wanted
        assert driver.counters["limited"] == limited
        if most == 1:  # so many of each key and side; of null keys too, which leave at once where there is no room
            assert held <= 2 * 3 * MOST


def test_a_state_from_before_times_were_kept_counts_the_rows_it_holds() -> None:
    driver = Driver(joined("inner", stream_of(LEFT), stream_of(RIGHT), 0))
    driver.send({"left": [{"key": "a", "at": t, "n": t} for t in range(MOST)]})
    for name in list(driver._stages[0].buckets[0].meta):
        if name in ("log:jlc", "log:jrc", "next:jlc", "next:jrc"):
            del driver._stages[0].buckets[0].meta[name]
    driver.send({"left": [{"key": "a", "at": 9, "n": 9}], "right": [{"key": "a", "seen": 9, "m": 1}]})
    assert driver.counters["limited"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", pytest.param("semi", marks=pytest.mark.slow)])
def test_the_three_engines_limit_the_same_rows(how: str, session: kv.Session, tmp_path: Path) -> None:
    rows = events(5, 60)
    wanted = sorted(f"{a} {b}" for a, b in expected(rows, how, 0))
    for most in (13, 60):
        (left, one), (right, other) = session.memory_stream(LEFT), session.memory_stream(RIGHT)
        plan = joined(how, left, right, 0)
        query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / f"checkpoint {most}"))
        try:
            for some in cut(rows, most, 5):
                sent = batch(some)
                for sender, side in ((one, "left"), (other, "right")):
                    if sent[side]:
                        sender.send(sent[side])
                query.process_all_available()
            one.close()
            other.close()
            query.process_all_available()
            assert numbers(query.results().to_pylist()) == wanted
            assert query.progress.counters["limited"] == len(rows) - len(taking_part(rows, 0))
        finally:
            query.stop()
        run = plan.run()
        assert numbers(run.table.to_pylist()) == wanted
        assert run.counters["limited"] == len(rows) - len(taking_part(rows, 0))
