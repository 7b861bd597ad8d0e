"""Absence: the named cases of its design, and the plain reference, a process function with one timer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest

from krishiv_py import ColumnError, DurationError, MultiSourceWatermarkSpec, PlanError, SchemaError, WatermarkSpec, col, count
from krishiv_py.testing import Driver, ManualClock, stream_of, union_of
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


_TWO = MultiSourceWatermarkSpec.new().source("one", WatermarkSpec.fixed_lag(0)).source("two", WatermarkSpec.fixed_lag(0))


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


def test_d9_a_source_that_is_silent_as_a_whole_says_nothing_by_event_time() -> None:
    clock = ManualClock()
    driver = Driver(_plan(), clock=clock)
    driver.send([{"k": "a", "at": 0}])
    for _ in range(3):
        clock.advance("1 day")
        assert driver.tick().results.num_rows == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_d10_results_are_equal_for_every_cut(seed: int) -> None:
    draw = random.Random(seed)
    rows = [(draw.choice(["a", "b", None]), max(0, at - draw.choice([0, 0, 7]))) for at in range(0, 600, draw.choice([9, 31]))]
    given = [_given(rows, cut, lag=7, repeat=40, expected=["a", "z"], start=1) for cut in (1, 3, len(rows))]
    assert given[0] == given[1] == given[2] and given[0]


@pytest.mark.parametrize("cut", [1, 99])
def test_d11_an_expected_key_is_absent_from_the_start_on(cut: int) -> None:
    options: dict[str, Any] = {"expected": ["x", "a", "x"], "start": 5, "repeat": 30}
    driver = Driver(_plan(**options))
    rows = [{"k": "a", "at": 0}, {"k": "a", "at": 40}, {"k": "a", "at": 96}, {"k": "x", "at": 97}, {"k": "a", "at": 98}]
    tables = [driver.send(rows[place : place + cut]).results for place in range(0, len(rows), cut)]
    said = [row for table in [*tables, driver.close().results] for row in _said(table)]
    assert said == [
        (65, "x", "absent", 65, None, None),
        (95, "x", "absent", 65, None, None),
        (97, "x", "recovered", 65, None, None),
    ]


def test_expected_keys_are_watched_from_the_first_watermark_on() -> None:
    driver = Driver(_plan(lag=10, expected=["x"]))
    driver.send([{"k": "a", "at": 30}])
    assert [(row["k"], row["state"]) for row in driver.state().to_pylist()] == [("x", "expected"), ("a", "present")]
    assert "it is expected, and no row of it has come" in driver.why("x")
    assert driver.send([{"k": "a", "at": 89}]).results.num_rows == 0
    assert _said(driver.send([{"k": "a", "at": 90}]).results) == [(80, "x", "absent", 80, None, None)]
    assert "no row of it has come" in driver.why("x")
    assert [row[:2] for row in _said(driver.close().results)] == []
    ended = Driver(_plan(lag=10, expected=["x"], at_end="fire"))
    ended.send([{"k": "a", "at": 30}])
    assert _said(ended.close().results) == [(80, "x", "absent", 80, None, None), (90, "a", "absent", 90, 30, 60)]


def test_expected_keys_are_forgotten_like_others() -> None:
    driver = Driver(_plan(expected=["x"], start=0, forget_after=70))
    assert _said(driver.send([{"k": "a", "at": 0}, {"k": "a", "at": 99}]).results) == [
        (60, "a", "absent", 60, 0, 60),
        (60, "x", "absent", 60, None, None),
        (70, "a", "forgotten", 60, 0, 70),
        (70, "x", "forgotten", 60, None, None),
    ]
    assert driver.state()["k"].to_pylist() == ["a"]


@pytest.mark.parametrize(
    "expected",
    [
        [("a", 1), ("b", 2)],
        [{"k": "a", "n": 1}, {"k": "b", "n": 2}],
        pa.table({"n": [2, 1], "place": ["x", "y"], "k": ["b", "a"]}),
        lambda: {("a", 1), ("b", 2)},
    ],
)
def test_expected_keys_may_be_of_several_columns(expected: Any) -> None:
    stream = stream_of("k string, n bigint, at bigint").watermark("at", 0).key_by("k", "n")
    driver = Driver(stream.absent(60, expected=expected, start=0))
    rows = driver.send([{"k": "a", "n": 1, "at": 50}, {"k": "c", "n": 1, "at": 60}]).results.to_pylist()
    assert [(row["k"], row["n"], row["at"]) for row in rows] == [("b", 2, 60)]


def test_a_list_of_expected_keys_may_change(tmp_path: Any) -> None:
    driver = Driver(_plan(expected=["a", "b", "old"], repeat=1_000))
    driver.send([{"k": "a", "at": 0}, {"k": "own", "at": 0}, {"k": "own", "at": 1}])
    saved = driver.savepoint(str(tmp_path / "saved"))
    driver = Driver(_plan(expected=["b", "new"], repeat=1_000), savepoint=saved)
    rows = driver.send([{"k": "z", "at": 90}]).results
    assert [row[:3] for row in _said(rows)] == [(61, k, "absent") for k in ("b", "new", "own")]


def test_rows_of_a_stream_of_keys_announce_them() -> None:
    plan = stream_of("k string, at bigint, of string").watermark("at", 0).key_by("k").absent(60, expected=col("of") == "keys")
    driver = Driver(plan)
    sent = [("x", 10, "keys"), ("y", 10, "keys"), ("y", 12, "beats"), ("x", 30, "keys"), ("y", 40, "keys"), ("z", 50, None)]
    for k, at, of in sent:
        driver.send([{"k": k, "at": at, "of": of}])
        driver = driver.restarted()
    assert _said(driver.send([{"k": "z", "at": 72, "of": "beats"}]).results) == [
        (70, "x", "absent", 70, None, None),
        (72, "y", "absent", 72, 12, 60),
    ]
    sent = [("x", 80, "keys"), ("x", 81, "beats"), ("z", 82, "")]
    later = driver.send([{"k": k, "at": at, "of": of} for k, at, of in sent])
    assert _said(later.results) == [(81, "x", "recovered", 70, None, None)]


@attrs.frozen
class PlainList(Plain):
    """The plain reference, with rows that say which keys are expected."""

    def on_row(self, row: Any, state: Seen, ctx: Any) -> Iterator[dict[str, Any]]:
        if row["does"] == "rows":
            yield from Plain.on_row(self, row, state, ctx)
        elif row["does"] == "removed":
            ctx.forget()
        elif not ctx.pending and state.last is None:
            state.last = -row["at"] - 1
            ctx.timer("a", after=self.after)
            if self.forget is not None:
                ctx.timer("b", after=self.forget)

    def said(self, what: str, state: Seen, time: int) -> dict[str, Any]:
        said = Plain.said(self, what, state, time)
        return said if said["last_seen"] >= 0 else {**said, "last_seen": None, "missing": None}


CHANGES = "key string, since bigint, does string"


def _listed(lag: int, **options: Any) -> Any:
    changes = stream_of(CHANGES).watermark("since", lag).from_changelog("log", key="key", op="does")
    return stream_of(DDL).watermark("at", lag).key_by("k").absent(25, expected=changes, **options)


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_a_list_of_keys_may_change_at_any_time(seed: int) -> None:
    draw = random.Random(seed)
    lag, repeat, forget = draw.choice([0, 9]), draw.choice([None, 7, 30]), draw.choice([None, 25, 40])
    events, now = list[dict[str, Any]](), 0
    for _ in range(draw.randint(1, 40)):
        now += draw.choice([0, 1, 3, 9, 26])
        does = draw.choice(["rows", "rows", "added", "removed", "added"])
        events.append({"k": draw.choice(["a", "b", None]), "at": max(0, now - draw.choice([0, lag])), "does": does})
    events.append({"k": "z", "at": now + 10, "does": "rows"})
    in_order = sorted(events, key=lambda event: (event["at"], event["does"] == "rows"))
    # a change is neither taken twice, nor before another one of its time that arrived first
    steps, _, _ = process([in_order], PlainList(25, repeat, forget), Seen, lag=0, ttl=END, fire=False)
    driver, given = Driver(_listed(lag, repeat=repeat, forget_after=forget)), list[Any]()
    while events:
        cut = draw.randint(1, 9)
        part, events = events[:cut], events[cut:]
        kinds = {"added": "+I", "removed": "-D"}
        changes = [{"key": e["k"], "since": e["at"], "does": kinds[e["does"]]} for e in part if e["does"] != "rows"]
        rows = [{"k": e["k"], "at": e["at"]} for e in part if e["does"] == "rows"]
        given += _said(driver.send({"rows": rows, "expected": changes}).results)
        driver = driver.restarted() if draw.random() < 0.3 else driver
    given += _said(driver.close().results)
    assert given == [(at, key, *said.values()) for step in steps for at, key, said in step]


def test_a_change_of_a_list_that_is_none_goes_to_the_late_output() -> None:
    driver = Driver(_listed(0))
    sent = [{"key": "a", "since": 0, "does": "?"}, {"key": "b", "since": 0, "does": "+I"}]
    driver.send({"expected": sent})
    out = driver.send({"expected": [{"key": "b", "since": 30, "does": "-U"}], "rows": [{"k": "c", "at": 30}]})
    assert [row[:3] for row in _said(out.results)] == [(25, "b", "absent")]
    assert [(row["k"], row["reason"]) for row in out.late.to_pylist()] == [("a", "bad_op")]


def test_a_keyed_stream_of_keys_that_is_quiet_holds_nothing_back_for_long() -> None:
    clock = ManualClock()
    keys = stream_of("of string, since bigint").watermark("since", 0).key_by("of")
    plan = stream_of(DDL).watermark("at", 0).allowed_lateness(2).key_by("k").absent(60, expected=keys, idle_timeout="10 s")
    driver = Driver(plan, clock=clock)
    driver.send({"expected": [{"of": "x", "since": 5}], "rows": [{"k": "a", "at": 8}]})
    assert driver.send({"rows": [{"k": "a", "at": 66}]}).results.num_rows == 0
    clock.advance("11 s")
    assert driver.send({"rows": [{"k": "a", "at": 66}]}).results.num_rows == 0
    assert [row[:3] for row in _said(driver.send({"rows": [{"k": "a", "at": 67}]}).results)] == [(65, "x", "absent")]


def test_a_list_that_is_loaded_again() -> None:
    clock, listed = ManualClock(), ["a", "old"]
    plan = (
        stream_of(DDL)
        .watermark("at", 0)
        .key_by("k")
        .absent(60, expected=lambda: list(listed), reload="1 min", start=0, repeat=1_000)
    )
    driver = Driver(plan, clock=clock)
    driver.send([{"k": "b", "at": 10}])
    listed[:] = ["a", "new"]
    driver.send([{"k": "b", "at": 30}])
    assert {row["k"] for row in driver.state().to_pylist()} == {"a", "b", "old"}
    clock.advance("1 min")
    driver.send([{"k": "b", "at": 40}])
    driver = driver.restarted()
    assert {row["k"] for row in driver.state().to_pylist()} == {"a", "b", "new"}
    assert [row[:3] for row in _said(driver.send([{"k": "b", "at": 99}]).results)] == [
        (60, "a", "absent"),
        (90, "new", "absent"),
    ]


def test_by_the_clock_a_list_changes_with_its_batch() -> None:
    clock = ManualClock()
    driver = Driver(_listed(0, clock="processing"), clock=clock)

    def sent(**changes: str) -> list[Any]:
        given = driver.send({"expected": [{"key": k, "since": 0, "does": does} for k, does in changes.items()]}).results
        clock.advance(25)
        return [row[:3] for row in _said(given)]

    assert sent(a="+I", b="+I") == []
    assert sent(b="-D", c="+I") == [(25, "a", "absent")]
    assert sent(a="-D", c="-D") == []
    assert driver.state().num_rows == 0


def test_by_the_clock_keys_are_absent_while_no_row_comes() -> None:
    clock = ManualClock()
    driver = Driver(_plan(lag=10, clock="processing", repeat=30, expected=["x"], forget_after=200), clock=clock)
    assert _said(driver.send([{"k": "a", "at": 5}]).results) == []
    clock.advance(59)
    driver = driver.restarted()
    assert _said(driver.tick().results) == []
    clock.advance(1)
    assert _said(driver.tick().results) == [(60, "a", "absent", 60, 0, 60), (60, "x", "absent", 60, None, None)]
    assert {row["k"]: row["state"] for row in driver.state().to_pylist()} == {"a": "absent", "x": "absent"}
    clock.advance(65)
    assert _said(driver.send([{"k": "a", "at": 6}, {"k": "a", "at": 2}]).results) == [
        (90, "x", "absent", 60, None, None),
        (120, "x", "absent", 60, None, None),
        (125, "a", "recovered", 60, 0, 125),
    ]
    clock.advance(75)
    assert [row[:3] for row in _said(driver.tick().results)] == [
        *((at, "x", "absent") for at in (150, 180)),
        (185, "a", "absent"),
        (200, "x", "forgotten"),
    ]
    assert _said(driver.close().results) == []
    assert driver.counters["timers_dropped"] == 1


def test_by_the_clock_a_row_comes_before_a_deadline_of_its_batch() -> None:
    clock = ManualClock()
    driver = Driver(_plan(clock="processing"), clock=clock)
    driver.send([{"k": "a", "at": 5}, {"k": "b", "at": 5}])
    clock.advance(500)
    assert _said(driver.send([{"k": "a", "at": 5}]).results) == [(60, "b", "absent", 60, 0, 60)]


def test_results_by_the_clock_are_never_behind_the_watermark() -> None:
    clock = ManualClock()
    keyed = stream_of(DDL).watermark("at", 0).key_by("k")
    counted = keyed.absent(60, clock="processing").tumbling_window(10).agg(count())
    driver = Driver(counted, clock=clock)
    driver.send([{"k": "a", "at": 7_000}])
    clock.advance(60)
    driver.tick()
    assert [(row["window_start"], row["count"]) for row in driver.close().results.to_pylist()] == [(7_000, 1)]


def test_a_whole_silent_source_is_no_silent_key() -> None:
    clock = ManualClock()
    driver = Driver(_plan(clock="both", repeat=100), clock=clock)
    assert _said(driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 30}]).results) == []
    clock.advance(59)
    assert _said(driver.tick().results) == []
    clock.advance(1)
    driver = driver.restarted()
    assert _said(driver.tick().results) == [(60, None, "no_input", 60, 0, 60)]
    clock.advance(250)
    assert _said(driver.tick().results) == [(160, None, "no_input", 60, 0, 160), (260, None, "no_input", 60, 0, 260)]
    rows = _said(driver.send([{"k": "b", "at": 65}]).results)
    assert rows == [(60, "a", "absent", 60, 0, 60), (310, None, "input", 60, 0, 310)]
    clock.advance(50)
    rows = _said(driver.send([{"k": "b", "at": 130}, {"k": "c", "at": 131}]).results)  # a silent key, and no more
    assert [row[:3] for row in rows] == [(125, "b", "absent"), (130, "b", "recovered")]


def test_d17_an_idle_source_leaves_the_minimum_and_its_keys_are_reported() -> None:
    clock = ManualClock()
    both = union_of({"one": stream_of(DDL), "two": stream_of(DDL)})
    marks = _TWO.idle_timeout("10 s")
    driver = Driver(both.with_watermark(marks, "at", source_column="source").key_by("k").absent(60), clock=clock)
    driver.send({"one": [{"k": "a", "at": 0}], "two": [{"k": "b", "at": 0}]})
    assert driver.send({"one": [{"k": "a", "at": 50}, {"k": "a", "at": 100}]}).results.num_rows == 0
    clock.advance("20 s")
    rows = driver.send({"one": [{"k": "a", "at": 101}]}).results
    assert [row[:3] for row in _said(rows)] == [(60, "b", "absent")]


def test_a_source_of_several_that_hides_its_own_silence_is_warned_of() -> None:
    both = union_of({"one": stream_of(DDL), "two": stream_of(DDL)})
    text = str(both.with_watermark(_TWO, "at", source_column="source").key_by("k").absent(60).explain())
    assert "several sources and no idle time-out: one that falls silent holds the watermark" in text


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
    with pytest.raises(PlanError, match="`expected` is a text"):
        _plan(expected="ab")
    with pytest.raises(PlanError, match="`expected` is no condition"):
        _plan(expected=col("at") + 1)
    with pytest.raises(SchemaError, match="expected keys do not fit"):
        _plan(expected=[object()])
    with pytest.raises(SchemaError, match="expected keys lack a column of the key"):
        _plan(expected=pa.table({"x": [1]}))
    with pytest.raises(PlanError, match="expected keys need a key"):
        stream_of("at bigint").watermark("at", 0).key_by().absent(5, expected=[1])
    with pytest.raises(PlanError, match="keys that are loaded again need a function"):
        _plan(expected=["a"], reload="1 min")
    with pytest.raises(PlanError, match="`idle_timeout` is for a stream of expected keys"):
        _plan(expected=["a"], idle_timeout="1 min")
    with pytest.raises(PlanError, match="`expected` takes keyed streams, and tables of changes"):
        _plan(expected=stream_of(DDL).latest("k", by="at"))
    with pytest.raises(PlanError, match="'expected' has another key"):
        _plan(expected=stream_of(DDL).watermark("at", 0).key_by("k", "at"))
    for options in ({"start": 5}, {"start": 5, "expected": ["a"], "clock": "processing"}):
        with pytest.raises(PlanError, match="`start` has nothing to say"):
            _plan(**options)
    with pytest.raises(PlanError, match="absence by the clock goes by batches"):
        stream_of(DDL).watermark("at", 0, clock="row").key_by("k").absent(5, clock="processing").explain()
