"""Commands about checkpoints, called wrongly: one line that says what is wrong, and nothing of the kind of a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import Session
from krishiv_py.cli.main import main
from krishiv_py.storage.local import Disk

JOBS = """
import krishiv_py as kv

def orders(session):
    stream, orders.sender = session.memory_stream("`us er` struct<id: string>, at bigint")
    keyed = stream.watermark("at", 0).key_by(kv.col("us er").field("id").alias("k"))
    return keyed.tumbling_window("1 minute").agg(kv.count()).named("a b").to(kv.MemorySink())

def fails(session):
    raise ValueError("no")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a query of one output, started by the session, and the file of its job."""
    home = tmp_path_factory.mktemp("commands")
    (home / "jobs.py").write_text(JOBS)
    (home / "file").write_text("text")
    made: dict[str, Any] = {}
    exec(JOBS, made)  # the job of this test
    with Session.in_process() as session:
        query = session.start([made["orders"](session)], checkpoint=str(home / "checkpoint"), keep_batches=5)
        made["orders"].sender.send([{"us er": {"id": "a"}, "at": 1_000}])
        query.process_all_available()
        query.stop()
    return home


FOLDERS = ["{home}/file", "{home}/missing", "hdfs://", "http://x/y", "a\0b", ""]
MORE = [
    ["--last", "0"],
    ["--last", "five"],
    ["--leave-out", "none"],
    ["--hash", "k", "--leave-out", "k"],
    ["--savepoint", "none"],
]
CASES = [
    *(["savepoint", folder, "{home}/new"] for folder in FOLDERS),
    *(["savepoint", "{home}/checkpoint", folder] for folder in (FOLDERS[0], *FOLDERS[2:5])),
    *(["diff", folder, "{home}/jobs.py:orders"] for folder in FOLDERS),
    *(["capture", folder, "{home}/new", "--job", "{home}/jobs.py:orders"] for folder in FOLDERS),
    *(["move", folder, "--to", "spark"] for folder in FOLDERS),
    *(["move", "{home}/checkpoint", "--to", "spark", "--into", folder] for folder in (FOLDERS[0], *FOLDERS[2:5])),
    *(["diff", "{home}/checkpoint", job] for job in ("", "jobs.py", "none:orders", "{home}/file:x", "{home}/jobs.py:none")),
    *(["capture", "{home}/checkpoint", "{home}/new", "--job", "{home}/jobs.py:orders", *more] for more in MORE),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_wrong_call_is_one_line(case: list[str], kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([part.format(home=kept) for part in case]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"krishiv {case[0]}: ")
    assert "Traceback" not in said
    assert said.count("\n") == 1
    assert not (kept / "new" / "manifest.json").exists()


def test_a_folder_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(disk: Disk, path: str) -> bool:
        raise OSError("no route to host")

    monkeypatch.setattr(Disk, "exists", fails, raising=False)
    for command in (["savepoint", "/far/away", "new"], ["diff", "/far/away", __file__], ["move", "/far/away", "--to", "spark"]):
        main(command)
    said = capsys.readouterr().err
    assert said.count("no route to host") == 2, "a job is loaded first"
    assert said.count("'/far/away'") == 2


def test_a_job_that_fails_shows_where(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(kept / "checkpoint"), f"{kept}/jobs.py:fails"]) == 1
    assert "could not be made (got: ValueError). Hint: see the traceback above" in capsys.readouterr().err


def test_one_output_may_have_been_started_by_the_session(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = f"{kept}/jobs.py:orders"
    assert main(["diff", str(kept / "checkpoint"), job]) == 0
    assert capsys.readouterr().out == "a b: kept\n"
    assert main(["capture", str(kept / "checkpoint"), str(kept / "new"), "--job", job]) == 1
    assert "what batch 0 read of 'memory' is gone" in capsys.readouterr().err, "rows of a memory stream are in its process"
    assert main(["why", str(kept / "checkpoint"), "--job", job, "--key", "a", "--time", "1000"]) == 0
    assert "the stage 'a b'" in capsys.readouterr().out
