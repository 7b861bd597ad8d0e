"""A query that begins with a history and ends itself at a step: ``python -m tests.crash.history_job KIND WORK STEP``.

A step is what it does to a file below WORK: open it for writing, rename it, remove it. ``WORK/steps`` says how many a run had.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler, count, sum

SCHEMA: Final = "user bigint, at bigint, amount bigint"
KINDS: Final = ("history", "rebuilt")
"""A query without state before, and one that begins from a savepoint and gets an aggregate and an output."""
_CHANGES: Final = ("open", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def totals(stream: Any) -> Any:
    """What each user paid in a second."""
    return stream.watermark("at", 500).key_by("user").tumbling_window(1_000).agg(count(), sum("amount").alias("total"))


def counts(stream: Any) -> Any:
    """How often each user paid in a second: what the query was before it was changed."""
    return stream.watermark("at", 500).key_by("user").tumbling_window(1_000).agg(count())


def sessions(stream: Any) -> Any:
    """Visits of users."""
    return stream.watermark("at", 500).key_by("user").session_window(40).agg(count())


def run(kind: str, work: Path) -> None:
    """Run the history and what is there of the live source, from wherever it was."""
    with Session.in_process(profile="single-node-durable") as session:
        live = session.read_parquet(str(work / "live"), schema=SCHEMA, streaming=True, max_files_per_batch=1)
        archive = session.read_parquet(str(work / "archive"), schema=SCHEMA, max_files_per_batch=1)
        late = SideOutputLateEventHandler(ParquetSink(str(work / "late")))
        outputs = [totals(live).with_late_event_handler(late).to(ParquetSink(str(work / "totals")), name="totals")]
        named: dict[str, Any] = {}
        if kind == "rebuilt":
            outputs.append(sessions(live).to(ParquetSink(str(work / "sessions")), name="sessions"))
            named = {"savepoint": str(work / "savepoint")}
        session.start(
            outputs, checkpoint=str(work / "checkpoint"), batches=Batches.available_now(), bootstrap={"live": archive}, **named
        ).await_termination()


def main(kind: str, work: str, last: int) -> None:
    """Run, and end with kill -9 at the step `last`."""
    done = 0

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event not in _CHANGES or not str(arguments[0]).startswith(work):
            return
        if event == "open" and not arguments[2] & _WRITES:
            return
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    run(kind, Path(work))
    steps = done
    Path(work, "steps").write_text(str(steps))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
