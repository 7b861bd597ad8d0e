"""State on Spark: large maps are kept in pages, and give what they give in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.engine.loop import as_if_ended
from krishiv_py.engine.stage import StageInput
from krishiv_py.kernels.results import in_order
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state import store
from krishiv_py.kernels.state.store import PAGE, Bucket, SortedMap
from krishiv_py.plan.durations import UNSET
from krishiv_py.runtime import chunk_files
from krishiv_py.runtime.chunk_files import ChunkFolder
from krishiv_py.spark.state import OpenWindowReader, ReadPages
from krishiv_py.spark.tasks.processor import SparkPages, SparkStore
from krishiv_py.storage.checksums import decode
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.spark.fake_state import FakeState, Operated, with_fake_state

SHAPES: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "hopping": lambda s: s.hopping_window(25, 10),
    "updates": lambda s: s.allowed_lateness(30).emit("updates").hopping_window(20, 5),
    "retractions": lambda s: s.allowed_lateness(30).emit("retractions").tumbling_window(10),
    "every element": lambda s: s.trigger(kv.Trigger.on_every_element()).hopping_window(20, 10),
    "interval": lambda s: s.trigger(kv.Trigger.on_interval(5)).tumbling_window(10),
    "panes": lambda s: s.time_interval_window(
        kv.TimeIntervalWindowOptions(interval_duration=0.03, creation_period=0.01, discard_age=0.02)
    ),
    "session": lambda s: s.session_window(10),
    "longest session": lambda s: s.session_window(10, max_duration=30),
    "session by element": lambda s: s.trigger(kv.Trigger.on_every_element()).session_window(10),
    "look-back": lambda s: s.lookback_window(20),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(20).grace(20)),
    "count": lambda s: s.count_window(5, 2),
    "TTL": lambda s: s.with_state_ttl(kv.StateTtlConfig(40)).tumbling_window(10),
    "processing TTL": lambda s: s.with_state_ttl(kv.StateTtlConfig(7, clock="processing")).hopping_window(20, 10),
}
batches = st.lists(
    st.tuples(st.integers(0, 10), st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 400)), max_size=30)), max_size=10
)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("shape", SHAPES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
@example([(0, [(0, 0)]), (0, [(0, 61)]), (0, [(0, 81)])])  # a look-back row that goes while nothing is due
@example([(0, [(0, 0), (0, 60)]), (0, [(0, 0)]), (0, [(0, 0), (0, 70)])])  # rows that join a session with a longest duration
def test_pages_give_what_memory_gives(shape: str, given_batches: list[tuple[int, list[tuple[int, int]]]]) -> None:
    clock = ManualClock()
    keyed = stream_of("user bigint, at bigint").watermark("at", 60).key_by("user")
    driver = Driver(SHAPES[shape](keyed).agg(kv.count(), kv.sum("at")), clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "MOST", 3)
        patch.setattr(store, "_FULL", 2)
        with_fake_state(driver, patch)
        for seconds, rows in given_batches:
            clock.advance(1 + seconds)
            driver.send([{"user": user, "at": moment} for user, moment in rows])
        driver.close()


OPEN: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(1_000),
    "hopping": lambda s: s.hopping_window(5_000, 1_000),
    "updates": lambda s: s.allowed_lateness(5_000).emit("updates").tumbling_window(1_000),
    "every element": lambda s: s.trigger(kv.Trigger.on_every_element()).tumbling_window(1_000),
    "interval": lambda s: s.trigger(kv.Trigger.on_interval(1_000_000_000)).tumbling_window(1_000),
    "panes": lambda s: s.time_interval_window(kv.TimeIntervalWindowOptions(interval_duration=2, creation_period=1)),
    "TTL": lambda s: s.with_state_ttl(kv.StateTtlConfig(1_000_000_000)).tumbling_window(1_000),
    "session": lambda s: s.session_window(400),
    "longest session": lambda s: s.session_window(400, max_duration=700),
    "session by element": lambda s: s.trigger(kv.Trigger.on_every_element()).session_window(400),
    "look-back": lambda s: s.lookback_window(1_000),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(1_000).grace(0)),
    "count": lambda s: s.count_window(1_000),
}
DAY = 86_400_000
BATCHES = 5
BY_KEY = ("session", "longest session", "session by element", "count", "look-back", "distinct")
"""These keep rows by key or by time, not window by window: here each key has one window."""


def opened(kind: str, n: int) -> Driver:
    """A driver that has seen nothing, of a query in which nothing will be due."""
    keyed = stream_of("user bigint, at bigint").watermark("at", 1_000 * DAY).key_by("user")
    return Driver(OPEN[kind](keyed).agg(kv.count()), idle_batches=False)


def many_rows(kind: str, n: int) -> pa.Table:
    """Rows that open so many windows."""
    return pa.table({"user": range(n) if kind in BY_KEY else [1] * n, "at": [10 * DAY + 1_000 * i for i in range(n)]})


def cost(kind: str, open_windows: int, folder: Path) -> tuple[FakeState, FakeState]:
    """What batches of one row, and without rows, ask of Spark's state when so many windows are open."""
    driver = opened(kind, open_windows)
    files = ChunkFolder(str(folder), batches=2, large_bytes=1 << 16)  # as by default: large pieces are mapped, not read
    with pytest.MonkeyPatch.context() as patch:
        state = with_fake_state(driver, patch, blobs=files).state
        driver.send(many_rows(kind, open_windows))
        actual = []
        for rows in (1, 0):
            driver.send([])
            state.reset()
            for batch in range(BATCHES):
                moment = open_windows // 2 + batch
                driver.send([{"user": moment if kind in BY_KEY else 1, "at": 10 * DAY + 1_000 * moment}] * rows)
            actual.append(attrs.evolve(state, held={}))
    return actual[0], actual[1]


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", OPEN)
def test_a_batch_costs_what_it_brings(kind: str, tmp_path: Path) -> None:
    few, many = cost(kind, 100, tmp_path / "few"), cost(kind, 20_000, tmp_path / "many")
    for before, after in zip(few, many, strict=True):
        assert after.calls <= before.calls + 7 * BATCHES, "pages of two or three maps"
        assert after.read + after.written <= before.read + before.written + 2 * 24_000 * BATCHES


KEPT: dict[str, Callable[[Any], Any]] = {
    "retractions": lambda s: s.allowed_lateness(10 * DAY).emit("retractions").with_pane().hopping_window(5_000, 1_000),
    "panes": lambda s: s.time_interval_window(
        kv.TimeIntervalWindowOptions(interval_duration=5.0, creation_period=1.0, discard_age=1e6)
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_late_row_costs_its_windows_and_not_all_that_have_ended(kind: str) -> None:
    actual = []
    for n in (100, 1_500):
        keyed = stream_of("user bigint, at bigint").watermark("at", 0).key_by("user")
        driver = Driver(KEPT[kind](keyed).agg(kv.count()))
        with pytest.MonkeyPatch.context() as patch:
            state = with_fake_state(driver, patch).state
            driver.send(pa.table({"user": [1] * n, "at": [10 * DAY + 1_000 * i for i in range(n)]}))
            assert driver.open_windows == n + 4
            state.reset()
            for batch in range(BATCHES):
                driver.send([{"user": 1, "at": 10 * DAY + 1_000 * (n // 2) + batch}])
            actual.append(attrs.evolve(state, held={}))
    few, many = actual
    assert many.calls <= few.calls + 8 * BATCHES, "pages of two or three maps"
    assert many.read + many.written <= few.read + few.written + 24_000 * BATCHES


@pytest.mark.parametrize("n", [100, 100_000])
def test_what_a_step_reads_and_writes_does_not_grow_with_open_windows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of each window is a chunk of the same bytes, so that 100 000 of them are made quickly."""
    driver = opened("tumbling", n)
    operated = with_fake_state(driver, monkeypatch)
    driver.send(many_rows("tumbling", 1))
    meta = before_pages(operated.state)
    chunk = next(name for name in operated.state.held if name.startswith("s/"))
    begins = [10 * DAY * 1_000 + 1_000_000 * i for i in range(n)]
    meta["runs:s"] = {str(begin): [[0, 1]] for begin in begins}
    meta["sizes"] = {f"s/{begin}/0": len(operated.state.held[chunk]) for begin in begins}
    held = {f"s/{begin}/0": operated.state.held[chunk] for begin in begins}
    held["meta"] = json.dumps(meta).encode()
    monkeypatch.undo()
    alone = Operated(driver._plan, FakeState(held))
    alone.step(StageInput(), Moment(0))
    assert alone.report.open_windows == alone.report.open_rows == n
    alone.state.reset()
    chunks = operated.processor._stage.operator.combine(
        pa.table({"k0": [1] * 3, "__t": [begins[n // 2]] * 3})  # one window in the middle
    )
    alone.step(StageInput([chunks]), Moment(0))
    assert alone.report.open_windows == n
    assert alone.report.open_rows == n + 1
    assert alone.state.calls <= 10
    assert alone.state.read + alone.state.written <= 80_000


def before_pages(state: FakeState) -> dict[str, Any]:
    """The dictionary of a bucket as it was before maps had pages; pages are taken out of the state."""
    pages = {name: json.loads(state.held.pop(name)) for name in list(state.held) if name.startswith(PAGE)}
    meta = json.loads(state.held["meta"])
    for name, value in meta.items():
        if isinstance(value, dict) and "" in value:
            numbered = name == "changed" or name.startswith("runs:")
            whole: SortedMap[Any] = SortedMap(f"{PAGE}{name}", int if numbered else str, ReadPages(pages), value)
            meta[name] = {str(k): v for k, v in zip(whole, whole.values(), strict=True)}
    if "changed" in meta:
        meta["changed"] = [int(w) for w in meta["changed"]]
    meta = {name: value for name, value in meta.items() if name != "bytes" and not name.startswith("sums:")}
    state.held["meta"] = json.dumps(meta).encode()
    return meta


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_state_from_before_pages_is_read(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 3)
    monkeypatch.setattr(store, "_FULL", 2)
    clock = ManualClock()
    keyed = stream_of("user bigint, at bigint").watermark("at", 60).key_by("user")
    driver = Driver(SHAPES[shape](keyed).agg(kv.count(), kv.sum("at")), clock=clock)
    operated = with_fake_state(driver, monkeypatch)
    paged = False
    for batch in range(12):
        clock.advance(3)
        driver.send([{"user": i % 3, "at": 25 * batch + 7 * i % 90} for i in range(20)])
        paged |= any(name.startswith(PAGE) for name in operated.state.held)
        if batch % 3 == 2:
            before_pages(operated.state)
    driver.close()
    assert paged or shape == "count", "of one map with an entry for all keys"


def test_state_in_pages_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened("hopping", 0)
    operated = with_fake_state(driver, monkeypatch)
    driver.send(many_rows("hopping", 1_000))
    assert any(name.startswith(PAGE) for name in operated.state.held)
    n, names = len(operated.state.held), list(operated.state.held)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0] * n), pa.array(names), pa.array(list(operated.state.held.values()), pa.binary())],
        names=["bucket", "name", "blob"],
    )
    shown = OpenWindowReader(driver._plan.stage.spec, ChunkFolder("nowhere", 0, 0))(iter([rows]))
    actual = in_order([decode(blob.as_py()) for part in shown for blob in part["blob"]], 1)
    held = in_order([driver.state()], 1)
    assert actual.drop_columns(["last_update"]).equals(held.drop_columns(["last_update"]))


def test_large_chunks_are_found_again_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 3)
    monkeypatch.setattr(store, "_FULL", 2)
    keyed = stream_of("user bigint, at bigint").watermark("at", 100).key_by("user")
    driver = Driver(keyed.hopping_window(25, 10).agg(kv.count()))
    folder = ChunkFolder(str(tmp_path), batches=2, large_bytes=0)
    operated = with_fake_state(driver, monkeypatch, blobs=folder)
    for batch in range(30):
        driver.send([{"user": i % 3, "at": 20 * batch + 17 * i % 90} for i in range(20)])
        monkeypatch.setattr(chunk_files, "_opened", set())  # as in a process that opens the bucket for the first time
        (tmp_path / "krishiv" / "chunks" / "00000" / f"{batch:x}-0123456789ab").write_bytes(b"of a failed attempt")
    driver.close()
    driver.send([])
    files = {path.name for path in (tmp_path / "krishiv" / "chunks" / "00000").iterdir()}
    assert operated.report.state_bytes == 0
    assert len(files) < 100


@pytest.mark.parametrize("shape", ["hopping", "interval", "panes", "TTL", "session"])
def test_what_would_come_if_the_input_ended_reads_pages_and_writes_none(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 3)
    monkeypatch.setattr(store, "_FULL", 2)
    keyed = stream_of("user bigint, at bigint").watermark("at", 1_000).key_by("user")
    driver = Driver(SHAPES[shape](keyed).agg(kv.count()))
    operated = with_fake_state(driver, monkeypatch)
    for batch in range(5):
        driver.send([{"user": i % 3, "at": 50 * batch + 7 * i} for i in range(20)])
    before = dict(operated.state.held)
    pages = SparkPages(operated.state)
    meta = json.loads(before["meta"])
    bucket = Bucket(SparkStore(operated.state, meta, pages, None), meta, 1, pages)
    actual = as_if_ended(operated.processor._stage, bucket, Moment(UNSET, 1))
    assert operated.state.held == before
    monkeypatch.undo()
    names = [name for name in actual.column_names if not name.startswith("pane")]  # the timing of what comes early says so
    ended = driver.close().results.select(names).to_pylist()
    assert sorted(map(repr, actual.select(names).to_pylist())) == sorted(map(repr, ended))
