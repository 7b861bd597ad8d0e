"""State as a table on Spark: of a running and of a stopped query, the same as the driver's (SEMANTICS §6.5)."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from krishiv_py import MemorySink, ResultStream, Session, Stream, Trigger, avg, collect_list, count, sum
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.testing import Driver
from tests.spark.conftest import DDL, per_second, row, sorted_rows


def plan(stream: Stream, kind: str) -> ResultStream:
    keyed = stream.watermark("at", 500).key_by("user")
    windowed = {
        "tumbling": keyed.tumbling_window(1_000),
        "session": keyed.session_window(40),
        "count": keyed.count_window(7),
        "triggered": keyed.trigger(Trigger.on_count(3)).hopping_window(1_000, 500),
    }[kind]
    return windowed.agg(count(), sum("amount"), avg("amount"), collect_list("amount"))


def seen(table: pa.Table) -> list[tuple[object, ...]]:
    """All but the time of the last update, which is the wall clock's."""
    return sorted_rows(table.drop_columns(["last_update"]))


@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tumbling", "count", "triggered"))]
)
def test_a_running_and_a_stopped_query_show_the_state_of_the_driver(session: Session, tmp_path: Path, kind: str) -> None:
    stream, sender = session.memory_stream(DDL)
    requested, driver = plan(stream, kind), Driver(plan(stream, kind))
    checkpoint = str(tmp_path / "checkpoint")
    query = requested.start(MemorySink(), checkpoint=checkpoint)
    seeded = random.Random(3)
    for step in range(3):
        batch = [row(seeded.choice(["a", "b", "c", None]), step * 900 + seeded.randrange(900), n) for n in range(30)]
        sender.send(batch)
        driver.send(batch)
        query.process_all_available()
    wanted = driver.state()
    running = query.state()
    assert running.schema == wanted.schema
    assert wanted.num_rows
    assert seen(running) == seen(wanted)
    assert running["window_end"].to_pylist() == sorted(running["window_end"].to_pylist())
    age = datetime.now(timezone.utc) - min(running["last_update"].to_pylist())
    assert timedelta(0) <= age < timedelta(minutes=10)
    keys = query.pending_keys
    assert keys == driver.pending_keys == 4
    looked_up = query.lookup(["b", None], max_age="1 h")
    assert seen(looked_up) == [r for r in seen(wanted) if r[0] in ("b", None)]
    assert query.lookup("nobody").num_rows == 0
    assert looked_up.schema.metadata is not None and int(looked_up.schema.metadata[b"age_ms"]) < 600_000
    if kind != "count":
        of_b = pc.field("user") == "b"
        open_ = wanted.filter(of_b & (pc.field("window_start") <= 1_200) & (pc.field("window_end") > 1_200))
        assert len(query.lookup("b", window=1_200)) == open_.num_rows
    sender.send([row("b", 2_650, 9)])
    query.process_all_available()
    driver.send([row("b", 2_650, 9)])
    wanted = driver.state()
    assert query.lookup("b", max_age="1 h") == looked_up.filter(pc.is_valid(looked_up["user"])), "the snapshot is kept"
    assert seen(query.lookup("b", max_age=0)) == [r for r in seen(wanted) if r[0] == "b"]
    with pytest.raises(PlanError, match="leave `last` out"):
        query.lookup("b", last=1)
    running = query.state()
    query.stop()
    assert query.state() == running and query.pending_keys == keys
    assert session.read_state(checkpoint, plan(stream, kind)) == running


def test_before_the_first_batch_nothing_is_in_state(session: Session, tmp_path: Path) -> None:
    stream, _ = session.memory_stream(DDL)
    query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path))
    assert query.state() == Driver(per_second(stream)).state()
    query.stop()


def test_another_plan_or_none_is_refused(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    with pytest.raises(CheckpointError, match="no query has kept its state here"):
        session.read_state(str(tmp_path / "nothing"), per_second(stream))
    query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "one"))
    sender.send([row("a", 1)])
    query.process_all_available()
    query.stop()
    with pytest.raises(CheckpointError, match="window kind was tumbling and is session"):
        session.read_state(str(tmp_path / "one"), plan(stream, "session"))


def test_the_state_of_a_temporary_checkpoint_goes_with_the_query(session: Session) -> None:
    stream, sender = session.memory_stream(DDL)
    query = per_second(stream).start(MemorySink())
    sender.send([row("a", 1)])
    query.process_all_available()
    assert query.state()["count"].to_pylist() == [1]
    query.stop()
    with pytest.raises(CheckpointError, match="without one, state goes when the query is stopped"):
        query.state()
