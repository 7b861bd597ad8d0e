"""Define what ends a query of the server between its batches, as a source does that cannot plan: noted, for the client
to raise it.

Spark tells the client of what fails in a batch, and of nothing else.
"""

from __future__ import annotations

import json
from typing import Final

from krishiv_py import errors
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, own_type
from krishiv_py.redaction import redacted
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

_NOTE: Final = "krishiv/server-failed"


def note_failure(checkpoint: str, problem: KrishivError) -> None:
    """In the server's process: note what ends the query; before it is stopped, so that whoever sees its end finds the note."""
    report = {"type": own_type(type(problem)).__name__, "text": redacted(str(problem))}
    store, path = _at(checkpoint)
    store.write(path, sealed(json.dumps(report).encode()))


def noted_failure(checkpoint: str) -> KrishivError | None:
    """In the client: what was noted."""
    store, path = _at(checkpoint)
    data = store.read(path)
    if data is None:
        return None
    try:
        report = json.loads(unsealed(data, path, "start() goes on from the checkpoint"))
    except CheckpointError as problem:
        return problem
    kind: type[KrishivError] = getattr(errors, report["type"], OperatorError)
    return kind(report["text"])


def forget_failure(checkpoint: str) -> None:
    """Before the query runs again."""
    store, path = _at(checkpoint)
    store.delete(path)


def _at(checkpoint: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/{_NOTE}")
