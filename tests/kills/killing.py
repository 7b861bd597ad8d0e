"""Runs the job, kills what the seed says at moments the seed says, and starts it again until it is done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import attrs
import psutil

from krishiv_py.runtime.checkpoint.sparklog import last_finished
from krishiv_py.storage.local import DISK
from krishiv_py.testing.broker import Broker
from tests.crash.killing import kill_tree
from tests.tables.server import Server

ROOT = Path(__file__).parents[2]
WHAT: Final = ("tree", "worker", "broker", "database")
HANGS_S: Final = 900
"""Longer than all time-outs of sinks and sources one after the other, on a machine that has other work."""
_FAILURES: Final = 4
"""How often the job may fail by itself for one kill: a broker that has just started may not be ready."""


@attrs.define
class Tally:
    """What was done to a job, and what came of it.

    Attributes
    ----------
    kills : list of str
        What was killed.
    went_on : int
        Kills of a broker, a database or a worker that the query outlived.
    failed : list of str
        The last line of each failure.
    """

    kills: list[str] = attrs.field(factory=list)
    went_on: int = 0
    failed: list[str] = attrs.field(factory=list)


@attrs.define
class Killer:
    """One job, and all that it needs.

    Attributes
    ----------
    work : Path
        Its folder, with the checkpoint.
    command : list of str
        What starts it, or starts it again.
    broker, server : Broker or None, Server or None
        What it needs, as far as that is killed.
    early_s : float
        How long after its start the job may be killed while it goes on with what was left.
    """

    work: Path
    command: list[str]
    broker: Broker | None
    server: Server | None
    seeded: random.Random
    early_s: float = 15.0
    variables: dict[str, str] = attrs.field(factory=dict)
    tally: Tally = attrs.field(factory=Tally)
    job: subprocess.Popen[bytes] | None = None

    @property
    def committed(self) -> int:
        """How many batches are done."""
        return last_finished(DISK, str(self.work / "checkpoint")) + 1

    def run(self, kills: list[str]) -> int:
        """Run to the end, with these kills one after the other; how many of them there was time for."""
        done = 0
        for what in kills:
            if not self.reach(self.committed + self.seeded.randrange(3), what):
                break
            self.kill(what)
            done += 1
        while not self.finished():
            time.sleep(0.1)
        return done

    def reach(self, batch: int, what: str) -> bool:
        """Let the job come so far, and a part of a batch further; False if it ends before."""
        until, early = time.monotonic() + HANGS_S, what == "tree" and self.seeded.random() < 0.2
        if self.finished():
            return False
        if early:  # while it starts, or goes on with what was left
            time.sleep(self.seeded.uniform(0, self.early_s))
            return not self.finished()
        while self.committed <= batch:
            if self.finished():
                return False
            assert time.monotonic() < until, f"the job hangs: {self.log()}"
            time.sleep(0.01)
        time.sleep(self.seeded.uniform(0, self.early_s / 10))
        return not self.finished()

    def finished(self) -> bool:
        """Whether it is done; if it failed, it is started again."""
        if self.job is not None and self.job.poll() is not None:
            if self.job.returncode:
                self.tally.failed.append(f"{self.tally.kills[-1:]}: {self.error()}")
                assert len(self.tally.failed) <= _FAILURES * len(self.tally.kills), self.log()
            else:
                (self.work / "done").touch()
            self.job = None
        if self.job is None and not (self.work / "done").exists():
            self.start()
        return self.job is None

    def start(self) -> None:
        """Start it, or start it again."""
        with (self.work / "log").open("ab") as log:
            where = {**os.environ, "PYTHONPATH": str(ROOT), **self.variables}
            self.job = subprocess.Popen(self.command, cwd=ROOT, env=where, stdout=log, stderr=log, start_new_session=True)

    def kill(self, what: str) -> None:
        """Kill -9, and bring back what the job needs."""
        assert self.job is not None
        before = self.committed
        self.tally.kills.append(what)
        if what == "tree":
            kill_tree(self.job)
            self.job = None
            return
        if what == "worker":
            self.kill_a_worker(self.job)
        elif what == "broker":
            assert self.broker is not None
            self.broker.kill()
            time.sleep(self.seeded.uniform(0, 3))
            self.broker.start()
        else:
            assert self.server is not None
            kill_database(self.server, self.seeded)
            time.sleep(self.seeded.uniform(0, 2))
            self.server.start()
        self.await_outcome(before)

    def await_outcome(self, before: int) -> None:
        """Until the job failed or went on: it must do one of both."""
        assert self.job is not None
        until = time.monotonic() + HANGS_S
        while self.job.poll() is None and self.committed <= before:
            assert time.monotonic() < until, f"the job hangs after {self.tally.kills[-1]} was killed: {self.log()}"
            time.sleep(0.02)
        self.tally.went_on += self.job.poll() in (None, 0)

    def kill_a_worker(self, job: subprocess.Popen[bytes]) -> None:
        """One Python process below the JVM."""
        until = time.monotonic() + 30
        while time.monotonic() < until and job.poll() is None:
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(job.pid).children(recursive=True)
                workers = [p for p in below if any("pyspark" in word for word in p.cmdline()) and "python" in p.name()]
                if workers:
                    self.seeded.choice(workers).send_signal(signal.SIGKILL)
                    return
            time.sleep(0.02)

    def error(self) -> str:
        """What the job failed with; what librdkafka says of its connections may follow, with a percent sign before it."""
        lines = [line for line in self.log().splitlines() if line.strip() and not line.startswith("%")]
        given = [line for line in lines if line.startswith(("krishiv_py.", "pyspark.", "py4j."))]
        return (given or lines or ["nothing"])[-1][:600]

    def log(self) -> str:
        """The end of its log."""
        return (self.work / "log").read_text(errors="replace")[-6_000:]

    def end(self) -> None:
        """Leave nothing behind."""
        if self.job is not None and self.job.poll() is None:
            kill_tree(self.job)


def kill_database(server: Server, seeded: random.Random) -> None:
    """Its immediate stop, or kill -9 of all its processes; it recovers from its log."""
    assert server.process is not None
    if seeded.random() < 0.5:
        server.stop(signal.SIGQUIT)
        return
    actual = psutil.Process(server.process.pid)
    below = actual.children(recursive=True)
    for process in (actual, *below):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.process.wait()
    psutil.wait_procs(below, timeout=10)
    server.process = None
