"""Delta tables on a mount that goes, and folders that are to become Delta tables: a query makes no other one in their place."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from krishiv_py import DeltaSink, count
from krishiv_py.errors import CheckpointError
from tests.in_process.test_away import patient
from tests.tables.stores import delta_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*(tries|is tried) again")


class Job:
    """Counts into a Delta table on a mount that may go."""

    def __init__(self, home: Path) -> None:
        self.home, self.mount, self.away = home, home / "mount", home / "away"
        self.mount.mkdir()
        self.table = self.mount / "table"

    def run(self, *moments: int, limit: str = "1 min", key: tuple[str, ...] = ()) -> None:
        """Send rows to a query that goes on from the checkpoint."""
        with patient(limit) as session:
            stream, sender = session.memory_stream("at bigint", spool=str(self.home / "spool"))
            counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
            query = counts.start(DeltaSink(self.table, key=key), checkpoint=str(self.home / "check"))
            sender.send([{"at": moment} for moment in moments])
            query.process_all_available()
            query.stop()

    def unmount(self, *, empty: bool) -> None:
        """Take the mount away; its place is an empty folder, or is not there."""
        self.mount.rename(self.away)
        if empty:
            self.mount.mkdir()

    def mounted(self) -> list[Path]:
        """Put the mount back; returns the files that were written at its place meanwhile."""
        written = [file for file in self.mount.rglob("*") if file.is_file()]
        shutil.rmtree(self.mount, ignore_errors=True)
        self.away.rename(self.mount)
        return written

    def results(self) -> list[tuple[int, int]]:
        """What the table holds."""
        return sorted((row["window_start"], row["count"]) for row in delta_rows(self.table))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that has not begun."""
    return Job(tmp_path)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("empty", [False, True], ids=["nothing is there", "an empty folder is there"])
@pytest.mark.parametrize("moments", [(1, 2, 12), (1,)], ids=["a table", "no commit yet"])
def test_a_restart_waits_for_the_mount_of_a_table(job: Job, moments: tuple[int, ...], empty: bool) -> None:
    job.run(*moments)
    job.unmount(empty=empty)
    written = list[Path]()
    timer = threading.Timer(1, lambda: written.extend(job.mounted()))
    timer.start()
    job.run(25)
    timer.join()
    assert written == []
    assert job.results() == ([(0, 2), (10, 1)] if len(moments) == 3 else [(0, 1)])


@pytest.mark.parametrize("empty", [False, True], ids=["nothing is there", "an empty folder is there"])
def test_a_start_ends_where_the_mount_stays_away_and_the_hint_can_be_followed(job: Job, empty: bool) -> None:
    job.run(1, 2, 12)
    job.unmount(empty=empty)
    with pytest.raises(CheckpointError, match=r"the output folder .* is gone") as gone:
        job.run(25, limit="0 s")
    assert gone.value.transient and not job.table.exists()
    command = re.search("`(mkdir -p .*)`", str(gone.value))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)
    job.run(35)
    assert job.results() == [(10, 1)]


@pytest.mark.parametrize("empty", [False, True], ids=["nothing is there", "an empty folder is there"])
def test_a_query_that_runs_waits_for_the_mount_of_its_table(job: Job, empty: bool) -> None:
    with patient() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(DeltaSink(job.table))
        for begin in range(0, 90, 30):
            job.unmount(empty=empty)
            sender.send([{"at": moment} for moment in range(begin, begin + 30, 5)])
            while not query.progress.trouble:
                threading.Event().wait(0.02)
            assert job.mounted() == []
            query.process_all_available()
        query.stop()
    assert job.results() == [(start, 2) for start in range(0, 80, 10)]


def test_a_checkpoint_that_is_gone_does_not_double_the_rows_of_a_table(job: Job) -> None:
    job.run(1, 2, 12)
    shutil.rmtree(job.home / "check")
    with pytest.raises(CheckpointError, match=r"the checkpoint .* is gone") as gone:
        job.run(25, limit="0 s")
    assert gone.value.transient and job.results() == [(0, 2)]
    note = re.search(r"remove (\S+)\. *$", str(gone.value))
    assert note is not None
    Path(note[1]).unlink()
    job.run(25)
    assert job.results() == [(0, 2), (0, 2), (10, 1)]


def test_a_table_with_a_key_takes_results_again(job: Job) -> None:
    job.run(1, 2, 12, key=("window_start",))
    shutil.rmtree(job.home / "check")
    job.run(25, key=("window_start",))
    assert job.results() == [(0, 2), (10, 1)]
