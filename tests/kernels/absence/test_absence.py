"""Absence: the named cases of its design, and the plain reference, a process function with one timer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from krishiv_py import ColumnError, DurationError
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.process.reference import END, process

DDL = "k string, at bigint"


@attrs.define
class Seen:
    """What the plain reference keeps of a key."""

    last: int | None = None
    since: int | None = None


@attrs.frozen
class Plain:
    """The plain reference."""

    after: int
    repeat: int | None = None
    forget: int | None = None

    def on_row(self, row: Any, state: Seen, ctx: Any) -> Iterator[dict[str, Any]]:
        if state.since is not None:
            yield self.said("recovered", state, ctx.time)
        state.last, state.since = row["at"], None
        ctx.timer("a", after=self.after)
        if self.forget is not None:
            ctx.timer("b", after=self.forget)

    def on_timer(self, name: str, state: Seen, ctx: Any) -> Iterator[dict[str, Any]]:
        if name == "b":
            yield self.said("forgotten", state, ctx.time)
            ctx.forget()
            return
        state.since = ctx.time if state.since is None else state.since
        yield self.said("absent", state, ctx.time)
        if self.repeat is not None:
            ctx.timer("a", after=self.repeat)

    def said(self, what: str, state: Seen, time: int) -> dict[str, Any]:
        assert state.last is not None
        return {"state": what, "since": state.since, "last_seen": state.last, "missing": time - state.last}


def _plan(lag: int = 0, lateness: int = 0, after: int = 60, **options: Any) -> Any:
    return stream_of(DDL).watermark("at", lag).allowed_lateness(lateness).key_by("k").absent(after, **options)


def _said(table: Any) -> list[tuple[Any, ...]]:
    return [(r["at"], r["k"], r["state"], r["since"], r["last_seen"], r["missing"]) for r in table.to_pylist()]


def _given(rows: list[tuple[Any, int]], cut: int = 99, **options: Any) -> list[tuple[Any, ...]]:
    driver, sent = Driver(_plan(**options)), [{"k": k, "at": at} for k, at in rows]
    tables = [driver.send(sent[i : i + cut]).results for i in range(0, len(sent), cut)] + [driver.close().results]
    return [row[:3] for table in tables for row in _said(table)]


@pytest.mark.parametrize("cut", [1, 99])
def test_the_cases_of_the_design(cut: int) -> None:
    d1 = [("a", 0), ("b", 60)]
    assert _given(d1, cut) == [(60, "a", "absent")]
    assert _given([("a", 0), ("a", 60)], cut) == [(60, "a", "absent"), (60, "a", "recovered")]  # D2
    assert _given([("a", 0), ("a", 59)], cut) == []  # D3
    assert _given([("a", 0), ("b", 59)], cut) == []  # D4
    d5 = _given([("a", 0), ("b", 130), ("a", 135)], cut, repeat=30)
    assert d5 == [*((at, "a", "absent") for at in (60, 90, 120)), (135, "a", "recovered")]
    assert _given([("a", 0), ("a", 70), ("a", 50), ("a", 110)], cut, lag=30) == []  # D6
    assert _given([("b", 0), (None, 0), ("a", 0), ("z", 60)], cut) == [(60, k, "absent") for k in (None, "a", "b")]  # D8


def test_d7_a_late_row_does_not_recover() -> None:
    driver = Driver(_plan())
    assert _said(driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 100}]).results)[0][:3] == (60, "a", "absent")
    out = driver.send([{"k": "a", "at": 90}])
    assert out.late.num_rows == 1 and out.results.num_rows == 0


def test_d13_repeats_over_a_gap_of_the_watermark_are_all_there() -> None:
    rows = _given([("a", 0), ("b", 360)], repeat=30, forget_after=10_000)
    assert rows == [(at, "a", "absent") for at in range(60, 361, 30)]


def test_d15_allowed_lateness_waits() -> None:
    driver = Driver(_plan(lateness=20))
    assert driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 79}]).results.num_rows == 0
    assert driver.send([{"k": "a", "at": 59}]).results.num_rows == 0  # mildly late, and so no alarm
    assert driver.send([{"k": "b", "at": 138}]).results.num_rows == 0
    assert _said(driver.send([{"k": "b", "at": 139}]).results) == [(119, "a", "absent", 119, 59, 60)]


def test_a_key_is_forgotten() -> None:
    rows = [("a", 0), ("a", 300), ("b", 301)]
    assert _given(rows, 1, forget_after=200) == [(60, "a", "absent"), (200, "a", "forgotten")]
    assert _given([("a", 0), ("a", 200)], 1, forget_after=200) == [(60, "a", "absent"), (200, "a", "forgotten")]
    assert _given([("a", 0), ("a", 199)], 1, forget_after=200) == [(60, "a", "absent"), (199, "a", "recovered")]


def test_the_end_of_input_fires_where_that_is_wanted() -> None:
    assert _given([("a", 0), ("b", 5)], at_end="fire") == [(60, "a", "absent"), (65, "b", "absent")]
    driver = Driver(_plan())
    driver.send([{"k": "a", "at": 0}])
    driver.close()
    assert driver.counters["timers_dropped"] == 1


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_every_step_is_that_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    after, lag, lateness = draw.choice([1, 10, 25]), draw.choice([0, 5]), draw.choice([0, 7])
    repeat, forget = draw.choice([None, 1, 7, 30]), draw.choice([None, 0, 13])
    forget = None if forget is None else after + forget
    batches, now = list[list[dict[str, Any]]](), 0
    for _ in range(draw.randint(1, 10)):
        batch = []
        for _ in range(draw.randint(0, 8)):
            now += draw.choice([0, 1, 3, 9, 26])
            batch.append({"k": draw.choice(["a", "b", "c", None]), "at": max(0, now - draw.choice([0, 0, 4, 9]))})
        batches.append(batch)
    steps, late, _ = process(batches, Plain(after, repeat, forget), Seen, lag=lag, lateness=lateness, ttl=END, fire=False)
    driver = Driver(_plan(lag, lateness, after, repeat=repeat, forget_after=forget))
    for batch, wanted, refused in zip(batches, steps[:-1], late, strict=True):
        out = driver.send(batch)
        assert _said(out.results) == [(at, key, *said.values()) for at, key, said in wanted]
        assert out.late.num_rows == len(refused)
        if draw.random() < 0.3:
            driver = driver.restarted()
    assert _said(driver.close().results) == [(at, key, *said.values()) for at, key, said in steps[-1]]


@pytest.mark.parametrize("type_", ["bigint", "timestamp", "timestamp_ntz"])
def test_times_have_the_type_of_the_time_column(type_: str) -> None:
    plan = stream_of(f"k string, at {type_}").watermark("at", 0).key_by("k").absent("1 min")
    fields = {f.name: str(f.type) for f in plan.schema}
    time = {"bigint": "int64", "timestamp": "timestamp[us, tz=UTC]", "timestamp_ntz": "timestamp[us]"}[type_]
    length = "int64" if type_ == "bigint" else "duration[us]"
    wanted = {"k": "string", "at": time, "state": "string", "since": time, "last_seen": time, "missing": length}
    assert fields == wanted


def test_state_says_who_is_absent() -> None:
    driver = Driver(_plan())
    driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 30}, {"k": "c", "at": 70}, {"k": "c", "at": 71}])
    rows = {row["k"]: (row["state"], row["last_seen"], row["since"], row["held_rows"]) for row in driver.state().to_pylist()}
    assert rows == {"a": ("absent", 0, 60, 0), "b": ("present", 30, None, 0), "c": ("present", 70, None, 1)}


def test_what_cannot_be_is_refused_at_the_call() -> None:
    with pytest.raises(DurationError, match="`forget_after` is shorter than `after`"):
        _plan(forget_after=10)
    with pytest.raises(ColumnError, match="a key has the name of a column of the results"):
        stream_of("state string, at bigint").watermark("at", 0).key_by("state").absent(5)
