"""A storage account of Azure in memory, without folders of its own: the requests that Arrow and obstore make, and no more.

``python -m tests.azure.server --port 10000`` runs it until Ctrl-C. Any key is taken.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.server
import itertools
import re
import socket
import threading
import time
import xml.etree.ElementTree as ET
from email.utils import formatdate
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import attrs

ACCOUNT: Final = "devstoreaccount1"
Answer: TypeAlias = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


@attrs.define
class Blob:
    """A file, its tag, when it was written, and what a user noted of it."""

    data: bytes
    tag: str
    modified: float
    notes: dict[str, str]


@attrs.define
class Account:
    """Containers with their blobs, and blocks that no list has named yet. `answer` is what every request is refused with."""

    containers: dict[str, dict[str, Blob]] = attrs.field(factory=dict)
    blocks: dict[tuple[str, str], dict[str, bytes]] = attrs.field(factory=dict)
    answer: int = 0
    requests_seen: list[str] = attrs.field(factory=list)
    guard: threading.RLock = attrs.field(factory=threading.RLock)
    numbers: Any = attrs.field(factory=lambda: itertools.count(1))


class RefusedError(Exception):
    """An answer that is none of success."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers of an account."""

    protocol_version = "HTTP/1.1"
    account: ClassVar[Account]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_request
        raise AttributeError(name)

    def handle_request(self) -> None:
        """Answer one request."""
        body = self._body()
        self.account.requests_seen.append(f"{self.command} {self.path}")
        with self.account.guard:
            try:
                if self.account.answer:
                    raise RefusedError(self.account.answer, "AuthorizationFailure")
                status, headers, data = self._answer(self.command, self.path, body)
            except RefusedError as refused:
                status, headers = refused.status, {"x-ms-error-code": refused.code}
                text = f'<?xml version="1.0"?><Error><Code>{refused.code}</Code><Message>{refused.code}</Message></Error>'
                data = text.encode() if self.command != "HEAD" else b""
                headers |= {"Content-Type": "application/xml"} if data else {}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "x-ms-version": "2021-12-02", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, method: str, target: str, body: bytes) -> Answer:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        _, _account, container, key = [*unquote(parts.path).split("/", 3), "", "", ""][:4]
        if query.get("comp") == "batch":
            return self._batch(body)
        if query.get("restype") == "container":
            return self._container(method, container, query)
        if "action" in query or "resource" in query:
            raise RefusedError(400, "InvalidUri")  # it has no folders
        if container not in self.account.containers:
            raise RefusedError(404, "ContainerNotFound")
        return self._blob(method, container, key, query, body)

    def _container(self, method: str, name: str, query: dict[str, str]) -> Answer:
        actual = self.account.containers.get(name)
        if method == "PUT":
            if actual is not None:
                raise RefusedError(409, "ContainerAlreadyExists")
            self.account.containers[name] = {}
            return 201, self._facts(), b""
        if actual is None:
            raise RefusedError(404, "ContainerNotFound")
        if query.get("comp") != "list":
            return 200, self._facts(), b""
        return 200, {"Content-Type": "application/xml"}, _listed(actual, name, query).encode()

    def _blob(self, method: str, container: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        blobs, place = self.account.containers[container], (container, key)
        actual = blobs.get(key)
        if method == "PUT":
            self._check(actual)
            if query.get("comp") == "block":
                self.account.blocks.setdefault(place, {})[query["blockid"]] = body
                return 201, self._facts(), b""
            if query.get("comp") == "blocklist":
                kept = self.account.blocks.pop(place, {})
                body = b"".join(kept[each.text or ""] for each in ET.fromstring(body))
            source = self.headers.get("x-ms-copy-source")
            if source is not None:
                _, _, other, old = [*unquote(urlsplit(source).path).split("/", 3), ""][:4]
                if old not in self.account.containers.get(other, {}):
                    raise RefusedError(404, "BlobNotFound")
                body = self.account.containers[other][old].data
            notes = {n: v for n, v in self.headers.items() if n.lower().startswith("x-ms-meta-")}
            blobs[key] = Blob(body, f'"0x{next(self.account.numbers):X}"', time.time(), notes)
            if source is not None:
                blobs[key].notes |= {"x-ms-copy-status": "success", "x-ms-copy-id": "1"}
            copied = {"x-ms-copy-status": "success", "x-ms-copy-id": "1"} if source is not None else {}
            return 202 if source is not None else 201, {**_of(blobs[key]), **copied, **self._facts(blobs[key])}, b""
        if actual is None:
            raise RefusedError(404, "BlobNotFound")
        self._check(actual)
        if method == "DELETE":
            del blobs[key]
            return 202, {"x-ms-delete-type-permanent": "true", **self._facts()}, b""
        if query.get("comp") == "blocklist":
            return 200, {"Content-Type": "application/xml"}, b'<?xml version="1.0"?><BlockList><CommittedBlocks/></BlockList>'
        return self._read(method, actual)

    def _read(self, method: str, actual: Blob) -> Answer:
        headers = {**_of(actual), "Accept-Ranges": "bytes", "x-ms-blob-type": "BlockBlob", **actual.notes}
        headers |= {"x-ms-creation-time": headers["Last-Modified"], "x-ms-server-encrypted": "true"}
        headers |= {
            "Content-Type": "application/octet-stream",
            "x-ms-lease-state": "available",
            "x-ms-lease-status": "unlocked",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        if method == "HEAD" or wanted is None:
            shown = {"Content-Length": str(len(actual.data))} if method == "HEAD" else {}
            return 200, {**headers, **shown}, b"" if method == "HEAD" else actual.data
        first = int(wanted[1])
        if first >= len(actual.data):
            raise RefusedError(416, "InvalidRange")
        last = min(int(wanted[2] or len(actual.data)), len(actual.data) - 1)
        return 206, {**headers, "Content-Range": f"bytes {first}-{last}/{len(actual.data)}"}, actual.data[first : last + 1]

    def _check(self, actual: Blob | None) -> None:
        none, match = self.headers.get("If-None-Match"), self.headers.get("If-Match")
        if none == "*" and actual is not None:
            raise RefusedError(409, "BlobAlreadyExists")
        if match not in (None, "*") and (actual is None or actual.tag != match):
            raise RefusedError(412, "ConditionNotMet")

    def _batch(self, body: bytes) -> Answer:
        """Removals in one request, as Arrow has them for a folder."""
        answers = []
        for number, target in enumerate(re.findall(rb"^DELETE (\S+) HTTP", body, re.M)):
            status, _, _ = self._answer("DELETE", target.decode(), b"")
            answers.append(
                f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status} Accepted\r\nx-ms-delete-type-permanent: true\r\nx-ms-request-id: 1\r\n"
                "x-ms-version: 2021-12-02\r\n\r\n"
            )
        return 202, {"Content-Type": "multipart/mixed; boundary=b"}, ("\r\n".join(answers) + "\r\n--b--\r\n").encode()

    def _facts(self, actual: Blob | None = None) -> dict[str, str]:
        facts = {"ETag": '"0x0"', "Last-Modified": formatdate(usegmt=True), "x-ms-request-server-encrypted": "true"}
        facts |= {"x-ms-lease-state": "available", "x-ms-lease-status": "unlocked"}
        facts |= {"x-ms-has-immutability-policy": "false", "x-ms-has-legal-hold": "false"}
        return facts if actual is None else {**facts, **_of(actual)}

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _of(actual: Blob) -> dict[str, str]:
    return {"ETag": actual.tag, "Last-Modified": formatdate(actual.modified, usegmt=True)}


def _listed(blobs: dict[str, Blob], container: str, query: dict[str, str]) -> str:
    prefix, sign, most = query.get("prefix", ""), query.get("delimiter"), int(query.get("maxresults", 5_000))
    entries: dict[str, Blob | None] = {}
    for key in sorted(blobs):
        if key.startswith(prefix):
            below, actual, _ = key[len(prefix) :].partition(sign) if sign else (key, "", "")
            entries |= {prefix + below + actual: None} if actual else {key: blobs[key]}
    names = [name for name in entries if name > query.get("marker", "")]
    texts = []
    for name in names[:most]:
        blob = entries[name]
        if blob is None:
            texts.append(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>")
            continue
        md5 = base64.b64encode(hashlib.md5(blob.data).digest()).decode()
        notes = "".join(
            f"<{n[10:]}>{escape(v)}</{n[10:]}>" for n, v in blob.notes.items() if n.lower().startswith("x-ms-meta-")
        )
        texts.append(
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            f"<Creation-Time>{formatdate(blob.modified, usegmt=True)}</Creation-Time>"
            f"<Last-Modified>{formatdate(blob.modified, usegmt=True)}</Last-Modified><Etag>{escape(blob.tag)}</Etag>"
            f"<Content-Length>{len(blob.data)}</Content-Length><Content-Type>application/octet-stream</Content-Type>"
            f"<Content-MD5>{md5}</Content-MD5><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
            f"<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState><ServerEncrypted>true</ServerEncrypted>"
            f"</Properties><Metadata>{notes}</Metadata></Blob>"
        )
    more = escape(names[most - 1]) if len(names) > most else ""
    return (
        f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://x/" ContainerName="{container}">'
        f"<Prefix>{escape(prefix)}</Prefix><MaxResults>{most}</MaxResults><Blobs>{''.join(texts)}</Blobs>"
        f"<NextMarker>{more}</NextMarker></EnumerationResults>"
    )


class Server(http.server.ThreadingHTTPServer):
    """A server on a loopback port."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.account = Account()
        super().__init__(("127.0.0.1", port), type("Bound", (Handler,), {"account": self.account}))

    def server_bind(self) -> None:
        """Answer small requests at once."""
        super().server_bind()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave when they have what they want."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=10_000)
    Server(parser.parse_args().port).serve_forever()
