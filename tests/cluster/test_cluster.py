"""On a standalone cluster results and late rows are those of the driver, also when a worker or the driver is killed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.standalone import Cluster, cluster
from tests.crash.job import KINDS
from tests.crash.killing import kill_tree, rows, write_input
from tests.crash.test_crash import by_driver
from tests.goldens.engines.cluster import MASTER

LONG = "KRISHIV_CLUSTER" in os.environ  # `nox -s cluster` sets it
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
ROOT = Path(__file__).parents[2]
SOME_CASES = ("lb-own-on-arrival-two-sided-others",)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of one core each."""
    with cluster(tmp_path_factory.mktemp("cluster")) as actual:
        yield actual


def start(running: Cluster, kind: str, work: Path, source: str = "../in") -> subprocess.Popen[bytes]:
    """The job, in its work folder."""
    work.mkdir(exist_ok=True)
    with (work / "log").open("ab") as log:
        command = [sys.executable, "-m", "tests.cluster.job", running.url, kind, source]
        where = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, cwd=work, env=where, stdout=log, stderr=log, start_new_session=True)


def wait_for_batch(job: subprocess.Popen[bytes], work: Path, batch: int) -> None:
    """Until a batch has been committed."""
    end = time.monotonic() + 240
    while not (work / "checkpoint" / "commits" / str(batch)).exists() and job.poll() is None:
        assert time.monotonic() < end, (work / "log").read_text()[-3_000:]
        time.sleep(0.02)


def finish(job: subprocess.Popen[bytes], work: Path) -> None:
    """Wait for the job to do its work."""
    assert job.wait(timeout=400) == 0, (work / "log").read_text()[-3_000:]


@pytest.mark.skipif(not LONG, reason="nox -s cluster")
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_and_the_driver_are_killed(kind: str, running: Cluster, tmp_path: Path) -> None:
    write_input(tmp_path / "in", KINDS.index(kind))
    work = tmp_path / "work"
    out, late, read = by_driver(kind, tmp_path / "in", work)
    assert all(out.values()) and late
    seeded = random.Random(kind)
    missing = next(worker for worker in running.workers if worker.poll() is None)
    job = start(running, kind, work)
    wait_for_batch(job, work, seeded.randrange(4))
    running.kill(missing)
    running.add_worker()
    wait_for_batch(job, work, 5 + seeded.randrange(3))
    assert job.poll() is None, "the job ends before it can be killed: " + (work / "log").read_text()[-3_000:]
    kill_tree(job)
    finish(start(running, kind, work), work)
    assert {name: rows(work / name) for name in out} == out
    assert rows(work / "late") == late
    assert (work / "rows").read_text() == read
    assert not [path for path in work.rglob("*probe*") if "probe" in path.name]
    shutil.rmtree(work)


def run_golden_cases(engine: str, master: str, *picked: str) -> str:
    """Run golden cases on a cluster, and return what is printed."""
    command = [sys.executable, "-m", "tests.goldens", "--engine", engine, *picked]
    where = {**os.environ, "PYTHONPATH": str(ROOT), MASTER: master}
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=7_200 if LONG else 480)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    return done.stdout


@pytest.mark.skipif(not LONG, reason="nox -s cluster")
@pytest.mark.parametrize("engine", ["cluster_bounded", "cluster"])
def test_the_golden_cases_hold_on_a_cluster(engine: str, running: Cluster) -> None:
    run_golden_cases(engine, running.url)


@pytest.mark.skipif(LONG, reason="the long form has all of them")
def test_some_golden_cases_hold_on_executors() -> None:
    """One: look-back on arrival; master and workers are in the driver's JVM."""
    assert f"{len(SOME_CASES)} passed" in run_golden_cases("cluster", "local-cluster[2,1,512]", "--only", ",".join(SOME_CASES))


@pytest.mark.skipif(not LONG, reason="nox -s cluster")
def test_the_doctor_sees_a_folder_that_is_not_shared(running: Cluster, tmp_path: Path) -> None:
    """Each process has its own ``/proc/self/cwd``, as each machine its own disk."""
    command = [sys.executable, "-m", "krishiv_py", "doctor", "--master", running.url, "--checkpoint", "/proc/self/cwd/state"]
    small = ["--config", "spark.executor.memory=512m", "--config", "spark.cores.max=2"]
    done = subprocess.run(
        [*command, *small],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr[-3_000:]
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["executor", "host", "Python", "krishiv_py"], done.stdout
    assert [line.split()[0] for line in lines[1:4]] == ["(driver)", "0", "1"], done.stdout
    assert [line.split()[-2:] for line in lines[2:4]] == [["ok", "no"]] * 2
    assert [line.startswith("problem: executor") and "/proc/self/cwd/state: " in line for line in lines[5:]] == [True, True]
    assert not list((tmp_path / "state").iterdir())
