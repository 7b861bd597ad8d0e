"""Clients are kept while they are in use, and no longer: they would ask for a broker that has ended for ever."""

from __future__ import annotations

import os
import threading
import time

from krishiv_py.connectors.kafka.client import PooledClients


def test_a_client_is_made_once_for_each_key() -> None:
    made: list[tuple[object, ...]] = []

    def make(*key: object) -> object:
        made.append(key)
        return object()

    kept = PooledClients(make)
    assert kept("a", 1) is kept("a", 1) is not kept("b", 1)
    assert made == [("a", 1), ("b", 1)]


def test_one_that_nobody_uses_is_ended_and_made_again() -> None:
    ended: list[object] = []
    kept = PooledClients(lambda *key: object(), ended.append, idle_s=0.2)
    unused, used = kept("unused"), kept("used")
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        assert kept("used") is used
        time.sleep(0.02)
    assert ended == [unused]
    assert kept("unused") is not unused
    _wait(lambda: len(ended) == 3)
    assert not [t for t in threading.enumerate() if t.name == "krishiv_py Kafka clients" and t.is_alive() and _is_of(t, kept)]
    assert kept("used") is not used


def test_a_forked_process_makes_its_own() -> None:
    kept = PooledClients(lambda: os.getpid(), idle_s=30)
    assert kept() == os.getpid()
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, b"own" if kept() == os.getpid() else b"other")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 5) == b"own"


def _wait(until: object) -> None:
    deadline = time.monotonic() + 10
    while not until():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_of(thread: threading.Thread, kept: PooledClients) -> bool:
    return isinstance(thread, threading.Timer) and thread.function.__self__ is kept  # type: ignore[attr-defined]
