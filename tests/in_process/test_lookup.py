"""``query.lookup``: for every kind of window the rows of `state()` with the key, and fast where there are many keys."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import Batches, MemorySink, OperatorError, PlanError, Session, Trigger, collect_list, count
from krishiv_py import sum as total
from krishiv_py.engine.closing import keys_of
from krishiv_py.in_process import lookup, outputs
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, place int, at bigint, n bigint"
KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda keyed: keyed.tumbling_window(10_000).agg(count(), total("n"), collect_list("n")),
    "tumbling, late": lambda keyed: keyed.tumbling_window(10_000).allowed_lateness(20_000).agg(count(), total("n")),
    "hopping": lambda keyed: keyed.hopping_window(10_000, 2_000).agg(count(), collect_list("n")),
    "updates": lambda keyed: (
        keyed.tumbling_window(10_000).agg(count(), total("n")).emit("updates").trigger(Trigger.on_every_element())
    ),
    "hopping, updates": lambda keyed: keyed.hopping_window(10_000, 5_000).agg(count()).emit("updates"),
    "session": lambda keyed: keyed.session_window(3_000).agg(count(), total("n")),
    "session, capped": lambda keyed: keyed.session_window(3_000, max_duration=9_000).agg(count()),
    "count": lambda keyed: keyed.count_window(7).agg(count(), total("n")),
    "look-back": lambda keyed: keyed.lookback_window(10_000).agg(count(), total("n")),
}


@pytest.fixture
def session() -> Iterator[Session]:
    """A session without Spark."""
    with Session.in_process() as made:
        yield made


@contextlib.contextmanager
def allocated() -> Iterator[Callable[[], int]]:
    """Give what returns the most bytes that Python and NumPy held at once in the block."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def same(one: pa.Table, other: pa.Table) -> bool:
    """Whether tables have the same rows, in any order."""
    return sorted(map(repr, one.to_pylist())) == sorted(map(repr, other.to_pylist()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_is_what_the_state_has_of_a_key(session: Session, kind: str) -> None:
    random = np.random.default_rng(3)
    stream, sender = session.memory_stream(SCHEMA)
    query = KINDS[kind](stream.watermark("at", 4_000).key_by("user", "place")).start(MemorySink())
    for batch in range(12):
        rows = [
            {"user": "abc"[u] if u < 3 else None, "place": int(p), "at": int(1_500 * batch + t), "n": int(t)}
            for u, p, t in zip(random.integers(0, 4, 20), random.integers(0, 3, 20), random.integers(0, 5_000, 20), strict=True)
        ]
        sender.send(rows)
        query.process_all_available()
        state = query.state()
        for user, place in (("a", 0), ("b", 2), ("zzz", 1)):
            mask = pc.and_(pc.equal(state["user"], user), pc.equal(state["place"], place))
            wanted = state.filter(mask)
            actual = query.lookup((user, place))
            assert actual.schema == state.schema
            assert same(actual, wanted), kind
        both = query.lookup([("a", 0), ("b", 2)])
        assert same(both, pa.concat_tables([query.lookup(("a", 0)), query.lookup(("b", 2))]))
    assert query.lookup([]).num_rows == 0
    assert query.state().num_rows > 0
    query.stop()
    assert same(
        query.lookup(("a", 0)), query.state().filter(pc.and_(pc.equal(state["user"], "a"), pc.equal(state["place"], 0)))
    )


AGGREGATES = [
    count(),
    total("n"),
    kv.avg("x"),
    kv.stddev("x"),
    kv.min("x"),
    kv.max("n"),
    kv.first("n"),
    kv.last("n"),
    kv.max_by("n", "x"),
    kv.top_k(2, "x", "n"),
    collect_list("n"),
    kv.collect_set("n"),
    kv.count_distinct("n"),
    kv.percentile("x"),
    kv.approx_count_distinct("n"),
    kv.histogram("x", [1, 2]),
]


@given(st.data())
def test_lookups_are_what_the_state_has_whatever_the_windows_and_aggregates(data: st.DataObject) -> None:
    """Exactly so, with the order of the windows of a key; small tables are searched, and larger ones have an index."""
    size, slide = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    picked = data.draw(st.lists(st.sampled_from(range(len(AGGREGATES))), min_size=1, max_size=4, unique=True))
    names = data.draw(st.sampled_from([("user",), ("user", "place")]))
    keyed = stream_of("user string, place int, at bigint, n bigint, x double").watermark("at", 8).key_by(*names)
    if data.draw(st.booleans()):
        keyed = keyed.allowed_lateness(data.draw(st.integers(1, 20)))
    windows = keyed.tumbling_window(size) if data.draw(st.booleans()) else keyed.hopping_window(size, slide, allow_gaps=True)
    aggs = [AGGREGATES[i].alias(f"a{i}") for i in picked]
    driver = Driver(windows.agg(aggs, kv.max("place").alias("a_last")))
    indexes = lookup.KeyIndexes(driver._stages[0])
    row = st.tuples(
        st.sampled_from(["a", "b", "", None]), st.integers(0, 2) | st.none(), st.integers(0, 40), st.integers(-2, 5)
    )
    searched = data.draw(st.sampled_from([0, 3, 512]))
    for rows in data.draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=20)):
        values = [{"user": u, "place": p, "at": t, "n": n, "x": n / 3 if n >= 0 else None} for u, p, t, n in rows]
        driver.send(values)
        state = driver.state()
        keys = [(r["user"], r["place"])[: len(names)] for r in values] + [("zzz", 0)[: len(names)]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup, "_SEARCHED", searched)
            for key in keys:
                actual = indexes.open_windows(keys_of(driver._stages[0].stage, key))
                wanted = [r for r in state.to_pylist() if tuple(r[name] for name in names) == key]
                assert actual.schema == state.schema
                assert repr(actual.to_pylist()) == repr(wanted)
            several = indexes.open_windows(keys_of(driver._stages[0].stage, keys))
        assert same(
            several, state.filter(pa.array([tuple(r[n] for n in names) in keys for r in state.to_pylist()], pa.bool_()))
        )


KEYS: dict[str, list[Any]] = {
    "string": ["a", "", "ä", None],
    "bigint": [0, -1, 1 << 62, None],
    "boolean": [True, False, None],
    "double": [0.0, -0.0, float("nan"), float("inf"), None],
    "decimal(20,2)": [Decimal("1.10"), Decimal("-3.00"), None],
    "binary": [b"", b"\0", b"a", None],
    "date": [dt.date(1969, 12, 31), dt.date(2026, 1, 1), None],
    "timestamp": [dt.datetime(1969, 12, 31, tzinfo=dt.timezone.utc), dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None],
}


@pytest.mark.parametrize("searched", [0, 1_000], ids=["by index", "by search"])
@pytest.mark.parametrize("of_type", KEYS)
def test_keys_of_any_type_are_found(session: Session, monkeypatch: pytest.MonkeyPatch, of_type: str, searched: int) -> None:
    """Equal as keys are equal: 0.0 and -0.0 are one, and so are NaN and NaN, null and null."""
    monkeypatch.setattr(lookup, "_SEARCHED", searched)
    stream, sender = session.memory_stream(f"k {of_type}, at bigint, other string")
    query = stream.watermark("at", 4_000).key_by("k", "other").tumbling_window(10_000).agg(count()).start(MemorySink())
    values = KEYS[of_type]
    for batch in range(3):
        sender.send([{"k": k, "at": 1_000 * batch, "other": o} for k in values for o in ("x", "y")])
        query.process_all_available()
    twice = 2 if of_type == "double" else 1  # 0.0 is there as -0.0, too
    for k in values:
        rows = query.lookup((k, "x")).to_pylist()
        assert [row["count"] for row in rows] == [3 * (twice if k == 0 else 1)], k
        assert rows[0]["other"] == "x"
        assert same(query.lookup([(k, "x"), (k, "y"), (k, "z")]), pa.concat_tables([query.lookup((k, o)) for o in "xy"]))
    query.stop()


def test_windows_that_hold_a_time(session: Session) -> None:
    stream, sender = session.memory_stream("user string, at timestamp")
    query = stream.watermark("at", "1 h").key_by("user").hopping_window("10 min", "5 min").agg(count()).start(MemorySink())
    moment = dt.datetime(2026, 1, 1, 12, 7, tzinfo=dt.timezone.utc)
    sender.send([{"user": "a", "at": moment}, {"user": "a", "at": moment + dt.timedelta(minutes=30)}])
    query.process_all_available()
    assert query.lookup("a").num_rows == 4
    assert query.lookup("a", window=moment)["window_start"].to_pylist() == [moment.replace(minute=0), moment.replace(minute=5)]
    assert query.lookup("a", window="2026-01-01T12:03:00Z")["count"].to_pylist() == [1]
    assert query.lookup("a", window="2026-01-01T13:00:00Z").num_rows == 0


def test_wrong_lookups_say_what_to_pass(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    keyed = stream.watermark("at", 0).key_by("user", "place")
    query = keyed.tumbling_window(10).agg(total("n")).start(MemorySink())
    for key in ("a", ("a",), ("a", "b"), ("a", 1, 2), (1, 1), [("a", 1), "b"], ("a", 2**40)):
        with pytest.raises(PlanError, match="not a key of this query"):
            query.lookup(key)
    with pytest.raises(PlanError, match="stage"):
        query.lookup(("a", 1), stage="none")
    with pytest.raises(PlanError, match="window"):
        query.lookup(("a", 1), window="soon")
    counted = keyed.count_window(2).agg(count()).start(MemorySink())
    sender.send([{"user": "a", "place": 1, "at": 1, "n": 1}])
    counted.process_all_available()
    assert counted.lookup(("a", 1)).num_rows == 1
    with pytest.raises(PlanError, match="count windows hold no time"):
        counted.lookup(("a", 1), window=5)


def test_a_lookup_costs_nothing_for_other_keys(session: Session) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    query = (
        stream.watermark("at", 1_000_000).key_by("user").tumbling_window(60_000).agg(count(), total("at")).start(MemorySink())
    )
    for part in range(10):
        sender.send(pa.table({"user": [f"user {n}" for n in range(part * 10_000, (part + 1) * 10_000)], "at": [5] * 10_000}))
    query.process_all_available()
    query.lookup("user 7")
    for n in range(50):
        sender.send([{"user": f"user {n}", "at": n}])
        query.process_all_available()
        with allocated() as most:
            assert query.lookup(f"user {n * 400}")["count"].to_pylist() == [2 if n * 400 <= n else 1]
        assert most() < 50_000, "one number for each of the 100 000 keys takes 800 000"


def test_lookups_from_many_threads_while_batches_run(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(1_000_000).agg(count())
    query = plan.start(MemorySink(), checkpoint=str(tmp_path))
    sent, problems, over = 200, list[str](), threading.Event()

    def look(user: str) -> None:
        before = 0
        while not over.is_set():
            now = sum(query.lookup(user)["count"].to_pylist())
            if now < before:
                problems.append(f"{user}: {now} after {before}")
            before = now

    threads = [threading.Thread(target=look, args=(user,)) for user in ("a", "b", "a")]
    for thread in threads:
        thread.start()
    for n in range(sent):
        sender.send([{"user": "ab"[n % 2], "at": n}])
    query.process_all_available()
    over.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert [sum(query.lookup(user)["count"].to_pylist()) for user in "ab"] == [sent // 2, sent // 2]


@pytest.mark.parametrize("together", [1, 7, 64])
def test_last_results_are_those_of_the_sink(session: Session, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_TOGETHER", together)
    monkeypatch.setattr(outputs, "_MERGED_ROWS", 20)
    random = np.random.default_rng(5)
    stream, sender = session.memory_stream(SCHEMA)
    keyed = stream.watermark("at", 0).key_by("user", "place")
    query = keyed.tumbling_window(1_000).agg(count(), total("n")).start(MemorySink())
    assert query.lookup(("a", 0), last=3).num_rows == 0
    for batch in range(40):
        rows = [
            {"user": "abc"[u] if u < 3 else None, "place": int(p), "at": 700 * batch, "n": int(p)}
            for u, p in zip(random.integers(0, 4, 6), random.integers(0, 2, 6), strict=True)
        ]
        sender.send(rows)
        query.process_all_available()
        if batch % 5:
            continue
        left = query.results()
        for user, place in (("a", 0), ("b", 1), (None, 0), ("zzz", 1)):
            of_it = [r for r in left.to_pylist() if (r["user"], r["place"]) == (user, place)]
            for last in (1, 2, 100):
                assert query.lookup((user, place), last=last).to_pylist() == of_it[-last:]
            holding = [r for r in of_it if r["window_start"] <= 350 * batch < r["window_end"]]
            assert query.lookup((user, place), last=5, window=350 * batch).to_pylist() == holding
        both = query.lookup([("a", 0), ("b", 1)], last=1)
        assert both.schema == left.schema
        assert both.to_pylist() == [r for k in (("a", 0), ("b", 1)) for r in query.lookup(k, last=1).to_pylist()]


def test_a_session_says_how_many_results_stay_in_memory() -> None:
    held = []
    for most in (0, 1_000, 1_000_000):
        with Session.in_process(lookup_results=most) as session:
            stream, sender = session.memory_stream("user bigint, at bigint")
            query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(MemorySink())
            for batch in range(30):
                sender.send([{"user": n, "at": batch * 10} for n in range(200)])
                query.process_all_available()
            if not most:
                with pytest.raises(PlanError, match="lookup_results=0"):
                    query.lookup(1, last=1)
                assert query.lookup(1).num_rows == 1
                assert isinstance(query, ProcessQuery)
                (last,) = query._engine.last.values()
                assert not last._fresh and not last._pieces
                continue
            assert query.lookup(1, last=1)["window_start"].to_pylist() == [280]
            held.append(query.lookup(list(range(200)), last=1_000).num_rows)
    assert held[0] <= 1_000 < held[1] == 29 * 200
    with pytest.raises(PlanError, match="lookup_results"):
        Session.builder().lookup_results(4).get_or_create()
    for wrong in (-1, 1_000_001, True):
        with pytest.raises(PlanError, match="lookup_results"):
            Session.in_process(lookup_results=wrong)


def test_last_results_are_bounded_and_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.in_process(lookup_results=1_000)
    monkeypatch.setattr(outputs, "_MERGED_ROWS", 100)
    stream, sender = session.memory_stream("user bigint, at bigint")
    query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(MemorySink())
    for batch in range(60):
        sender.send([{"user": n, "at": batch * 10} for n in range(50)])
        query.process_all_available()
    assert 900 <= query.lookup(list(range(50)), last=1_000).num_rows <= 1_000
    for wrong in (0, -1, True, "two", 1.5):
        with pytest.raises(PlanError, match="last"):
            query.lookup(1, last=wrong)  # type: ignore[arg-type]
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    without = plan.select("count").start(MemorySink())
    with pytest.raises(PlanError, match="an output without 'user'"):
        without.lookup(1, last=1)
    session.stop()


def test_a_lookup_of_results_costs_nothing_for_other_keys(session: Session) -> None:
    stream, sender = session.memory_stream("user bigint, at bigint")
    query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(MemorySink())
    for batch in range(20):
        sender.send(pa.table({"user": np.arange(20_000), "at": np.full(20_000, batch * 10)}))
    query.process_all_available()
    query.lookup(5, last=1)
    for n in range(100):
        with allocated() as most:
            assert query.lookup(n * 100, last=3).num_rows == 3
        assert most() < 50_000, "one number for each of the 20 000 keys takes 160 000"


def test_a_lookup_waits_for_one_batch_only_however_many_follow(session: Session) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    query = stream.watermark("at", 0).key_by("user").count_window(10**9).agg(count()).trigger(Trigger.on_every_element())
    running = query.start(MemorySink())
    for n in range(400):
        sender.send([{"user": "a", "at": n}])
    seen = list[int]()
    while running.progress.backlog and running.progress.backlog["memory"]:
        running.lookup("a")
        seen.append(running.progress.batch_id)
    assert max((after - before for before, after in itertools.pairwise(seen)), default=0) < 20
    assert running.lookup("a").num_rows == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("trigger", [None, Trigger.on_every_element()], ids=["gathered", "one by one"])
def test_what_was_sent_before_is_in_a_lookup_without_age(tmp_path: Path, workers: int, trigger: Trigger | None) -> None:
    """However many send and look at the same time, and whether or not a batch takes several sends."""
    with Session.in_process(workers=workers) as session:
        stream, sender = session.memory_stream("user string, at bigint")
        keyed = stream.watermark("at", 100).key_by("user")
        windows = (keyed if trigger is None else keyed.trigger(trigger)).tumbling_window(1_000_000).agg(count())
        query = windows.start(MemorySink(), checkpoint=str(tmp_path))
        problems = list[str]()

        def work(user: str) -> None:
            for n in range(40):
                sender.send([{"user": user, "at": n}])
                actual = query.lookup(user, max_age=0)["count"].to_pylist()
                if actual != [n + 1]:
                    problems.append(f"{user}: {actual} after {n + 1}")

        threads = [threading.Thread(target=work, args=(user,)) for user in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        sender.send([{"user": "a", "at": 2_000_000}])
        if trigger is None:
            assert query.lookup("b", last=1, max_age=0)["count"].to_pylist() == [40]
        assert query.lookup("a", max_age=0)["count"].to_pylist()[-1] == 1
        query.stop()
        assert query.lookup("a", max_age=0)["count"].to_pylist()[-1] == 1


def test_a_lookup_without_age_does_not_wait_for_the_interval_of_batches(session: Session) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    counts = stream.watermark("at", 0).key_by("user").session_window(1_000).agg(count())
    query = counts.start(MemorySink(), batches=Batches.every("1 h"))
    for n in range(3):
        sender.send([{"user": "a", "at": n}])
        assert query.lookup("a", max_age=0)["count"].to_pylist() == [n + 1]
        assert query.lookup("b", max_age=0).num_rows == 0


def test_a_lookup_without_age_from_its_own_sink_is_refused_and_ends_with_the_query(session: Session) -> None:
    problems = list[BaseException]()

    class Looking(MemorySink):
        def write_tables(self, batch: Any, tables: Any) -> None:
            with pytest.raises(OperatorError, match="wait for itself"):
                query.lookup("a", max_age=0)
            problems.append(ValueError("on purpose"))
            raise problems[-1]

    stream, sender = session.memory_stream("user string, at bigint")
    query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(Looking())
    sender.send([{"user": "a", "at": 1}])
    sender.send([{"user": "a", "at": 100}])
    query.lookup("a", max_age=0)  # which waits for the batch that fails, and no longer
    with pytest.raises(OperatorError, match="on purpose"):
        query.await_termination()
    assert problems
