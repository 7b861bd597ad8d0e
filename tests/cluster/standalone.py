"""A standalone cluster of processes on this machine: a master and two workers, from the installed PySpark."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
_START_S = 60
_PR_SET_PDEATHSIG = 1
_REGISTERED = re.compile(r"Registering worker")


def _die_with_parent() -> None:
    """Let the process end with the tests, even if they are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@attrs.define
class Cluster:
    """A running cluster.

    Attributes
    ----------
    url : str
        Its master, ``spark://127.0.0.1:port``.
    home : Path
        Logs and work folders.
    workers : list of subprocess.Popen
        Its workers, in the order of their start.
    """

    url: str
    home: Path
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    _processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    _started: int = 0

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker of one core, and wait until the master knows it."""
        known = self._registered()
        self._started += 1
        name = f"worker-{self._started}"
        command = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
        work = ["--memory", "1g", "--work-dir", str(self.home / name), self.url]
        process = self._start(name, [*command, *work])
        self._wait(lambda: self._registered() > known, name)
        self.workers.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker and all below it (-9), as when its machine is lost."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            if process.poll() is None:
                self.kill(process)

    def _registered(self) -> int:
        return len(_REGISTERED.findall((self.home / "master.log").read_text()))

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        where = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.home / "local"), "SPARK_DAEMON_MEMORY": "256m"}
        lean = {"SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1", "SPARK_NO_DAEMONIZE": "1"}
        unset = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env={**unset, **where, **lean, "SPARK_HOME": str(SPARK_HOME)},
                start_new_session=True,
                preexec_fn=_die_with_parent,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def _wait(self, ready: object, name: str) -> None:
        assert callable(ready)
        end = time.monotonic() + _START_S
        while not ready():
            log = (self.home / f"{name}.log").read_text()
            assert self._processes[-1].poll() is None and time.monotonic() < end, log[-3_000:]
            time.sleep(0.05)

    def start_master(self) -> None:
        """Start the master on a free port."""
        name = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._start("master", name)
        log = self.home / "master.log"
        self._wait(lambda: "Starting Spark master at" in log.read_text(), "master")
        actual = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert actual is not None
        self.url = actual.group(1)


@contextmanager
def cluster(home: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master with `workers` workers, for the time of the body."""
    (home / "local").mkdir(parents=True, exist_ok=True)
    running = Cluster("", home)
    try:
        running.start_master()
        for _ in range(workers):
            running.add_worker()
        yield running
    finally:
        running.close()
