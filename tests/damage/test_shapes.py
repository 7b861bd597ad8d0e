"""Notes of another shape under a right checksum, and folders in place of files: the right answer, or an error that names it.

Checkpoints and memory streams in process, stopped and broken off, and captures; savepoints are in
``tests/in_process/test_savepoint_folders.py``. The ordinary run takes some of each kind of file, ``nox -s damage`` all.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from krishiv_py import Session
from krishiv_py.errors import CheckpointError, KrishivError
from krishiv_py.in_process import checkpoint
from krishiv_py.storage.local import Disk
from krishiv_py.testing import stream_of
from tests.damage.shapes import put, shapes
from tests.damage.test_in_process import Query
from tests.in_process.test_capture import SCHEMA, again, job, ran

LONG: Final = os.environ.get("KRISHIV_DAMAGE") == "long"
SOME: Final = 6


@pytest.mark.slow
@pytest.mark.parametrize(("point", "when"), [("published", "before"), ("stopped", "")], ids=str)
def test_a_checkpoint_with_a_note_of_another_shape_is_right_or_the_note_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    monkeypatch.setattr(checkpoint, "_LARGE", 3_000)  # so that some values are files of their own
    query = Query(tmp_path / "q")
    query.begin(point, when, monkeypatch)
    kinds = {kind: paths[-1] for kind, paths in query.kinds().items()}
    assert tried(query.home, kinds, query.outcome) > 50


def test_a_capture_with_a_note_of_another_shape_is_right_or_the_note_is_named(tmp_path: Path) -> None:
    home = tmp_path / "captures"
    with Session.in_process() as session:
        live, *_ = ran(session, tmp_path)
        folders = {"savepoint": str(tmp_path / "savepoint")}
        session.capture(str(tmp_path / "checkpoint"), job(live), str(home / "capture"), **folders)  # type: ignore[arg-type]
    kinds = {path.name: path for path in home.rglob("*") if path.is_file()}
    assert tried(home, kinds, lambda: again(str(home / "capture"), job(stream_of(SCHEMA)))) > 20


def test_a_note_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be allowed to read everything, so the store refuses."""
    query = Query(tmp_path / "q")
    query.begin("stopped", "", monkeypatch)
    read = Disk.read
    for kind in ("cp/krishiv/plan.json", "cp/krishiv/tables/_in_use.json", "cp/krishiv/closed_keys.json"):

        def refused(disk: Disk, path: str, kind: str = kind) -> bytes | None:
            if path.endswith(kind):
                raise PermissionError(13, "Permission denied", path)
            return read(disk, path)

        with (
            monkeypatch.context() as patched,
            pytest.raises(CheckpointError, match=rf"{kind} cannot be read.*denied.*Hint: see"),
        ):
            patched.setattr(Disk, "read", refused)
            query.outcome()


def tried(home: Path, kinds: dict[str, Path], run: Callable[[], Any]) -> int:
    """Damage a file of each kind below a folder in some ways, and run what is there; gives how many were tried."""
    whole = home.with_name(f"{home.name}-whole")
    shutil.copytree(home, whole)
    right, wrong, count, dice = run(), list[str](), 0, random.Random(os.environ.get("KRISHIV_SEED", "1"))
    for kind, path in kinds.items():
        inside = path.relative_to(home)
        every = list(shapes((whole / inside).read_bytes()))
        for what, data in [*(every if LONG else dice.sample(every, min(SOME, len(every)))), ("a folder", None)]:
            shutil.rmtree(home)
            shutil.copytree(whole, home)
            put(path, data)
            count += 1
            try:
                outcome = run()
            except KrishivError as problem:
                text = str(problem)
                if not any(str(place) in text for place in (path.parent, home / inside.parts[0])) or "Hint: " not in text:
                    wrong.append(f"{kind} {what}: {problem}")
            except Exception as problem:
                wrong.append(f"{kind} {what}: {type(problem).__name__}: {problem}")
            else:
                if outcome != right:
                    wrong.append(f"{kind} {what}: another result")
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)
    return count
