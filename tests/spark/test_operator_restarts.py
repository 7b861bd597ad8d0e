"""Every operator, stopped and started again between micro-batches: the same rows as a run without (SEMANTICS §6.3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    MemorySink,
    ParquetSink,
    ResultStream,
    Session,
    SideOutputLateEventHandler,
    SlidingWindows,
    StateTtlConfig,
    TimeIntervalWindowOptions,
    Trigger,
    collect_list,
    count,
    max,
    sum,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES
from krishiv_py.testing import Driver
from tests.spark.conftest import DDL, row, sorted_rows

KINDS: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(1_000),
    "hopping retractions": lambda s: s.allowed_lateness(600).emit("retractions").hopping_window(1_000, 250),
    "hopping on_count": lambda s: s.trigger(Trigger.on_count(3)).hopping_window(1_000, 500),
    "session": lambda s: s.late_rule("window").allowed_lateness(400).emit("retractions").session_window(120),
    "session, order-free": lambda s: s.late_rule("window").allowed_lateness(400).emit("retractions").session_window(120),
    "session max_duration": lambda s: s.session_window(120, max_duration=500),
    "session on_count": lambda s: s.trigger(Trigger.on_count(2)).emit("retractions").session_window(120),
    "look-back": lambda s: s.emit("retractions").allowed_lateness(200).lookback_window(300, with_row=True, exclude_self=True),
    "look-back on arrival": lambda s: s.allowed_lateness(200).lookback_window(300, with_row=True, emit="arrival"),
    "distinct": lambda s: s.windowed_by(SlidingWindows.of(300).grace(200)),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(interval_duration=1_000, creation_period=500)),
    "count": lambda s: s.count_window(7),
    "count on_count": lambda s: s.trigger(Trigger.on_count(2)).count_window(5),
    "tumbling with a TTL": lambda s: s.with_state_ttl(StateTtlConfig(1_500)).tumbling_window(2_000),
}


def batches(seeded: random.Random) -> list[list[dict[str, Any]]]:
    """Six batches, out of order, some of it late; one batch moves time only a little and one far."""
    starts = (0, 900, 1_000, 2_400, 2_500, 6_000)
    users = ["a", "b", "c", None]
    return [[row(seeded.choice(users), s + seeded.randrange(-700, 900), n) for n in range(25)] for s in starts]


def plan_of(keyed: KeyedStream, kind: str, late: ParquetSink) -> ResultStream:
    """The plan of a kind."""
    windowed: Any = KINDS[kind](keyed)
    ordered = () if kind.endswith("order-free") else (collect_list("amount"),)  # such sessions are combined before the shuffle
    plan: ResultStream = windowed.agg(count(), sum("amount"), max("at"), *ordered)
    return plan.with_late_event_handler(SideOutputLateEventHandler(late))


@pytest.fixture
def chunks_in(session: Session, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where chunks of state lie."""
    before = session.spark.conf.get(CHUNK_FILE_BYTES)
    session.spark.conf.set(CHUNK_FILE_BYTES, str(1 << 30) if request.param == "state store" else "0")
    yield request.param
    session.spark.conf.set(CHUNK_FILE_BYTES, before)


def rows(folder: Path, schema: pa.Schema) -> list[tuple[Any, ...]]:
    """All rows of an output."""
    return sorted_rows(pq.read_table(folder, schema=schema)) if list(folder.glob("*.parquet")) else []


EVERY = (1, 3, 4)
"""Before which batches a query is restarted; the short form has one of them, and one kind of each kernel."""
PLACES = [*((k, "files") for k in KINDS), ("session", "state store")]
SHORT = ("hopping retractions", "look-back on arrival")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "chunks_in", "restarts"),
    [
        *((kind, "files", (EVERY[i % 3],)) for i, kind in enumerate(SHORT)),
        ("session", "state store", (3,)),
        *(pytest.param(*place, EVERY, marks=pytest.mark.slow) for place in PLACES),
    ],
    indirect=["chunks_in"],
)
def test_a_restart_between_any_two_batches_changes_nothing(
    session: Session, tmp_path: Path, kind: str, chunks_in: str, restarts: tuple[int, ...]
) -> None:
    stream, sender = session.memory_stream(DDL)
    plan = plan_of(stream.watermark("at", 300).key_by("user"), kind, ParquetSink(str(tmp_path / "late")))
    driver = Driver(plan.with_late_event_handler(SideOutputLateEventHandler(MemorySink())))  # it writes to memory only
    steps = batches(random.Random(sum_of(kind)))
    expected, refused = [], []
    query = None
    for number, batch in enumerate(steps):
        if query is None or number in restarts:
            if query is not None:
                query.stop()
            query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
        sender.send(batch)
        query.process_all_available()  # a batch that waits for the next one fires with it: the log of changes would differ
        out = driver.send(batch)
        expected += sorted_rows(out.results)
        refused += sorted_rows(out.late)
    assert query is not None
    sender.close()
    query.process_all_available()
    out = driver.close()
    expected += sorted_rows(out.results)
    refused += sorted_rows(out.late)
    assert rows(tmp_path / "out", out.results.schema) == sorted(expected, key=repr)
    assert rows(tmp_path / "late", out.late.schema) == sorted(refused, key=repr)
    assert len(expected) > 5
    assert refused, "the test would prove little without late rows"
    assert query.progress.counters == driver.progress.counters
    query.stop()
    files = list((tmp_path / "checkpoint" / "krishiv" / "chunks").glob("*/*"))
    assert bool(files) == (chunks_in == "files")


def sum_of(name: str) -> int:
    """A seed that does not change between runs."""
    return int.from_bytes(name.encode(), "big") % 1_000_003
