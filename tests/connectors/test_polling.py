"""A silent source is asked seldom, and a query without work does not turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, Session, count
from krishiv_py.connectors.polling import PollBackoff
from krishiv_py.in_process.engine import Engine

SCHEMA = "user bigint, at bigint"


class Clock:
    """Is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time, s."""
        return self.now_s


@pytest.mark.parametrize(
    ("silent_s", "wait_s"), [(0.0, 0.02), (0.1, 0.02), (1.0, 0.1), (5.0, 0.5), (10.0, 1.0), (3_600.0, 1.0)]
)
def test_a_wait_is_a_tenth_of_the_silence(silent_s: float, wait_s: float) -> None:
    """At least the given time, at most a second."""
    clock = Clock()
    backoff = PollBackoff(0.02, clock)
    clock.now_s = silent_s
    assert backoff.wait_s == pytest.approx(wait_s)
    backoff.found()
    assert backoff.wait_s == 0.02


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_query_without_work_does_not_turn(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes later is read all the same."""
    turns, turn = [0], Engine._turn

    def counted(engine: Engine, **options: Any) -> float | None:
        turns[0] += 1
        return turn(engine, **options)

    monkeypatch.setattr(Engine, "_turn", counted)
    monkeypatch.setattr("krishiv_py.runtime.ranges.folders._LEAST_S", 0.4)
    folder = tmp_path / "in"
    folder.mkdir()
    with Session.in_process() as session:
        if kind == "memory":
            stream, sender = session.memory_stream(SCHEMA)
        else:
            stream = session.read_json(str(folder), SCHEMA, streaming=True)
        query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(MemorySink())
        query.process_all_available()
        time.sleep(0.2)
        turns[0] = 0
        time.sleep(1.0)
        idle = turns[0]
        rows = [{"user": 1, "at": 1}, {"user": 1, "at": 30}]
        if kind == "memory":
            sender.send(rows)
        else:
            (tmp_path / "new").write_text("".join(f'{{"user": {row["user"]}, "at": {row["at"]}}}\n' for row in rows))
            (tmp_path / "new").rename(folder / "a.json")
        query.process_all_available()
        assert query.results()["count"].to_pylist() == [1]
        query.stop()
    assert idle <= 4  # it was 50
