"""Define what servers for tests need: jars of Maven Central, checked and kept, and free ports."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs

from krishiv_py.errors import EnvironmentSetupError, failure_text

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
