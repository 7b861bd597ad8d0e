"""A PostgreSQL server on a free loopback port, in a temporary folder, run by a user without rights.

``bash scripts/install-system`` installs the package where it is missing.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import attrs
import psycopg

from krishiv_py.testing.broker import free_ports

PASSWORD: Final = "hunter2/@ sécret"
_START_S: Final = 60


def programs() -> Path | None:
    """Where ``initdb`` and ``postgres`` are; None where they are not installed."""
    actual = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return actual[-1].parent if actual else Path(on_path).parent if on_path else None


def _user() -> str | None:
    """Who runs it: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@attrs.define
class Server:
    """A running server."""

    home: Path
    bin: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    wal_level: str = "logical"

    def address(self, user: str = "tester", password: str = PASSWORD, database: str = "postgres") -> str:
        """An address with a password in it."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def rows(self, requested: str) -> list[tuple[Any, ...]]:
        """What a statement gives."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            actual = connection.execute(requested)
            return list(actual.fetchall()) if actual.description else []

    def start(self) -> None:
        """Start, and wait until it answers."""
        until = time.monotonic() + _START_S
        self.process = self._launched()
        while True:
            try:
                psycopg.connect(self.address(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise RuntimeError((self.home / "log").read_text()[-2_000:]) from None
                if self.process.poll() is not None:  # after a crash processes of the old server may hold its memory
                    self.process = self._launched()
                time.sleep(0.05)

    def _launched(self) -> subprocess.Popen[bytes]:
        given = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-k", str(self.home), "-c", "fsync=off"]
        given += ["-c", f"wal_level={self.wal_level}"]
        command: list[str | Path] = [self.bin / "postgres", "-D", self.home / "data", *given]
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(command, user=_user(), stdout=log, stderr=log, cwd=self.home)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it; SIGQUIT is a crash, from which it recovers."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)
            self.process = None


@contextlib.contextmanager
def running(wal_level: str = "logical") -> Iterator[Server]:
    """A new server, gone at the end."""
    where = programs()
    assert where is not None
    home, user = Path(tempfile.mkdtemp(prefix="krishiv-pg-")), _user()
    try:
        (home / "password").write_text(PASSWORD)
        if user is not None:
            for path in (home, home / "password"):
                shutil.chown(path, user)
        given = [
            "-U",
            "tester",
            "--auth=scram-sha-256",
            f"--pwfile={home / 'password'}",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run([where / "initdb", "-D", home / "data", *given], user=user, check=True, capture_output=True, cwd=home)
        server = Server(home, where, free_ports(1)[0], wal_level=wal_level)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
