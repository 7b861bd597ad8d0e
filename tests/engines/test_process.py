"""Process functions on all engines: restarts, workers, moves between engines, chains, cost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import CheckpointError, Context, Events, MemorySink, RoundContext, Row, Session, count, sum
from krishiv_py.testing import Driver, stream_of
from tests.engines.restarts import Case
from tests.examples import scaled
from tests.kernels.process.reference import process
from tests.kernels.process.test_process import DDL, Count, Random, _cut, _rows
from tests.kernels.process.test_rounds import RandomRounds

RETURNS = "what string, n bigint"


def _plan(stream: Any, function: Any) -> Any:
    return stream.watermark("at", 8).key_by("k").process(function, returns=RETURNS, state=Count)


def _sorted(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((row["at"], str(row["k"]), row["what"], row["n"]) for row in table.to_pylist())


def _wanted(seed: int, batches: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    steps, _, _ = process(batches, Random(seed), Count, lag=8)
    return sorted((at, str(key), result["what"], result["n"]) for step in steps for at, key, result in step)


def _case(batches: list[list[dict[str, Any]]], function: Any) -> Case:
    return Case(DDL, lambda stream: _plan(stream, function), batches)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("made", [Random, RandomRounds])
@pytest.mark.parametrize("seed", range(scaled(8)))
def test_in_process(seed: int, made: Any, workers: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    batches = _cut(_rows(draw), draw)
    with Session.in_process(workers=workers) as session:
        wanted = _wanted(seed, batches)
        assert _sorted(_case(batches, made(seed)).restarted(session, tmp_path)) == wanted
        assert _sorted(_case(batches, made(seed)).bounded(session)) == wanted


@pytest.mark.one_in(3)
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(max(1, scaled(3))))
def test_on_spark(seed: int, session: Session, tmp_path: Path) -> None:
    draw = random.Random(seed)
    batches = _cut(_rows(draw), draw)[:6]
    wanted = _wanted(seed, batches)
    made = Random if seed % 2 else RandomRounds
    assert _sorted(_case(batches, made(seed)).restarted(session, tmp_path)) == wanted
    assert _sorted(_case(batches, made(seed)).bounded(session)) == wanted


@pytest.mark.spark
def test_a_checkpoint_moves_between_engines(session: Session, tmp_path: Path) -> None:
    draw = random.Random(5)
    batches = _cut(_rows(draw), draw)
    assert _sorted(_case(batches, Random(5)).moved(session, tmp_path)) == _wanted(5, batches)


class Sessions:
    """Sessions by hand: a result when a key was silent for 10 ms."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> None:
        state.n += 1
        ctx.timer("over", after=10)

    def on_timer(self, name: str, state: Count, ctx: Context) -> Any:
        yield {"rows": state.n}
        ctx.forget()


def test_results_go_into_windows_and_another_process_function() -> None:
    stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
    over = stream.process(Sessions(), returns="rows bigint", state=Count)
    doubled = over.filter("rows > 1").key_by("k").process(lambda row, state, ctx: [{"two": row.rows * 2}], returns="two bigint")
    driver = Driver(doubled.tumbling_window(100).agg(count(), sum("two")))
    out = driver.send([{"k": k, "at": at} for k, at in (("a", 0), ("a", 5), ("b", 7), ("a", 40), ("a", 41), ("b", 150))])
    assert out.results.to_pylist() == [{"window_start": 0, "window_end": 100, "count": 2, "sum_two": 8}]


def test_sessions_by_hand_are_sessions() -> None:
    draw = random.Random(1)
    rows = [{"k": draw.choice("ab"), "at": at} for at in sorted(draw.randrange(300) for _ in range(60))]
    stream = stream_of("k string, at bigint").watermark("at", 0).key_by("k")
    by_hand, built = (
        Driver(stream.process(Sessions(), returns="rows bigint", state=Count)),
        Driver(stream.session_window(10).agg(count().alias("rows"))),
    )
    given = [[d.send(rows[:30]).results, d.send(rows[30:]).results, d.close().results] for d in (by_hand, built)]
    hand, windows = (pa.concat_tables(tables).to_pylist() for tables in given)
    assert sorted((r["k"], r["at"], r["rows"]) for r in hand) == sorted((r["k"], r["window_end"], r["rows"]) for r in windows)


@pytest.mark.parametrize("keys", [1_000, 30_000])
def test_a_batch_costs_what_it_brings(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 50 rows reads a number of rows of state that does not follow the keys with state and timers."""
    driver = Driver(
        stream_of("k bigint, at bigint").watermark("at", 0).key_by("k").process(Waits(), returns="n bigint", state=Count)
    )
    driver.send(pa.table({"k": np.arange(keys), "at": np.arange(keys)}))
    read = _counting(driver, monkeypatch)
    for number in range(4):
        at = keys + number
        driver.send(pa.table({"k": np.arange(50) * 7, "at": np.full(50, at)}))
    assert read["get"] < 60, "tables of state that four batches read"
    assert driver.state().num_rows == keys


class Waits:
    """Every key has state and a timer that is far off."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        state.n += 1
        ctx.timer("far", after="1 day")


def _counting(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    calls = {"get": 0}
    store = type(driver._store)
    plain = store.get

    def get(self: Any, name: str) -> pa.Table:
        calls["get"] += 1
        return plain(self, name)

    monkeypatch.setattr(store, "get", get)
    return calls


@pytest.mark.parametrize("workers", [1, 2])
def test_p21_a_timer_fires_once_after_a_restart(workers: int, tmp_path: Path) -> None:
    given = list[dict[str, Any]]()
    with Session.in_process(workers=workers) as session:
        stream, sender = session.memory_stream("k string, at bigint")
        plan = stream.watermark("at", 0).key_by("k").process(Sessions(), returns="rows bigint", state=Count)
        for at in (0, 5, 15, 16, 40):  # due at 15
            sink = MemorySink()
            query = plan.start(sink, checkpoint=tmp_path / "c")
            sender.send([{"k": "a" if at < 10 else "b", "at": at}])
            query.process_all_available()
            query.stop()
            given += [] if (rows := sink.table()) is None else [row for row in rows.to_pylist() if row["k"] == "a"]
    assert given == [{"k": "a", "at": 15, "rows": 2}]


@attrs.define
class Older:
    """State before a change."""

    n: int = 0
    gone: str = "x"


@attrs.define
class Newer:
    """State after it."""

    n: int = 0
    more: list[int] = attrs.field(factory=lambda: [7])
    small: int | None = None


class Forgets:
    """Counts rows, and forgets a key at its third."""

    def on_row(self, row: Row, state: Count, ctx: Context) -> Any:
        state.n += 1
        if state.n == 3:
            ctx.forget()
        return [{"n": state.n}]

    def on_end(self, state: Count, ctx: Context) -> Any:
        return [{"n": -state.n}]


@pytest.mark.parametrize("workers", [1, 3])
def test_initial_states_are_given_once(workers: int, tmp_path: Path) -> None:
    initial = pa.table({"k": ["a", "b", "c"], "n": [1, 10, 100]})
    with Session.in_process(workers=workers) as session:
        stream, sender = session.memory_stream("k string, at bigint")
        plan = stream.watermark("at", 0).key_by("k").process(Forgets(), returns="n bigint", state=Count, initial=initial)
        sink = MemorySink()
        query = plan.start(sink, checkpoint=tmp_path / "c")
        assert query.state().num_rows == 3 and query.lookup("b")["n"].to_pylist() == [10]
        query.stop()  # before its first batch
        query = plan.start(sink, checkpoint=tmp_path / "c")
        sender.send([{"k": k, "at": at} for k, at in (("a", 1), ("a", 2), ("b", 3), ("d", 4), ("e", 9))])
        query.process_all_available()
        query.savepoint(tmp_path / "saved")
        query.stop()
        query = plan.start(sink, checkpoint=tmp_path / "c")
        sender.send([{"k": "a", "at": 10}, {"k": "z", "at": 20}])
        query.process_all_available()
        query.stop()
        after = MemorySink()
        query = plan.start(after, checkpoint=tmp_path / "d", savepoint=tmp_path / "saved")
        query.process_all_available()  # reads the rows behind the savepoint
        state = {row["k"]: row["n"] for row in query.state().to_pylist()}
        assert state == {"a": 1, "b": 11, "c": 100, "d": 1, "e": 1, "z": None}
        sender.close()
        query.process_all_available()
        query.stop()
        before, rows = sink.table(), after.table()
        assert before is not None and rows is not None
        given = sorted((row["k"], row["n"]) for row in [*before.to_pylist(), *rows.to_pylist()])
        ends = [("a", -1), ("b", -11), ("c", -100), ("d", -1), ("e", -1), ("z", -1)]
        twice = [("a", 1), ("e", 1)] * 2  # by the query that went on, and by the one from the savepoint
        assert given == sorted([*ends, ("a", 2), ("a", 3), ("b", 11), ("d", 1), ("z", 1), *twice])
        stream, sender = session.memory_stream("k string, at bigint")
        sender.send([{"k": "a", "at": 1}])
        bounded = stream.watermark("at", 0).key_by("k").process(Forgets(), returns="n bigint", state=Count, initial=initial)
        assert sorted((r["k"], r["n"]) for r in bounded.collect().to_pylist()) == [("a", -2), ("a", 2), ("b", -10), ("c", -100)]


@pytest.mark.slow
@pytest.mark.spark
def test_initial_states_on_spark(session: Session, tmp_path: Path) -> None:
    initial = pa.table({"k": [f"key {n}" for n in range(40)], "n": range(40)})
    rows = [[{"k": "key 7", "at": 1}, {"k": "new", "at": 2}], [{"k": "key 7", "at": 3}], [{"k": "key 9", "at": 9}]]

    def plan(stream: Any) -> Any:
        return stream.watermark("at", 0).key_by("k").process(Forgets(), returns="n bigint", state=Count, initial=initial)

    case = Case("k string, at bigint", plan, rows)
    ends = [(f"key {n}", -n) for n in range(40) if n not in (7, 9)]
    wanted = sorted([*ends, ("key 7", 8), ("key 7", 9), ("key 7", -9), ("key 9", 10), ("key 9", -10), ("new", 1), ("new", -1)])
    (tmp_path / "moved").mkdir()
    for given in (case.restarted(session, tmp_path), case.bounded(session), case.moved(session, tmp_path / "moved")):
        assert sorted((row["k"], row["n"]) for row in given.to_pylist()) == wanted


@pytest.mark.parametrize("last", [None, 2])
@pytest.mark.parametrize("made", [Random, RandomRounds])
def test_a_capture_is_replayed(made: Any, last: int | None, tmp_path: Path) -> None:
    """Batches of a query give the same results in a driver, from the state before the first of them."""
    draw = random.Random(11)
    batches, initial = _cut(_rows(draw), draw), [{"k": "a", "n": 40}]
    assert len(batches) > 4

    def plan(stream: Any) -> Any:
        keyed = stream.watermark("at", 8).key_by("k")
        return keyed.process(made(11), returns=RETURNS, state=Count, ttl="1 minute", initial=initial)

    with Session.in_process(workers=2) as session:
        stream, sender = session.memory_stream(DDL, spool=str(tmp_path / "spool"))
        sink = MemorySink()
        query = plan(stream).start(sink, checkpoint=tmp_path / "c", keep_batches=50)
        for batch in batches:
            sender.send(batch)
            query.process_all_available()
        query.stop()
        path = session.capture(str(tmp_path / "c"), plan(stream), str(tmp_path / "capture"), last=last)
        wanted = sink.table()
    driver = Driver.from_capture(path, plan(stream_of(DDL)))
    given = []
    while (output := driver.next_batch()) is not None:
        given += output.results.to_pylist()
    assert wanted is not None and given and given == wanted.to_pylist()[-len(given) :]
    assert last is not None or len(given) == wanted.num_rows


@attrs.define
class Small:
    """State before fields are renamed."""

    n: Annotated[int, pa.int32()] = 0
    gone: str = "x"


@attrs.define
class Renamed:
    """State whose fields were renamed, one of them twice, and got a wider type."""

    total: int = 0
    label: str = "new"
    added: int = 3


def test_state_follows_a_field_that_was_renamed(tmp_path: Path) -> None:
    def seen(row: Row, state: Any, ctx: Context) -> list[dict[str, str]]:
        if isinstance(state, Small):
            state.n += 1
            state.gone = f"was {state.n}"
        return [{"what": repr(state)}]

    with Session.in_process() as session:
        stream, sender = session.memory_stream("k string, at bigint")
        keyed, sink = stream.watermark("at", 0).key_by("k"), MemorySink()

        def plan(state: Any, **options: Any) -> Any:
            return keyed.process(seen, returns="what string", state=state, version="1", **options)

        query = plan(Small).start(sink, checkpoint=tmp_path / "c")
        sender.send([{"k": "a", "at": 1}, {"k": "b", "at": 5}, {"k": "a", "at": 9}, {"k": "b", "at": 20}])
        query.process_all_available()
        query.savepoint(tmp_path / "saved")
        query.stop()
        now = plan(Renamed, renamed={"once": "total", "n": "total", "gone": "label"})
        said = str(now.explain(against=tmp_path / "saved"))
        assert "state.total was state.n" in said and "state.label was state.gone" in said
        assert "state.total from int32 to int64" in said and "state.added added" in said and "removed" not in said
        sink = MemorySink()
        query = now.start(sink, checkpoint=tmp_path / "d", savepoint=tmp_path / "saved")
        query.process_all_available()
        state = {row["k"]: (row["total"], row["label"], row["added"]) for row in query.state().to_pylist()}
        assert state == {"a": (2, "was 2", 3), "b": (1, "was 1", 3)}
        query.savepoint(tmp_path / "again")
        query.stop()
        query = now.start(sink, checkpoint=tmp_path / "d")  # goes on, with the names of now
        sender.send([{"k": "a", "at": 21}, {"k": "b", "at": 30}])
        query.process_all_available()
        rows = sink.table()
        assert rows is not None and rows["what"].to_pylist()[-1] == "Renamed(total=2, label='was 2', added=3)"
        query.stop()
        assert "was state" not in str(now.explain(against=tmp_path / "again"))


def test_p25_state_follows_its_class_by_field_name(tmp_path: Path) -> None:
    def seen(row: Row, state: Any, ctx: Context) -> list[dict[str, str]]:
        state.n += 1
        return [{"what": repr(state)}]

    with Session.in_process() as session:
        stream, sender = session.memory_stream("k string, at bigint")
        keyed, sink = stream.watermark("at", 0).key_by("k"), MemorySink()

        def plan(state: Any, version: str = "1") -> Any:
            return keyed.process(seen, returns="what string", state=state, version=version)

        query = plan(Older).start(sink, checkpoint=tmp_path / "c")
        sender.send([{"k": "a", "at": 1}, {"k": "b", "at": 5}, {"k": "a", "at": 9}])
        query.process_all_available()
        query.savepoint(tmp_path / "saved")
        query.stop()
        with pytest.raises(CheckpointError, match=r"field of state more was \(none\).*savepoint"):
            plan(Newer).start(sink, checkpoint=tmp_path / "c")
        assert "state.more added: its default" in str(plan(Newer).explain(against=tmp_path / "saved"))
        sink = MemorySink()
        query = plan(Newer).start(sink, checkpoint=tmp_path / "d", savepoint=tmp_path / "saved")
        sender.send([{"k": "a", "at": 11}, {"k": "c", "at": 15}])
        query.process_all_available()
        state = {row["k"]: (row["n"], row["more"], row["small"], row["held_rows"]) for row in query.state().to_pylist()}
        assert state == {"a": (3, [7], None, 0), "b": (1, [7], None, 0), "c": (None, None, None, 1)}
        assert query.lookup("a")["n"].to_pylist() == [3]
        assert "all rows have gone to the function" in query.why_not_fired()
        query.stop()
        results = sink.table()
        assert results is not None and results["what"].to_pylist()[-1] == "Newer(n=3, more=[7], small=None)"
        with pytest.raises(CheckpointError, match="function was 1 and is 2"):
            plan(Newer, "2").start(sink, checkpoint=tmp_path / "d")
