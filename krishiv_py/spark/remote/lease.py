"""The right of a server's process to a checkpoint.

The client has one of its own as long as it lives. A client that was killed leaves its query running, for nobody stops the
server: whoever goes on from the checkpoint then asks that process to stop, and waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import Lease, take
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.store import Store

SERVER: Final = "server-"
_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
_LOOK_STORE_S: Final = 5.0
_PARENT_S: Final = 0.5
_WAIT_S: Final = 2.0
"""How long a process that was asked to end may take before it is asked to by a file."""
_END_S: Final = 150.0
"""For how long whoever goes on waits for another process to end: longer than a note without renewal is good."""


def take_server(checkpoint: str, query: str, wait_s: float = _END_S) -> Lease:
    """Take the right of the server's process, which an earlier one may have still.

    Raises
    ------
    CheckpointError
        When that one does not end.
    """
    began = time.monotonic()
    requested = False
    while True:
        try:
            lease = take(checkpoint, query, SERVER)
        except CheckpointError:
            waited = time.monotonic() - began
            if waited > wait_s:
                raise
            if waited > _WAIT_S and not requested:
                _ask(checkpoint)
                requested = True
            time.sleep(_POLL_S)
            continue
        _unask(checkpoint)
        return lease


@contextlib.contextmanager
def server_at_rest(checkpoint: str, query: str) -> Iterator[None]:
    """For the time of the body no process of a server runs from the checkpoint."""
    lease = take_server(checkpoint, query)
    try:
        yield
    finally:
        lease.release()


def await_end(checkpoint: str, query: str, wait_s: float) -> None:
    """Wait a while until the server's process ends, which has to stop."""
    with contextlib.suppress(CheckpointError, OSError):
        take_server(checkpoint, query, min(wait_s, _WAIT_S)).release()


def heed(checkpoint: str, stop: Callable[[], None]) -> None:
    """In the server's process: `stop` when somebody asks for it."""

    def look() -> None:
        wait = _LOOK_S if is_local_path(checkpoint) else _LOOK_STORE_S
        store, path = _asking(checkpoint)
        while True:
            time.sleep(wait)
            with contextlib.suppress(OSError):
                if store.read(path) is not None:
                    stop()

    threading.Thread(target=look, name="krishiv-stop", daemon=True).start()


def end_with_parent() -> None:
    """In the server's process: end when the JVM that began this process has ended, however that was.

    A batch in hand would go on asking that JVM for minutes, and hold the right to the checkpoint meanwhile. It is as good as
    killed: whoever goes on runs the batch again.
    """
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        os._exit(1)

    threading.Thread(target=look, name="krishiv-parent", daemon=True).start()


def query_id(checkpoint: str) -> str | None:
    """Spark's id of the query of a checkpoint."""
    store, root = store_at(checkpoint)
    data = store.read(f"{root}/metadata")
    return None if data is None else str(json.loads(data)["id"])


def _asking(checkpoint: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/krishiv/server-stop")


def _ask(checkpoint: str) -> None:
    store, path = _asking(checkpoint)
    store.write(path, b"{}")


def _unask(checkpoint: str) -> None:
    store, path = _asking(checkpoint)
    store.delete(path)
