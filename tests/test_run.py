"""``krishiv run``: a job from its file to its exit code, without Spark."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, Session, count
from krishiv_py.cli.main import main
from krishiv_py.cli.options import in_options
from krishiv_py.errors import PlanError
from krishiv_py.metrics import serve
from krishiv_py.testing.broker import free_ports
from scripts.docs import messages

JOBS = """
import os, sys
from krishiv_py import ParquetSink, count
from helper import LAG

HOME = os.path.dirname(__file__)

def per_minute(session):
    orders = session.read_parquet(f"{HOME}/in", "user string, at bigint", streaming=True)
    return orders.watermark("at", LAG).key_by("user").tumbling_window(60_000).agg(count())

def orders(session):
    return per_minute(session).to(ParquetSink(f"{HOME}/out"))

def two(session):
    stream = per_minute(session)
    return [stream.to(ParquetSink(f"{HOME}/a"), name="a"), stream.to(ParquetSink(f"{HOME}/b"), name="b")]

def hourly(session):
    orders = session.read_parquet(f"{HOME}/in", "user string, at bigint", streaming=True)
    windows = orders.watermark("at", LAG).key_by("user").tumbling_window(3_600_000).agg(count())
    return windows.to(ParquetSink(f"{HOME}/out"))

def fails(session):
    def broken(batch):
        raise RuntimeError("of the user")
    stream = session.read_parquet(f"{HOME}/in", "user string, at bigint", streaming=True).map_batches(broken)
    return stream.watermark("at", 0).tumbling_window(60_000).agg(count()).to(ParquetSink(f"{HOME}/out"))

def plan(session):
    return per_minute(session)

def nothing(session):
    return []

def cannot(session):
    return 1 / 0

def leaves(session):
    sys.exit()

def columns(session):
    return per_minute(session).filter("nothing > 1").to(ParquetSink(f"{HOME}/out"))

def without_spark(session):
    assert not [m for m in sys.modules if m.split(".")[0] in ("pyspark", "py4j")]
    return orders(session)

CONSTANT = 5
"""


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    """A file of jobs next to a folder with orders."""
    (tmp_path / "helper.py").write_text("LAG = 5_000\n")
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "in").mkdir()
    orders(tmp_path, 0, 90)
    return str(tmp_path / "jobs.py")


def orders(home: Path, first: int, number: int) -> None:
    """Write a file of orders, one each second."""
    rows = pa.table({"user": ["a"] * number, "at": pa.array(range(first * 1_000, (first + number) * 1_000, 1_000), pa.int64())})
    pq.write_table(rows, home / f"in/{first:06d}.parquet")


def counted(folder: Path) -> list[int]:
    """The counts of all windows."""
    return sorted(n for file in folder.glob("*.parquet") for n in pq.read_table(file)["count"].to_pylist())


def krishiv(*arguments: str) -> list[str]:
    """Return the command in a process of its own."""
    return [sys.executable, "-m", "krishiv_py", "run", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(krishiv(*arguments), capture_output=True, text=True, check=False, timeout=60)


def test_a_scheduler_runs_what_is_there_and_goes_on_later(jobs: str, tmp_path: Path) -> None:
    arguments = f"{jobs}:without_spark", "--until-idle", "--checkpoint", str(tmp_path / "checkpoint")
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    assert counted(tmp_path / "out") == [60]
    assert [line.split(" ", 1)[1].split(" after ")[0] for line in first.stderr.splitlines()] == [
        "without_spark: started",
        "without_spark, batch 0: 90 rows, watermark 1970-01-01T00:01:24Z, no late rows; ended",
    ]
    assert first.stdout == ""
    orders(tmp_path, 90, 90)
    assert run(*arguments).returncode == 0
    assert counted(tmp_path / "out") == [60, 60]


def test_a_run_that_finds_nothing_new_says_so(jobs: str, tmp_path: Path) -> None:
    arguments = f"{jobs}:orders", "--until-idle", "--checkpoint", str(tmp_path / "checkpoint")
    said = list[str]()
    for number in (90, 0, 30):
        if said:
            orders(tmp_path, 100 * len(said), number)
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert ": 90 rows," in said[0]
    assert ": 0 new rows, 90 in all," in said[1]
    assert ": 30 new rows, 120 in all," in said[2]


def test_lines_are_json_on_request(jobs: str, tmp_path: Path) -> None:
    done = run(f"{jobs}:orders", "--until-idle", "--log-format", "json", "--name", "q")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["logger"] for line in lines} == {"krishiv_py.run", "krishiv_py.query"}
    assert next(line["rows"] for line in lines if line["logger"] == "krishiv_py.query") == 90
    failed = run(f"{jobs}:cannot", "--log-format", "json")
    lines = [json.loads(line) for line in failed.stderr.splitlines()]
    assert failed.returncode == 2 and {line["level"] for line in lines} == {"ERROR"}
    assert any("ZeroDivisionError" in line.get("exception", "") for line in lines)


def test_a_failure_is_served_for_a_while(jobs: str) -> None:
    (port,) = free_ports(1)
    arguments = krishiv(f"{jobs}:fails", "--metrics-port", str(port), "--linger", "1 min")
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            text = b""
            for _ in range(1_200):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                        text = answer.read()
                except OSError:
                    pass
                if b'state="failed"} 1.0' in text:
                    break
                time.sleep(0.05)
            assert b'state="failed"} 1.0' in text and process.poll() is None
            process.terminate()
            _, shown = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 143 and "served for 1 min more" in shown


def test_a_checkpoint_of_a_program_goes_on(jobs: str, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    assert main(["run", f"{jobs}:orders", "--until-idle", "--checkpoint", checkpoint, "--profile", "single-node-durable"]) == 0
    orders(tmp_path, 90, 90)
    with Session.in_process() as session:
        stream = session.read_parquet(tmp_path / "in", "user string, at bigint", streaming=True)
        plan = stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(count())
        query = plan.start(MemorySink(), checkpoint=checkpoint)
        query.process_all_available()
        assert query.results()["count"].to_pylist() == [60]


def test_several_outputs(jobs: str, tmp_path: Path) -> None:
    assert main(["run", f"{jobs}:two", "--until-idle"]) == 0
    assert counted(tmp_path / "a") == counted(tmp_path / "b") == [60]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("jobs.py:none", "no function none"),
        ("jobs.py:CONSTANT", "no function CONSTANT"),
        ("jobs.py", "it names no function"),
        ("jobs.py:", "it names no function"),
        ("other.py:orders", "no file"),
        ("no_such_module:orders", "no module no_such_module"),
        ("broken.py:orders", "SyntaxError"),
        ("jobs.py:plan", "returned no outputs"),
        ("jobs.py:nothing", "returned no outputs"),
        ("jobs.py:cannot", "ZeroDivisionError"),
        ("jobs.py:leaves", "left with sys.exit(None)"),
        ("program.py:orders", "sys.exit(0) while it was imported"),
        ("json.py:orders", "a file with the name of the module json"),
        ("calendar.py:orders", "a file with the name of the module calendar"),
        ("krishiv_py.py:orders", "a file with the name of the module krishiv_py"),
        ("jobs.py:columns", "Hint: "),
    ],
)
def test_what_cannot_be_started_has_code_2(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text("def orders(:\n")
    (tmp_path / "program.py").write_text("import sys\nsys.exit(0)\n")
    for name in ("json", "calendar", "krishiv_py"):
        (tmp_path / f"{name}.py").write_text("def orders(session):\n    return []\n")
    python, modules = list(sys.path), dict(sys.modules)
    assert main(["run", f"{tmp_path}/{job}" if ".py" in job else job, "--until-idle"]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "krishiv run: " in shown
    assert all(sys.modules[name] is module for name, module in modules.items() if name not in ("jobs", "helper", "broken"))
    sys.path[:] = python  # a file json.py is not for other tests


def test_options_that_fit_nothing_have_code_2(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, checkpoint = f"{jobs}:orders", str(tmp_path / "checkpoint")
    assert main(["run", job, "--master", "local[2]"]) == 2
    assert main(["run", job, "--every", "soon"]) == 2
    assert main(["run", job, "--profile", "single-node-durable"]) == 2
    assert main(["run", job, "--until-idle", "--checkpoint", checkpoint]) == 0
    assert main(["run", f"{jobs}:hourly", "--until-idle", "--checkpoint", checkpoint]) == 2
    (port,) = free_ports(1)
    with Session.in_process() as session:
        stream, _ = session.memory_stream("at bigint")
        held = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink())
        with serve(port, [held]):
            assert main(["run", job, "--metrics-port", str(port)]) == 2
    assert capsys.readouterr().err.count("krishiv run: ") == 5
    for wrong in (["--engine", "flink"], ["--metrics-port", "65536"], ["--until-idle", "--every", "1 min"], ["--config", "a"]):
        with pytest.raises(SystemExit, match="2"):
            main(["run", job, *wrong])


@pytest.mark.parametrize(
    ("refused", "said", "follows"),
    [
        ("--workers 0", "Hint: write --workers 2 for two threads", "--workers 2"),
        ("--master local[2]", "(got: --master): nothing would follow them. Hint: leave it out, or write --engine spark.", ""),
        ("--config spark.ui.port=1", "(got: --config spark.ui.port)", ""),
        (
            "--profile single-node-durable",
            "Hint: pass krishiv run JOB --checkpoint ",
            "--profile single-node-durable --checkpoint {0}/c",
        ),
        (
            "--profile distributed-durable --checkpoint {0}/c",
            "Hint: write --profile single-node-durable, or --engine spark for a cluster.",
            "--profile single-node-durable --checkpoint {0}/c",
        ),
        ("--keep-batches 0", "--keep-batches is out of range", "--keep-batches 50"),
        ("--retry-for soon", "`--retry-for` is not a legal duration", '--retry-for "5 seconds"'),
        ("--hung-after soon", "`--hung-after` is not a legal duration", '--hung-after "1 min 30 s"'),
        ("--linger soon", "`--linger` is not a legal duration", "--linger 250ms"),
        ("--checkpoint s3a://key:secret@bucket/c", "Hint: write them into the environment, as AWS_ACCESS_KEY_ID, and", ""),
    ],
)
def test_errors_name_options_that_help(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: str, said: str, follows: str
) -> None:
    command = ["run", f"{jobs}:orders", "--until-idle"]
    assert main([*command, *shlex.split(refused.format(tmp_path))]) == 2
    assert said in capsys.readouterr().err
    assert main([*command, *shlex.split(follows.format(tmp_path))]) == 0


def test_a_job_with_another_plan_begins_with_the_commands_of_the_error(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, savepoint, new = (str(tmp_path / name) for name in ("checkpoint", "savepoint", "new"))
    assert main(["run", f"{jobs}:orders", "--until-idle", "--checkpoint", checkpoint]) == 0
    assert main(["run", f"{jobs}:hourly", "--until-idle", "--checkpoint", checkpoint]) == 2
    commands = re.search("`krishiv (savepoint .* SAVEPOINT)`, then krishiv (run JOB .*); or use", capsys.readouterr().err)
    assert commands is not None
    given = {"JOB": f"{jobs}:hourly", "SAVEPOINT": savepoint, "NEW": new}
    first, second = ([given.get(word, word) for word in shlex.split(command)] for command in commands.groups())
    assert main(first) == 0 and "--on-change" in second
    assert main([*second, "--until-idle"]) == 0
    without = [word for word in second if "=" not in word and word != "--on-change"]
    assert main([*without, "--checkpoint", f"{new} too", "--until-idle"]) == 2
    assert "Hint: to lose it, pass --on-change " in capsys.readouterr().err


def test_no_hint_names_a_step_that_an_option_stands_for() -> None:
    texts = [hint for of_class in messages.messages().values() for hints in of_class.values() for hint in hints]
    shown = [in_options(PlanError("x", hint=hint)) for hint in texts]
    named = r"\.(engine|workers|config)\(|Session\.(in_process|embedded)\(|storage_options\(|(keep_batches|savepoint|profile)="
    assert any(re.search(named, hint) for hint in texts)
    assert not [text for text in shown if re.search(named, text)]


def test_port_0_is_a_free_one_that_is_printed(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{jobs}:orders", "--until-idle", "--metrics-port", "0"]) == 0
    actual = re.search(r"krishiv run: metrics at http://127\.0\.0\.1:(\d+)/metrics\n", capsys.readouterr().err)
    assert actual is not None and int(actual[1]) > 0


def test_a_query_that_fails_has_code_1(jobs: str) -> None:
    done = run(f"{jobs}:fails", "--until-idle")
    assert done.returncode == 1
    assert "failed after" in done.stderr and "of the user" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "stopped")])
def test_a_signal_finishes_the_batch_in_hand(jobs: str, tmp_path: Path, number: signal.Signals, code: int, said: str) -> None:
    (port,) = free_ports(1)
    checkpoint = str(tmp_path / "checkpoint")
    arguments = f"{jobs}:orders", "--checkpoint", checkpoint, "--metrics-port", str(port), "--name", "nightly"
    with subprocess.Popen(krishiv(*arguments), stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(1_200):  # a machine that is busy starts slowly
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                        ready = json.load(answer)
                    break
                except OSError:  # not there yet, or not ready
                    time.sleep(0.05)
            assert ready["queries"] == [{"query": "nightly", "state": "running", "last_batch": 0}]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                assert b'krishiv_window_rows_total{operator="window-aggregate",query="nightly"} 90.0' in answer.read()
            process.send_signal(number)
            _, shown = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    assert said in shown and "Traceback" not in shown
    orders(tmp_path, 90, 90)
    assert run(*arguments, "--until-idle").returncode == 0
    assert counted(tmp_path / "out") == [60, 60]


def test_sigterm_while_a_job_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    arguments = krishiv(f"{tmp_path}/slow.py:orders")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "loading\n"
            process.terminate()
            _, shown = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, shown) == (143, "")


def test_a_terminal_has_a_progress_line(jobs: str) -> None:
    pytest.importorskip("tqdm")
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(krishiv(f"{jobs}:orders", "--until-idle"), stderr=theirs, check=False, timeout=60)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert "\r" in shown and "orders, batch 0" in shown and "started" not in shown


def test_the_doctor_looks_at_a_job_in_process(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    look = ["doctor", "--engine", "in-process", "--checkpoint", checkpoint, "--job"]
    assert main([*look, f"{jobs}:orders"]) == 0
    assert "no problem found" in capsys.readouterr().out
    assert main(["run", f"{jobs}:orders", "--until-idle", "--checkpoint", checkpoint]) == 0
    assert main([*look, f"{jobs}:orders"]) == 0
    assert "the plan goes on after batch 0" in capsys.readouterr().out
    assert main([*look, f"{jobs}:cannot"]) == 1
    assert "problem: job" in capsys.readouterr().out
    assert main([*look, f"{jobs}:hourly"]) == 1
    assert "does not go on from the checkpoint" in capsys.readouterr().out
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").write_text("a file where the folder was")
    assert main([*look, f"{jobs}:orders"]) == 1
    assert "problem: output" in capsys.readouterr().out
