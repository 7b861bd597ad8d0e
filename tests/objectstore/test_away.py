"""An object store that does not answer for a while: a query over it goes on, and has every row once."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import ParquetSink, Session, count
from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.storage import store as settings
from krishiv_py.testing.broker import free_ports
from tests.objectstore.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*(tries|is tried) again")


class Door:
    """Hands connections on to a port, while it is open."""

    def __init__(self, to: int) -> None:
        self.to, self.port, self.connections = to, free_ports(1)[0], set[socket.socket]()
        self.server: socketserver.ThreadingTCPServer | None = None

    def open(self) -> None:
        """Let connections in."""
        door = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", door.to)) as there:
                    door.connections |= {self.request, there}
                    back = threading.Thread(target=handed_on, args=(there, self.request), daemon=True)
                    back.start()
                    handed_on(self.request, there)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections, and break those that there are."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None
        for each in self.connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.connections.clear()


def handed_on(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one side ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def door(store: Store) -> Iterator[Door]:
    """A way to the store that can be shut."""
    made, before = Door(store.port), dict(settings._known)
    made.open()
    yield made
    made.close()
    settings.use(before)


def patient(store: Store, door: Door, limit: str) -> Session:
    """A session that reaches the store by the door."""
    options = attrs.evolve(store, port=door.port).options
    return Session.builder().engine("in-process").storage_options(options).retry_for(limit).get_or_create()


def test_a_query_over_a_bucket_goes_on(store: Store, door: Door) -> None:
    with patient(store, door, "2 min") as session:
        stream, sender = session.memory_stream("at bigint")
        plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = plan.start(ParquetSink(store.url("away/out")), checkpoint=store.url("away/check"))
        sender.send([{"at": 1}, {"at": 11}])
        query.process_all_available()
        door.close()
        sender.send([{"at": 21}])
        until = time.monotonic() + 60
        while not query.progress.trouble and time.monotonic() < until:
            time.sleep(0.1)
        assert query.progress.trouble and query.status == "running"
        door.open()
        sender.send([{"at": 31}])
        query.process_all_available()
        assert not query.progress.trouble
    files = [key for key in store.files("away/out/") if key.endswith(".parquet")]
    rows = [row for key in files for row in pq.read_table(pa.BufferReader(store.read(key))).to_pylist()]
    assert sorted((row["window_start"], row["count"]) for row in rows) == [(0, 1), (10, 1), (20, 1)]


def test_a_start_waits_for_a_store_and_not_for_a_bucket(store: Store, door: Door) -> None:
    door.close()
    threading.Timer(3, door.open).start()
    with patient(store, door, "1 min") as session:
        stream, _ = session.memory_stream("at bigint")
        plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
        plan.start(ParquetSink(store.url("later/out"))).stop()
        with pytest.raises(EnvironmentSetupError, match="no such bucket") as refused:
            plan.start(ParquetSink("s3a://no-such-bucket/out"))
        assert not refused.value.transient
