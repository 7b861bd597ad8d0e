"""Windows over rows that change (SEMANTICS §16.6): of the rows that were let in, what the same windows are of rows at once."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from krishiv_py import (
    MemorySink,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    SlidingWindows,
    StateTtlConfig,
    Trigger,
    approx_count_distinct,
    avg,
    calendar_window,
    col,
    count,
    first,
    max,
    min,
    sum,
    windows,
)
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Row, Rows, counted, folded, grouped, total

DDL = "op string, pk bigint, k string, v double, seq bigint, at bigint"
VALUES = (0.1, 1e16, -1e16, 0.0, -0.0, math.nan, math.inf, -3.5, None)
LAG = 5


def _sessions(rows: Rows, gap: int, longest: int | None = None) -> list[tuple[int, int, Row]]:
    placed = list[tuple[int, int, Row]]()
    begun: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        members = begun.setdefault(row["k"], [])
        reach = members[-1]["at"] + gap if members else None
        if reach is None or row["at"] >= reach or (longest is not None and row["at"] - members[0]["at"] >= longest):
            placed += _closed(members, gap, longest)
            members.clear()
        members.append(row)
    return [*placed, *(one for members in begun.values() for one in _closed(members, gap, longest))]


def _closed(members: Rows, gap: int, longest: int | None) -> list[tuple[int, int, Row]]:
    if not members:
        return []
    end = members[-1]["at"] + gap
    if longest is not None and members[0]["at"] + longest < end:
        end = members[0]["at"] + longest
    return [(members[0]["at"], end, row) for row in members]


def _grid(rows: Rows, size: int, slide: int) -> list[tuple[int, int, Row]]:
    placed = []
    for row in rows:
        start = row["at"] // slide * slide
        while start + size > row["at"]:
            placed.append((start, start + size, row))
            start -= slide
    return placed


def _cumulating(rows: Rows, step: int, size: int) -> list[tuple[int, int, Row]]:
    return [
        (row["at"] // size * size, end, row)
        for row in rows
        for end in range(row["at"] // size * size + step, row["at"] // size * size + size + 1, step)
        if end > row["at"]
    ]


KINDS: dict[str, tuple[Any, Callable[[Rows], list[tuple[int, int, Row]]]]] = {
    "tumbling": (windows.tumbling(10), lambda rows: _grid(rows, 10, 10)),
    "hopping": (windows.hopping(20, 7), lambda rows: _grid(rows, 20, 7)),
    "cumulating": (windows.cumulate(5, 20), lambda rows: _cumulating(rows, 5, 20)),
    "session": (windows.session(6), lambda rows: _sessions(rows, 6)),
    "capped session": (windows.session(6, max_duration=14), lambda rows: _sessions(rows, 6, 14)),
}


def _results_of(placed: list[tuple[int, int, Row]]) -> Rows:
    rows = [row | {"window_start": start, "window_end": end} for start, end, row in placed]
    values = {
        "n": len,
        "s": lambda members: total([row["v"] for row in members if row["v"] is not None]),
        "low": lambda members: sorted(row["pk"] for row in members)[0],
    }
    return grouped(rows, ("k", "window_start", "window_end"), values)


@attrs.define
class LetIn:
    """The rows that windows were given and not refused, by the changes of a table."""

    lateness: int
    rows: Counter[tuple[Any, ...]] = attrs.field(factory=Counter)
    late: int = 0
    unmatched: int = 0

    def take(self, changes: Rows, mark: int | None) -> None:
        """Take the changes of a batch; `mark` is the watermark of the batch before."""
        refused, net = False, Counter[tuple[Any, ...]]()
        for change in changes:
            late = mark is not None and change["at"] < mark - self.lateness
            if late or (refused and change["op"] == "+U"):
                self.late += 1
            else:
                net[tuple((n, repr(v + 0.0) if n == "v" and v is not None else v) for n, v in change.items() if n != "op")] += (
                    1 if change["op"][0] == "+" else -1
                )
            refused = late and change["op"] == "-U"
        for row, n in net.items():
            self.rows[row] += n
            if self.rows[row] < 0:
                self.unmatched -= self.rows[row]
                self.rows[row] = 0

    @property
    def content(self) -> Rows:
        """Return the rows."""
        return [dict(row) | {"v": float(v) if (v := dict(row)["v"]) is not None else None} for row in self.rows.elements()]


def changes(draw: random.Random, n: int, now: int) -> Rows:
    """Return changes of a few keys, near a time that moves on."""
    rows = list[Row]()
    for number in range(n):
        op = draw.choice(("+I", "+U", "+U", "-D"))
        at = now - draw.choice((0, 1, 3, 8, 20)) + draw.randrange(4)
        row = {"op": op, "pk": draw.randrange(6), "k": draw.choice(("x", "y", None)), "v": draw.choice(VALUES), "at": at}
        rows.append(row | {"seq": 1000 * now + number})
    return rows


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(scaled(8)))
def test_windows_of_the_rows_that_were_let_in(kind: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{kind} {seed}")
    lateness, sequence = draw.choice((0, 0, 9, 40)), draw.choice((None, "seq"))
    emit = draw.choice(("final", "retractions"))
    window, placed_of = KINDS[kind]

    def table() -> Any:
        return stream_of(DDL).watermark("at", LAG).from_changelog("log", "pk", sequence=sequence).filter("seq is not null")

    def plan() -> Any:
        keyed = table().key_by("k").allowed_lateness(lateness)
        results = keyed.window(window).agg(n=count(), s=sum("v"), low=min("pk")).emit(emit)
        return results.select(
            *(name for name in ("k", "window_start", "window_end", "n", "s", "low", "op")[: 7 - (emit == "final")])
        )

    driver, alone, let_in, mark, given, now = Driver(plan()), Driver(table()), LetIn(lateness), None, list[Row](), 20
    for number in range(draw.randrange(2, 9)):
        now += draw.choice((0, 3, 15))
        batch = changes(draw, draw.randrange(7), now)
        given += driver.send(batch).results.to_pylist()
        let_in.take(alone.send(batch).results.to_pylist(), mark)
        stage = driver.progress.stages["stage 2"]
        mark = None if stage.watermark_us < -(2**60) else stage.watermark_us // 1000
        wait = lateness if emit == "final" else 0
        wanted = [r for r in _results_of(placed_of(let_in.content)) if mark is not None and r["window_end"] <= mark - wait]
        assert _folded(given) == counted(wanted), f"batch {number}"
        assert stage.late.get("late", 0) == let_in.late
        assert bool(stage.counters.get("unmatched", 0)) == bool(let_in.unmatched)  # counted in each of its windows
        if draw.random() < 0.3:
            path = driver.savepoint(str(tmp_path / str(number)))
            driver = Driver(plan(), savepoint=path)
    given += driver.close().results.to_pylist()
    assert _folded(given) == counted(_results_of(placed_of(let_in.content)))


def _folded(given: Rows) -> Counter[str]:
    return folded({"op": "+I"} | row for row in given)


PLAIN = "op string, pk bigint, k string, v bigint, at bigint"


def _table(lag: int = 0) -> Any:
    return stream_of(PLAIN).watermark("at", lag).from_changelog("log", "pk")


def _sent(driver: Driver, *rows: tuple[str, int, Any, Any, int]) -> list[tuple[Any, ...]]:
    out = driver.send([dict(zip(("op", "pk", "k", "v", "at"), row, strict=True)) for row in rows])
    return [tuple(row.values()) for row in out.results.to_pylist()]


def test_c24_an_update_out_of_a_window_that_has_left_is_refused_as_a_pair() -> None:
    aside = MemorySink()
    keyed = _table().key_by("k").with_late_event_handler(SideOutputLateEventHandler(aside))
    driver = Driver(keyed.tumbling_window(10).agg(n=count(), s=sum("v")))
    assert _sent(driver, ("+I", 1, "a", 5, 1), ("+I", 2, "a", 7, 25)) == [("a", 0, 10, 1, 5)]
    out = driver.send([{"op": "+U", "pk": 1, "k": "a", "v": 6, "at": 26}, {"op": "+U", "pk": 2, "k": "a", "v": 8, "at": 27}])
    late = [(row["op"], row["pk"], row["v"], row["at"], row["reason"]) for row in out.late_by_stage["stage 2"].to_pylist()]
    assert late == [("-U", 1, 5, 1, "late"), ("+U", 1, 6, 26, "late")]
    assert [tuple(row.values()) for row in driver.close().results.to_pylist()] == [("a", 20, 30, 1, 8)]


def test_a_row_that_was_refused_is_not_taken_out_of_a_window_with_one_like_it() -> None:
    driver = Driver(_table().key_by("k").tumbling_window(100).agg(n=count(), s=sum("v")))
    _sent(driver, ("+I", 1, "a", 5, 1), ("+I", 2, "a", 7, 250))
    _sent(driver, ("+U", 1, "a", 6, 251), ("+I", 3, "a", 6, 251))  # the first is refused with its row of before
    _sent(driver, ("-D", 1, None, None, 252))
    assert driver.progress.stages["stage 2"].counters["unmatched"] == 1
    assert [tuple(row.values()) for row in driver.close().results.to_pylist()] == [("a", 200, 300, 2, 13)]


def test_an_update_whose_old_row_a_filter_left_out_is_a_row_that_is_added() -> None:
    driver = Driver(_table().filter("v > 5").key_by("k").tumbling_window(10).agg(n=count()))
    _sent(driver, ("+I", 1, "a", 5, 1), ("+I", 2, "a", 9, 25))
    _sent(driver, ("+U", 1, "a", 6, 26))
    assert [tuple(row.values()) for row in driver.close().results.to_pylist()] == [("a", 20, 30, 2)]


def test_retractions_of_windows_that_have_fired_and_become_empty() -> None:
    driver = Driver(_table().key_by("k").allowed_lateness(100).tumbling_window(10).agg(n=count(), s=sum("v")))
    assert _sent(driver, ("+I", 1, "a", 5, 1), ("+I", 2, "a", 7, 25)) == [("a", 0, 10, 1, 5, "+I")]
    assert _sent(driver, ("+U", 1, "a", 6, 2)) == [("a", 0, 10, 1, 5, "-U"), ("a", 0, 10, 1, 6, "+U")]
    assert _sent(driver, ("+U", 1, "b", 6, 2)) == [("a", 0, 10, 1, 6, "-D"), ("b", 0, 10, 1, 6, "+I")]
    assert _sent(driver, ("-D", 1, None, None, 2)) == [("b", 0, 10, 1, 6, "-D")]


def test_a_row_taken_back_parts_a_session() -> None:
    sessions = _table().key_by("k").allowed_lateness(100).session_window(10).agg(n=count())
    driver = Driver(sessions)
    _sent(driver, *(("+I", pk, "a", 1, at) for pk, at in ((1, 0), (2, 8), (3, 16))))
    assert _sent(driver, ("+I", 9, "b", 1, 60)) == [("a", 0, 26, 3, "+I")]
    assert _sent(driver, ("-D", 2, None, None, 60)) == [("a", 0, 10, 1, "+I"), ("a", 0, 26, 3, "-D"), ("a", 16, 26, 1, "+I")]


def test_windows_over_windows_that_change() -> None:
    """The folded results are those of the same chain over final results (SEMANTICS §7.5)."""
    rows = [
        {"k": k, "v": v, "at": at}
        for k, v, at in (("a", 1, 5), ("b", 2, 6), ("a", 4, 32), ("a", 8, 8), ("b", 3, 31), ("a", 1, 95))
    ]
    found = []
    for emit in ("final", "retractions"):
        tens = stream_of("k string, v bigint, at bigint").watermark("at", 0).key_by("k").allowed_lateness(50)
        sums = tens.tumbling_window(10).agg(s=sum("v")).emit(emit)
        driver = Driver(sums.key_by("k").allowed_lateness(60).tumbling_window(40).agg(n=count(), s=sum("s")).emit(emit))
        given = [row for one in rows for row in driver.send([one]).results.to_pylist()]
        found.append(_folded(given + driver.close().results.to_pylist()))
    assert found[0] == found[1]


def test_calendar_windows_and_an_order_of_arrival() -> None:
    days = (
        _table(100)
        .with_column("day", col("v"))
        .key_by("k")
        .window(calendar_window("day"))
        .agg(v=first("v"), high=max("day"), mean=avg("v"))
    )
    driver = Driver(days)
    _sent(driver, ("+I", 1, "a", 5, 10), ("+I", 2, "a", 7, 11))
    _sent(driver, ("-D", 1, None, None, 12))
    assert [row["v"] for row in driver.close().results.to_pylist()] == [7]


def test_a_time_that_is_no_key_and_keys_of_several_columns() -> None:
    ddl = "op string, pk bigint, `the key` double, tags array<string>, d decimal(10,2), at timestamp"
    table = stream_of(ddl).watermark("at", "1 s").from_changelog("log", ["pk", "the key"])
    driver = Driver(table.key_by("the key", "d").tumbling_window("1 min").agg(n=count(), s=sum("d")))
    at = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
    row = {"pk": 1, "the key": math.nan, "tags": ["a", None], "d": Decimal("1.25"), "at": at}
    driver.send([{"op": "+I", **row}, {"op": "+I", **row, "pk": 2}, {"op": "+I", **row, "pk": 3, "the key": None}])
    driver.send([])
    driver.send([{"op": "-D", **row}])
    given = [(str(r["the key"]), r["n"], str(r["s"])) for r in driver.close().results.to_pylist()]
    assert sorted(given) == [("None", 1, "1.25"), ("nan", 1, "1.25")]


WRONG: dict[str, Callable[[Any], Any]] = {
    "look-back": lambda keyed: keyed.lookback_window(10).agg(count()),
    "count": lambda keyed: keyed.count_window(3).agg(count()),
    "distinct sets": lambda keyed: keyed.window(SlidingWindows.of(10)).agg(count()),
    "a trigger": lambda keyed: keyed.tumbling_window(10).agg(count()).trigger(Trigger.on_count(2)),
    "updates": lambda keyed: keyed.tumbling_window(10).agg(count()).emit("updates"),
    "a time to live": lambda keyed: keyed.tumbling_window(10).agg(count()).with_state_ttl(StateTtlConfig("1 h")),
    "sessions by their own lateness": lambda keyed: keyed.session_window(10).agg(count()).late_rule("window"),
    "an estimate": lambda keyed: keyed.tumbling_window(10).agg(approx_count_distinct("v")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_windows_over_changes_refuse(name: str) -> None:
    with pytest.raises(PlanError):
        WRONG[name](_table().key_by("k"))


def test_changes_without_event_time_are_in_no_window() -> None:
    table = stream_of(PLAIN).from_changelog("log", "pk")
    with pytest.raises(PlanError, match="no event time"):
        table.key_by("k").tumbling_window(10)
    with pytest.raises(PlanError, match="is gone"):
        _table().select("pk", "k").key_by("k").tumbling_window(10)


def test_state_of_windows_over_changes_is_a_table() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream(PLAIN)
        sums = stream.watermark("at", 0).from_changelog("log", "pk").key_by("k").tumbling_window(10).agg(s=sum("v"))
        query = sums.start(MemorySink())
        sender.send([{"op": "+I", "pk": pk, "k": "a", "v": pk, "at": 4} for pk in (1, 2, 3)])
        sender.send([{"op": "-D", "pk": 2, "at": 4}])
        query.process_all_available()
        rows = query.state(stage="stage 2").to_pylist()
        query.stop()
    assert [(row["k"], row["window_start"], row["s"]) for row in rows] == [("a", 0, 4)]


def test_a_batch_of_no_rows_and_the_end_of_input() -> None:
    driver = Driver(_table().tumbling_window(10).agg(n=count()))
    assert driver.send([]).results.num_rows == 0
    _sent(driver, ("+I", 1, "a", 1, 1))
    assert driver.close().results.equals(pa.table({"window_start": [0], "window_end": [10], "n": [1]}))


@pytest.mark.parametrize(("was", "now"), [((9, "final"), (40, "retractions")), ((40, "retractions"), (0, "retractions"))])
def test_another_lateness_and_emission_after_a_savepoint(was: tuple[int, Any], now: tuple[int, Any], tmp_path: Path) -> None:
    def plan(lateness: int, emit: Any) -> Any:
        results = _table().key_by("k").allowed_lateness(lateness).tumbling_window(10).agg(n=count(), s=sum("v")).emit(emit)
        return results.select("k", "window_start", "n", "s", *(["op"] if emit == "retractions" else []))

    first_part = Driver(plan(*was))
    given = first_part.send(
        [{"op": "+I", "pk": pk, "k": "a", "v": pk, "at": at} for pk, at in ((1, 1), (2, 11), (3, 22))]
    ).results
    second_part = Driver(plan(*now), savepoint=first_part.savepoint(str(tmp_path / "s")))
    rows = given.to_pylist()
    rows += second_part.send(
        [{"op": "+U", "pk": 3, "k": "a", "v": 9, "at": 24}, {"op": "-D", "pk": 2, "at": 24}]
    ).results.to_pylist()
    rows += second_part.close().results.to_pylist()
    late = second_part.progress.stages["stage 2"].late.get("late", 0)
    assert _folded(rows) == counted(
        [{"k": "a", "window_start": start, "n": 1, "s": s} for start, s in ((0, 1), (20, 9), *(((10, 2),) if late else ()))]
    )
