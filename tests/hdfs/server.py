"""A namenode and two datanodes of Hadoop's in one JVM, on free loopback ports.

``python -m tests.hdfs.server fetch`` fills the cache of jars (106 MB), which is ``$KRISHIV_HDFS_JARS``, by default
``~/.cache/krishiv_py/hdfs``. ``python -m tests.hdfs.server run --port 9000`` runs them until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from krishiv_py.testing.broker import Jars, free_ports

JARS: Final = Jars(Path(__file__).with_name("jars.sha256"), "hdfs", "KRISHIV_HDFS_JARS")
_READY_S: Final = 60
_DATANODES: Final = 2


@attrs.frozen
class Server:
    """What was started.

    Attributes
    ----------
    port : int
        Where the namenode listens.
    gateway : JavaGateway
        The JVM.
    namenode : object
        Hadoop's own object.
    """

    port: int
    gateway: JavaGateway = attrs.field(repr=False)
    namenode: Any = attrs.field(repr=False)

    @property
    def root(self) -> str:
        """The address that paths begin with."""
        return f"hdfs://127.0.0.1:{self.port}"

    def safe_mode(self, on: bool) -> None:
        """Let the namenode refuse whatever would change something, as it does after its start, or no more."""
        actions = self.gateway.jvm.org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction
        self.namenode.getRpcServer().setSafeMode(actions.SAFEMODE_ENTER if on else actions.SAFEMODE_LEAVE, False)


def closed_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)[0]


@contextlib.contextmanager
def running(port: int | None = None) -> Iterator[Server]:
    """An empty file system, whose permissions are checked; the user that starts it may do everything."""
    with tempfile.TemporaryDirectory(prefix="hdfs-") as folder:
        number = launch_gateway(
            classpath=":".join(map(str, JARS.fetch())),
            javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dhadoop.log.dir={folder}"],
            die_on_exit=True,
            redirect_stdout=subprocess.DEVNULL,
            redirect_stderr=subprocess.DEVNULL,
            daemonize_redirect=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=number, auto_convert=True))
        try:
            yield _started(gateway, folder, port or free_ports(1)[0])
        finally:
            gateway.shutdown()


def _started(gateway: JavaGateway, folder: str, port: int) -> Server:
    hadoop = gateway.jvm.org.apache.hadoop
    http, *others = free_ports(1 + 3 * _DATANODES)
    given = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{port}",
        "dfs.namenode.http-address": f"127.0.0.1:{http}",
        "dfs.namenode.name.dir": f"file://{folder}/name",
        "dfs.namenode.fs-limits.min-block-size": 4096,
        "dfs.namenode.file.close.num-committed-allowed": 1,  # else one is closed half a second later
        "dfs.permissions.enabled": "true",
        "dfs.replication": _DATANODES,
        "dfs.heartbeat.interval": 1,
        "dfs.datanode.hostname": "127.0.0.1",
    }
    settings = hadoop.conf.Configuration()
    for key, value in given.items():
        settings.set(key, str(value))
    hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)  # both in one process
    hadoop.hdfs.server.namenode.NameNode.format(settings)
    none = gateway.new_array(gateway.jvm.java.lang.String, 0)
    namenode = hadoop.hdfs.server.namenode.NameNode.createNameNode(none, settings)
    started = []
    for number in range(_DATANODES):
        settings.set("dfs.datanode.data.dir", f"file://{folder}/data{number}")
        for what, free in zip(("address", "http.address", "ipc.address"), others[3 * number :], strict=False):
            settings.set(f"dfs.datanode.{what}", f"127.0.0.1:{free}")
        own = hadoop.conf.Configuration(settings)
        started.append(hadoop.hdfs.server.datanode.DataNode.createDataNode(none, own))
    until = time.monotonic() + _READY_S
    while namenode.isInSafeMode() or not all(each.isDatanodeFullyStarted() for each in started):
        if time.monotonic() > until:
            raise RuntimeError("the datanodes did not start")
        time.sleep(0.05)
    return Server(port, gateway, namenode)


def main() -> None:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "run"))
    parser.add_argument("--port", type=int, default=9000)
    given = parser.parse_args()
    if given.what == "fetch":
        print(f"{len(JARS.fetch())} jars in {JARS.cache()}")
        return
    with running(given.port) as hdfs, contextlib.suppress(KeyboardInterrupt):
        print(f"HDFS at {hdfs.root}; Ctrl-C ends it", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
