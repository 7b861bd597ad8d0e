"""What ends a query of the server between its batches, as a source does that cannot plan: noted, for the client to raise it.

Spark tells the client of what fails in a batch, and of nothing else.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow.fs as pafs

from krishiv_py import errors
from krishiv_py.disk.checksums import sealed, unsealed
from krishiv_py.disk.files import file_system, read_whole, write_whole
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, own_type
from krishiv_py.redaction import redacted

_NOTE: Final = "krishiv/server-failed"


def note_failure(checkpoint: str, problem: KrishivError) -> None:
    """In the server's process: note what ends the query; before it is stopped, so that whoever sees its end finds the note."""
    told = {"type": own_type(type(problem)).__name__, "text": redacted(str(problem))}
    write_whole(*_at(checkpoint), sealed(json.dumps(told).encode()))


def noted_failure(checkpoint: str) -> KrishivError | None:
    """In the client: what was noted."""
    system, path = _at(checkpoint)
    data = read_whole(system, path)
    if data is None:
        return None
    try:
        told = json.loads(unsealed(data, path, "start() goes on from the checkpoint"))
    except CheckpointError as problem:
        return problem
    kind: type[KrishivError] = getattr(errors, told["type"], OperatorError)
    return kind(told["text"])


def forget_failure(checkpoint: str) -> None:
    """Before the query runs again."""
    system, path = _at(checkpoint)
    if system.get_file_info(path).type != pafs.FileType.NotFound:
        system.delete_file(path)


def _at(checkpoint: str) -> tuple[pafs.FileSystem, str]:
    return file_system(f"{checkpoint}/{_NOTE}")
