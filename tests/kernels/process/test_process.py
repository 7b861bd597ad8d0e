"""Process functions against the plain reference, and the named cases of their design."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import attrs
import pytest

from krishiv_py import ColumnError, Context, OperatorError, PlanError, Row, SchemaError, count
from krishiv_py.kernels.process import rounds
from krishiv_py.testing import Driver, ManualClock, stream_of
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


class TakesLate(Random):
    """:class:`Random`, which takes late rows too."""

    def on_late(self, row: Any, state: Count, ctx: Any) -> Iterator[dict[str, Any]]:
        state.n += 100
        yield {"what": f"late {row['at']}", "n": state.n}
        if row["v"] % 3 == 0:
            ctx.timer("idle", at=ctx.time - 1)
        if row["v"] % 3 == 1:
            ctx.timer("t1", after=row["v"])
        if row["v"] == 8:
            ctx.forget()


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_late_rows_that_pass_come_after_the_other_calls(seed: int) -> None:
    draw = random.Random(seed)
    lag, lateness, ttl = draw.choice([0, 3]), draw.choice([0, 4]), draw.choice([None, 15])
    batches = _cut(_rows(draw), draw)
    ttl_of = END if ttl is None else ttl
    steps, late, _ = process(batches, TakesLate(seed), Count, lag=lag, lateness=lateness, ttl=ttl_of, late_passes=True)
    stream = stream_of(DDL).watermark("at", lag).allowed_lateness(lateness).null_keys("group").key_by("k")
    driver = Driver(stream.process(TakesLate(seed), returns="what string, n bigint", state=Count, ttl=ttl, late="pass"))
    for batch, wanted in zip(batches, steps[:-1], strict=True):
        out = driver.send(batch)
        assert _given(out.results.to_pylist()) == _wanted(wanted)
        assert out.late is None or not out.late.num_rows
    assert _given(driver.close().results.to_pylist()) == _wanted(steps[-1])
    assert driver.counters.get("late_passed", 0) == sum(map(len, late))


class LateTotals:
    """Counts rows, and late ones apart."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
        state.n += 1
        yield {"what": f"{state.n}"}

    def on_late(self, row: Row, state: Count, ctx: Context) -> Any:
        state.n += 10
        if row.at == 3:
            raise ValueError("three")
        if row.at == 4:
            return ctx.refuse(row, "four")
        return [{"what": f"late {row.at} {state.n}"}]


def test_late_rows_that_are_refused_leave_whole_and_no_result_is_late() -> None:
    keyed = _stream().process(LateTotals(), returns="what string", state=Count, late="pass", on_error="side_output")
    driver = Driver(keyed)
    driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 50}])
    out = driver.send([{"k": "a", "at": at} for at in (4, 3, 7)] + [{"k": "c", "at": 9}, {"k": "b", "at": 60}])
    given = [(r["k"], r["at"], r["what"]) for r in out.results.to_pylist()]
    assert given == [("a", 50, "late 7 11"), ("c", 50, "late 9 10"), ("b", 50, "1")]
    late = sorted((row["k"], row["at"], row["reason"]) for row in out.late.to_pylist())
    assert late == [("a", 3, "ValueError: three"), ("a", 4, "four")]
    assert "depends on how rows come in batches" in str(keyed.explain())
    windows = Driver(keyed.tumbling_window(10).agg(count()))
    windows.send([{"k": "a", "at": 0}, {"k": "b", "at": 50}])
    windows.send([{"k": "a", "at": 7}])
    out = windows.close()
    assert windows.counters.get("late", 0) == 0 and {r["window_start"]: r["count"] for r in out.results.to_pylist()}[50] == 2


class Silent:
    """A result when a key was silent for 60 ms."""

    def on_row(self, row: Row, state: None, ctx: Context) -> None:
        ctx.timer("silent", after=60)

    def on_timer(self, name: str, state: None, ctx: Context) -> Iterator[dict[str, Any]]:
        yield {"what": name}


def _stream(**options: Any) -> Any:
    stream = stream_of("k string, at bigint").watermark("at", options.pop("lag", 0))
    return stream.allowed_lateness(options.pop("lateness", 0)).key_by("k")


def _sent(function: Any, *batches: list[tuple[str, int]], end: bool = True, **options: Any) -> list[tuple[Any, ...]]:
    """Return key, time and text of all results."""
    stream = _stream(lag=options.pop("lag", 0), lateness=options.pop("lateness", 0))
    driver = Driver(stream.process(function, returns="what string", **options))
    out = [driver.send([{"k": k, "at": at} for k, at in batch]).results for batch in batches]
    out += [driver.close().results] if end else []
    return [(row["k"], row["at"], row["what"]) for table in out for row in table.to_pylist()]


def _at(rows: list[tuple[Any, ...]]) -> list[int]:
    return [at for _, at, _ in rows]


class Case:
    """A function made of two plain ones."""

    def __init__(self, on_row: Any, on_timer: Any = None) -> None:
        self._row, self._timer = on_row, on_timer or (lambda name, ctx: [{"what": name}])

    def on_row(self, row: Any, state: Any, ctx: Context) -> Any:
        return self._row(row, ctx)

    def on_timer(self, name: str, state: Any, ctx: Context) -> Any:
        return self._timer(name, ctx)


def test_p1_a_named_timer_moves() -> None:
    assert _at(_sent(Silent(), [("a", 0), ("a", 30)])) == [90]


def test_p2_a_row_exactly_at_the_deadline_comes_after_the_timer() -> None:
    assert _at(_sent(Silent(), [("a", 0), ("a", 60)])) == [60, 120]


def test_p3_a_row_one_unit_before_the_deadline_moves_it() -> None:
    assert _at(_sent(Silent(), [("a", 0), ("a", 59)])) == [119]


@pytest.mark.parametrize("order", [[0, 40, 80], [80, 0, 40], [40, 80, 0]])
def test_p4_the_sequence_is_by_time(order: list[int]) -> None:
    rows = [("a", at) for at in order]
    seen = Case(lambda row, ctx: [{"what": str(row.at)}])
    assert _sent(seen, *[[row] for row in rows], lag=100) == [("a", at, str(at)) for at in (0, 40, 80)]


def test_p5_a_timer_in_the_past_fires_at_once_and_time_does_not_go_back() -> None:
    def on_row(row: Row, ctx: Context) -> list[dict[str, str]]:
        ctx.timer("past", at=5)
        return [{"what": "row"}]

    assert _sent(Case(on_row), [("a", 50), ("a", 60)]) == [
        *(("a", 50, "row"), ("a", 50, "past")),
        *(("a", 60, "row"), ("a", 60, "past")),
    ]


def test_p6_a_timer_at_the_time_of_its_row_fires_before_the_next_row_of_that_time() -> None:
    def on_row(row: Row, ctx: Context) -> list[dict[str, str]]:
        ctx.timer("now", at=ctx.time)
        return [{"what": "row"}]

    assert [what for _, _, what in _sent(Case(on_row), [("a", 50), ("a", 50)])] == ["row", "now", "row", "now"]


def test_p7_timers_of_one_time_fire_by_name() -> None:
    def on_row(row: Row, ctx: Context) -> None:
        for name in ("c", "a", "b"):
            ctx.timer(name, at=70)

    assert [what for _, _, what in _sent(Case(on_row), [("a", 50)])] == ["a", "b", "c"]


def test_p8_p9_a_timer_is_cancelled_by_a_row_before_it_not_by_one_of_its_time() -> None:
    def on_row(row: Row, ctx: Context) -> None:
        ctx.timer("t", at=60) if row.at == 0 else ctx.cancel("t")

    assert _at(_sent(Case(on_row), [("a", 0), ("a", 59)])) == []
    assert _at(_sent(Case(on_row), [("a", 0), ("a", 60)])) == [60]


def test_p10_a_late_row_leaves_state_alone() -> None:
    driver = Driver(_stream(lag=0).process(Silent(), returns="what string"))
    driver.send([{"k": "a", "at": 0}])
    driver.send([{"k": "b", "at": 50}])
    out = driver.send([{"k": "a", "at": 40}])
    assert out.late.to_pylist()[0]["reason"] == "late"
    assert driver.send([{"k": "b", "at": 61}]).results.to_pylist() == [{"k": "a", "at": 60, "what": "silent"}]


def test_p11_allowed_lateness_delays_timers() -> None:
    driver = Driver(_stream(lateness=20).process(Silent(), returns="what string"))
    assert driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 79}]).results.num_rows == 0
    assert driver.send([{"k": "b", "at": 80}]).results.to_pylist() == [{"k": "a", "at": 60, "what": "silent"}]


def _beat() -> Case:
    def on_timer(name: str, ctx: Context) -> list[dict[str, str]]:
        ctx.timer(name, after=10)
        return [{"what": name}]

    return Case(lambda row, ctx: ctx.timer("beat", after=10), on_timer)


def test_p12_p13_a_heartbeat_ends() -> None:
    rows = [("a", 0), ("b", 35)]
    assert [(k, at) for k, at, _ in _sent(_beat(), rows, at_end="seen")] == [("a", 10), ("a", 20), ("a", 30)]
    driver = Driver(_stream().process(_beat(), returns="what string"))
    driver.send([{"k": k, "at": at} for k, at in rows])
    driver.close()
    assert driver.counters["timers_dropped"] == 2
    given = sorted((k, at) for k, at, _ in _sent(_beat(), rows))
    assert given == [("a", 10), ("a", 20), ("a", 30), ("a", 40), ("b", 45)]


def test_p14_the_null_key_is_a_key() -> None:
    assert _sent(Silent(), [(None, 0), ("a", 0)]) == [(None, 60, "silent"), ("a", 60, "silent")]  # type: ignore[list-item]


def test_p15_a_timer_at_the_watermark_fires_and_a_row_at_it_stays() -> None:
    seen = Case(lambda row, ctx: [ctx.timer("t", at=60) or {"what": "row"}] if row.at == 0 else [{"what": "row"}])
    driver = Driver(_stream().process(seen, returns="what string"))
    out = driver.send([{"k": "a", "at": 0}, {"k": "a", "at": 60}])
    assert [row["what"] for row in out.results.to_pylist()] == ["row", "t"]


def test_p17_state_that_expires_at_the_time_of_a_call_is_gone() -> None:
    class Counted:
        def on_row(self, row: Row, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
            state.n += 1
            yield {"what": str(state.n)}

    batches = [[("a", 0)], [("a", 9)], [("a", 19)], [("a", 28)]]
    assert [what for _, _, what in _sent(Counted(), *batches, state=Count, ttl=10)] == ["1", "2", "1", "2"]


def test_p17_a_call_that_only_reads_keeps_nothing_alive() -> None:
    class Reads:
        def on_row(self, row: Row, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
            if row.at != 9:
                state.n += 1
            yield {"what": str(state.n)}

    batches = [[("a", 0)], [("a", 9)], [("a", 10)], [("a", 19)], [("a", 28)]]
    assert [what for _, _, what in _sent(Reads(), *batches, state=Count, ttl=10)] == ["1", "1", "1", "2", "3"]


class Poisoned:
    """Fails for odd times after it has changed everything."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
        state.n += 1
        state.seen.append(row.at)
        ctx.timer(f"t{row.at}", after=5)
        yield {"what": f"{state.n} {state.seen}"}
        if row.at % 2:
            raise ValueError("odd")
        if row.at % 3 == 0:
            ctx.refuse(row, "a third")

    def on_timer(self, name: str, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
        yield {"what": name}


@pytest.mark.parametrize("cut", [1, 2, 7])
def test_p18_a_call_that_fails_is_undone(cut: int) -> None:
    rows = [{"k": "a", "at": at} for at in (2, 3, 4, 5, 6, 7, 8)]
    driver = Driver(_stream().process(Poisoned(), returns="what string", state=Count, on_error="side_output"))
    outs = [driver.send(rows[i : i + cut]) for i in range(0, len(rows), cut)] + [driver.close()]
    given = [row["what"] for out in outs for row in out.results.to_pylist()]
    late = [(row["at"], row["reason"]) for out in outs for row in out.late.to_pylist()]
    assert given == ["1 [2]", "2 [2, 4]", "t2", "3 [2, 4, 8]", "t4", "t8"]
    assert late == [(3, "ValueError: odd"), (5, "ValueError: odd"), (6, "a third"), (7, "ValueError: odd")]
    assert (driver.counters["failed_calls"], driver.counters["refused"]) == (3, 1)
    assert driver.counters["calls"] == 7 + 3


def test_an_error_names_callback_key_and_time() -> None:
    with pytest.raises(OperatorError, match=r"Poisoned: on_row failed for key k='a' at 3.*ValueError: odd"):
        _sent(Poisoned(), [("a", 2), ("a", 3)], state=Count)


def test_p20_a_result_after_forget_in_the_same_call() -> None:
    class Gone:
        def on_row(self, row: Row, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
            state.n += 1
            ctx.timer("t", after=5)
            ctx.forget()
            yield {"what": str(state.n)}

        def on_timer(self, name: str, state: Count, ctx: Context) -> None:
            raise AssertionError

    driver = Driver(_stream().process(Gone(), returns="what string", state=Count))
    out = driver.send([{"k": "a", "at": 0}, {"k": "a", "at": 1}, {"k": "b", "at": 50}])
    assert [row["what"] for row in out.results.to_pylist()] == ["1", "1"]
    assert driver.state().select(["k", "held_rows"]).to_pylist() == [{"k": "b", "held_rows": 1}]


def test_more_than_a_thousand_timers_without_a_row_are_an_error() -> None:
    def on_timer(name: str, ctx: Context) -> None:
        ctx.timer(name, at=ctx.time)

    with pytest.raises(OperatorError, match=r"1_000 timers of a key fired.*timer 't' for key k='a' at 5"):
        _sent(Case(lambda row, ctx: ctx.timer("t", after=5), on_timer), [("a", 0), ("a", 10)])


def test_on_end_is_called_once_for_each_key_with_state() -> None:
    class Last:
        def on_row(self, row: Row, state: Count, ctx: Context) -> None:
            state.n += 1
            if row.k == "c":
                ctx.forget()

        def on_end(self, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
            yield {"what": str(state.n)}

    rows = [("a", 0), ("b", 3), ("a", 5), ("c", 7)]
    assert _sent(Last(), rows, state=Count) == [("a", 7, "2"), ("b", 7, "1")]


def test_in_order_of_arrival_rows_come_first_and_timers_after() -> None:
    seen = Case(lambda row, ctx: [ctx.timer("t", at=row.at + 5) or {"what": f"row {row.at}"}])
    stream = _stream(lag=3).process(seen, returns="what string", order="arrival")
    driver = Driver(stream)
    out = driver.send([{"k": "a", "at": 9}, {"k": "a", "at": 7}, {"k": "b", "at": 8}])
    assert [(r["k"], r["at"], r["what"]) for r in out.results.to_pylist()] == [
        *(("a", 7, "row 7"), ("b", 8, "row 8"), ("a", 9, "row 9"))
    ]
    out = driver.send([{"k": "b", "at": 15}])
    assert [(r["k"], r["at"], r["what"]) for r in out.results.to_pylist()] == [("b", 15, "row 15"), ("a", 12, "t")]


def test_a_timer_by_the_clock_fires_after_the_other_calls_of_its_key() -> None:
    def on_row(row: Row, ctx: Context) -> list[dict[str, str]]:
        ctx.timer("slow", after="10 s", clock="processing")
        return [{"what": "row"}]

    clock = ManualClock()
    driver = Driver(_stream().process(Case(on_row), returns="what string"), clock=clock)
    driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 5}])
    state = {row["k"]: (row["timers"], dict(row["clock_timers"])) for row in driver.state().to_pylist()}
    assert state["a"] == ([], {"slow": dt.datetime(1970, 1, 1, 0, 0, 10, tzinfo=dt.timezone.utc)})
    assert "the timer 'slow' is due at 1970-01-01T00:00:10Z by the clock" in driver.why("a")
    clock.advance("9 s")
    assert driver.tick().results.num_rows == 0
    clock.advance("1 s")
    assert driver.tick().results.to_pylist() == [{"k": "a", "at": 5, "what": "slow"}]


def test_results_may_bring_their_own_event_time() -> None:
    later = Case(lambda row, ctx: [{"what": "x", "due": ctx.time + 100}, {"what": "y", "due": ctx.time}])
    driver = Driver(_stream().process(later, returns="what string, due bigint", event_time="due"))
    out = driver.send([{"k": "a", "at": 0}, {"k": "a", "at": 10}])
    assert out.results.to_pylist() == [{"k": "a", "what": "y", "due": 0}, {"k": "a", "what": "x", "due": 100}]
    before = Case(lambda row, ctx: [{"what": "x", "due": ctx.time - 1}])
    driver = Driver(_stream().process(before, returns="what string, due bigint", event_time="due"))
    with pytest.raises(OperatorError, match=r"before the time of its call.*due=9 in a call at 10"):
        driver.send([{"k": "a", "at": 10}, {"k": "a", "at": 12}])


def test_state_shows_rows_that_wait_and_why_says_what_is_due() -> None:
    driver = Driver(_stream(lag=5).process(Silent(), returns="what string", state=Count))
    driver.send([{"k": "a", "at": 1}, {"k": "a", "at": 9}, {"k": "b", "at": 10}])
    rows = {row["k"]: row for row in driver.state().to_pylist()}
    assert {k: (row["n"], dict(row["timers"]), row["held_rows"]) for k, row in rows.items()} == {
        "a": (0, {"silent": 61}, 1),
        "b": (None, {}, 1),
    }
    assert rows["b"]["last_update"] is None
    assert "the timer 'silent' is due at 1970-01-01T00:00:00.061000Z; 1 row waits until no row" in driver.why("a")
    assert "in state of the key 'b': 1 row waits" in driver.why("b")


def _one_by_one_and_at_once(rows: list[dict[str, Any]], plan: Any) -> list[list[dict[str, Any]]]:
    """Return the results of rows that are sent one by one, and at once."""
    outs = []
    for cut in (1, len(rows)):
        driver = Driver(plan())
        tables = [driver.send(rows[i : i + cut]).results for i in range(0, len(rows), cut)] + [driver.close().results]
        outs.append([row for table in tables for row in table.to_pylist()])
    return outs


ROWS = [{"k": "a", "at": at, "v": at} for at in (1, 2, 3, 4)]


def _over(function: Any, **options: Any) -> Any:
    return lambda: stream_of(DDL).watermark("at", 0).key_by("k").process(function(), **options)


class GivesItsState:
    """Gives the state itself, and a list of it, which later calls change."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> Any:
        state.n += 1
        state.seen.append(row.v)
        return [state]


class ChangesItsRows:
    """Changes the row that it gets, and fails for one."""

    def on_row(self, row: dict, state: None, ctx: Context) -> Any:  # type: ignore[type-arg]
        row["v"] *= 2
        if row["at"] == 3:
            raise ValueError("three")
        return [{"n": row["v"], "seen": None}]


@pytest.mark.parametrize("options", [{"state": Count}, {"on_error": "side_output"}], ids=["state", "rows"])
def test_what_is_given_stays_as_it_was(options: dict[str, Any]) -> None:
    function = GivesItsState if "state" in options else ChangesItsRows
    single, whole = _one_by_one_and_at_once(ROWS, _over(function, returns="n bigint, seen array<bigint>", **options))
    assert single == whole
    assert [row["n"] for row in whole] == ([1, 2, 3, 4] if "state" in options else [2, 4, 8])


def test_a_timer_that_fails_at_the_end_takes_no_other_with_it() -> None:
    class TwoTimers:
        def on_row(self, row: Row, state: None, ctx: Context) -> None:
            ctx.timer("bad", after=50)
            ctx.timer("good", after=60)

        def on_timer(self, name: str, state: None, ctx: Context) -> Iterator[dict[str, str]]:
            if name == "bad":
                raise ValueError("bad")
            yield {"what": name}

    driver = Driver(_stream(lag=100).process(TwoTimers(), returns="what string", on_error="side_output"))
    driver.send([{"k": "a", "at": 1}])
    out = driver.close()
    assert [row["what"] for row in out.results.to_pylist()] == ["good"]
    assert out.late.num_rows == 1 and driver.counters["failed_calls"] == 1


def test_on_end_is_not_called_for_state_that_has_expired() -> None:
    class Last:
        def on_row(self, row: Row, state: Count, ctx: Context) -> None:
            state.n += 1

        def on_end(self, state: Count, ctx: Context) -> Iterator[dict[str, str]]:
            yield {"what": str(state.n)}

    assert _sent(Last(), [("a", 1), ("a", 2), ("b", 51)], lag=100, state=Count, ttl=10) == [("b", 51, "1")]


def test_numbers_are_not_cut() -> None:
    def half(row: Row, state: None, ctx: Context) -> list[dict[str, float]]:
        return [{"n": row.v / 2}]

    def into_state(row: Row, state: Count, ctx: Context) -> None:
        state.n = row.v / 2

    with pytest.raises(SchemaError, match=r"half gives a n that is not a int64.*0.5 is not a whole number"):
        _one_by_one_and_at_once(ROWS, _over(lambda: half, returns="n bigint"))
    with pytest.raises(OperatorError, match=r"state.n is not a int64 for key k='a'.*0.5"):
        _one_by_one_and_at_once(ROWS, _over(lambda: into_state, returns="n bigint", state=Count))


def test_a_result_without_the_time_it_names_is_an_error() -> None:
    plan = _over(lambda: lambda row, state, ctx: [{"due": None}], returns="due bigint", event_time="due")
    with pytest.raises(OperatorError, match="a result has no event time"):
        _one_by_one_and_at_once(ROWS, plan)


def test_state_of_pydantic_with_an_alias() -> None:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model("Made", n=(int, pydantic.Field(0, alias="N")))

    def count(row: Row, state: Any, ctx: Context) -> list[dict[str, int]]:
        state.n += 1
        return [{"n": state.n}]

    single, whole = _one_by_one_and_at_once(ROWS, _over(lambda: count, returns="n bigint", state=made))
    assert [row["n"] for row in single] == [row["n"] for row in whole] == [1, 2, 3, 4]


def test_maps_of_rows_are_dicts() -> None:
    stream = stream_of("k string, at bigint, m map<string, bigint>").watermark("at", 0).key_by("k")
    driver = Driver(
        stream.process(lambda row, state, ctx: [{"m": row.m, "n": row.m["x"]}], returns="m map<string, bigint>, n bigint")
    )
    out = driver.send([{"k": "a", "at": 1, "m": {"x": 7}}, {"k": "a", "at": 2, "m": {"x": 8}}])
    assert out.results.to_pylist() == [{"k": "a", "at": 1, "m": [("x", 7)], "n": 7}]


def _begun(keyed: Any, initial: Any) -> Any:
    return keyed.process(Silent(), returns="x int", state=Count, initial=initial)


def _keyed(key: str) -> Any:
    return stream_of(DDL).watermark("at", 0).key_by(key)


def _wrong(**parts: Any) -> Any:
    return type("Wrong", (), {name: (lambda self, a, b, c: None) for name in parts})()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda s: s.process(_wrong(on_events=1, on_row=1), returns="n bigint"), PlanError, "on_events goes with both"),
        (lambda s: s.process(len, returns="n bigint"), PlanError, "on_row gets 3 values"),
        (lambda s: s.process(Silent, returns="n bigint"), PlanError, "takes an object, not its class"),
        (lambda s: s.process(Silent(), returns="n bigint", version=""), PlanError, "`version` is not a text"),
        (lambda s: s.process(Silent(), returns="n bigint", late="pass"), PlanError, "late rows go to on_late.*without on_late"),
        (lambda s: s.process(LateTotals(), returns="n bigint"), PlanError, 'late rows go to on_late.*write late="pass"'),
        (lambda s: s.process(_wrong(on_events=1, on_late=1), returns="n bigint"), PlanError, "on_late goes with on_row"),
        (lambda s: s.process(Silent(), returns="n bigint", late="drop"), PlanError, "late"),
        (lambda s: s.process(Silent(), returns="x int", initial=[]), PlanError, "initial states need a class of state"),
        (lambda s: _begun(s, [{"n": 1}]), SchemaError, "lack a column of the key.*no column k"),
        (lambda s: _begun(s, [{"k": "a", "m": 1}]), ColumnError, "initial="),
        (lambda s: _begun(s, [{"k": "a", "n": "x"}]), SchemaError, "initial states do not fit.*give n as int64"),
        (lambda s: _begun(s, [{"k": "a", "seen": 7}]), SchemaError, "initial states do not fit.*give seen as list"),
        (lambda s: _begun(s, [{"k": "a"}, {"k": "a"}]), PlanError, "a key has two initial states"),
        (lambda s: _begun(s, 7), PlanError, "initial"),
        (lambda s: s.process(Silent(), returns="x int", state=Count, renamed=["n"]), PlanError, "not a dictionary of names"),
        (lambda s: s.process(Silent(), returns="x int", state=Count, renamed={"a": "b"}), ColumnError, "renamed="),
        (lambda s: s.process(Silent(), returns="x int", state=Count, renamed={"n": "seen"}), PlanError, "was renamed, and is"),
        (lambda s: s.process(Silent(), returns="k bigint"), ColumnError, "`returns` is the key or the time"),
        (
            lambda s: s.process(Silent(), returns="n bigint", order="arrival", order_by="v"),
            PlanError,
            "by arrival, or by columns",
        ),
        (lambda s: _keyed("at").process(Silent(), returns="n bigint"), ColumnError, "the time column is a key"),
        (lambda s: _keyed("at").absent(5), ColumnError, "the time column is a key"),
    ],
)
def test_what_cannot_work_is_refused_at_the_call(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(_keyed("k"))


def test_a_class_of_rows_that_cannot_be_looked_up_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def f(row: 'Missing', state, ctx): ...", space)
    with pytest.raises(PlanError, match=r"the class of rows cannot be looked up.*Missing"):
        _over(lambda: space["f"], returns="n bigint")()


@dataclasses.dataclass
class Strict:
    """A row that refuses some values."""

    k: str
    at: int
    v: int

    def __post_init__(self) -> None:
        if self.v == 2:
            raise ValueError("two")


@pytest.mark.parametrize("cut", [1, 4])
def test_a_row_that_its_class_refuses_goes_to_the_late_output(cut: int) -> None:
    def seen(row: Strict, state: Count, ctx: Context) -> list[dict[str, int]]:
        state.n += row.v
        return [{"n": state.n}]

    plan = _over(lambda: seen, returns="n bigint", state=Count, on_error="side_output")
    driver = Driver(plan())
    outs = [driver.send(ROWS[i : i + cut]) for i in range(0, 4, cut)] + [driver.close()]
    assert [row["n"] for out in outs for row in out.results.to_pylist()] == [1, 4, 8]
    assert [(row["at"], row["reason"]) for out in outs for row in out.late.to_pylist()] == [(2, "ValueError: two")]
    with pytest.raises(OperatorError, match=r"on_row failed for key k='a' at 2.*ValueError: two"):
        Driver(_over(lambda: seen, returns="n bigint", state=Count)()).send(ROWS)


@dataclasses.dataclass
class Bounded:
    """State that refuses to be made of some values."""

    n: int = 0
    many: list[Part] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.n > 3:
            raise ValueError("large")


@dataclasses.dataclass
class Part:
    """A part of a state."""

    n: int = 0

    def __post_init__(self) -> None:
        if self.n > 3:
            raise ValueError("large part")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s, n: setattr(s, "n", n), "no Bounded can be made of what is stored for key k='a'.*ValueError: large"),
        (lambda s, n: s.many.append(n), "Bounded does not fit into the columns of state for key k='a'"),
        (lambda s, n: setattr(s, "many", 5), "Bounded does not fit into the columns of state for key k='a'.*TypeError"),
        (lambda s, n: delattr(s, "many"), "Bounded does not fit into the columns of state for key k='a'.*AttributeError"),
    ],
)
def test_state_that_cannot_be_kept_names_its_key(change: Any, text: str) -> None:
    def keep(row: Row, state: Bounded, ctx: Context) -> None:
        if row.k == "a":
            change(state, row.v)

    driver = Driver(_over(lambda: keep, returns="n bigint", state=Bounded)())
    with pytest.raises(OperatorError, match=text):
        for at in range(9):
            driver.send([{"k": k, "at": at, "v": at} for k in "ab"])


@attrs.define
class NotInit:
    """A class whose constructor does not take a field."""

    k: str = ""
    n: int = attrs.field(default=0, init=False)


class Nested(NamedTuple):
    """A class with a field of such a class."""

    v: int = 0
    inner: NotInit = NotInit()


@dataclasses.dataclass
class OneMore:
    """A class whose constructor needs more than its fields."""

    other: dataclasses.InitVar[int]
    v: int = 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s: s.process(Silent(), returns="w string", state=NotInit), "constructor of NotInit does not take its field n"),
        (lambda s: s.process(Silent(), returns="w string", state=Nested), "constructor of NotInit does not take its field n"),
        (lambda s: s.process(_taking(OneMore), returns="w string"), "constructor of OneMore needs other, which is no field"),
    ],
)
def test_a_class_that_cannot_be_made_of_its_fields_is_refused_at_the_call(call: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        call(_keyed("k"))


def _taking(kind: type) -> Any:
    def on_row(row: Any, state: None, ctx: Context) -> None: ...

    on_row.__annotations__["row"] = kind
    return on_row


class MayLack(TypedDict, total=False):
    """State whose keys may be absent."""

    n: int
    text: str


@pytest.mark.parametrize("hot", [False, True])
def test_keys_of_a_typed_dict_may_be_absent(hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FEW", 3 if hot else 0)
    monkeypatch.setattr(rounds, "LONG", 2)

    class Takes:
        def on_row(self, row: Row, state: MayLack, ctx: Context) -> list[dict[str, Any]]:
            state.pop("text", None)
            state["n"] = (state.get("n") or 0) + 1
            return [{"n": state["n"]}]

        def on_timer(self, name: str, state: MayLack, ctx: Context) -> None: ...

    if hot:
        Takes.on_events = lambda self, events, state, ctx: None  # type: ignore[attr-defined]
    single, whole = _one_by_one_and_at_once(ROWS, _over(Takes, returns="n bigint", state=MayLack))
    assert [row["n"] for row in whole] == ([1, 2, 3] if hot else [1, 2, 3, 4])  # the last row is the only one of its step
    assert hot or single == whole


def test_progress_says_what_waits_and_how_long_calls_took() -> None:
    class Slow:
        def on_row(self, row: Any, state: Any, ctx: Any) -> None:
            time.sleep(0.002)
            ctx.timer("a", after=10)
            ctx.timer("b", after="1 day", clock="processing")

        def on_timer(self, name: str, state: Any, ctx: Any) -> None:
            pass

    driver = Driver(stream_of("k string, at bigint").watermark("at", 0).key_by("k").process(Slow(), returns="n bigint"))
    driver.send([{"k": "a", "at": 1}, {"k": "b", "at": 2}, {"k": "b", "at": 9}])
    progress = driver.progress
    assert (progress.timers, progress.held_rows, progress.counters["calls"]) == (4, 1, 2)
    assert progress.call_seconds >= 0.004 and "call_us" not in progress.counters
    driver.close()
    assert (driver.progress.timers, driver.progress.held_rows) == (0, 0)
