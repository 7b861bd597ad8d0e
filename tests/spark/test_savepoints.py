"""Savepoints on Spark: written by either engine, and begun from by either, with one more aggregate too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, ResultStream, Session, count, sum
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


@pytest.mark.parametrize("begun_on", ["spark", "in-process"])
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
