"""Properties of tumbling and hopping windows that need no reference: where rows go, and what may not matter.

::

    size 10, slide 4:   [---------)            a row at 9 is in the windows that start at 0, 4 and 8,
                            [---------)        a row at 11 in those at 4 and 8
                                [---------)
                        0   4   8  10  14  18
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.columns.times import FixedAssigner
from krishiv_py.kernels.windows.fixed import plain as fixed
from krishiv_py.plan.operation import Grid
from krishiv_py.testing import Driver, stream_of

Row = dict[str, Any]
Fired = dict[tuple[str | None, int, int], tuple[int, ...]]
"""Numbers of the rows by key, start and end."""

SIZES = st.integers(1, 30)
OFFSETS = st.integers(-100, 100)
KEYS = st.sampled_from(["a", "b", None])
TIMES = st.integers(-60, 60)
RULES = st.sampled_from(["event", "window"])


@st.composite
def rows(draw: st.DrawFn, times: st.SearchStrategy[int | None] = TIMES) -> list[Row]:
    actual = draw(st.lists(st.tuples(KEYS, times), max_size=30))
    return [{"key": key, "at": i, "id": number} for number, (key, i) in enumerate(actual)]


def hopping(size: int, slide: int, offset: int = 0, lag: int = 0, rule: Any = "event", lateness: int = 0) -> ResultStream:
    keyed = stream_of("key string, at bigint, id bigint").watermark("at", lag).key_by("key").late_rule(rule)
    windowed = keyed.allowed_lateness(lateness).emit("final").hopping_window(size, slide, offset, allow_gaps=True)
    return windowed.agg(kv.collect_list("id").alias("ids"))


def run(stream: ResultStream, batches: Sequence[Sequence[Row]]) -> tuple[Fired, list[int], Driver, list[int]]:
    """What fired, the late rows, the driver, and the ends in the order of their firing."""
    driver = Driver(stream)
    outs = [driver.send(list(batch)) for batch in batches] + [driver.close()]
    fired: Fired = {}
    for out in outs:
        for line in out.results.to_pylist():
            place = (line["key"], line["window_start"], line["window_end"])
            assert place not in fired, "a final result came twice"
            fired[place] = tuple(line["ids"])
    ends = [end for out in outs for end in out.results["window_end"].to_pylist()]
    return fired, [n for out in outs for n in out.late["id"].to_pylist()], driver, ends


def cut(items: list[Row], at: list[int]) -> list[list[Row]]:
    edges = [0, *sorted(min(c, len(items)) for c in at), len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


def unordered(fired: Fired) -> dict[tuple[str | None, int, int], Counter[int]]:
    return {place: Counter(ids) for place, ids in fired.items()}


CUTS = st.lists(st.integers(0, 30), max_size=5)


@given(rows(), SIZES, SIZES, OFFSETS)
def test_a_row_is_in_every_window_that_covers_it_and_in_no_other(given_: list[Row], size: int, slide: int, offset: int) -> None:
    fired, late, driver, _ = run(hopping(size, slide, offset), [given_])
    places = {n: sorted(start for (_, start, _), ids in fired.items() if n in ids) for n in range(len(given_))}
    for row in given_:
        covering = [s for s in range(row["at"] - size + 1, row["at"] + 1) if (s - offset) % slide == 0]
        assert places[row["id"]] == covering
        assert size // slide <= len(covering) <= -(-size // slide)
    assert not late
    assert driver.counters["unassigned"] == sum(not actual for actual in places.values())
    for (key, start, end), ids in fired.items():
        assert end - start == size
        assert all(given_[n]["key"] == key and start <= given_[n]["at"] < end for n in ids)


@given(rows(), SIZES, OFFSETS)
def test_tumbling_is_hopping_by_its_size_and_an_offset_counts_modulo_it(given_: list[Row], size: int, offset: int) -> None:
    base = stream_of("key string, at bigint, id bigint").watermark("at", 0).key_by("key")
    tumbling = base.tumbling_window(size, offset).agg(kv.collect_list("id").alias("ids"))
    fired = run(tumbling, [given_])[0]
    assert fired == run(hopping(size, size, offset), [given_])[0] == run(hopping(size, size, offset + 3 * size), [given_])[0]
    assert Counter(n for ids in fired.values() for n in ids) == Counter(range(len(given_)))


@given(rows(st.one_of(TIMES, TIMES, TIMES, st.none())), CUTS, SIZES, SIZES, st.integers(0, 20), st.integers(0, 20), RULES)
def test_every_row_is_in_exactly_one_place(
    given_: list[Row], at: list[int], size: int, slide: int, lag: int, lateness: int, rule: str
) -> None:
    fired, late, driver, _ = run(hopping(size, slide, 0, lag, rule, lateness), cut(given_, at))
    in_windows = {n for ids in fired.values() for n in ids}
    assert in_windows.isdisjoint(late)
    assert len(set(late)) == len(late)
    assert len(in_windows) + len(late) + driver.counters["unassigned"] == len(given_) == driver.counters["rows"]
    assert driver.counters["late"] + driver.counters["null_time"] == len(late)


@given(rows(), CUTS, CUTS, SIZES, SIZES)
def test_regrouping_batches_within_the_lag_changes_nothing(
    given_: list[Row], one: list[int], two: list[int], size: int, slide: int
) -> None:
    """With a lag as long as the disorder no row is late, however the input was cut."""
    stream = hopping(size, slide, lag=120)
    first, second = run(stream, cut(given_, one)), run(stream, cut(given_, two))
    assert first[1] == second[1] == []
    assert first[0] == second[0]


@given(st.data(), rows(), CUTS, SIZES, SIZES)
def test_arrival_order_within_the_lag_changes_nothing(
    data: st.DataObject, given_: list[Row], at: list[int], size: int, slide: int
) -> None:
    shuffled = data.draw(st.permutations(given_))
    stream = hopping(size, slide, lag=120)
    assert unordered(run(stream, cut(given_, at))[0]) == unordered(run(stream, cut(shuffled, at))[0])


@given(rows(), CUTS, SIZES, SIZES, st.integers(0, 20))
def test_lateness_accepts_what_a_longer_lag_would(given_: list[Row], at: list[int], size: int, slide: int, grace: int) -> None:
    """Final results with lag 0 and lateness L are those with lag L: both wait until the newest time is L past the end."""
    batches = cut(given_, at)
    assert run(hopping(size, slide, lateness=grace), batches)[:2] == run(hopping(size, slide, lag=grace), batches)[:2]


@given(rows(), CUTS, SIZES, SIZES, RULES)
def test_windows_fire_in_order_of_their_ends(given_: list[Row], at: list[int], size: int, slide: int, rule: str) -> None:
    ends = run(hopping(size, slide, 0, 5, rule), cut(given_, at))[3]
    assert ends == sorted(ends)


@given(rows(), CUTS, SIZES, SIZES)
def test_nothing_is_kept_when_all_is_over(given_: list[Row], at: list[int], size: int, slide: int) -> None:
    driver = run(hopping(size, slide), cut(given_, at))[2]
    assert driver.open_windows == 0


@given(rows(), CUTS, SIZES, st.integers(1, 10))
def test_the_event_rule_refuses_at_least_what_the_window_rule_refuses(
    given_: list[Row], at: list[int], size: int, slide: int
) -> None:
    by_event = set(run(hopping(size, min(slide, size), rule="event"), cut(given_, at))[1])
    by_window = set(run(hopping(size, min(slide, size), rule="window"), cut(given_, at))[1])
    assert by_window <= by_event


@given(rows(), CUTS, SIZES, SIZES)
def test_both_ways_to_gather_a_window_from_its_slices_give_one_order(
    given_: list[Row], at: list[int], size: int, slide: int
) -> None:
    fired = []
    for least in (0, 1 << 40):  # whole slices one after the other; rows taken one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fixed, "_PIECE_ROWS", least)
            fired.append(run(hopping(size, slide), cut(given_, at))[0])
    assert fired[0] == fired[1]


@pytest.mark.parametrize(("at", "starts"), [(9, [0, 4, 8]), (10, [4, 8]), (11, [4, 8]), (-1, [-8, -4]), (0, [-8, -4, 0])])
def test_by_hand(at: int, starts: list[int]) -> None:
    fired = run(hopping(10, 4), [[{"key": "a", "at": at, "id": 0}]])[0]
    assert sorted(start for _, start, _ in fired) == starts


@given(st.integers(1, 50), st.integers(1, 50), st.integers(-60, 60), st.lists(st.integers(-(10**6), 10**6), min_size=1))
def test_the_slice_of_one_time_is_that_of_many(size: int, slide: int, offset: int, times: list[int]) -> None:
    assigner = FixedAssigner(Grid(size, slide, offset))
    assert [assigner.slice_of(time) for time in times] == assigner.slices(np.array(times)).tolist()


@given(st.integers(1, 50), st.integers(1, 50), st.integers(-60, 60), st.lists(st.integers(-(10**6), 10**6)))
def test_places_say_the_slices(size: int, slide: int, offset: int, times: list[int]) -> None:
    assigner, given_times = FixedAssigner(Grid(size, slide, offset)), np.array(times, np.int64)
    first, step, places = assigner.places(given_times)
    said = np.full(len(times), first) if places is None else first + places * step
    assert said.tolist() == assigner.slices(given_times).tolist()
