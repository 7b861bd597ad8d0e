"""Rounds give what calls for one row at a time give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import Context, Events, OperatorError, PlanError, RoundContext, Row, SchemaError
from krishiv_py.kernels.process import rounds
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.process.reference import END, process
from tests.kernels.process.test_process import DDL, Count, Poisoned, Random, _cut, _given, _rows, _wanted

RETURNS = "what string, n bigint"


class RandomRounds:
    """:class:`Random` by columns."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        is_row, v = events.is_row, events.v
        state.n[is_row] += v[is_row]
        for place in np.flatnonzero(is_row):
            state.seen[place].append(int(v[place]))
        choice = np.where(is_row, (self.seed + v + state.n) % 7, -1)
        lengths = np.array([len(seen) for seen in state.seen])
        ctx.timer("idle", after=10, where=choice == 0)
        ctx.timer("back", at=events.time - 3, where=choice == 1)
        ctx.timer("now", at=events.time, where=choice == 2)
        ctx.timer("idle", after=v, where=choice == 2)
        ctx.cancel("idle", where=choice == 3)
        ctx.forget(where=(choice == 4) & (v > 6))
        ctx.emit(what="row", n=state.n, where=choice == 5)
        for number in range(3):
            ctx.timer(f"t{number}", after=20 - v, where=(choice >= 5) & (v % 3 == number))
        ctx.emit({"what": "seen", "n": lengths}, where=choice >= 5)
        ctx.emit(what=events.timer, n=state.n, where=~is_row)
        state.n[~is_row] += 1
        ctx.timer("idle", after=7, where=(events.timer == "idle") & (state.n % 3 != 0))
        ctx.forget(where=(events.timer == "t1") & (state.n % 4 == 0))


class Both(RandomRounds, Random):
    """Rounds, and rows where few keys have many."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("few", [0, 3])
@pytest.mark.parametrize("seed", range(scaled(30)))
def test_p23_rounds_are_rows(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FEW", few)
    monkeypatch.setattr(rounds, "LONG", 2)
    draw = random.Random(seed)
    options: dict[str, Any] = {"ttl": draw.choice([None, 15]), "at_end": draw.choice(["fire", "seen"])}
    options["order"] = draw.choice(["time", "time", "arrival"])
    batches = _cut(_rows(draw), draw)
    stream = stream_of(DDL).watermark("at", draw.choice([0, 3, 8])).allowed_lateness(draw.choice([0, 4])).key_by("k")
    drivers = [
        Driver(stream.process(function, returns=RETURNS, state=Count, **options))
        for function in (Random(seed), RandomRounds(seed), Both(seed))
    ]
    for batch in batches:
        rows, *others = (driver.send(batch).results.to_pylist() for driver in drivers)
        assert others == [rows, rows]
    rows, *others = (driver.close().results.to_pylist() for driver in drivers)
    assert others == [rows, rows]
    assert [driver.counters for driver in drivers] == [drivers[0].counters] * 3


def test_a_round_that_refuses_is_undone_for_its_keys_alone() -> None:
    class ByColumns:
        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            is_row = events.is_row
            state.n[is_row] += 1
            for place in np.flatnonzero(is_row):
                state.seen[place].append(int(events.time[place]))
                ctx.timer(f"t{events.time[place]}", after=5, where=np.arange(len(events)) == place)
            ctx.emit(what=next(f"{n} {seen}" for n, seen in zip(state.n, state.seen, strict=True)), where=is_row)
            ctx.emit(what=events.timer, where=~is_row)
            if (events.time[is_row] % 2).any():
                raise ValueError("odd")
            ctx.refuse("a third", where=is_row & (events.time % 3 == 0))

    rows = [{"k": "a", "at": at} for at in (2, 3, 4, 5, 6, 7, 8)]
    outs = []
    for function in (Poisoned(), ByColumns()):
        stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
        driver = Driver(stream.process(function, returns="what string", state=Count, on_error="side_output"))
        done = [driver.send(rows), driver.close()]
        late = [(row["at"], row["reason"]) for out in done for row in out.late.to_pylist()]
        outs.append(([row for out in done for row in out.results.to_pylist()], late, driver.counters))
    assert outs[0] == outs[1]


@attrs.define
class Kinds:
    """State of many kinds."""

    whole: int = 0
    part: float = 0.5
    flag: bool = False
    text: str = "x"
    maybe: int | None = None
    many: list[int] = attrs.field(factory=list)
    named: dict[str, int] = attrs.field(factory=dict)


def test_state_of_every_kind_is_kept() -> None:
    class ByRow:
        def on_row(self, row: Row, state: Kinds, ctx: Context) -> Iterator[dict[str, Any]]:
            state.whole += 1
            state.part *= 2
            state.flag = not state.flag
            state.text += "y"
            state.maybe = row.v
            state.many.append(state.whole)
            state.named[str(row.v)] = state.whole
            yield {"what": repr(state)}

    class ByRound:
        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            state.whole += 1
            state.part = state.part * 2
            state.flag = ~state.flag
            state.text = state.text + "y"
            state.maybe = events.v
            for place in range(len(events)):
                state.many[place].append(int(state.whole[place]))
                state.named[place][str(events.v[place])] = int(state.whole[place])
            fields = [f.name for f in attrs.fields(Kinds)]
            made = [Kinds(*(getattr(state, f)[place] for f in fields)) for place in range(len(events))]
            plain = [attrs.evolve(m, whole=int(m.whole), part=float(m.part), flag=bool(m.flag)) for m in made]
            ctx.emit(what=np.array([repr(m) for m in plain], object))

    batches = [
        [{"k": "a", "at": 1, "v": None}, {"k": "b", "at": 2, "v": 7}, {"k": "a", "at": 3, "v": 5}],
        [{"k": "b", "at": 9, "v": None}, {"k": "a", "at": 10, "v": 5}],
        [{"k": "c", "at": 20, "v": None}],
    ]
    outs = []
    for function in (ByRow(), ByRound()):
        driver = Driver(stream_of(DDL).watermark("at", 0).key_by("k").process(function, returns="what string", state=Kinds))
        outs.append([driver.send(batch).results.to_pylist() for batch in batches] + [driver.close().results.to_pylist()])
    assert outs[0] == outs[1]


def _round(call: Any) -> Any:
    class Once:
        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> Any:
            return call(events, state, ctx)

    stream = stream_of(DDL).watermark("at", 0).key_by("k").process(Once(), returns=RETURNS, state=Count)
    return Driver(stream).send([{"k": "a", "at": 1, "v": 2}, {"k": "b", "at": 9, "v": 2}]).results.to_pylist()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda e, s, c: c.emit(what="x"), SchemaError, r"`returns` does not describe.*emit\(what\)"),
        (lambda e, s, c: c.emit(what="x", n=np.arange(7)), SchemaError, "an array of another length.*7 values for 1 events"),
        (lambda e, s, c: c.emit(what="x", n=1, where=[1]), PlanError, "not a mask of the events"),
        (lambda e, s, c: [{"what": "x"}], PlanError, "gives its rows by ctx.emit"),
        (lambda e, s, c: e.w, OperatorError, "the events have no column 'w', but k, at, v"),
        (lambda e, s, c: s.m, OperatorError, "the state has no field 'm', but n, seen"),
        (lambda e, s, c: setattr(s, "n", s.n + 0.5), OperatorError, "state.n holds int64, and float64 was assigned"),
        (lambda e, s, c: c.timer("t"), PlanError, "one time: `after` or `at`"),
        (
            lambda e, s, c: c.timer(np.array(["t", "u"]), after=1),
            PlanError,
            r"names of timers are not aligned.*\(2,\) for 1 events",
        ),
        (lambda e, s, c: c.cancel(np.array([None])), PlanError, "a timer has a name.*got: None"),
    ],
)
def test_what_a_round_does_wrong_is_said(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _round(call)


class RefusesByRow:
    """Refuses rows by their value; state and timers of many kinds."""

    def on_row(self, row: Row, state: Kinds, ctx: Context) -> Any:
        state.whole += 1
        state.maybe = row.v
        state.many.append(state.whole)
        ctx.timer("t", after=7)
        if row.v is not None and row.v > 6:
            return ctx.refuse(row, "large")
        return [{"what": f"{state.whole} {state.maybe} {state.many}"}]

    def on_timer(self, name: str, state: Kinds, ctx: Context) -> Any:
        return [{"what": f"{name} {state.whole} {state.maybe}"}]


class RefusesByRound:
    """The same by columns."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        is_row, n = events.is_row, len(events)
        state.whole[is_row] += 1
        for place in np.flatnonzero(is_row):
            state.maybe[place] = events.v[place]
            state.many[place].append(int(state.whole[place]))
        ctx.timer("t", after=7, where=is_row)
        ctx.refuse("large", where=is_row & (events.w > 6))
        said = [
            f"{state.whole[i]} {state.maybe[i]} {state.many[i]}" if is_row[i] else f"t {state.whole[i]} {state.maybe[i]}"
            for i in range(n)
        ]
        ctx.emit(what=np.array(said, object))


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_rounds_that_refuse_are_rows_that_refuse(seed: int) -> None:
    draw = random.Random(seed)
    rows = [
        row | {"w": row["v"], "v": draw.choice([row["v"], row["v"], None]) if row["v"] <= 6 else row["v"]}
        for row in _rows(draw)
    ]
    batches = _cut(rows, draw)
    stream = stream_of("k string, at bigint, v bigint, w bigint").watermark("at", 8).key_by("k")
    drivers = [Driver(stream.process(f, returns="what string", state=Kinds)) for f in (RefusesByRow(), RefusesByRound())]
    for batch in [*batches, None]:
        outs = [driver.close() if batch is None else driver.send(batch) for driver in drivers]
        assert outs[0].results.to_pylist() == outs[1].results.to_pylist()
        assert outs[0].late.select(["k", "at", "reason"]).to_pylist() == outs[1].late.select(["k", "at", "reason"]).to_pylist()
    assert drivers[0].counters == drivers[1].counters


class FailsByRow(RefusesByRow):
    """Raises for some rows and timers, after it has changed everything."""

    def on_row(self, row: Row, state: Kinds, ctx: Context) -> Any:
        given = super().on_row(row, state, ctx)
        ctx.timer(f"u{row.w}", after=3)
        state.named["row"] = row.w
        if row.w % 5 == 1:
            raise ValueError("a bad row")
        return given

    def on_timer(self, name: str, state: Kinds, ctx: Context) -> Any:
        state.many.append(-1)
        if state.whole % 3 == 0:
            raise ValueError("a bad timer")
        return [{"what": f"{name} {state.whole} {state.many} {state.named}"}]


class FailsByRound:
    """The same by columns."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        is_row, n = events.is_row, len(events)
        state.whole[is_row] += 1
        for place in range(n):
            state.many[place].append(int(state.whole[place]) if is_row[place] else -1)
            if is_row[place]:
                state.maybe[place] = events.v[place]
                state.named[place]["row"] = int(events.w[place])
        ctx.timer("t", after=7, where=is_row)
        ctx.timer(np.array([f"u{w}" for w in events.w]), after=3, where=is_row)
        ctx.refuse("large", where=is_row & (events.w > 6))
        said = [
            f"{state.whole[i]} {state.maybe[i]} {state.many[i]}"
            if is_row[i]
            else f"{events.timer[i]} {state.whole[i]} {state.many[i]} {state.named[i]}"
            for i in range(n)
        ]
        ctx.emit(what=np.array(said, object))
        if (is_row & (events.w % 5 == 1)).any():
            raise ValueError("a bad row")
        if (~is_row & (state.whole % 3 == 0)).any():
            raise ValueError("a bad timer")


class FailsByBoth(FailsByRound, FailsByRow):
    """Rounds, and rows where few keys have many."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("few", [0, 3])
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_rounds_that_fail_are_rows_that_fail(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FEW", few)
    monkeypatch.setattr(rounds, "LONG", 2)
    draw = random.Random(seed)
    rows = [row | {"w": row["v"]} for row in _rows(draw)]
    batches, ttl = _cut(rows, draw), draw.choice([None, 6, 15])
    stream = stream_of("k string, at bigint, v bigint, w bigint").watermark("at", draw.choice([0, 8])).key_by("k")
    options: dict[str, Any] = {"returns": "what string", "state": Kinds, "on_error": "side_output", "ttl": ttl}
    drivers = [Driver(stream.process(f(), **options)) for f in (FailsByRow, FailsByRound, FailsByBoth)]
    for batch in [*batches, None]:
        outs = [driver.close() if batch is None else driver.send(batch) for driver in drivers]
        late = [out.late.select(["k", "at", "w", "reason"]).to_pylist() for out in outs]
        assert [out.results.to_pylist() for out in outs[1:]] == [outs[0].results.to_pylist()] * 2
        assert late[1:] == [late[0]] * 2
        assert [_state(driver) for driver in drivers[1:]] == [_state(drivers[0])] * 2
    assert [driver.counters for driver in drivers] == [drivers[0].counters] * 3


def _state(driver: Driver) -> list[dict[str, Any]]:
    rows = driver.state().drop(["last_update"]).to_pylist()
    return sorted((row | {"timers": dict(row["timers"])} for row in rows), key=lambda row: str(row["k"]))


class SomeWrites:
    """Writes the state for some rows and timers, and reads it for the others."""

    def on_row(self, row: Any, state: Count, ctx: Any) -> Iterator[dict[str, Any]]:
        if row["v"] > 6:
            state.n += 1
        if row["v"] == 3:
            state.seen.append(ctx.time)
        ctx.timer(f"t{row['v'] % 2}", after=row["v"])
        yield {"what": str(state.seen), "n": state.n}

    def on_timer(self, name: str, state: Count, ctx: Any) -> Iterator[dict[str, Any]]:
        if name == "t1":
            state.n += 1
        yield {"what": name, "n": state.n}


class SomeWritesByRound:
    """The same by columns."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        is_row, v = events.is_row, events.v
        state.n = state.n + ((is_row & (v > 6)) | (events.timer == "t1"))
        for place in np.flatnonzero(is_row & (v == 3)):
            state.seen[place].append(int(events.time[place]))
        ctx.timer(np.array([f"t{value % 2}" for value in v]), after=v, where=is_row)
        ctx.emit(what=np.array([str(seen) for seen in state.seen], object), n=state.n, where=is_row)
        ctx.emit(what=events.timer, n=state.n, where=~is_row)


class SomeWritesByBoth(SomeWritesByRound, SomeWrites):
    """Rounds, and rows where few keys have many."""


@pytest.mark.parametrize("made", [SomeWrites, SomeWritesByRound, SomeWritesByBoth])
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_state_lives_from_its_last_write(seed: int, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FEW", 3)
    monkeypatch.setattr(rounds, "LONG", 2)
    draw = random.Random(seed)
    lag, ttl, fire = draw.choice([0, 4]), draw.choice([4, 9, 20]), draw.random() < 0.5
    batches = _cut(_rows(draw), draw)
    steps, _, _ = process(batches, SomeWrites(), Count, lag=lag, ttl=ttl, fire=fire)
    options: dict[str, Any] = {"returns": RETURNS, "state": Count, "ttl": ttl, "at_end": "fire" if fire else "seen"}
    driver = Driver(stream_of(DDL).watermark("at", lag).null_keys("group").key_by("k").process(made(), **options))
    for batch, wanted in zip([*batches, None], steps, strict=True):
        out = driver.close() if batch is None else driver.send(batch)
        assert _given(out.results.to_pylist()) == _wanted(wanted)


@pytest.mark.parametrize("made", [SomeWrites, SomeWritesByRound, SomeWritesByBoth])
@pytest.mark.parametrize("seed", range(scaled(12)))
def test_keys_begin_with_the_states_that_are_given(seed: int, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FEW", 3)
    monkeypatch.setattr(rounds, "LONG", 2)
    draw = random.Random(seed)
    lag, ttl, batches = draw.choice([0, 4]), draw.choice([None, 9]), _cut(_rows(draw), draw)
    given = {key: Count(draw.randrange(99), [draw.randrange(9)] * draw.randrange(3)) for key in ("a", None, "never")}
    rows = [{"k": key, "n": state.n, "seen": list(state.seen)} for key, state in given.items()]
    schema = pa.schema({"k": pa.string(), "n": pa.int32(), "seen": pa.list_(pa.int64())})
    initial = draw.choice([rows, pa.Table.from_pylist(rows, schema)])
    steps, _, _ = process(batches, SomeWrites(), Count, lag=lag, ttl=ttl or END, initial=given)
    options: dict[str, Any] = {"returns": RETURNS, "state": Count, "ttl": ttl, "initial": initial}
    driver = Driver(stream_of(DDL).watermark("at", lag).null_keys("group").key_by("k").process(made(), **options))
    assert sorted(str(row["k"]) for row in driver.state().to_pylist()) == ["None", "a", "never"]
    for batch, wanted in zip([*batches, None], steps, strict=True):
        out = driver.close() if batch is None else driver.send(batch)
        assert _given(out.results.to_pylist()) == _wanted(wanted)


class Counted:
    """Counts its calls, and fails for one value."""

    def __init__(self, bad: int, nested: bool) -> None:
        self.bad, self.nested, self.calls, self.events = bad, nested, 0, 0

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        self.calls += 1
        self.events += len(events)
        state.n += 1
        if self.nested:
            for seen in state.seen:
                seen.append(1)
        if (events.v == self.bad).any():
            raise ValueError("bad")


@pytest.mark.parametrize("nested", [False, True])
def test_a_key_that_fails_costs_halves_of_its_round(nested: bool) -> None:
    keys, function = 4_096, Counted(77, nested)
    stream = stream_of("k bigint, at bigint, v bigint").watermark("at", 0).key_by("k")
    plan = stream.process(function, returns="n bigint", state=Count, on_error="side_output")
    driver = Driver(plan)
    out = driver.send([{"k": k, "at": 1, "v": k} for k in range(keys)] + [{"k": 0, "at": 2, "v": 0}])
    assert out.late["k"].to_pylist() == [77]
    state = {row["k"]: row["n"] for row in driver.state().to_pylist()}
    assert state == {key: 1 for key in range(keys) if key != 77}
    assert function.calls <= 2 * 12 + 3 and function.events <= 4 * keys


def test_an_error_in_a_round_names_the_key_and_the_time() -> None:
    plan = stream_of(DDL).watermark("at", 0).key_by("k").process(Counted(5, True), returns="n bigint", state=Count)
    rows = [{"k": f"key {n}", "at": n, "v": n} for n in range(9)]
    with pytest.raises(OperatorError, match=r"Counted: on_events failed for key k='key 5' at 5.*ValueError: bad"):
        Driver(plan).send([*rows, {"k": "z", "at": 50, "v": 0}])


class Named:
    """A timer for each row, named by its value."""

    def __init__(self) -> None:
        self.calls = 0

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        self.calls += 1
        names = np.array([f"order {v}" for v in events.v])
        ctx.timer(names, after=5, where=events.is_row & (events.v % 2 == 0))
        ctx.cancel(names, where=events.is_row & (events.v % 4 == 0))
        ctx.emit(what=events.timer, where=~events.is_row)


def test_timers_have_a_name_for_each_event() -> None:
    driver = Driver(stream_of(DDL).watermark("at", 0).key_by("k").process(Named(), returns="what string"))
    rows = [{"k": "ab"[v % 3 == 0], "at": v, "v": v} for v in range(8)]
    results = pa.concat_tables([driver.send(rows).results, driver.close().results])
    assert [(r["k"], r["at"], r["what"]) for r in results.to_pylist()] == [("a", 7, "order 2"), ("b", 11, "order 6")]


def test_what_is_emitted_stays_as_it_was() -> None:
    class Emits:
        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            for seen in state.seen:
                seen.append(1)
            ctx.emit(seen=state.seen)
            for seen in state.seen:
                seen.append(2)

    stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
    out = Driver(stream.process(Emits(), returns="seen array<bigint>", state=Count)).send(
        [{"k": "a", "at": at} for at in (1, 2, 3)]
    )
    assert out.results["seen"].to_pylist() == [[1], [1, 2, 1]]


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (lambda n: np.full(n, 2**61), "out of the supported range"),
        (lambda n: np.full(n, -1.5), "is not an array of times"),
        (lambda n: np.full(n, np.datetime64("NaT", "us")), "out of the supported range"),
    ],
)
def test_times_of_timers_are_checked(times: Any, text: str) -> None:
    with pytest.raises((PlanError, OperatorError), match=text):
        _round(lambda e, s, c: c.timer("t", at=times(len(e))))


def test_arrays_of_arrow_and_days_are_emitted_as_they_are() -> None:
    class Emits:
        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            n = len(events)
            days = np.array(["2020-01-01"] * n, "datetime64[D]")
            ctx.emit(n=pa.array([None, 7][:n], pa.int64()) if n > 1 else pa.array([None], pa.int64()), day=days)

    stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
    plan = stream.process(Emits(), returns="n bigint, day timestamp_ntz")
    out = Driver(plan).send([{"k": "a", "at": 1}, {"k": "b", "at": 2}, {"k": "c", "at": 9}])
    assert out.results["n"].to_pylist() == [None, 7]
    assert {str(day) for day in out.results["day"].to_pylist()} == {"2020-01-01 00:00:00"}


def test_a_hot_key_with_state_that_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LONG", 2)

    class Frozen:
        def on_row(self, row: Row, state: Fixed, ctx: Context) -> Any:
            ctx.state = attrs.evolve(state, n=state.n + 1)
            return [{"n": state.n}]

        def on_timer(self, name: str, state: Fixed, ctx: Context) -> None: ...

        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            ctx.emit(n=state.n)
            state.n += 1

    stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
    out = Driver(stream.process(Frozen(), returns="n bigint", state=Fixed)).send([{"k": "a", "at": at} for at in range(6)])
    assert out.results["n"].to_pylist() == [0, 1, 2, 3, 4]


@attrs.frozen
class Fixed:
    """State that cannot be changed."""

    n: int = 0
