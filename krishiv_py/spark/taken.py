"""Whose rows a sink in memory holds: it knows batches by number only, so two writers would replace each other's."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import attrs

from krishiv_py.errors import PlanError, message
from krishiv_py.plan.options.sinks import MemorySink, Sink

_HINT: Final = "pass a new MemorySink() to each query"


@attrs.define(eq=False)
class Owner:
    """A query that writes into sinks in memory: its name, the mark of its checkpoint, and whether it runs still."""

    query: str
    mark: str
    running: Callable[[], bool] = lambda: True


_owners: Final[WeakKeyDictionary[MemorySink, Owner]] = WeakKeyDictionary()
_taking: Final = threading.Lock()


def check_free(sink: Sink | None) -> None:
    """Refuse a sink in memory that a running query writes into.

    Raises
    ------
    PlanError
        Naming that query.
    """
    owner = _owners.get(sink) if isinstance(sink, MemorySink) else None
    if owner is not None and owner.running():
        raise PlanError(
            message(
                "the sink in memory is taken by a running query",
                f"query {owner.query!r}",
                "batches of the same number would replace each other's rows",
                f"{_HINT}, or stop that one first",
            )
        )


def take_sinks(owner: Owner, *sinks: Sink | None) -> None:
    """Let a query that begins own its sinks in memory.

    It warns where one holds rows of another checkpoint's query, which has ended; a restarted query goes on with its own.

    Raises
    ------
    PlanError
        Where another query that runs owns one.
    """
    with _taking:
        for sink in sinks:
            check_free(sink)
        for sink in sinks:
            if isinstance(sink, MemorySink):
                before = _owners.get(sink)
                if before is not None and before.mark != owner.mark and sink.tables:
                    warnings.warn(
                        f"the sink in memory of query {owner.query!r} holds rows of query {before.query!r}, which has ended: "
                        f"batches of the same number replace them. Hint: {_HINT}",
                        RuntimeWarning,
                        stacklevel=6,
                    )
                _owners[sink] = owner
