"""Everything that is looked at before a query begins, damaged in every way: the same answer, or an error of ours.

Done on a checkpoint that lies in an archive, so it needs no JVM: thousands of damages take seconds. With Hadoop's checksums
nothing may pass that was changed; without them, as on object stores or after a move, no foreign exception may come out.
"""

from __future__ import annotations

import shutil
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from krishiv_py import ParquetSink
from krishiv_py.api.sender import Sender
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.runtime.checkpoint.moved import follow
from krishiv_py.runtime.checkpoint.notes import FORMAT, STATE, CheckpointNotes, CheckpointOrigin, moved_to, note_moved
from krishiv_py.runtime.checkpoint.sparklog import (
    check_log,
    entries_of,
    forget_unplanned,
    offsets_of,
    planned,
    sum_of,
    sums,
    trim,
)
from krishiv_py.runtime.outputs import claim_folder
from krishiv_py.storage.local import DISK
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.storage.sends.segments import open_sent
from krishiv_py.testing import stream_of
from tests.damage.kinds import kind_of
from tests.damage.trial import flipped
from tests.spark.fixtures.make import HERE, SCHEMA, windows

STREAM: Final = stream_of(SCHEMA)
SPEC: Final = windows(STREAM)._plan()
WITHOUT_WEIGHT: Final = ("cp/krishiv/lock", "cp/krishiv/metrics.json", "spool/_krishiv_spool")
"""Who holds the checkpoint, counters that come again, and numbers that the files tell too."""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkpoint half way through its input, without what tasks read, and with Hadoop's checksums next to all of Spark's."""
    home = tmp_path / "home"
    with tarfile.open(HERE / f"checkpoint-format-{FORMAT}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    (home / "checkpoint").rename(home / "cp")
    for unread in (*(home / "cp" / "state" / "0").glob("[0-9]*"), home / "cp" / "krishiv" / "chunks"):
        shutil.rmtree(unread)
    look(home)  # the paths in it are those of where it is now
    for path in (home / "cp").rglob("*"):
        if path.is_file() and not path.name.endswith(".crc") and "krishiv" not in path.parts[len(home.parts) + 1 :]:
            Path(sum_of(str(path))).write_bytes(sums(path.read_bytes(), 512))
    return home


def look(home: Path) -> Any:
    """What a start reads of its checkpoint, in its order, and what follows from it."""
    checkpoint, spool = str(home / "cp"), ReplayLog(str(home / "spool"))
    sender = Sender(spool, STREAM.schema)
    trim(spool.folder)
    for sent in sorted((home / "spool").glob("0*")):
        open_sent(DISK, str(sent)).read()
    notes = CheckpointNotes(checkpoint)
    notes.plan()
    check_log(checkpoint, 1)
    forget_unplanned(checkpoint)
    follow(checkpoint, [MemorySource("memory", STREAM.schema, spool.folder)])
    claim = notes.claim(SPEC, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        notes.metrics()
    for rows, sink in (("results", "out"), ("late rows", "late")):
        claim_folder(ParquetSink(str(home / sink)), rows, claim.outputs, checkpoint)
    last = max(int(p.name) for p in (home / "cp" / "offsets").iterdir() if p.name.isdigit())
    log = offsets_of(DISK, f"{checkpoint}/offsets/{last}"), planned(checkpoint, last), entries_of(DISK, checkpoint)
    return sender.closed, claim, log


def damages(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Removed, emptied, cut and flipped at many places, and a line lost."""
    yield "removed", None
    yield "emptied", b""
    for i in range(1, len(data), max(len(data) // 5, 1)):
        yield f"cut at {i}", data[:i]
        yield f"flipped at {i}", flipped(data, i)
    for line in range(min(data.count(b"\n"), 3)):
        lines = data.split(b"\n")
        yield f"without line {line}", b"\n".join(lines[:line] + lines[line + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("checksums", [True, False], ids=["with checksums", "without"])
def test_what_a_start_reads_is_right_or_refused(whole: Path, checksums: bool) -> None:
    kept = Kept(whole, sums=checksums)
    wrong: list[str] = []
    tried = 0
    expected = look(whole)
    for path, data in sorted(kept.files.items()):
        kind = kind_of(path)
        if kind is None:
            continue
        for name, changed in damages(data):
            kept.put_back()
            (whole / path).unlink()
            if changed is not None:
                (whole / path).write_bytes(changed)
            tried += 1
            try:
                same = look(whole) == expected
            except CheckpointError as problem:
                if str(whole) not in str(problem) or "Hint: " not in str(problem):
                    wrong.append(f"{path} {name}: {problem}")
            except Exception as problem:
                wrong.append(f"{path} {name}: {type(problem).__name__}: {problem}")
            else:
                if not same and checksums and kind not in WITHOUT_WEIGHT:
                    wrong.append(f"{path} {name}: passed as it is")
    kept.put_back()
    assert not wrong, "\n".join(wrong)
    assert tried > 300


def test_the_note_of_memory_streams_is_not_guessed(whole: Path) -> None:
    """Without it nobody can tell a stream that was trimmed, or made again, from the one that was read."""
    (whole / "cp" / "krishiv" / "streams.json").unlink()
    with pytest.raises(CheckpointError, match=r"krishiv/streams\.json is missing .*Hint: put it back"):
        look(whole)


def test_notes_of_a_move_are_right_or_refused(tmp_path: Path) -> None:
    checkpoint, other = str(tmp_path / "cp"), tmp_path / "other" / "krishiv" / "plan.json"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"{}")
    CheckpointOrigin(7, 1_000).write(checkpoint)
    note_moved(checkpoint, str(tmp_path / "other"))
    (tmp_path / "cp" / STATE / "stages").mkdir(parents=True)

    def look_at_notes() -> tuple[CheckpointOrigin, str | None]:
        return CheckpointOrigin.of(checkpoint), moved_to(checkpoint)

    expected = look_at_notes()
    for name in ("begun.json", "moved.json"):
        path = tmp_path / "cp" / "krishiv" / name
        data = path.read_bytes()
        for what, changed in damages(data):
            path.unlink()
            if changed is not None:
                path.write_bytes(changed)
            if name == "moved.json" and changed is None:  # the way back of a move
                assert look_at_notes() == (expected[0], None)
                path.write_bytes(data)
                continue
            with pytest.raises(CheckpointError, match=rf"{name} is (damaged|missing).*Hint: "):
                pytest.fail(f"{name} {what}: {look_at_notes()}")
            path.write_bytes(data)
    assert look_at_notes() == expected


class Kept:
    """Files to go back to; only what was changed since is written again."""

    def __init__(self, home: Path, *, sums: bool) -> None:
        self.home = home
        self.files = {p.relative_to(home): p.read_bytes() for p in home.rglob("*") if p.is_file()}
        if not sums:
            for path in [p for p in self.files if p.name.endswith(".crc")]:
                (home / path).unlink()
                del self.files[path]
        self._seen = {p: self._mark(p) for p in self.files}

    def put_back(self) -> None:
        """Everything as it was."""
        for path in [p.relative_to(self.home) for p in self.home.rglob("*") if p.is_file()]:
            if path not in self.files:
                (self.home / path).unlink()
        for path, data in self.files.items():
            if self._mark(path) != self._seen[path]:
                (self.home / path).write_bytes(data)
                self._seen[path] = self._mark(path)

    def _mark(self, path: Path) -> tuple[int, int, int] | None:
        try:
            actual = (self.home / path).stat()
        except FileNotFoundError:
            return None
        return actual.st_ino, actual.st_mtime_ns, actual.st_size
