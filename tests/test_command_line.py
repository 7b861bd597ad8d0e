"""The command ``krishiv`` and addresses of Spark: what is wrong is said in a line, at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from krishiv_py import PlanError, Session
from krishiv_py.cli.machines import examine
from krishiv_py.cli.main import main
from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark import sessions
from krishiv_py.storage.store import known_settings, use
from krishiv_py.testing.broker import free_ports


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "--port", "65536"], "not a port: a number from 1 to 65535"),
        (["broker", "--port", "-1"], "not a port: a number from 1 to 65535"),
        (["broker", "--port", "x"], "not a port: a number from 1 to 65535"),
        (["doctor", "--config", "spark.x"], "'spark.x' is not a key=value"),
        (["doctor", "--profile", "mine"], "invalid choice: 'mine'"),
        (["doctor", "--master", "local[1]", "--connect", "sc://host"], "not allowed with argument --master"),
        ([], "required: command"),
    ],
)
def test_a_wrong_call(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--master", ""], "krishiv doctor: `master` is not a text"),
        (["--connect", "host:15002"], "krishiv doctor: not a Spark Connect address (got: 'host:15002')"),
    ],
)
def test_a_wrong_address(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["doctor", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("s3a://bucket/cp", "driver: s3a://bucket/cp cannot be reached: no store answers there (got: "),
        (
            "hdfs://127.0.0.1:1/cp",
            "driver: hdfs://127.0.0.1:1/cp cannot be reached: no namenode answers (got: Connection refused",
        ),
        ("s3://bucket/cp", "driver: Spark reads and writes S3 as s3a:// (got: s3://bucket/cp)"),
        ("s3a://key:hunter22@bucket/cp", "driver: a path holds credentials (got: s3a://[redacted]@"),
    ],
)
def test_the_doctor_checks_the_store_first(
    session: Session, monkeypatch: pytest.MonkeyPatch, checkpoint: str, said: str
) -> None:
    before = known_settings()
    use({"fs.s3a.endpoint": "http://127.0.0.1:1", "fs.s3a.access.key": "a", "fs.s3a.secret.key": "hunter22"})
    monkeypatch.setattr(Session, "stop", lambda self: None)  # it is the one of all tests
    since = time.monotonic()
    try:
        report = examine(session, checkpoint)
    finally:
        use(before)
    assert time.monotonic() - since < 20
    (problem,) = report.problems
    assert problem.startswith(said) and problem in report.text and "hunter22" not in report.text


@pytest.mark.parametrize("url", ["sc://", "sc://:15002", "sc://host:abc", "sc://host:15002/a/b"])
def test_an_address_of_no_server(url: str) -> None:
    pytest.importorskip("grpc", reason="the `connect` extra is not installed")
    with pytest.raises(PlanError, match="not a Spark Connect address"):
        Session.connect(url)


@pytest.mark.parametrize("parameters", ["", "/;token=hunter22;use_ssl=true"])
def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, parameters: str) -> None:
    pytest.importorskip("grpc", reason="the `connect` extra is not installed")
    monkeypatch.setattr(sessions, "_ANSWER_S", 0.5)
    (port,) = free_ports(1)
    with pytest.raises(EnvironmentSetupError, match=f"answers within 0 s .got: 127.0.0.1:{port}.") as problem:
        Session.connect(f"sc://127.0.0.1:{port}{parameters}")
    assert "hunter22" not in str(problem.value)


def test_the_lateness_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("source,at,came\na,1000,1\nb,9000,2\na,4000,3\nb,12000,4\n")
    wanted = ["lateness", str(file), "--time", "at", "--arrival", "came", "--by", "source", "--window", "5 s"]
    assert (
        main(
            [*wanted, "--lag", "0 s", "--lag", "5 s", "--plot", str(tmp_path / "curve.svg"), "--html", str(tmp_path / "a.html")]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 rows by 'at', in the order of 'came': 1 came after a newer row, at most 5 s"
    assert [line.split() for line in lines[2:4]] == [["0", "s", "1", "25", "%", "2", "2"], ["5", "s", "0", "0", "%", "4", "3"]]
    assert lines[5].split() == ["source", "rows", "behind", "at", "most", "late", "at", "0", "s", "late", "at", "5", "s"]
    assert lines[6].split() == ["a", "2", "1", "5", "s", "50", "%", "0", "%"]
    assert "<th" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "content", "more", "said"),
    [
        ("rows.txt", "", [], "not a known kind of file (got: .txt)"),
        ("gone.csv", None, [], "the file cannot be read (got: "),
        (".", None, [], "a folder is not a file of rows (got: "),
        ("rows.parquet", "not parquet", [], "the file cannot be read (got: "),
        ("rows.csv", "at\n1\n", ["--lag", "soon"], "soon"),
        ("rows.csv", "at\n1\n", ["--by", "nowhere"], "nowhere"),
        ("rows.csv", "at\n1\n", ["--loses-at-most", "7"], "loses_at_most"),
        ("rows.csv", "at\n1\n", ["--html", "/nowhere/a.html"], "cannot be written"),
        ("rows.csv", "at\n1\n", ["--plot", "/nowhere/a.svg"], "cannot be written"),
    ],
)
def test_a_file_without_a_lateness(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: str | None, more: list[str], said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["lateness", str(tmp_path / name), "--time", "at", *more]) == 1
    error = capsys.readouterr().err
    assert error.startswith("krishiv lateness: ") and said in error
