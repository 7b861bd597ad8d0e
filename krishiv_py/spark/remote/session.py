"""The session of a Spark Connect server: that it answers is seen before PySpark's client asks, which would wait for minutes."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, PlanError, message, require_extra, shown
from krishiv_py.redaction import redacted

_MODULES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""What PySpark's client imports, and the extra `connect` installs."""
_ANSWER_S: Final = 30.0
"""How long a server may take to answer; one that is being started takes a few seconds."""
_PORT: Final = 15_002
"""Where PySpark's server for ``local`` listens; nothing changes that."""
_LET_GO_S: Final = 20.0
"""How long a server that ends may keep the port."""


def session(url: str) -> SparkSession:
    """A session on the server at `url`, or on one started for ``local[2]``.

    Raises
    ------
    EnvironmentSetupError
        When no server answers, or this one cannot make a session; for ``local`` when its port is taken.
    PlanError
        For an address that is none.
    """
    require_extra("Spark Connect's client", _MODULES, "connect", "no server can be talked to")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # read by a server started for "local"
    if url.startswith("sc://"):
        _require_answer(url)
    elif "SPARK_LOCAL_REMOTE" not in os.environ:  # PySpark's note of a server that this process has
        _let_port_go()
    try:
        return SparkSession.builder.remote(url).getOrCreate()
    except PySparkException as problem:
        said = " ".join(str(problem).split())
        raise _away("no session of Spark Connect could be made", redacted(said[:500])) from problem
    except Py4JJavaError as problem:  # of the server that PySpark starts for "local": its port is fixed
        if "BindException" not in str(problem):
            raise
        hint = "end that process, or use its server, if it is one: Session.connect('sc://localhost:15002')"
        what = f"no Spark Connect server starts for {shown(url)}"
        got = "another process that has port 15002"
        raise EnvironmentSetupError(message(what, got, "there is no session", hint)) from None


def _let_port_go() -> None:
    """Wait a while for the port of a server that ends just now, such as that of the program before."""
    until = time.monotonic() + _LET_GO_S
    while time.monotonic() < until:
        with socket.socket() as asked:
            asked.settimeout(1)
            if asked.connect_ex(("127.0.0.1", _PORT)) != 0:
                return
        time.sleep(0.2)


def _away(what: str, got: str) -> EnvironmentSetupError:
    hint = "start it with start-connect-server.sh of its Spark, or see that address, port, token and certificate are right"
    return EnvironmentSetupError(message(what, got, "there is no session", hint))


def _require_answer(url: str) -> None:
    grpc: Any = importlib.import_module("grpc")
    core: Any = importlib.import_module("pyspark.sql.connect.client.core")  # it needs grpc, which is optional
    try:
        address = core.DefaultChannelBuilder(url)
        channel = address.toChannel()
    except (PySparkException, ValueError) as problem:
        hint = 'write Session.connect("sc://host:15002"), with parameters behind /; as in sc://host:15002/;use_ssl=true'
        got = redacted(f"{shown(url)}: {problem}")
        raise PlanError(message("not a Spark Connect address", got, "there is no server to talk to", hint)) from None
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_S)
    except grpc.FutureTimeoutError:
        raise _away(f"no Spark Connect server answers within {_ANSWER_S:.0f} s", address.endpoint) from None
    finally:
        channel.close()
