"""Full disks and lost rights, for real: a part of a query on a small file system, filled at any moment, or in a closed folder.

Errors are ours, nothing is lost or doubled, and the query goes on when there is room. Disks need root;
tests/in_process/test_no_room.py does a part of it for every user.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import deltalake
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest

from krishiv_py import DeltaSink, JsonSink, ParquetSink, Query, Sender, Session, SideOutputLateEventHandler, count
from krishiv_py.errors import KrishivError
from krishiv_py.in_process import core, stage

SINKS: Final = {"parquet": ParquetSink, "json": JsonSink, "delta": DeltaSink}
PARTS: Final = ("checkpoint", "spool", "out", "late")
SENDS, ROWS, FIRST_LATE = 15, 60, 5


class Place(Protocol):
    """Where the part of a query is that is in trouble."""

    path: Path
    error: str

    def close(self, nbytes: int) -> None:
        """Let nothing be written there, or so many bytes at the most."""

    def open(self) -> None:
        """Let all be written again."""


@attrs.define
class Disk:
    """A file system of three megabytes."""

    path: Path
    error: str = "No space left"

    def close(self, nbytes: int) -> None:
        """Fill it but for so many bytes."""
        status = os.statvfs(self.path)
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as ballast:
            ballast.write(bytes(max(status.f_bavail * status.f_frsize - nbytes, 0)))  # a query that runs may be faster

    def open(self) -> None:
        """Empty it."""
        (self.path / "ballast").unlink(missing_ok=True)


@attrs.define
class Folder:
    """A folder that may be closed to its user."""

    path: Path
    error: str = "Permission denied"

    def close(self, nbytes: int) -> None:
        """Take all rights."""
        self.path.chmod(0)

    def open(self) -> None:
        """Give them back."""
        self.path.chmod(0o700)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system in memory."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    yield Disk(path)
    subprocess.run(["umount", "-l", path], check=True)


def rows(number: int) -> list[dict[str, Any]]:
    """A second of events, and one that is late."""
    late = [{"user": "u1", "at": number * 1_000 - 5_000}] if number >= FIRST_LATE else []
    return [{"user": f"u{i % 7}", "at": number * 1_000 + i * 10} for i in range(ROWS)] + late


def read(kind: str, folder: Path) -> list[dict[str, Any]]:
    """What a reader sees."""
    if kind == "delta":
        return list(deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist())
    reads = pj.read_json if kind == "json" else pq.read_table
    return [row for path in folder.glob("part-*") for row in reads(path).to_pylist()]


@attrs.define
class Trial:
    """A query with one of its parts on a small disk."""

    place: Place
    places: dict[str, Path]
    kind: str
    seeded: random.Random
    errors: list[str] = attrs.field(factory=list)

    def opened(self, session: Session) -> tuple[Query, Sender]:
        """The query, from wherever it is."""
        stream, sender = session.memory_stream("user string, at bigint", spool=str(self.places["spool"]))
        made = SINKS[self.kind]
        late = SideOutputLateEventHandler(made(str(self.places["late"])))
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count()).with_late_event_handler(late)
        return plan.start(made(str(self.places["out"])), checkpoint=str(self.places["checkpoint"])), sender

    def failed(self, problem: KrishivError) -> None:
        """Note what it failed with; mostly there is room then."""
        self.errors.append(f"{type(problem).__name__}: {problem}")
        if self.seeded.random() < 0.7:
            self.place.open()

    def go_through(self, session: Session) -> None:
        """Send and process, start again after each failure."""
        query: Query | None
        query, sender = self.opened(session)
        for number in range(SENDS):
            if self.seeded.random() < 0.6:
                self.place.close(self.seeded.choice([0, 4_096, 8_192, 12_288]))
            sent = done = False
            while not done:
                try:
                    sent = sent or sender.send(rows(number)) >= 0
                    if query is None:
                        query, sender = self.opened(session)
                    query.process_all_available()
                    done = True
                except KrishivError as problem:
                    self.failed(problem)
                    if sent and query is not None:
                        query.stop()
                        query = None
        self.place.open()
        sender.close()
        assert query is not None
        query.process_all_available()
        query.stop()


def check(place: Place, home: Path, kind: str, part: str, workers: int) -> None:
    """One trial."""
    places = {name: (place.path if name == part else home) / name for name in PARTS}
    trial = Trial(place, places, kind, random.Random(f"{kind} {part} {workers}"))
    with Session.in_process(profile="single-node-durable" if workers == 2 else "dev-local", workers=workers) as session:
        trial.go_through(session)
    actual = read(kind, places["out"])
    assert sum(row["count"] for row in actual) == SENDS * ROWS
    assert set(Counter((row["user"], row["window_start"]) for row in actual).values()) == {1}, "each window once"
    assert len(read(kind, places["late"])) == SENDS - FIRST_LATE
    assert trial.errors, "nothing was refused"
    for text in trial.errors:
        assert place.error in text and re.search("Hint: .*(room|right|let this user)", text), text


@pytest.fixture(autouse=True)
def _threads_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (core, stage):
        monkeypatch.setattr(module, "FEW_ROWS", 0)


ALL: Final = pytest.mark.parametrize(
    ("kind", "part", "workers"), list(itertools.product(SINKS, PARTS, (1, 2))), ids=lambda one: str(one)
)


@pytest.mark.one_in(11)
@ALL
def test_a_query_goes_on_when_there_is_room(tmp_path: Path, disk: Disk, kind: str, part: str, workers: int) -> None:
    check(disk, tmp_path, kind, part, workers)


@pytest.fixture
def closed() -> Iterator[Folder]:
    """A folder of a user with rights of its own: root has all, so it is left."""
    folder, root = Path(tempfile.mkdtemp()), os.geteuid() == 0
    (folder / "own" / "closed").mkdir(parents=True)
    if root:
        for path in (folder / "own", folder / "own" / "closed"):
            shutil.chown(path, "nobody")
        folder.chmod(0o711)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield Folder(folder / "own" / "closed")
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.one_in(11)
@ALL
def test_a_query_goes_on_when_it_has_its_rights(closed: Folder, kind: str, part: str, workers: int) -> None:
    check(closed, closed.path.parent, kind, part, workers)
