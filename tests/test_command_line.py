"""The command ``krishiv`` and addresses of Spark: what is wrong is said in a line, at once."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from krishiv_py import PlanError, Session
from krishiv_py.cli.main import main
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


def test_a_server_that_ends_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(remote, "_PORT", taken.getsockname()[1])
        monkeypatch.setattr(remote, "_LET_GO_S", 30.0)
        ended = threading.Timer(0.5, taken.close)
        ended.start()
        begun = time.monotonic()
        remote._let_port_go()
        assert 0.4 < time.monotonic() - begun < 20


def test_a_port_that_another_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="the `connect` extra is not installed")

    class TakenError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
        def __init__(self) -> None:
            Exception.__init__(self)

        def __str__(self) -> str:
            return "java.net.BindException: Failed to bind to address 0.0.0.0/0.0.0.0:15002"

    def refuse(_: object) -> None:
        raise TakenError

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    monkeypatch.setattr(remote, "_LET_GO_S", 0.0)
    with pytest.raises(EnvironmentSetupError, match=r"for 'local\[2\]' .got: another process that has port 15002.*Hint"):
        Session.connect("local[2]")
