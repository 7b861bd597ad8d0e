"""Define what happens when a process is to end: its queries are stopped, then it goes as Python programs go.

SIGTERM is handled where the program asks for it (:func:`krishiv_py.own_process`) and has no handler of its own. As process 1 of
a container nothing but a handler ends a process. At a usual end, after Ctrl-C too, queries are stopped as well, so that neither
Spark nor py4j has anything to complain of.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final, Protocol

from typing_extensions import Self

from krishiv_py.errors import PlanError

EXIT_CODE: Final = 128 + signal.SIGTERM
"""143, which shells and Kubernetes take for SIGTERM."""
STOP_S: Final = 15.0
"""The time for queries to stop. A micro-batch that runs longer is run again by whoever goes on from the checkpoint."""
END_S: Final = 10.0
"""The time that the program may take afterwards; Kubernetes kills a container after 30 s in all."""


class ClosedAtEnd:
    """Is closed at the end of ``with``."""

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stops(Protocol):
    """Says who runs queries."""

    def stops(self) -> Iterable[Callable[[], object]]:
        """Return what stops them, each apart from the others."""


_RUNNERS: Final[weakref.WeakSet[Stops]] = weakref.WeakSet()
_LAST: Final[list[Callable[[], object]]] = []
_state: Final = {"pid": 0, "ending": 0, "code": 0}


def stop_at_end(runner: Stops) -> None:
    """Stop the queries of a runner when the process ends."""
    _register()
    _RUNNERS.add(runner)


def runners() -> list[Stops]:
    """Return those that run queries of this process."""
    return list(_RUNNERS) if _state["pid"] == os.getpid() else []


def last(work: Callable[[], object]) -> None:
    """Do `work` when the process ends, after its queries have stopped."""
    _register()
    if work not in _LAST:
        _LAST.append(work)


def handle_sigterm() -> None:
    """Handle SIGTERM from now on, unless the program does.

    Raises
    ------
    PlanError
        In another thread than the main one: Python takes handlers nowhere else.
    """
    if threading.current_thread() is not threading.main_thread():
        got, hint = f"the thread {threading.current_thread().name}", "call own_process() at the beginning of the program"
        raise PlanError("signals are handled in the main thread only", got=got, hint=hint)
    _register()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _register() -> None:
    """Let the end of this process stop its queries; a fork has none of its parent's."""
    pid = os.getpid()
    if _state["pid"] != pid:
        _state.update(pid=pid, ending=0, code=0)
        _RUNNERS.clear()  # forked: they are of the parent
        atexit.register(_stopped_at_exit, pid)


def _terminated(number: int, frame: FrameType | None) -> None:
    """Stop the queries, then leave the program as ``sys.exit(143)`` does."""
    if _state["pid"] != os.getpid():  # a fork without a session of its own
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _state["ending"] += 1
    if _state["ending"] > 1:  # somebody is in a hurry
        _leave()
    signal.signal(number, _terminated)
    # code of the program that holds on must not keep the process
    threading.Thread(target=_leave_after, args=(STOP_S + END_S,), name="krishiv-end", daemon=True).start()
    stop_queries(STOP_S)
    if not threading.main_thread().is_alive():  # the program is over but for other threads, which end with their queries
        _state["code"] = EXIT_CODE  # Python would end with 0
        return
    raise SystemExit(EXIT_CODE)


def _leave_after(seconds: float) -> None:
    time.sleep(seconds)
    _leave()


def _leave() -> None:
    try:
        for work in _LAST:
            work()
    finally:
        os._exit(EXIT_CODE)


def stop_queries(within_s: float) -> None:
    """Stop all queries of this process at once, and wait for it a while; what does not stop in time is left alone."""
    threads = [
        threading.Thread(target=_quietly, args=(stop,), name="krishiv-stop", daemon=True)
        for runner in list(_RUNNERS)
        for stop in runner.stops()
    ]
    until = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))


def _quietly(stop: Callable[[], object]) -> None:
    try:
        stop()
    except Exception:  # noqa: BLE001  # the process ends: what made a query fail is reported to whoever waits for it
        return


def _stopped_at_exit(pid: int) -> None:
    if pid == os.getpid():
        if not _state["ending"]:  # else they were stopped by the signal
            stop_queries(STOP_S)
        for work in _LAST:
            work()
        if _state["code"]:
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(_state["code"])
