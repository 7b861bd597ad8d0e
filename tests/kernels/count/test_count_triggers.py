"""Triggers and accumulation of count windows, against a row-by-row model and by hand (SEMANTICS §3.7, §5.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, stream_of

Line = tuple[str, str, int, str | None, int, tuple[int, ...]]
"""op, pane, index, key, start, values."""
Row = tuple[str | None, int]


@dataclass(frozen=True)
class Query:
    """A count window and how it fires."""

    size: int
    slide: int
    every: int | None
    on_time: bool
    emit: Any
    accumulation: Any

    def driver(self) -> Driver:
        """It, on the driver."""
        keyed = stream_of("key string, at bigint, value bigint").watermark("at", 0).key_by("key").emit(self.emit)
        keyed = keyed.trigger(kv.Trigger(self.every, self.on_time)).accumulation(self.accumulation).with_pane()
        windowed = keyed.count_window(self.size, self.slide)
        return Driver(windowed.agg(kv.collect_list("value").alias("values"), kv.count()))


class Model:
    """Rows one by one."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.rows: dict[str | None, list[int]] = {}
        self.shown: dict[tuple[str | None, int], tuple[int, int]] = {}  # rows written, firings
        self.lines: list[Line] = []

    def row(self, key: str | None, value: int) -> None:
        held = self.rows.setdefault(key, [])
        held.append(value)
        q = self.query
        for start in range(0, len(held), q.slide):
            n = len(held) - start
            if n > q.size:
                continue
            if n == q.size and q.on_time:
                self.fire(key, start, "final")
            elif q.every is not None and n % q.every == 0:
                self.fire(key, start, "early")

    def close(self) -> None:
        open_ = [
            (start, key)
            for key, held in self.rows.items()
            for start in range(0, len(held), self.query.slide)
            if start + self.query.size > len(held)
        ]
        for start, key in open_ if self.query.on_time else []:
            stated = self.shown.get((key, start), (0, 0))[0]
            if stated < len(self.rows[key]) - start or (
                self.query.emit == "updates" and self.query.accumulation != "discarding"
            ):
                self.fire(key, start, "final")

    def fire(self, key: str | None, start: int, pane: str) -> None:
        stated, index = self.shown.get((key, start), (0, 0))
        held = self.rows[key][start : start + self.query.size]
        discarding = self.query.accumulation == "discarding"
        again = stated > 0 and self.query.emit == "retractions" and not discarding
        if again:
            self.lines.append(("-U", pane, index, key, start, tuple(held[:stated])))
        self.lines.append(("+U" if again else "+I", pane, index, key, start, tuple(held[stated if discarding else 0 :])))
        self.shown[key, start] = (len(held), index + 1)


def driven(query: Query, batches: Sequence[Sequence[Row]], restart_at: int = -1) -> list[list[Line]]:
    driver = query.driver()
    out = []
    for number, batch in enumerate([*batches, None]):
        driver = driver.restarted() if number == restart_at else driver
        sent = driver.close() if batch is None else driver.send([{"key": k, "at": 1, "value": v} for k, v in batch])
        out.append(
            [
                (r.get("op", "+I"), r["pane_timing"], r["pane_index"], r["key"], r["window_start"], tuple(r["values"]))
                for r in sent.results.to_pylist()
            ]
        )
    return out


queries = st.tuples(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([None, 1, 2, 3, 4]),
    st.booleans(),
    st.sampled_from(["updates", "retractions"]),
    st.sampled_from(["accumulating", "discarding"]),
).map(lambda q: Query(q[0], min(q[0], q[1]), *q[2:]))
given_rows = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 99)), max_size=40)
given_cuts = st.lists(st.integers(0, 40), max_size=6)


@given(queries, given_rows, given_cuts, st.integers(-1, 6))
def test_every_row_writes_what_it_would_alone(query: Query, rows: list[Row], cuts: list[int], restart_at: int) -> None:
    edges = sorted({0, *cuts, len(rows)})
    seen = driven(query, [rows[a:b] for a, b in pairwise(edges)], restart_at)
    model = Model(query)
    for key, value in rows:
        model.row(key, value)
    before = len(model.lines)
    model.close()
    came = [line for lines in seen[:-1] for line in lines]
    if query.every is None:
        assert Counter(came) == Counter(model.lines[:before])
    else:
        assert came == model.lines[:before]
    assert Counter(seen[-1]) == Counter(model.lines[before:])


def test_a_full_window_is_reported_once() -> None:
    """::

    size 3, every row   0 1 2
                        ^ ^       early
                            ^     final
    """
    seen = driven(Query(3, 3, 1, True, "retractions", "accumulating"), [[("a", 1), ("a", 2), ("a", 3)]])
    assert seen == [
        [
            ("+I", "early", 0, "a", 0, (1,)),
            ("-U", "early", 1, "a", 0, (1,)),
            ("+U", "early", 1, "a", 0, (1, 2)),
            ("-U", "final", 2, "a", 0, (1, 2)),
            ("+U", "final", 2, "a", 0, (1, 2, 3)),
        ],
        [],
    ]


def test_count_windows_do_not_fire_by_the_clock() -> None:
    keyed = stream_of("key string, at bigint").watermark("at", 0).key_by("key").trigger(kv.Trigger.on_interval("1 s"))
    with pytest.raises(PlanError, match=r"clock.*Hint"):
        keyed.count_window(3).agg(kv.count())


def test_a_key_that_expired_is_numbered_again() -> None:
    keyed = stream_of("key string, at bigint").watermark("at", 0).key_by("key").emit("retractions")
    keyed = keyed.trigger(kv.Trigger.on_count(2))
    driver = Driver(keyed.with_state_ttl(kv.StateTtlConfig(10)).count_window(5).agg(kv.count()))
    assert driver.send([{"key": "a", "at": t} for t in range(3)]).results["count"].to_pylist() == [2]
    driver = driver.restarted()
    assert driver.advance_watermark(100).results.num_rows == 0
    assert driver.counters["ttl_dropped"] == 1
    assert driver.send([{"key": "a", "at": 200}] * 2).results.to_pylist() == [
        {"key": "a", "window_start": 0, "window_end": 5, "count": 2, "op": "+I"}
    ]
