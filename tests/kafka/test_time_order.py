"""A backlog is read in the order of time: no batch size makes rows late that a live query takes. No broker is needed."""

from __future__ import annotations

import bisect
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import count, sum
from krishiv_py.connectors.kafka.client import Place
from krishiv_py.connectors.kafka.source import TimeCut, in_time_order
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

Row = tuple[int, int]
"""The time a record was written, and the event time in it, both ms."""
LIMIT = 10**9


class Backlog:
    """Partitions as a broker keeps them, and how far they are read."""

    def __init__(self, parts: dict[Place, list[Row]]) -> None:
        self.parts, self.at, self.lookups = parts, dict.fromkeys(parts, 0), 0
        self.cut: TimeCut | None = None

    def at_time(self, at_ms: int) -> dict[Place, int]:
        """The first record that is not older, as a broker says it."""
        self.lookups += 1
        return {p: bisect.bisect_left(rows, at_ms, key=lambda r: r[0]) for p, rows in self.parts.items()}

    def batch(self, most: int | None) -> list[Row] | None:
        """The rows of the next batch."""
        waiting = {p: (self.at[p], len(rows)) for p, rows in self.parts.items()}
        actual, self.cut = in_time_order(waiting, most, self.at_time, LIMIT, self.cut)
        assert list(actual) == list(waiting)
        for p, (begin, end) in actual.items():
            assert begin == self.at[p] <= end <= len(self.parts[p])
        self.at.update({p: end for p, (_, end) in actual.items()})
        rows = [r for p, (begin, end) in actual.items() for r in self.parts[p][begin:end]]
        assert most is None or len(rows) <= most
        return rows or None


def late(backlog: Backlog, most: int | None, lag_ms: int) -> int:
    """How many rows are late when all is read."""
    plan = stream_of("ts bigint").watermark("ts", f"{lag_ms} ms").tumbling_window("100 ms").late_rule("event").agg(count())
    driver, n = Driver(plan), 0
    while (rows := backlog.batch(most)) is not None:
        n += len(rows)
        driver.send([{"ts": ts} for _, ts in rows])
    assert n == len([r for rows in backlog.parts.values() for r in rows])
    return driver.progress.late["late"]


@settings(max_examples=scaled(60), deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)),
        st.lists(st.tuples(st.integers(1_000, 6_000), st.integers(0, 99)), max_size=40).map(sorted),
        min_size=1,
    ),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_no_row_is_late_for_any_batch_size(parts: dict[Place, list[Row]], most: int | None) -> None:
    """Event times up to 99 ms before the time of writing, a lag of 100 ms; empty, silent, and short partitions, equal times."""
    assert late(Backlog({p: [(w, w - d) for w, d in rows] for p, rows in parts.items()}), most, 100) == 0


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_partition_that_appears_with_old_records_is_read_first(seed: int, most: int) -> None:
    r = random.Random(seed)
    backlog = Backlog({("t", 0): [(w, w) for w in range(1_000, 3_000, 10)]})
    for _ in range(3):
        backlog.batch(most)
    until = max(w for w, _ in backlog.parts["t", 0][: backlog.at["t", 0]])
    backlog.parts["t", 1] = [(w, w) for w in sorted(r.sample(range(500, 3_000), 100))]
    backlog.at["t", 1] = 0
    while any(w < until for w, _ in backlog.parts["t", 1][backlog.at["t", 1] :]):
        rows = backlog.batch(most)
        assert rows is not None
        if len(rows) == most and all(w < until for w, _ in rows):
            assert backlog.at["t", 0] * 10 + 1_000 <= until + 11


@pytest.mark.parametrize("most", [150, 1_500, 15_000, 150_000])
def test_partitions_of_two_topics_with_much_to_read(most: int) -> None:
    """Record times are those of the producer: each row up to 4 s before the newest one, a lag of 10 s."""
    r, parts = random.Random(5), dict[Place, list[Row]]()
    for i in range(30_000):
        user = r.randrange(300)
        topic = "a" if user % 2 else "b"
        parts.setdefault((topic, user % (3 if topic == "a" else 2)), []).append((i * 100, i * 100 + r.randrange(4_000)))
    backlog = Backlog(parts)
    plan = (
        stream_of("ts bigint")
        .watermark("ts", "10 seconds")
        .tumbling_window("1 minute")
        .late_rule("event")
        .agg(count(), sum("ts"))
    )
    driver, batches = Driver(plan), 0
    while (rows := backlog.batch(most)) is not None:
        batches += 1
        driver.send([{"ts": ts} for _, ts in rows])
    assert driver.progress.late["late"] == 0
    assert batches <= 2 * 30_000 // most + 2, "batches are at least half full"
    assert backlog.lookups <= 4 * batches + 40, "a few questions a batch"


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 80), st.integers(0, 20))
def test_a_search_after_a_restart_finds_the_same_batches(seed: int, most: int, restart: int) -> None:
    """It has forgotten where the last cut was."""
    r = random.Random(seed)
    parts = {
        ("t", p): [(w, w) for w in sorted(r.choices(range(1_000, 1_000 + 10 ** r.randint(1, 6)), k=120))] for p in range(3)
    }
    one, other = Backlog(parts), Backlog(parts)
    while (rows := one.batch(most)) is not None:
        if r.randrange(20) >= restart:
            other.cut = None
        assert other.batch(most) == rows
