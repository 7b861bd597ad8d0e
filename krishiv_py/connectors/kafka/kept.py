"""Clients that a process keeps for reuse, until nobody has asked for them for a while.

A client of librdkafka connects again for as long as it lives, also to a broker that has ended. So none is kept for longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

IDLE_S: Final = 60.0
"""For how long a client may be unused."""


class PooledClients:
    """Clients by what they were made of; each is ended when it was unused for `idle_s` seconds.

    Clients of a process that this one was forked from are neither used nor ended.
    """

    def __init__(self, make: Callable[..., Any], end: Callable[[Any], object] | None = None, idle_s: float = IDLE_S) -> None:
        self._make, self._end, self._idle_s = make, end, idle_s
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, tuple[Hashable, ...]], tuple[Any, float]] = {}
        self._watched: set[int] = set()
        """Processes in which a timer runs."""

    def __call__(self, *key: Hashable) -> Any:
        """The client that was made of `key`, or a new one."""
        process = os.getpid()
        with self._lock:
            client = self._clients[process, key][0] if (process, key) in self._clients else self._make(*key)
            self._clients[process, key] = client, time.monotonic()
            if process not in self._watched:
                self._watched.add(process)
                self._look_again(self._idle_s)
        return client

    def _look_again(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._sweep)
        timer.name, timer.daemon = "krishiv_py Kafka clients", True
        timer.start()

    def _sweep(self) -> None:
        """End what was unused for too long; come back when the next may be."""
        process, now = os.getpid(), time.monotonic()
        with self._lock:
            own = {key: used for key, (_, used) in self._clients.items() if key[0] == process}
            unused = [self._clients.pop(key)[0] for key, used in own.items() if now - used >= self._idle_s]
            if left := [used for used in own.values() if now - used < self._idle_s]:
                self._look_again(min(left) + self._idle_s - now)
            else:
                self._watched.discard(process)
        for client in unused:
            if self._end is not None:
                self._end(client)
