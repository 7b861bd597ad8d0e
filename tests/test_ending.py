"""SIGTERM: after ``own_process()`` queries stop and the process exits with 143, as process 1 of a container too.

Without the call the process ends as Python processes do, and the next start goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import PlanError, own_process

PROGRAM = """
import atexit, sys, threading, time
from krishiv_py import own_process
from krishiv_py.storage import ending
from krishiv_py.storage.local import new_folder
how = sys.argv[1]
class Runs:
    def stops(self):
        return [lambda: print("stopped", flush=True), self.fails, *([lambda: time.sleep(60)] if how == "slow" else [])]
    def fails(self):
        raise OSError("no JVM")
ending.STOP_S = ending.END_S = 0.5
runs = Runs()
def begin():
    new_folder("x"); ending.stop_at_end(runs)
if how != "unasked":
    own_process()
if how == "thread":
    thread = threading.Thread(target=begin); thread.start(); thread.join()
else:
    begin()
atexit.register(print, "at exit", flush=True)
print("begun", flush=True)
try:
    while how != "ends":
        try:
            while True:
                time.sleep(0.1)
        except BaseException:
            if how != "holds on":
                raise
finally:
    print("finally", flush=True)
"""
SESSION = "from krishiv_py import Session; Session.in_process().stop()"
PID_1 = ("unshare", "-p", "-f", "--kill-child", "--mount-proc")


def may_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*PID_1, "true"], capture_output=True).returncode == 0


def ended(tmp_path: Path, how: str, before: tuple[str, ...] = (), number: int | None = signal.SIGTERM) -> tuple[int, list[str]]:
    """How a program ends that gets a signal, and what it prints after its begin."""
    command = [*before, sys.executable, "-c", PROGRAM, how]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stdout.readline() == "begun\n"
    if number is not None:
        time.sleep(0.3)
        actual = subprocess.check_output(["pgrep", "-P", str(run.pid)], text=True) if before else str(run.pid)
        os.kill(int(actual), number)
    out = run.stdout.read()  # communicate() would leave out what was read ahead with the first line
    _, err = run.communicate(timeout=30)
    if number == signal.SIGTERM:
        assert "Traceback" not in err, err
    assert not list(tmp_path.glob("krishiv-*")) or how == "unasked"
    return run.returncode, out.split("\n")[:-1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("pid_1", [False, True])
@pytest.mark.parametrize("how", ["waits", "slow", "holds on", "thread"])
def test_sigterm_stops_queries_and_exits_with_143(tmp_path: Path, how: str, pid_1: bool) -> None:
    if pid_1 and not may_unshare():
        pytest.skip("a PID namespace may not be made here")
    code, said = ended(tmp_path, how, PID_1 if pid_1 else ())
    assert code == 143 and said[0] == "stopped"
    assert ("finally" in said) == (how != "holds on")


def test_without_the_call_there_is_no_handler(tmp_path: Path) -> None:
    assert ended(tmp_path, "unasked") == (-signal.SIGTERM, [])
    subprocess.run([sys.executable, "-c", SESSION], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    assert not list(tmp_path.glob("krishiv-*")), "the next session removes what was left"


def test_another_thread_cannot_ask_for_the_handler() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(PlanError, match=r"main thread.*own_process\(\) at the beginning"):
        pool.submit(own_process).result()


def test_a_handler_of_the_program_stays() -> None:
    code = """import signal; from krishiv_py import own_process; mine = lambda *_: None
signal.signal(signal.SIGTERM, mine); own_process(); assert signal.getsignal(signal.SIGTERM) is mine"""
    subprocess.run([sys.executable, "-c", code], check=True)


JOB = """
import sys, time
from krishiv_py import ParquetSink, Session, count
home = sys.argv[1]
with Session.in_process() as session:
    files = session.read_parquet(f"{home}/in", "user string, at bigint", streaming=True, max_files_per_batch=1)
    plan = files.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    query = plan.start(ParquetSink(f"{home}/out"), checkpoint=f"{home}/check")
    print("begun", flush=True)
    query.process_all_available() if sys.argv[2] == "ends" else time.sleep(60)
"""


def test_a_job_without_the_handler_loses_nothing(tmp_path: Path) -> None:
    """It is ended again and again at moments of a batch, and goes on each time."""
    for folder in ("in", "tmp"):
        (tmp_path / folder).mkdir()
    rows: list[dict[str, Any]] = [{"user": f"u{n % 7}", "at": n} for n in range(4_000)]
    for number in range(40):
        pq.write_table(pa.Table.from_pylist(rows[number * 100 : number * 100 + 100]), tmp_path / "in" / f"{number:03}.parquet")
    command = [sys.executable, "-c", JOB, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    for pause_s in (0.0, 0.03, 0.1):
        with subprocess.Popen([*command, "waits"], env=environment, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None and run.stdout.readline() == "begun\n"
            time.sleep(pause_s)
            run.terminate()
        assert run.returncode == -signal.SIGTERM
    subprocess.run([*command, "ends"], env=environment, check=True, stdout=subprocess.PIPE)
    result = pq.read_table(tmp_path / "out").to_pylist()
    counted = Counter((row["user"], row["at"] // 10 * 10) for row in rows if row["at"] < 3_990)
    assert sorted((r["user"], r["window_start"], r["count"]) for r in result) == sorted((*key, n) for key, n in counted.items())
    assert not list((tmp_path / "tmp").iterdir())


def test_ctrl_c_is_a_keyboard_interrupt_and_queries_stop(tmp_path: Path) -> None:
    code, said = ended(tmp_path, "waits", number=signal.SIGINT)
    assert code == -signal.SIGINT and said == ["finally", "at exit", "stopped"]


def test_a_program_that_ends_stops_its_queries(tmp_path: Path) -> None:
    assert ended(tmp_path, "ends", number=None) == (0, ["finally", "at exit", "stopped"])


@pytest.mark.parametrize("folders", [False, True], ids=["folders of ours", "folders of the user"])
def test_sigterm_ends_a_process_1_that_waits_for_its_jvm(tmp_path: Path, folders: bool) -> None:
    if not may_unshare():
        pytest.skip("a PID namespace may not be made here")
    java, requested = tmp_path / "bin" / "java", tmp_path / "asked"
    java.parent.mkdir()
    java.write_text(
        f"""#!/bin/sh\necho 'openjdk version "17.0.1"' >&2\n[ "$1" = -version ] || {{ touch {requested}; sleep 60; }}\n"""
    )
    java.chmod(0o755)
    more = {"SPARK_LOCAL_DIRS": str(tmp_path / "spark")} if folders else {}
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "TMPDIR": str(tmp_path), **more}
    program = "from krishiv_py import Session, own_process; own_process(); Session.embedded()"
    run = subprocess.Popen([*PID_1, sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not requested.exists():
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        os.kill(int(subprocess.check_output(["pgrep", "-P", str(run.pid)], text=True)), signal.SIGTERM)
        assert run.wait(timeout=20) == 143, run.communicate()
    finally:
        run.kill()
        run.communicate()
    assert not list(tmp_path.glob("krishiv-*"))


LATE_THREAD = """
import threading
from krishiv_py import MemorySink, Session, count, own_process
own_process()
session = Session.in_process()
stream, _ = session.memory_stream("at bigint")
query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink())

def wait():
    print("waits", flush=True)
    query.await_termination()
    print("done", flush=True)

threading.Thread(target=wait).start()
"""


def test_sigterm_while_only_a_thread_waits_ends_with_143() -> None:
    program = [sys.executable, "-c", LATE_THREAD]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "waits\n"
            time.sleep(0.5)  # main is over
            process.terminate()
            said, shown = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, said, shown) == (143, "done\n", "")
