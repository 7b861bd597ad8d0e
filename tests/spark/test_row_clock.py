"""The row clock on Spark: in other batches, over restarts and in a bounded run, what the driver gives row by row."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, ParquetSink, Session, SideOutputLateEventHandler
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import Driver, stream_of
from tests.engines import test_lanes as of_lanes
from tests.engines import test_row_clock as law
from tests.engines.lanes import LanesInCuts
from tests.in_process.test_row_clock import windows

KINDS = ("chain", "union", "interval join", "deduplication")
SLOW = ("tumbling", "session", "look-back on arrival", "join of results")


def of_session(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any]) -> None:
    """Let the plans of the law be over memory streams of a session."""

    def stream(schema: str) -> Stream:
        name = "right" if schema == law.RIGHT or ("left" in made and schema == law.SCHEMA and made["of union"]) else "left"
        rows, sender = session.memory_stream(schema, spool=str(folder / name))
        made[name] = sender
        return rows

    monkeypatch.setattr(law, "stream_of", stream)
    monkeypatch.setattr(law, "union_of", session.union)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_spark_gives_what_the_driver_gives_row_by_row(
    session: Session, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, build = random.Random(f"spark {kind}"), {**law.ONE_LANE, **law.TWO_LANES}[kind]
    arrived = law.rows_of(chance, kind, 60)
    expected = law.ran(build, "row", kind, law.cut(chance, arrived, 1), chance, None)
    batches, results = list(law.cut(chance, arrived, 40)), list[str]()

    def planned(clock: RowsClock = "row") -> tuple[Any, dict[str, Any]]:
        made: dict[str, Any] = {"of union": "union" in kind}
        of_session(session, tmp_path, monkeypatch, made)
        return build(clock), made

    for begin, some in enumerate((batches[: len(batches) // 2], batches[len(batches) // 2 :])):
        plan, made = planned()
        query = plan.start(MemorySink(), checkpoint=str(tmp_path / "c"))
        for batch in some:
            for name, rows in batch.items():
                made[name].send(rows)
            query.process_all_available()
        if begin:
            for sender in {made[name] for name in ("left", "right") if name in made}:
                sender.close()
            query.process_all_available()
        results += [repr(row) for row in query.results().to_pylist()]
        query.stop()
    assert sorted(results) == expected[0]
    bounded = planned()[0].collect()
    assert sorted(map(repr, bounded.to_pylist())) == expected[0]


BY_LANES = ("capped session, rule window, retractions", "session, rule window, second rows", "distinct sets, rule window")


@pytest.mark.parametrize("kind", [BY_LANES[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in BY_LANES[1:])])
def test_state_refuses_rows_by_their_lanes(session: Session, kind: str, tmp_path: Path) -> None:
    chance = random.Random(f"lanes of Spark 39 {kind}")
    lanes = of_lanes.drawn(chance, "at", "v", own_keys=True)
    expected, late = of_lanes.Trial(of_lanes.PLANS[kind], lanes, [[]]).of_lanes_alone()
    assert len(lanes) > 1
    assert late
    source, given, refused = LanesInCuts(lanes, of_lanes.LEFT, 3, 30), MemorySink(), MemorySink()
    stream = session.read_source(source).with_late_event_handler(SideOutputLateEventHandler(refused))
    plan = of_lanes.PLANS[kind]("row", stream, stream_of(of_lanes.RIGHT))
    query = plan.start(given, checkpoint=str(tmp_path / "c"), batches=Batches.available_now())
    assert query.await_termination("2 minutes")
    alone = of_lanes.Trial(of_lanes.PLANS[kind], lanes, [[]]).alone("row")
    assert of_lanes.folds(alone, of_lanes.rows_in(given)) == expected
    assert of_lanes.said(of_lanes.rows_in(refused)) == late


def test_lanes_move_between_engines(session: Session, tmp_path: Path) -> None:
    """A query in process goes on on Spark and comes back: a row is late by rows that the other engine read."""
    rng = random.Random(7)
    rows = [{"user": rng.choice("ab"), "at": 500 * (number + rng.randrange(-12, 5))} for number in range(20, 80)]
    arrow = stream_of("user string, at bigint").schema
    (tmp_path / "in").mkdir()
    driver, checkpoint = Driver(windows(stream_of(arrow))), str(tmp_path / "a")
    steps = [driver.send([row]) for row in rows]
    expected, late = [row for step in steps for row in step.results.to_pylist()], [step.late.num_rows for step in steps]
    assert all(sum(late[begin : begin + 20]) for begin in (0, 20, 40))

    def run(on: Session, begin: int, end: int) -> None:
        for number in range(begin, end, 5):
            pq.write_table(
                pa.Table.from_pylist(rows[number : number + 5], arrow), file := tmp_path / "in" / f"{number}.parquet"
            )
            os.utime(file, (number + 1, number + 1))
        stream = on.read_parquet(tmp_path / "in", arrow, streaming=True, max_files_per_batch=2)
        query = windows(stream).start(ParquetSink(tmp_path / "out"), checkpoint=checkpoint, batches=Batches.available_now())
        query.await_termination()
        assert query.progress.late["late"] == sum(late[:end])

    with Session.in_process() as here:
        run(here, 0, 20)
        checkpoint = here.move(checkpoint, "spark", buckets=2)
        run(session, 20, 40)
        checkpoint = session.move(checkpoint, "in-process", str(tmp_path / "b"))
        run(here, 40, 60)
    given = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(map(repr, given)) == sorted(map(repr, expected))
