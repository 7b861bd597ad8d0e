"""Every way a stream speaks of time or ends, in every shape of streams: engines follow a model of SEMANTICS §2.2 to §2.5."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest

import krishiv_py as kv
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.runtime.ranges.planning import RangePlanner
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of, union_of
from krishiv_py.windows import tumbling

COLUMNS = "k bigint, at bigint, site string"
LAG, SIZE = 2, 10
SITES = ("a", "b")
OWN = ("streams", "sides", "registered")
"""The shapes whose streams are sources of their own."""

Streams: TypeAlias = Mapping[str, kv.Stream]
Unite: TypeAlias = Callable[[Streams, str], kv.Stream]


def declared(*names: str) -> kv.MultiSourceWatermarkSpec:
    spec = kv.MultiSourceWatermarkSpec.new()
    for name in names:
        spec = spec.source(name, kv.WatermarkSpec.fixed_lag(LAG))
    return spec


def counted(timed: kv.TimedStream) -> kv.ResultStream:
    return timed.key_by("k").tumbling_window(SIZE).agg(kv.count())


def read_twice(streams: Streams, unite: Unite) -> kv.ResultStream:
    north = streams["north"]
    return counted(unite({"even": north.filter("at % 2 = 0"), "all": north}, "source").watermark("at", LAG))


def by_source(streams: Streams, unite: Unite) -> kv.ResultStream:
    return counted(unite(streams, "source").with_watermark(declared("north", "south"), "at", source_column="source"))


def by_renamed_source(streams: Streams, unite: Unite) -> kv.ResultStream:
    named = unite(streams, "source").select("k", "at", origin="source").filter("k >= 0")
    return counted(named.with_watermark(declared("north", "south"), "at", source_column="origin"))


def by_registered_source(streams: Streams, unite: Unite) -> kv.ResultStream:
    spec = declared("north").unknown("register", kv.WatermarkSpec.fixed_lag(LAG))
    return counted(unite(streams, "source").with_watermark(spec, "at", source_column="source"))


def by_site(streams: Streams, unite: Unite) -> kv.ResultStream:
    return counted(unite(streams, "source").with_watermark(declared(*SITES), "at", source_column="site"))


def deduplicated_and_joined(streams: Streams, unite: Unite) -> kv.ResultStream:
    one = unite(streams, "source").watermark("at", LAG).drop_duplicates("k", "at", "site", within=1_000)
    return counted(one)


def joined(streams: Streams, unite: Unite) -> kv.ResultStream:
    north, south = (streams[name].watermark("at", LAG) for name in ("north", "south"))
    return north.window_join(south, on="k", window=tumbling(SIZE), how="full").select("k", "window_start", "window_end")


def in_sql(streams: Streams, unite: Unite) -> kv.ResultStream:
    context = SqlContext()
    context.register("e", unite(streams, "source"), event_time="at", lag=LAG)
    text = f"SELECT k, COUNT(*) AS count FROM e GROUP BY k, tumble(at, INTERVAL '{SIZE}' MILLISECONDS)"
    planned = context.sql(text)
    assert isinstance(planned, kv.ResultStream)
    return planned


@attrs.frozen
class Shape:
    """Streams as one query, and what its watermark is made of: all rows, each stream, or a column of rows."""

    make: Callable[[Streams, Unite], kv.ResultStream]
    sources: str


SHAPES = {
    "single": Shape(lambda streams, unite: counted(streams["north"].watermark("at", LAG)), "rows"),
    "single, read twice": Shape(read_twice, "rows"),
    "union": Shape(lambda streams, unite: counted(unite(streams, "source").watermark("at", LAG)), "rows"),
    "union, deduplicated": Shape(deduplicated_and_joined, "rows"),
    "union by source": Shape(by_source, "streams"),
    "union by a renamed source": Shape(by_renamed_source, "streams"),
    "union by registered source": Shape(by_registered_source, "registered"),
    "union by a column": Shape(by_site, "sites"),
    "window join": Shape(joined, "sides"),
    "SQL": Shape(in_sql, "rows"),
}

Action: TypeAlias = tuple[str, str, Any]
"""A stream, what it does, and with what: send rows, advance to a time, or close."""


@attrs.define
class Model:
    """The watermark by SEMANTICS §2.2 to §2.5, of the actions so far."""

    sources: str
    streams: tuple[str, ...]
    reached: dict[str, int] = attrs.field(factory=dict)
    ended: set[str] = attrs.field(factory=set)
    current: int = UNSET

    def take(self, action: Action) -> int:
        stream, what, value = action
        if what == "close":
            self.ended.add(stream)
            if self.sources in OWN or self.ended == set(self.streams):
                self._reach(dict.fromkeys(self._of(stream), END_OF_TIME))
        elif what == "advance":
            self._reach(dict.fromkeys(self._of(stream), value * 1_000))
        else:
            for row in value:
                one = {"rows": "", "sites": row["site"]}.get(self.sources, stream)
                self._reach({one: (row["at"] - LAG) * 1_000})
        known = self._all() if self.sources != "registered" else ["north", *(self.reached.keys() - {"north"})]
        self.current = max(self.current, min(self.reached.get(one, UNSET) for one in known))
        return self.current

    def _all(self) -> list[str]:
        return {"rows": [""], "sites": list(SITES)}.get(self.sources, list(self.streams))

    def _of(self, stream: str) -> list[str]:
        return [stream] if self.sources in OWN else self._all()

    def _reach(self, times: dict[str, int]) -> None:
        for name, us in times.items():
            self.reached[name] = max(self.reached.get(name, UNSET), us)


def script(seed: int, streams: Sequence[str]) -> list[Action]:
    """Some actions in any order; each stream is closed once, and of an even seed at the end of the script."""
    drawn, going, actions, now = random.Random(seed), list(streams), list[Action](), 0
    while going and len(actions) < 9:
        stream = drawn.choice(going)
        what = drawn.choice(["send", "send", "send", "advance", "close" if actions[2:] and seed % 2 else "send"])
        now += drawn.randrange(12)
        if what == "send":
            rows = [{"k": drawn.randrange(2), "at": now - drawn.randrange(6), "site": drawn.choice(SITES)} for _ in range(2)]
            actions.append((stream, what, rows))
        else:
            actions.append((stream, what, now))
        if what == "close":
            going.remove(stream)
    drawn.shuffle(going)
    return [*actions, *((stream, "close", now) for stream in going)]


def act(senders: Mapping[str, kv.Sender], action: Action) -> None:
    stream, what, value = action
    if what == "send":
        senders[stream].send(value)
    elif what == "close":
        senders[stream].close()
    elif value % 2:
        senders[stream].advance_watermark(value)
    else:
        senders[stream].close_windows_up_to(value)


def in_order(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(str(dict(row)) for row in rows)


def in_sink(sink: kv.MemorySink) -> list[str]:
    table = sink.table()
    return [] if table is None else in_order(table.to_pylist())


def by_driver(shape: Shape, actions: Sequence[Action], count: int) -> tuple[list[str], int]:
    """Return the results of the driver, and how many rows were late; a closed stream is one that goes no more."""
    streams = {name: stream_of(COLUMNS) for name in ("north", "south")}
    driver = Driver(shape.make(streams, lambda some, column: union_of(some, source_column=column)))
    names = {"north": "left", "south": "right"} if shape.sources == "sides" else {}
    rows: list[Any] = []
    for stream, what, value in actions:
        own = names.get(stream, stream)
        if what == "send":
            given = driver.send(value if count == 1 else {own: value})
        elif what == "advance":
            given = driver.advance_watermark(value, own if shape.sources in OWN else None)
        else:
            continue
        rows += given.results.to_pylist()
    return in_order([*rows, *driver.close().results.to_pylist()]), driver.counters["late"]


def streams_of(shape_name: str) -> tuple[str, ...]:
    return ("north",) if shape_name.startswith("single") else ("north", "south")


@pytest.mark.one_in(11)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("shape_name", SHAPES)
def test_every_way_a_stream_speaks_of_time_or_ends(shape_name: str, workers: int, tmp_path: Path) -> None:
    shape, names = SHAPES[shape_name], streams_of(shape_name)
    for seed in range(4):
        model, actions = Model(shape.sources, names), script(seed, names)
        restarts = {len(actions) // 2, len(actions) - 1}
        with kv.Session.in_process(workers=workers) as session:
            made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
            streams, senders = {name: s for name, (s, _) in made.items()}, {name: s for name, (_, s) in made.items()}
            results = shape.make(streams, lambda some, column: session.union(some, source_column=column))
            sink, checkpoint = kv.MemorySink(), str(tmp_path / f"{seed}")
            query = results.start(sink, checkpoint=checkpoint)
            for number, action in enumerate(actions):
                if number in restarts:
                    query.stop()
                    query = results.start(sink, checkpoint=checkpoint)
                act(senders, action)
                query.process_all_available()
                assert query.progress.watermark_us == model.take(action), (seed, number, action)
            given, late, progress = in_sink(sink), query.progress.late["late"], query.progress
            assert model.current == END_OF_TIME and progress.open_windows == 0, seed
            collected = results.run()
            assert in_order(collected.table.to_pylist()) == given, seed
            assert collected.counters["late"] == late, seed
            if not seed % 2:
                assert by_driver(shape, actions, len(names)) == (given, late), seed
            query.stop()


@pytest.mark.parametrize("shape_name", [name for name in SHAPES if name != "single"])
def test_a_send_while_a_batch_is_planned_makes_no_row_late(shape_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stream was looked at, and then sends come before the second one is."""
    shape, names, left = SHAPES[shape_name], streams_of(shape_name), [*range(6)]
    look = RangePlanner.plan_next
    with kv.Session.in_process() as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
        streams, senders = {name: s for name, (s, _) in made.items()}, {name: s for name, (_, s) in made.items()}

        def look_and_send(planner: RangePlanner) -> bool:
            planned = look(planner)
            if left and planner.number == 0 and not planned:
                moment = left[0] * 60
                for number, name in enumerate(names):  # each send moves the watermark beyond its own first rows
                    times = moment + 30 * number, moment + 30 * number + 20
                    senders[name].send([{"k": 1, "at": time, "site": site} for site in SITES for time in times])
                left.pop(0)  # last, as the test closes the senders once nothing is left
            return planned

        monkeypatch.setattr(RangePlanner, "plan_next", look_and_send)
        results = shape.make(streams, lambda some, column: session.union(some, source_column=column))
        query = results.start(kv.MemorySink())
        while left:
            query.process_all_available()
        for name in names:
            senders[name].close()
        query.process_all_available()
        assert query.progress.late["late"] == 0
        assert in_order(query.results().to_pylist()) == in_order(results.run().table.to_pylist())


@pytest.mark.parametrize("shape_name", SHAPES)
def test_a_name_that_no_clock_has_is_refused_at_the_call_and_by_a_query_that_starts_later(shape_name: str) -> None:
    shape = SHAPES[shape_name]
    with kv.Session.in_process() as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
        streams, sender = {name: s for name, (s, _) in made.items()}, made["north"][1]
        results = shape.make(streams, lambda some, column: session.union(some, source_column=column))
        query = results.start(kv.MemorySink())
        sender.send([{"k": 1, "at": 1, "site": "a"}])
        if shape.sources == "registered":
            sender.advance_watermark(5, source="elsewhere")
            query.process_all_available()
            assert query.progress.source_watermarks_us["elsewhere"] == 5_000
            return
        with pytest.raises(PlanError, match=r"no such source.*elsewhere.*Hint: (the sources are|leave `source` out)"):
            sender.advance_watermark(5, source="elsewhere")
        query.process_all_available()
        assert query.status == "running" and made["north"][1].send([]) == 1, "nothing was written"
        query.stop()
        sender.advance_watermark(5, source="elsewhere")
        with pytest.raises(KrishivError, match=r"no such source.*elsewhere"):
            results.collect()
        query = results.start(kv.MemorySink())
        with pytest.raises(KrishivError, match=r"no such source.*elsewhere"):
            query.process_all_available()
        query.stop()


def test_a_sender_moves_another_stream_by_its_name() -> None:
    with kv.Session.in_process() as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
        streams = {name: s for name, (s, _) in made.items()}
        query = by_source(streams, lambda some, column: session.union(some, source_column=column)).start(kv.MemorySink())
        made["north"][1].send([{"k": 1, "at": 1, "site": "a"}])
        made["north"][1].advance_watermark(SIZE)
        made["north"][1].advance_watermark(SIZE, source="south")
        query.process_all_available()
        assert query.results()["count"].to_pylist() == [1]


def test_of_two_outputs_the_one_that_has_the_source_is_moved() -> None:
    with kv.Session.in_process() as session:
        stream, sender = session.memory_stream(COLUMNS)
        other, _ = session.memory_stream(COLUMNS, name="other")
        sites = counted(stream.with_watermark(declared(*SITES), "at", source_column="site"))
        pairs = joined({"north": stream, "south": other}, lambda some, column: session.union(some, source_column=column))
        sinks = kv.MemorySink(), kv.MemorySink()
        query = session.start([sites.to(sinks[0]), pairs.to(sinks[1])])
        sender.send([{"k": 1, "at": 1, "site": site} for site in SITES])
        for site in SITES:
            sender.advance_watermark(SIZE, source=site)
        query.process_all_available()
        assert [0 if (rows := sink.table()) is None else rows.num_rows for sink in sinks] == [1, 0]


def test_what_has_ended_before_a_savepoint_has_ended_after_it(tmp_path: Path) -> None:
    with kv.Session.in_process() as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
        streams = {name: s for name, (s, _) in made.items()}
        shapes = [SHAPES[name].make for name in ("union", "union by source", "union by a column", "union")]
        unite = lambda some, column: session.union(some, source_column=column)  # noqa: E731
        for name in made:
            made[name][1].send([{"k": 1, "at": 1, "site": site} for site in SITES])
        made["north"][1].close()
        savepoint = None
        for number, make in enumerate(shapes):
            query = make(streams, unite).start(kv.MemorySink(), savepoint=savepoint, checkpoint=str(tmp_path / f"c{number}"))
            query.process_all_available()
            query.stop()
            savepoint = str(tmp_path / f"s{number}")
            session.savepoint(str(tmp_path / f"c{number}"), savepoint)
        made["south"][1].close()
        query = shapes[0](streams, unite).start(kv.MemorySink(), savepoint=savepoint, checkpoint=str(tmp_path / "last"))
        query.process_all_available()
        assert query.progress.watermark_us == END_OF_TIME and query.results()["count"].to_pylist() == [4]


def test_drift_of_a_union_is_by_its_own_sources() -> None:
    streams = {name: stream_of(COLUMNS) for name in SITES}
    with pytest.raises(PlanError, match=r"max_drift holds streams of a union back.*source_column='site'.*Hint:.*'source'"):
        union_of(streams).with_watermark(declared(*SITES).max_drift(5), "at", source_column="site")
