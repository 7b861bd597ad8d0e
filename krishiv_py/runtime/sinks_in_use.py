"""Whose rows a sink holds that knows batches by number only: two writers would replace each other's rows."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final

import attrs

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import ReadableSink
from krishiv_py.errors import PlanError, users_line

_HINT: Final = "pass a new {}() to each query"


@attrs.define(eq=False)
class Owner:
    """A query that writes into exclusive sinks: its name, the mark of its checkpoint, and whether it runs still."""

    query: str
    mark: str
    running: Callable[[], bool] = lambda: True


_owners: Final[dict[int, Owner]] = {}
"""By identity of the sink, for its class may compare by value; an entry goes with its sink."""
_taking: Final = threading.Lock()


def check_free(sink: Sink | None) -> None:
    """Refuse an exclusive sink that a running query writes into.

    Raises
    ------
    PlanError
        Naming that query.
    """
    owner = _owners.get(id(sink)) if sink is not None and sink.exclusive else None
    if sink is not None and owner is not None and owner.running():
        raise PlanError(
            f"the {sink.title} is taken by a running query",
            got=f"query {owner.query!r}",
            then="batches of the same number would replace each other's rows",
            hint=f"{_HINT.format(sink.title)}, or stop that one first",
        )


def take_sinks(owner: Owner, *sinks: Sink | None) -> None:
    """Let a query that begins own its exclusive sinks.

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
            if sink is not None and sink.exclusive:
                before = _owners.get(id(sink))
                if before is not None and before.mark != owner.mark and _holds_rows(sink):
                    warnings.warn(
                        f"the {sink.title} of query {owner.query!r} holds rows of query {before.query!r}, which has ended: "
                        f"batches of the same number replace them. Hint: {_HINT.format(sink.title)}",
                        RuntimeWarning,
                        stacklevel=users_line(),
                    )
                if before is None:
                    weakref.finalize(sink, _owners.pop, id(sink), None)
                _owners[id(sink)] = owner


def pass_on(mark: str, to: str) -> None:
    """Let the query of a checkpoint have the sinks of another one's, which has ended: its batches have other numbers."""
    with _taking:
        for owner in _owners.values():
            if owner.mark == mark:
                owner.mark = to


def _holds_rows(sink: Sink) -> bool:
    return isinstance(sink, ReadableSink) and sink.table() is not None
