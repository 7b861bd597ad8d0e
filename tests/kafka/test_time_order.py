"""A backlog is read in the order of time: no batch size makes rows late that a live query takes. No broker is needed.

What a broker finds by time may be the marker of a transaction, or a record that was aborted.
"""

from __future__ import annotations

import bisect
import builtins
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import count, sum
from krishiv_py.connectors.kafka.backlog import Ranges, RecordTimes, TimeCut, Times, in_time_order
from krishiv_py.connectors.kafka.client import Place
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

Row = tuple[int, int | None]
"""The time a record was written, and the event time in it, both ms; None is what a query does not read."""
LIMIT = 10**9


class Backlog:
    """Partitions as a broker keeps them, and how far they are read."""

    def __init__(self, parts: dict[Place, list[Row]]) -> None:
        self.parts, self.at, self.lookups = parts, dict.fromkeys(parts, 0), 0
        self.fetched = 0
        self.cut: TimeCut | None = None
        self.times = RecordTimes(self.fetch)
        self.highest = {p: list(itertools.accumulate((w for w, _ in rows), max)) for p, rows in parts.items()}

    def at_time(self, at_ms: int) -> dict[Place, int]:
        """The first place in each log that is not older, as a broker says it."""
        self.lookups += 1
        return {p: bisect.bisect_left(highest, at_ms) for p, highest in self.highest.items()}

    def fetch(self, ranges: Ranges) -> dict[Place, Times]:
        """The times of records that a query reads."""
        fetched = {}
        for place, (begin, end) in ranges.items():
            rows = [(i, row[0]) for i, row in enumerate(self.parts[place][begin:end], begin) if row[1] is not None]
            fetched[place] = np.array([i for i, _ in rows], np.int64), np.array([w for _, w in rows], np.int64)
            self.fetched += end - begin
        return fetched

    def batch(self, most: int | None) -> list[Row] | None:
        """The rows of the next batch."""
        waiting = {p: (self.at[p], len(rows)) for p, rows in self.parts.items()}
        actual, self.cut = in_time_order(waiting, most, self.at_time, self.times, LIMIT, self.cut)
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
        driver.send([{"ts": ts} for _, ts in rows if ts is not None])
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
    assert late(Backlog({p: [(w, w - (d or 0)) for w, d in rows] for p, rows in parts.items()}), most, 100) == 0


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_partition_that_appears_with_old_records_is_read_first(seed: int, most: int) -> None:
    r = random.Random(seed)
    backlog = Backlog({("t", 0): [(w, w) for w in range(1_000, 3_000, 10)]})
    for _ in range(3):
        backlog.batch(most)
    until = max(w for w, _ in backlog.parts["t", 0][: backlog.at["t", 0]])
    backlog.parts["t", 1] = [(w, w) for w in sorted(r.sample(range(500, 3_000), 100))]
    backlog.highest["t", 1] = [w for w, _ in backlog.parts["t", 1]]
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
    parts: dict[Place, list[Row]] = {
        ("t", p): [(w, w) for w in sorted(r.choices(range(1_000, 1_000 + 10 ** r.randint(1, 6)), k=120))] for p in range(3)
    }
    one, other = Backlog(parts), Backlog(parts)
    while (rows := one.batch(most)) is not None:
        if r.randrange(20) >= restart:
            other.cut = None
        assert other.batch(most) == rows


def with_unread(rows: list[Row], r: random.Random, now: int) -> list[Row]:
    """A log with transactions: markers with a time of the broker, aborted records with any time."""
    log, kind = list[Row](), r.randrange(4)
    for row in rows:
        log.append(row)
        if kind and not r.randrange(8):
            if kind > 1:
                log += [(r.randrange(1_000, 12_000), None) for _ in range(r.randrange(6))]
            log.append((now if kind < 3 else row[0] + r.randrange(3_000), None))
    return log


@settings(max_examples=scaled(100), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 80))
def test_no_row_is_late_behind_markers_and_aborted_records(seed: int, most: int) -> None:
    """Some partitions are written in transactions, some not; their times are long ago, or just before those of the markers."""
    r = random.Random(seed)
    parts: dict[Place, list[Row]] = {}
    for n in range(r.randint(2, 5)):
        rows: list[Row] = [(w, w - r.randrange(100)) for w in sorted(r.choices(range(1_000, 6_000), k=r.randrange(120)))]
        parts["t", n] = with_unread(rows, r, 10**8)
    assert late(Backlog(parts), most, 100) == 0


def test_a_log_of_transactions_is_read_ahead_once() -> None:
    """What batches need of the times of records is fetched about once, and batches are as full as without transactions."""
    whole: dict[Place, list[Row]] = {("t", n): [(w, w) for w in range(n, 100_000, 10)] for n in range(3)}
    logs: dict[Place, list[Row]] = {}
    for place, rows in whole.items():
        logs[place] = [row for i, each in enumerate(rows) for row in ([each, (10**8, None)] if i % 100 == 99 else [each])]
    backlog = Backlog({**logs, ("t", 3): whole["t", 0]})
    assert late(backlog, 1_000, 0) == 0
    assert backlog.fetched < 1.3 * builtins.sum(map(len, logs.values())) + 10_000
    assert backlog.lookups < 400


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 10**6))
def test_the_first_record_of_a_time_is_one_that_is_read(seed: int) -> None:
    """A query that begins or ends at a time does so at the first record that has it, whatever its log has besides."""
    r = random.Random(seed)
    rows: list[Row] = [(w, w) for w in sorted(r.choices(range(1_000, 6_000), k=r.randrange(60)))]
    backlog = Backlog({("t", 0): with_unread(rows, r, 10**8)})
    log, moment = backlog.parts["t", 0], r.randrange(500, 7_000)
    expected = next((i for i, (w, ts) in enumerate(log) if w >= moment and ts is not None), len(log))
    start = backlog.at_time(moment)["t", 0]
    assert backlog.times.first(moment, {("t", 0): (start, len(log))}) == {("t", 0): expected}
