"""The measuring counts what escapes a plain look at the children: ``python -m pytest benchmarks``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.measure import LEFT_FOR_S, workplace

BURN = "import time\ndef burn(s):\n    while time.process_time() < s: pass\n"
# Twice forked, the middle one gone at once: the burner is an orphan that would escape to init.
DOUBLE_FORK = """
import os, sys
for n in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            burn(0.8)
            open(os.path.join({folder!r}, "done-%d" % n), "w").close()
        os._exit(0)
burn(0.4)
"""


def test_two_runs_of_a_case_have_a_folder_each(tmp_path: Path) -> None:
    folders = [workplace("backlog-J1", tmp_path / "runs") for _ in range(2)]
    assert len({*folders}) == 2 and all(folder.is_dir() and not any(folder.iterdir()) for folder in folders)


def test_what_a_failed_run_left_goes_after_a_day(tmp_path: Path) -> None:
    older, newer = workplace("failed", tmp_path), workplace("failed", tmp_path)
    (older / "log.txt").touch()
    yesterday = time.time() - LEFT_FOR_S - 60
    os.utime(older, (yesterday, yesterday))
    mine = workplace("backlog-J1", tmp_path)
    assert {*tmp_path.iterdir()} == {newer, mine}


def run_measure(program: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Measure a Python program in a process of its own (``measure`` reaps all children of its process)."""
    command = [sys.executable, "-m", "benchmarks.measure", *options, "--", sys.executable, "-c", BURN + program]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return done.returncode, json.loads(done.stdout)


def test_double_forked_children_count(tmp_path: Path) -> None:
    code, got = run_measure(DOUBLE_FORK.format(folder=str(tmp_path)))
    assert code == 0
    assert sorted(os.listdir(tmp_path)) == ["done-0", "done-1"]
    assert got["cpu_s"] == pytest.approx(2.0, abs=0.25)


def test_children_that_ended_early_count() -> None:
    # Ended between two samples: only waiting for them tells what they took.
    _, got = run_measure(
        "import os\nfor _ in range(8):\n    pid = os.fork()\n    if not pid: burn(0.1); os._exit(0)\n    os.waitpid(pid, 0)"
    )
    assert got["cpu_s"] == pytest.approx(0.8, abs=0.25)
    assert got["processes"] == 1


def test_children_of_a_parent_that_waits_for_nobody_count() -> None:
    # As the daemon of PySpark: SIGCHLD ignored, the kernel reaps the workers and forgets their usage.
    program = """
import os, signal, time
if not os.fork():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(2):
        if not os.fork(): burn(1.0); os._exit(0)
    try: os.wait()  # until all have ended, however busy the machine is: there is nobody to wait for
    except ChildProcessError: os._exit(0)
os.wait()
"""
    _, got = run_measure(program)
    assert got["cpu_s"] == pytest.approx(2.0, abs=0.4)
    assert got["cpu_unwaited_s"] == pytest.approx(2.0, abs=0.4)


def test_time_out_kills_the_whole_tree(tmp_path: Path) -> None:
    program = f"""
import os, time
if not os.fork():
    os.setsid()
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
    code, got = run_measure(program, "--timeout", "1")
    assert code == 1 and got["timed_out"] and got["wall_s"] < 10
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_exit_code_and_memory() -> None:
    _, got = run_measure(
        "import time, sys\nx = bytearray(200_000_000)\nx[::4096] = b'1' * len(x[::4096])\ntime.sleep(1)\nsys.exit(3)"
    )
    assert got["exit_code"] == 3
    assert 190 < got["peak_rss_mb"] < 260


def test_memory_lent_to_a_starting_child_counts_once() -> None:
    # As Java starts programs: until it runs its own, the child has all memory of its parent.
    program = """
import os, time
held = bytearray(200_000_000)
held[::4096] = b'1' * len(held[::4096])
for _ in range(8):
    if not os.fork():
        time.sleep(0.3)
        os._exit(0)
    os.wait()
"""
    _, got = run_measure(program)
    assert 190 < got["peak_rss_mb"] < 330
