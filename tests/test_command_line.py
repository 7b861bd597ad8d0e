"""The command ``krishiv`` and addresses of Spark: what is wrong is said in a line, at once."""

from __future__ import annotations

import time

import pytest

from krishiv_py import PlanError, Session
from krishiv_py.cli.doctor import examine
from krishiv_py.cli.main import main
from krishiv_py.disk.settings import known_settings, use
from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark.remote import session as remote
from krishiv_py.testing.servers import free_ports


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "--port", "65536"], "no port: a number from 1 to 65535"),
        (["broker", "--port", "-1"], "no port: a number from 1 to 65535"),
        (["broker", "--port", "x"], "no port: a number from 1 to 65535"),
        (["doctor", "--config", "spark.x"], "'spark.x' is no key=value"),
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
        (["--master", ""], "krishiv doctor: `master` is no text"),
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
def test_the_doctor_asks_the_store_first(session: Session, monkeypatch: pytest.MonkeyPatch, checkpoint: str, said: str) -> None:
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
    monkeypatch.setattr(remote, "_ANSWER_S", 0.5)
    (port,) = free_ports(1)
    with pytest.raises(EnvironmentSetupError, match=f"answers within 0 s .got: 127.0.0.1:{port}.") as problem:
        Session.connect(f"sc://127.0.0.1:{port}{parameters}")
    assert "hunter22" not in str(problem.value)
