"""CPU seconds, wall time and peak memory of a command with all its descendants.

How the CPU is counted: the measuring process makes itself a *child subreaper* (``prctl``), so that a descendant
whose parent ended, a daemon's worker for instance, becomes a child of the measuring process instead of escaping to
init. Every process is then waited for by someone: by its parent, whose usage it joins, or by us. ``wait4`` gives
the usage of a child together with that of the descendants it waited for; the sum over all our children is the CPU
of the whole tree, those already ended included. Nothing is sampled there. One leak has to be stopped: a parent that
ignores SIGCHLD waits for nobody, and the kernel forgets what its children took. The daemon of PySpark does so, and
its workers are where Python on Spark spends its time. So the tree is sampled as well (ten times a second), and the
last sample of each process whose parent ignores SIGCHLD, and which did not come to us as an orphan, is added
(``cpu_unwaited_s``); what is lost is the time between that sample and the end of the process.

``measure`` reaps every child of the calling process: call it from a process that has no other children.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import psutil
from attrs import asdict, define, field, frozen

WORK = Path(__file__).resolve().parent / ".data" / "runs"
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 10.0
STARTING_S = 0.5
LEFT_FOR_S = 86_400.0


@frozen
class Measurement:
    """What one run of a command took."""

    command: tuple[str, ...]
    exit_code: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    cpu_unwaited_s: float
    peak_rss_mb: float
    peak_pss_mb: float
    processes: int

    @property
    def ok(self) -> bool:
        """Whether the command ended well and in time."""
        return self.exit_code == 0 and not self.timed_out


def workplace(name: str, under: Path = WORK) -> Path:
    """A folder no other run has, not even one of the same case at the same time; those left for a look go after a day."""
    under.mkdir(parents=True, exist_ok=True)
    for left in under.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run may be done with its own
            if time.time() - left.stat().st_mtime > LEFT_FOR_S:
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=under))


def become_subreaper() -> None:
    """Have orphans of the tree become children of this process (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed: Linux 3.4 or later is needed")


def ignores_sigchld(pid: int) -> bool:
    """Whether process `pid` ignores SIGCHLD, so that its children end without being waited for."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), "0")
    return bool(int(mask, 16) & (1 << (signal.SIGCHLD - 1)))


@define
class Sampler:
    """Samples the memory of the tree below this process, and the CPU of children nobody waits for, in a thread."""

    interval_s: float
    peak_rss: int = 0
    peak_pss: int = 0
    unwaited: dict[int, float] = field(factory=dict)
    first_seen: dict[int, float] = field(factory=dict)
    ended: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        """Sample until it has to stop; PSS, which costs more to read, at each tenth sample."""
        ticks = 0
        while not self.ended.wait(self.interval_s):
            self.sample(with_pss=ticks % 10 == 0)
            ticks += 1

    def sample(self, *, with_pss: bool) -> None:
        """Take one sample."""
        rss = pss = 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                parent = process.ppid()
                if parent != os.getpid() and ignores_sigchld(parent):
                    self.unwaited[process.pid] = sum(process.cpu_times()[:4])
                if self.borrows_memory(process):
                    continue
                rss += process.memory_info().rss
                if with_pss:
                    pss += process.memory_full_info().pss
        self.peak_rss = max(self.peak_rss, rss)
        self.peak_pss = max(self.peak_pss, pss)

    def borrows_memory(self, process: psutil.Process) -> bool:
        """Whether it may be about to start a program, until when it has its parent's memory (``vfork``, as Java does)."""
        now = time.monotonic()
        if now - self.first_seen.setdefault(process.pid, now) > STARTING_S:
            return False
        parent = process.parent()
        return parent is not None and parent.pid != os.getpid() and parent.cmdline() == process.cmdline()

    def unwaited_s(self, reaped: Set[int]) -> float:
        """CPU seconds of those nobody waited for, not even we."""
        return sum(taken for pid, taken in self.unwaited.items() if pid not in reaped)


def kill_tree() -> None:
    """Kill all descendants of this process, also those that fork meanwhile."""
    for _ in range(100):
        children = [p for p in psutil.Process().children(recursive=True) if alive(p)]
        if not children:
            return
        for process in children:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    """Whether `process` is there and no zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@define
class Reaper:
    """Waits for children, the command's own process and orphans alike, and sums their usage."""

    main_pid: int
    cpu_s: float = 0.0
    exit_code: int | None = None
    reaped: set[int] = field(factory=set)

    def reap(self) -> bool:
        """Reap whatever has ended; whether children are left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.reaped.add(pid)
            if pid == self.main_pid:
                self.exit_code = os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the file that ``KRISHIV_BENCHMARK_LOCK`` names, for which other work on the machine may wait too; else nothing."""
    if not (name := os.environ.get("KRISHIV_BENCHMARK_LOCK")):
        yield
        return
    with open(name, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@alone()
def measure(
    command: Sequence[str],
    *,
    timeout_s: float = 3600.0,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    interval_s: float = 0.1,
) -> Measurement:
    """Run `command` and measure it with all its descendants; they are killed after `timeout_s`.

    Descendants that outlive the command get some seconds to end (daemons notice a closed pipe), then are killed; they count.
    """
    become_subreaper()
    sampler = Sampler(interval_s)
    thread = threading.Thread(target=sampler.run, daemon=True)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(log, "wb")) if log else subprocess.DEVNULL
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True)
    thread.start()
    reaper = Reaper(process.pid)
    timed_out, wall_s, pause_s = False, 0.0, 0.001
    while reaper.reap():
        elapsed = time.perf_counter() - start
        if reaper.exit_code is not None and not wall_s:
            wall_s = elapsed
        timed_out = timed_out or (not wall_s and elapsed > timeout_s)
        if timed_out or (wall_s and elapsed > wall_s + GRACE_S):
            kill_tree()
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.02)
    wall_s = wall_s or time.perf_counter() - start
    sampler.ended.set()
    thread.join()
    unwaited_s = sampler.unwaited_s(reaper.reaped)
    process.returncode = reaper.exit_code if reaper.exit_code is not None else -signal.SIGKILL
    return Measurement(
        command=tuple(command),
        exit_code=process.returncode,
        timed_out=timed_out,
        wall_s=wall_s,
        cpu_s=reaper.cpu_s + unwaited_s,
        cpu_unwaited_s=unwaited_s,
        peak_rss_mb=sampler.peak_rss / 2**20,
        peak_pss_mb=sampler.peak_pss / 2**20,
        processes=len(reaper.reaped),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: measure one command, print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    command = [word for word in given.command if word != "--"]
    measured = measure(command, timeout_s=given.timeout, log=given.log)
    print(json.dumps(asdict(measured), indent=1))
    return 0 if measured.ok else 1


if __name__ == "__main__":
    sys.exit(main())
