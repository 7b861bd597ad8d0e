"""Temporary folders: private, gone with their process, and removed later where it was killed; nobody else's are touched."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from krishiv_py.storage import local

HOLDER = """
import os, sys, time
from krishiv_py.storage import local
if "own-handler" in sys.argv:
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
if "owned" in sys.argv:
    from krishiv_py import own_process
    own_process()
folder = local.new_folder("x")
open(folder + "/state", "w").write("kept")
if "fork" in sys.argv and os.fork() == 0:
    sys.exit(0)
print(folder, flush=True)
if "exit" not in sys.argv:
    time.sleep(120)
"""


def holder(tmp_path: Path, *how: str) -> tuple[subprocess.Popen[str], Path]:
    """A process with a temporary folder below `tmp_path`, and that folder."""
    command = [sys.executable, "-c", HOLDER, *how]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_a_killed_process_leaves_what_the_next_one_removes(here: Path) -> None:
    living, kept = holder(here)
    dead, left = holder(here)
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait()
    assert left.exists()
    local.remove_leftovers()
    assert not left.parent.exists()
    assert (kept / "state").read_text() == "kept"
    living.kill()
    living.wait()


@pytest.mark.parametrize("killed_at", ["open", "rename"])
def test_a_folder_that_was_never_finished_is_removed_when_it_is_old(here: Path, killed_at: str) -> None:
    kill = (
        f"import os, signal, tempfile; tempfile.gettempdir(); os.{killed_at} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    )
    program = f"from krishiv_py.storage import local; {kill}; local.new_folder('x')"
    assert (
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(here)}).returncode == -signal.SIGKILL
    )
    (half,) = here.iterdir()
    local.remove_leftovers()
    assert half.exists(), "its process may be about to lock it"
    os.utime(half, (0, 0))
    local.remove_leftovers()
    assert not half.exists()


@pytest.mark.parametrize(("how", "code"), [(("owned",), 143), (("own-handler",), 7), ((), -signal.SIGTERM)])
def test_a_terminated_process_tidies_up_or_the_next_one_does(here: Path, how: tuple[str, ...], code: int) -> None:
    process, folder = holder(here, *how)
    process.terminate()
    assert process.wait() == code
    if not how:  # nobody handles the signal
        local.remove_leftovers()
    assert not folder.parent.exists()


@pytest.mark.parametrize("how", [("exit",), ("exit", "fork")])
def test_it_goes_with_its_process_and_not_with_a_child(here: Path, how: tuple[str, ...]) -> None:
    process, folder = holder(here, *how)
    assert process.wait() == 0
    assert not folder.parent.exists()


def test_a_child_does_not_take_the_folder_along(here: Path) -> None:
    process, folder = holder(here, "fork")
    local.remove_leftovers()
    assert (folder / "state").exists()
    process.kill()
    process.wait()


def test_folders_are_private(here: Path) -> None:
    process, folder = holder(here)
    for actual in (folder, folder.parent, folder.parent / local.LOCK):
        assert stat.S_IMODE(actual.stat().st_mode) & 0o077 == 0
    process.kill()
    process.wait()


def test_what_is_not_surely_ours_is_left_alone(here: Path) -> None:
    def made(name: str, mode: int = 0o700, lock: bool = True) -> Path:
        folder = here / name
        folder.mkdir()
        (folder / "data").write_text("dear")
        if lock:
            (folder / local.LOCK).touch(0o600)
        folder.chmod(mode)
        return folder / "data"

    kept = [made("krishiv-no-lock", lock=False), made("krishiv-open", 0o755), made("another"), made("krishiv-0.1", lock=False)]
    other = here / "krishiv-linked-lock"
    other.mkdir(0o700)
    (other / local.LOCK).symlink_to(kept[2].parent / local.LOCK)
    (here / "krishiv-link").symlink_to(kept[2].parent)
    (here / "krishiv-file").write_text("dear")
    kept.append(made(".krishiv-data", lock=False))
    os.utime(kept[-1].parent, (0, 0))
    gone = made("krishiv-ours")
    (gone.parent / "out").symlink_to(kept[2].parent)  # what a link points at is not ours
    local.remove_leftovers()
    assert all(k.read_text() == "dear" for k in kept) and other.exists() and (here / "krishiv-file").exists()
    assert not gone.parent.exists()
