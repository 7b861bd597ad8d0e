"""A Kafka broker of one process on free loopback ports, to try things out and for tests (docs/kafka.md, "For tests").

``krishiv broker --port 9092`` runs one until Ctrl-C, ``krishiv broker --fetch`` only fills the cache. Needs Java 17, no Maven,
and the extra ``kafka``. The jars come from Maven Central, once, and are checked against ``kafka_jars.sha256``; the cache is
``$KRISHIV_KAFKA_JARS``, by default ``~/.cache/krishiv_py/kafka``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs

from krishiv_py.connectors.kafka.client import admin_module, kafka
from krishiv_py.errors import EnvironmentSetupError, failure_text
from krishiv_py.plan.checks import PathLike

CENTRAL: Final = "https://repo1.maven.org/maven2"
_LOWEST, _HIGHEST = 10_240, 65_535
"""Ports for servers of tests."""


@attrs.frozen
class Jars:
    """A list of jars with their sums, and where they are kept.

    Attributes
    ----------
    list : Path
        A file of lines ``sum path``, the path as below the repository.
    name : str
        The folder below ``~/.cache/krishiv_py``.
    variable : str
        The environment variable that names another folder.
    """

    list: Path
    name: str
    variable: str

    def pinned(self) -> dict[str, str]:
        """Check sum by path below the repository."""
        lines = self.list.read_text().splitlines()
        return {path: digest for digest, path in (line.split() for line in lines)}

    def cache(self) -> Path:
        """Return where the jars are kept."""
        chosen = os.environ.get(self.variable)
        return Path(chosen) if chosen else Path.home() / ".cache" / "krishiv_py" / self.name

    def fetch(self) -> tuple[Path, ...]:
        """Return the jars, fetched where they are not there yet; two processes may ask at once.

        Raises
        ------
        EnvironmentSetupError
            When one cannot be fetched, or is another one than was pinned.
        """
        folder = self.cache()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with ThreadPoolExecutor(8) as threads:
                return tuple(threads.map(lambda item: _jar(folder, *item), self.pinned().items()))


def _jar(folder: Path, path: str, expected: str) -> Path:
    jar = folder / path.rpartition("/")[2]
    if jar.exists() and hashlib.sha256(jar.read_bytes()).hexdigest() == expected:
        return jar
    data = _read(path)
    if hashlib.sha256(data).hexdigest() != expected:
        raise _failed("a jar is another one than was pinned", path, "do not use it; see who answers for the repository")
    waiting = jar.with_suffix(".part")
    waiting.write_bytes(data)
    waiting.rename(jar)
    return jar


def _read(path: str) -> bytes:
    address = f"{CENTRAL}/{path}"
    for attempt in range(3):
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return bytes(answer.read())
        except OSError as problem:
            if attempt == 2:
                raise _failed("a jar cannot be fetched", f"{address}: {failure_text(problem)}", "see to the network") from None
            time.sleep(2 * (attempt + 1))
    raise AssertionError("the last attempt raises")


def _failed(what: str, got: str, hint: str) -> EnvironmentSetupError:
    return EnvironmentSetupError(what, got=got, hint=hint)


def free_ports(number: int) -> list[int]:
    """Ports nobody listens on, each another one: all are held until the last is found.

    They lie outside of the range the system takes ports from by itself. A client of a server that has ended goes on asking for
    its port, and a socket that Spark opens there for one answer would take the first to come for the one it waits for.
    """
    given = _given_by_itself()
    possible = [port for port in range(_LOWEST, _HIGHEST + 1) if port not in given] or [0]
    with contextlib.ExitStack() as held:
        sockets: list[socket.socket] = []
        while len(sockets) < number:
            free = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody has it
                free.bind(("127.0.0.1", secrets.choice(possible)))
                sockets.append(free)
        return [int(free.getsockname()[1]) for free in sockets]


def _given_by_itself() -> range:
    """Return the ports that the system gives to whoever asks for any."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):  # another system than Linux: the range of IANA
        low, high = 49_152, 65_535
    return range(low, high + 1)


JARS: Final = Jars(Path(__file__).with_name("kafka_jars.sha256"), "kafka", "KRISHIV_KAFKA_JARS")
_START_S: Final = 120
_FLAGS: Final = (
    "-Xmx512m",
    "-Xms128m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
"""One process that lives for a minute: the quick compiler alone takes half the CPU time."""


class Broker:
    """One broker over a folder. It can be stopped, killed and started again on the same port.

    Attributes
    ----------
    address : str
        Its ``bootstrap.servers``.

    Raises
    ------
    EnvironmentSetupError
        When its jars cannot be fetched, or there is no Java.
    MissingExtraError
        When confluent-kafka is not installed.
    """

    def __init__(self, folder: PathLike, port: int | None = None) -> None:
        kafka()
        self.folder = folder = Path(folder)
        free, self._control = free_ports(2)
        self.port: int = free if port is None else port
        self.address: str = f"127.0.0.1:{self.port}"
        self._classpath = ":".join(map(str, JARS.fetch()))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / "server.properties"
        self._settings.write_text(self._properties())
        if not (folder / "data" / "meta.properties").exists():
            tool = [
                "kafka.tools.StorageTool",
                "format",
                "--standalone",
                "-t",
                "krishivAAAAAAAAAAAAAAAA",
                "-c",
                str(self._settings),
            ]
            try:
                done = subprocess.run([*self._java(), *tool], capture_output=True, text=True, timeout=_START_S)
            except FileNotFoundError as problem:
                raise _failed("there is no Java", failure_text(problem), "install Java 17, or set JAVA_HOME") from None
            if done.returncode:
                raise _failed("the storage of the broker cannot be formatted", done.stdout + done.stderr, "it needs Java 17")

    def _java(self) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        return [f"{home}/bin/java" if home else "java", *_FLAGS, "-cp", self._classpath]

    def _properties(self) -> str:
        return "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._control}",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}",
                f"controller.quorum.bootstrap.servers=127.0.0.1:{self._control}",
                "controller.listener.names=CONTROLLER",
                f"log.dirs={self.folder / 'data'}",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.num.partitions=1",
                "transaction.state.log.min.isr=1",
                "auto.create.topics.enable=false",
                "group.initial.rebalance.delay.ms=0",
                "log.retention.check.interval.ms=1000",
                "",
            ]
        )

    def start(self) -> Broker:
        """Start it, and wait until it answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            raise _failed("the port is taken", f"127.0.0.1:{self.port}", "end what listens there, or take another port")
        with (self.folder / "broker.log").open("ab") as log:
            command = [*self._java(), "kafka.Kafka", str(self._settings)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                said = (self.folder / "broker.log").read_text()[-4_000:]
                raise _failed("the broker did not start", said, "is the port taken?")
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError, kafka().KafkaException),
            socket.create_connection(("127.0.0.1", self.port), timeout=1),
        ):
            listing = admin_module().AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=2)
            return bool(listing.brokers)
        return False

    def stop(self) -> None:
        """Stop it in order."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=20)
            self.kill()

    def kill(self) -> None:
        """Kill it, as a loss of power would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running(port: int | None = None, kind: type[Broker] = Broker) -> Iterator[Broker]:
    """Run a broker with a temporary folder. A free port that another process took meanwhile is left for another one.

    A `kind` of your own may have more settings.
    """
    folder = Path(tempfile.mkdtemp(prefix="krishiv-kafka-"))
    broker: Broker | None = None
    try:
        for left in (2, 1, 0):
            broker = kind(folder / str(left), port)
            try:
                broker.start()
                break
            except EnvironmentSetupError:
                if port is not None or not left:
                    raise
        assert broker is not None
        yield broker
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def serve(port: int) -> None:
    """Run a broker on a port until Ctrl-C, or until the process is asked to end."""
    signal.signal(signal.SIGTERM, _interrupted)  # else the broker would go on alone
    with contextlib.suppress(KeyboardInterrupt), running(port) as broker:
        print(f"Kafka listens on {broker.address}; Ctrl-C ends it", flush=True)
        while True:
            time.sleep(1)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
