"""A moto server of one process on a free loopback port, and what Spark needs to reach it.

``python -m tests.objectstore.store fetch`` fills the cache of jars: hadoop-aws, and of Amazon's SDK the modules it uses (17 MB
instead of the 690 MB of the bundle). The cache is ``$KRISHIV_S3_JARS``, by default ``~/.cache/krishiv_py/s3``.
``python -m tests.objectstore.store run --port 5000`` runs a server until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import boto3

from krishiv_py.session import SessionBuilder
from krishiv_py.testing.broker import Jars, free_ports

JARS: Final = Jars(Path(__file__).with_name("jars.sha256"), "s3", "KRISHIV_S3_JARS")
HADOOP: Final = "3.5.0"
"""The version of Hadoop whose jars are pinned."""
BUCKET: Final = "streams"
KEY, SECRET = "AKIAKRISHIVTEST", "S3CRETnobodymaysee"
_START_S: Final = 60


@attrs.frozen
class Store:
    """A server with one bucket.

    Attributes
    ----------
    port : int
        Where it listens.
    key, secret : str
        The keys that are used. It takes any others too, unless it has to check them.
    """

    port: int
    key: str = KEY
    secret: str = SECRET
    scheme: ClassVar[str] = "s3a"
    wrong_scheme: ClassVar[str] = "s3"

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """For ``Session.builder().storage_options``."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def settings(self) -> dict[str, str]:
        """The same as settings of Hadoop's."""
        return {
            "fs.s3a.access.key": self.key,
            "fs.s3a.secret.key": self.secret,
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        """For a job, that makes another of these of it."""
        return (self.scheme, str(self.port), self.key, self.secret)

    def reaching(self, builder: SessionBuilder) -> SessionBuilder:
        """A session that reaches it."""
        return builder.storage_options(self.options).config("spark.jars", ",".join(map(str, JARS.fetch())))

    def client(self, service: str = "s3") -> Any:
        """boto3's client."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )

    def url(self, path: str) -> str:
        """A path in the bucket."""
        return f"{self.scheme}://{BUCKET}/{path}"

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.client().put_object(Bucket=BUCKET, Key=key, Body=data)

    def read(self, key: str) -> bytes:
        """What an object holds."""
        return bytes(self.client().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def remove(self, key: str) -> None:
        """Remove an object."""
        self.client().delete_object(Bucket=BUCKET, Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        """What lies in the bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [actual["Key"] for page in pages for actual in page.get("Contents", [])]

    def files(self, prefix: str = "") -> list[str]:
        """Return the keys without empty objects that stand in for folders."""
        return [key for key in self.keys(prefix) if not key.endswith("/")]

    def uploads(self) -> list[str]:
        """What was begun to be uploaded and is not there yet."""
        return [actual["Key"] for actual in self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def checking(self) -> Store:
        """Let it check keys from now on: the same store with keys that may do everything."""
        names = self.client("iam")
        names.create_user(UserName="tester")
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        names.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(allowed))
        made = names.create_access_key(UserName="tester")["AccessKey"]
        requested = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST"
        )
        urllib.request.urlopen(requested, timeout=10).close()
        return Store(self.port, made["AccessKeyId"], made["SecretAccessKey"])


@contextlib.contextmanager
def running(port: int | None = None) -> Iterator[Store]:
    """A server with an empty bucket, in a process of its own."""
    actual = free_ports(1)[0] if port is None else port
    command = [sys.executable, "-c", _SERVE, "-H", "127.0.0.1", "-p", str(actual)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", actual), timeout=1):
                break
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the moto server did not start")
            time.sleep(0.05)
        store = Store(actual)
        store.client().create_bucket(Bucket=BUCKET)
        yield store
    finally:
        server.kill()
        server.wait()


_SERVE: Final = """
from moto.server import main
from werkzeug.serving import WSGIRequestHandler
WSGIRequestHandler.handle_expect_100 = lambda self: True  # Werkzeug itself says 100
main()
"""
"""Python's server would say 100 once more, and Amazon's SDK takes the second one for the answer."""


def main() -> None:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "run"))
    parser.add_argument("--port", type=int, default=5000)
    given = parser.parse_args()
    if given.what == "fetch":
        print(f"{len(JARS.fetch())} jars in {JARS.cache()}")
        return
    with running(given.port) as store, contextlib.suppress(KeyboardInterrupt):
        print(f"S3 at {store.endpoint}, with the bucket s3a://{BUCKET}; Ctrl-C ends it", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
