"""Savepoints on Spark: written by either engine, and begun from by either, with one more aggregate too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, MultiSourceWatermarkSpec, ResultStream, Session, WatermarkSpec, count, sum
from krishiv_py.errors import CheckpointError
from tests.spark.conftest import DDL, row, sorted_rows

BEFORE = ([row("a", 1_000, 5), row("b", 12_000)], [row("a", 13_000, 7)])
AFTER = [row("a", 14_000, 2), row("a", 25_000, 2)]


def windows(session: Session, *more: Any) -> tuple[ResultStream, Any]:
    stream, sender = session.memory_stream(DDL, name="events")
    return stream.watermark("at", 0).key_by("user").tumbling_window(10_000).agg(count(), *more), sender


def saved(session: Session, checkpoint: Path, path: Path) -> None:
    """Run some batches, and write a savepoint while the query runs."""
    stream, sender = windows(session)
    with stream.start(MemorySink(), checkpoint=str(checkpoint)) as query:
        for batch in BEFORE:
            sender.send(batch)
            query.process_all_available()
        query.savepoint(str(path))
        assert sorted_rows(query.results()) == [("a", 0, 10_000, 1)]


def rest(session: Session, checkpoint: Path, savepoint: Path, *more: Any) -> list[tuple[Any, ...]]:
    """Go on from a savepoint to the end of input."""
    stream, sender = windows(session, *more)
    with stream.start(MemorySink(), checkpoint=str(checkpoint), savepoint=str(savepoint)) as query:
        sender.send(AFTER)
        sender.close()
        query.process_all_available()
        return sorted_rows(query.results())


@pytest.mark.parametrize("begun_on", ["spark", pytest.param("in-process", marks=pytest.mark.slow)])
def test_a_query_goes_on_from_the_savepoint_of_either_engine(session: Session, tmp_path: Path, begun_on: str) -> None:
    with Session.in_process() as process:
        saved(session if begun_on == "spark" else process, tmp_path / "first", tmp_path / "savepoint")
        expected = [("a", 10_000, 20_000, 2), ("a", 20_000, 30_000, 1), ("b", 10_000, 20_000, 1)]
        assert rest(session, tmp_path / "second", tmp_path / "savepoint") == expected
        if begun_on == "spark":
            assert rest(process, tmp_path / "third", tmp_path / "savepoint") == expected
            # of the windows that were open before, the new sum is not known
            session.savepoint(str(tmp_path / "first"), str(tmp_path / "of the checkpoint"))
            assert rest(session, tmp_path / "fourth", tmp_path / "of the checkpoint", sum("amount")) == [
                ("a", 10_000, 20_000, 2, None),
                ("a", 20_000, 30_000, 1, 2),
                ("b", 10_000, 20_000, 1, None),
            ]
        else:
            with pytest.raises(CheckpointError, match="runs in process"):
                rest(session, tmp_path / "first", tmp_path / "savepoint")


@pytest.mark.slow
def test_a_plan_is_changed_in_place_and_over_a_savepoint(session: Session, tmp_path: Path) -> None:
    """Lateness and names in place; one stream becomes a union, and an aggregate is added, over a savepoint."""
    spool = str(tmp_path / "spool")
    first, sender = session.memory_stream(DDL, name="events", spool=spool)
    minutes = first.watermark("at", 0).allowed_lateness("0 s").emit("final").key_by("user").tumbling_window(10_000)
    with minutes.agg(count()).start(MemorySink(), checkpoint=str(tmp_path / "c")) as query:
        sender.send([row("a", 1_000), row("b", 12_000), row("a", 13_000)])
        query.process_all_available()
        assert query.results().num_rows == 1
    longer = first.watermark("at", 0).allowed_lateness("5 s").emit("final").key_by("user").tumbling_window(10_000)
    with pytest.raises(CheckpointError, match="krishiv savepoint"):
        longer.agg(count(), sum("amount")).start(MemorySink(), checkpoint=str(tmp_path / "c"))
    with longer.agg(count().alias("n")).start(MemorySink(), checkpoint=str(tmp_path / "c")) as query:
        sender.send([row("a", 2_000), row("a", 18_000), row("a", 21_000)])  # the first is of a window that has left
        query.process_all_available()
        assert query.results().num_rows == 0
        assert query.progress.counters["very_late"] == 1
        query.savepoint(str(tmp_path / "s"))
    again, sender = session.memory_stream(DDL, name="events", spool=spool)
    other, second = session.memory_stream(DDL, name="others")
    both = session.union({"events": again, "others": other})
    spec = MultiSourceWatermarkSpec.new()
    for name in ("events", "others"):
        spec = spec.source(name, WatermarkSpec.fixed_lag(0, initial="savepoint"))
    keyed = both.with_watermark(spec, "at", source_column="source").allowed_lateness("5 s").emit("final").key_by("user")
    changed = keyed.tumbling_window(10_000).agg(count().alias("n"), sum("amount"))
    with changed.start(MemorySink(), checkpoint=str(tmp_path / "d"), savepoint=str(tmp_path / "s")) as query:
        second.send([row("c", 22_000, 4)])
        for each in (sender, second):
            each.close()
        query.process_all_available()
        assert sorted(tuple(result.values()) for result in query.results().to_pylist()) == [
            ("a", 10_000, 20_000, 2, None),
            ("a", 20_000, 30_000, 1, None),
            ("b", 10_000, 20_000, 1, None),
            ("c", 20_000, 30_000, 1, 4),
        ]
