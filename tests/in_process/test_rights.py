"""Folders that lose their rights, are removed, or become files: a clear error, and the query goes on when they are back."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import ParquetSink, Query, Session, count
from krishiv_py.errors import CheckpointError, OperatorError, PlanError, SourceError
from krishiv_py.storage.local import not_mounted

RUNNING = {"checkpoint": CheckpointError, "out": OperatorError, "in": SourceError}
"""What a query fails with, by the folder that is broken while it runs."""
STARTING = {"checkpoint": CheckpointError, "out": PlanError, "in": SourceError}


def put(home: Path, number: int) -> None:
    """Ten seconds of events."""
    times = pa.array(range(number * 10_000, (number + 1) * 10_000, 1_000), pa.int64())
    pq.write_table(pa.table({"user": ["a", "b"] * 5, "at": times}), home / f"in/{number}.parquet")


def started(session: Session, home: Path) -> Query:
    """A query over the folder."""
    rows = session.read_parquet(str(home / "in"), "user string, at bigint", streaming=True)
    plan = rows.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    return plan.start(ParquetSink(str(home / "out")), checkpoint=str(home / "checkpoint"))


def break_it(folder: Path, how: str) -> None:
    """Take the rights away, or the folder, which another file may replace."""
    if how == "rights":
        folder.chmod(0)
        return
    folder.rename(folder.with_suffix(".away"))
    if how == "file":
        folder.touch()


def mend(folder: Path, how: str) -> None:
    """Put it back."""
    if how == "rights":
        folder.chmod(0o700)
        return
    folder.unlink(missing_ok=True)
    folder.with_suffix(".away").rename(folder)


def go_through(home: Path, part: str, how: str) -> None:
    """Run, break a folder, mend it and go on."""
    (home / "in").mkdir()
    put(home, 0)
    with Session.in_process() as session:
        query = started(session, home)
        query.process_all_available()
        if part != "in":
            put(home, 1)
        break_it(home / part, how)
        with pytest.raises(RUNNING[part]) as failure:
            if part != "in":
                query.process_all_available()
            else:
                query.await_termination("30 s")
        text = str(failure.value)
        assert str(home / part) in text and "Hint: " in text
        assert ("is gone" in text) == (how == "removed" or (part, how) == ("in", "file"))
        query.stop()
        if (part, how) != ("checkpoint", "removed"):  # a new one would be made
            with pytest.raises(STARTING[part], match=f"{home / part}.*Hint: "):
                started(session, home)
        mend(home / part, how)
        if part == "in":
            put(home, 1)
        query = started(session, home)
        query.process_all_available()
        query.stop()
    fired = [start for file in (home / "out").glob("*.parquet") for start in pq.read_table(file)["window_start"].to_pylist()]
    assert sorted(fired) == list(range(0, 19_000, 1_000)), "each window once"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of a user with rights of its own: root has all, so a run as root loads what is needed, then it is left."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        (folder / "first").mkdir()
        go_through(folder / "first", "checkpoint", "removed")
        (folder / "own").mkdir()
        shutil.chown(folder / "own", "nobody")
        folder.chmod(0o711)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    else:
        (folder / "own").mkdir()
    try:
        yield folder / "own"
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("part", "how"),  # a sink makes its folder where it was removed
    [(part, how) for part in RUNNING for how in ("rights", "removed", "file") if (part, how) != ("out", "removed")],
)
def test_a_broken_folder_is_an_error_and_the_query_goes_on_once_it_is_mended(home: Path, part: str, how: str) -> None:
    go_through(home, part, how)


def test_a_folder_that_may_not_be_looked_into_is_no_missing_mount(home: Path) -> None:
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    (home / "checkpoint" / "krishiv").mkdir(parents=True)
    break_it(home / "checkpoint", "rights")
    assert not not_mounted(str(home / "checkpoint" / "krishiv" / "ranges"), refused)
    mend(home / "checkpoint", "rights")
    assert not not_mounted(str(home / "checkpoint" / "krishiv"), refused)
    assert not_mounted(str(home / "away" / "krishiv"), refused)
