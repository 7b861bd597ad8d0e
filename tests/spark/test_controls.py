"""Heartbeats and the end of input: control files come, are read, and go."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import Batches, MemorySink, MultiSourceWatermarkSpec, Session, WatermarkSpec, count
from krishiv_py.errors import CheckpointError, OperatorError
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import add_source, sums
from krishiv_py.runtime.controls import ControlFolder, Heartbeats
from krishiv_py.testing import stream_of
from tests.spark.conftest import DDL, per_second, row, sorted_rows


def folder_of(checkpoint: str) -> ControlFolder:
    """The control files of a checkpoint."""
    made = ControlFolder.of(checkpoint, wanted=True)
    assert made is not None
    return made


BEAT = Control(UNSET, None, 0)


def names(folder: Path) -> list[str]:
    """The control files of a checkpoint."""
    return sorted(p.name for p in (folder / "krishiv" / "controls").iterdir())


def test_a_file_goes_when_the_batch_that_read_it_is_done(tmp_path: Path) -> None:
    controls = folder_of(str(tmp_path))
    controls.write(BEAT)
    (first,) = names(tmp_path)
    controls.batch_done()  # the batch that read it, or the one before
    controls.batch_done()  # the batch that read it may be this one: it could be repeated
    assert names(tmp_path) == [first]
    controls.write(BEAT)
    controls.batch_done()
    (second,) = names(tmp_path)
    assert second > first, "Spark would take a name it has seen for a file it has read"
    for _ in range(3):
        controls.batch_done()
    assert names(tmp_path) == []


def test_what_an_earlier_run_left_goes_too(tmp_path: Path) -> None:
    folder_of(str(tmp_path)).write(BEAT)
    controls = folder_of(str(tmp_path))
    for _ in range(3):
        controls.batch_done()
    assert names(tmp_path) == []


def test_a_checkpoint_may_be_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "with space, %20 and #"
    folder_of(f"file://{folder}").write(BEAT)  # nothing encoded: Spark takes such a text as it is
    assert len(names(folder)) == 1


class HeldClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


def heartbeats_after(folder: Path, wanted: int) -> int:
    """How many files there are, once there are enough or a second has passed."""
    end = time.monotonic() + 1
    while len(names(folder)) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    return len(names(folder))


def test_the_pulse_rests_while_batches_run_and_ends_with_its_query(tmp_path: Path) -> None:
    clock, running = HeldClock(), True
    heartbeats = Heartbeats(folder_of(str(tmp_path)), 1_000_000, clock)
    heartbeats.start(lambda: running)
    clock.now_us = 1_000_000
    assert heartbeats_after(tmp_path, 1) == 1
    clock.now_us = 1_900_000
    heartbeats.batch_done()
    clock.now_us = 2_800_000  # a period after the last beat, but not after the last batch
    assert heartbeats_after(tmp_path, 2) == 1
    clock.now_us = 2_900_000
    assert heartbeats_after(tmp_path, 2) == 2
    clock.now_us = 9_000_000  # the batch that is to read it takes long
    assert heartbeats_after(tmp_path, 3) == 2
    heartbeats.batch_done()
    running = False
    clock.now_us = 99_000_000
    assert heartbeats._thread is not None
    heartbeats._thread.join(5)
    assert not heartbeats._thread.is_alive(), "a query that failed would be beaten on for ever"
    assert len(names(tmp_path)) == 2


def test_a_heartbeat_that_fails_is_reported_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, failed = HeldClock(), threading.Event()
    written: list[int] = []

    def write(self: ControlFolder, control: Control) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("No space left on device")
        written.append(control.now_us)

    monkeypatch.setattr(ControlFolder, "write", write)
    heartbeats = Heartbeats(folder_of(str(tmp_path)), 1_000_000, clock)
    with pytest.warns(RuntimeWarning, match="No space left"):
        heartbeats.start(lambda: True)
        clock.now_us = 1_000_000
        assert failed.wait(5)
        clock.now_us = 2_000_000
        end = time.monotonic() + 5
        while not written and time.monotonic() < end:
            time.sleep(0.01)
        heartbeats.stopping(lambda: None)()
    assert written == [2_000_000]


def test_a_silent_source_times_out_and_leaves_no_files(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("source string, at bigint")
    two = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    plan = stream.with_watermark(two.idle_timeout(200), "at", source_column="source").tumbling_window(1_000).agg(count())
    query = plan.start(MemorySink(), checkpoint=str(tmp_path))
    sender.send([{"source": "a", "at": 10}, {"source": "b", "at": 20}])
    sender.send([{"source": "a", "at": 1_500}])  # b holds the watermark back until it counts as silent
    seen: set[str] = set()
    end = time.monotonic() + 60
    while not (query.results().num_rows and seen - set(names(tmp_path))) and time.monotonic() < end:
        seen.update(name for name in names(tmp_path) if name.endswith(".parquet"))
        assert query.exception() is None
        time.sleep(0.05)
    assert sorted_rows(query.results()) == [(0, 1_000, 2)]
    assert seen - set(names(tmp_path)), "a quiet query would fill its checkpoint"
    query.stop()


def test_a_flush_that_cannot_begin_is_reported(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, sender = session.memory_stream(DDL)
    sender.send([row("a", 10)])

    def full(self: ControlFolder, control: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(ControlFolder, "write", full)
    query = per_second(stream).start(MemorySink(), batches=Batches.available_now(flush=True))
    with pytest.raises(OperatorError, match="No space left"):
        query.await_termination()
    assert query.status == "failed"
    assert "No space left" in str(query.exception())
    query.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        (False, True, False),
        pytest.param((True, False, True), marks=pytest.mark.slow),
        pytest.param((False, False, True), marks=pytest.mark.slow),
    ],
)
def test_any_run_from_a_checkpoint_may_flush(session: Session, tmp_path: Path, order: tuple[bool, ...]) -> None:
    """Spark refuses a checkpoint whose query had another number of sources."""
    stream, sender = session.memory_stream(DDL)
    sink = MemorySink()
    for i, flush in enumerate(order):
        sender.send([row("a", i * 10_000), row("a", i * 10_000 + 10)])
        query = per_second(stream).start(sink, checkpoint=str(tmp_path), batches=Batches.available_now(flush=flush))
        assert query.await_termination()
        query.stop()
    flushed = order.index(True)  # the end of input: what comes later is late
    assert sorted_rows(query.results()) == [("a", i * 10_000, i * 10_000 + 1_000, 2, 2) for i in range(flushed + 1)]
    assert query.progress.late["late"] == 2 * (len(order) - 1 - flushed)


def test_room_for_a_source_is_made_once(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "krishiv").mkdir()
    for batch in (7, 8):
        (offsets / str(batch)).write_text('v1\n{}\n{"logOffset":3}\n-')
    (offsets / ".8.crc").write_bytes(sums((offsets / "8").read_bytes(), 512))
    add_source(str(tmp_path))
    (offsets / "7").write_text('v1\n{}\n{"logOffset":3}\n-')  # as if it had been broken off here
    add_source(str(tmp_path))
    assert [(offsets / str(b)).read_text() for b in (7, 8)] == ['v1\n{}\n{"logOffset":3}\n-\n-'] * 2
    assert not (offsets / ".8.crc").exists()


def test_a_log_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v9\n{}\n-")
    with pytest.raises(CheckpointError, match="version v9"):
        ControlFolder.of(str(tmp_path), wanted=True)


def test_a_checkpoint_keeps_its_clock(tmp_path: Path) -> None:
    """Under the ledger's clock, timers and the watermark of Spark's would stand still."""
    two = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    stream = stream_of("source string, at bigint")
    one = stream.watermark("at", 0).tumbling_window(1_000).agg(count())
    several = stream.with_watermark(two, "at", source_column="source").tumbling_window(1_000).agg(count())
    notes = CheckpointNotes(str(tmp_path))
    notes.claim(one._plan(), 2)
    with pytest.raises(CheckpointError, match="clock was"):
        notes.claim(several._plan(), 2)
