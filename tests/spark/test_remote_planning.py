"""Without a server: what its process plans, and what it notes for the client when it cannot go on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from krishiv_py.connectors.ranges import node_of
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, SourceError
from krishiv_py.failures.retrying import RunningRetries
from krishiv_py.runtime.ranges.planning import RangePlanner, planners
from krishiv_py.spark.remote.rows import forget_failure, note_failure, noted_failure
from krishiv_py.spark.remote.steps import Planning, begin_planning
from krishiv_py.storage.sends.log import wall_clock_us
from tests.spark.test_own_sources import Ticks


class OwnError(SourceError):
    """A user's own kind of error, of which the client may have no class."""


def test_what_is_noted_is_raised_by_the_client_without_secrets(tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    assert noted_failure(checkpoint) is None
    forget_failure(checkpoint)
    note_failure(checkpoint, OwnError("no broker answers at sasl.password=hunter2hunter2"))
    given = noted_failure(checkpoint)
    assert type(given) is SourceError and "no broker answers" in str(given) and "hunter2" not in str(given)
    note_failure(checkpoint, KrishivError("another one"))
    assert type(noted_failure(checkpoint)) is OperatorError, "the last one counts"
    (note,) = (tmp_path / "krishiv").iterdir()
    note.write_bytes(note.read_bytes()[:-3])
    assert isinstance(noted_failure(checkpoint), CheckpointError)
    forget_failure(checkpoint)
    assert noted_failure(checkpoint) is None


def begun(how: Planning, tmp_path: Path, stop: threading.Event) -> tuple[RangePlanner, int]:
    """A planner that began, and how many batches there are in its log."""
    checkpoint = str(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").mkdir(exist_ok=True)
    source = node_of(Ticks(tmp_path / "known"), None)
    (planner,) = planners([source], checkpoint, wall_clock_us, {}, durable=False)

    def requested() -> None:
        stop.set()
        raise SystemExit  # ends the thread, as the process would end with the query

    begin_planning((planner,), how, checkpoint, requested, RunningRetries(0, "q", threading.Event(), print))
    return planner, planner.log.last + 1


@pytest.mark.parametrize(("how", "batches"), [("one by one", 1), ("all there is", 1), ("no more", 0)])
def test_how_much_is_planned_before_the_query_begins(how: Planning, batches: int, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("5")
    planner, actual = begun(how, tmp_path, threading.Event())
    assert actual == batches
    planner.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_source_that_fails_later_ends_the_query_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("0")
    stopped = threading.Event()
    planner, actual = begun("one by one", tmp_path, stopped)
    assert actual == 0 and not stopped.is_set()
    (tmp_path / "gone").write_text("-1")
    (tmp_path / "gone").rename(tmp_path / "known")  # at once: the planner reads it meanwhile
    assert stopped.wait(30)
    given = noted_failure(str(tmp_path / "checkpoint"))
    assert (
        isinstance(given, SourceError) and "the source Ticks cannot plan" in str(given) and "the broker is gone" in str(given)
    )
    planner.stop()


def test_a_source_that_cannot_begin_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("-1")
    with pytest.raises(SourceError, match="the broker is gone"):
        begun("one by one", tmp_path, threading.Event())
    assert noted_failure(str(tmp_path / "checkpoint")) is None, "start() raises it"
