"""Folders that are written once, and whose note makes them whole: savepoints and captures.

A mark says that a folder is not finished. So one that was broken off is taken for nothing else, and is removed when the same
folder is begun again.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from krishiv_py.errors import CheckpointError, failure_text, shown
from krishiv_py.storage.files import read_at, store_at, write_at
from krishiv_py.storage.local import absolute, private_folder

_UNFINISHED: Final = "unfinished.json"


def begin_folder(folder: str, kind: str, note: str) -> str:
    """See that a `kind` of folder can be written, and begin it; gives its path, the same for every process.

    Raises
    ------
    CheckpointError
        When something else is there, or nothing can be written there.
    """
    folder = absolute(folder).rstrip("/")
    store, root = store_at(folder)
    try:
        names = {entry.base_name for entry in store.entries(root)}
        if names and (_UNFINISHED not in names or note in names):
            raise CheckpointError(
                f"the folder of the {kind} is not empty",
                got=folder,
                then="what is there would be mixed with it",
                hint=f"pass a new folder; a {kind} is written once",
            )
        if names:
            store.delete_folder(root)
        if store.local:
            private_folder(root)
        write_at(f"{folder}/{_UNFINISHED}", b"{}\n", durable=True)
    except (OSError, pa.ArrowException) as problem:
        raise CheckpointError(
            f"the {kind} {shown(folder)} cannot be written",
            got=failure_text(problem),
            then="there is none",
            hint="see to room and rights there, or use another folder",
        ) from problem
    return folder


def finish_folder(folder: str, note: str, data: bytes) -> None:
    """Write the note that makes a folder whole."""
    write_at(f"{folder}/{note}", data, durable=True)
    store, path = store_at(f"{folder}/{_UNFINISHED}")
    store.delete(path)


def note_of(folder: str, note: str, kind: str, hint: str) -> bytes:
    """Return the note of a folder.

    Raises
    ------
    CheckpointError
        When there is none, or it cannot be read.
    """
    try:
        data = read_at(f"{folder}/{note}")
    except (OSError, pa.ArrowException) as problem:
        raise CheckpointError(f"the {kind} cannot be read", got=failure_text(problem), hint=hint) from problem
    if data is None:
        raise CheckpointError(f"no {kind} is here", got=shown(folder), then="there is nothing to go on from", hint=hint)
    return data


def check_version(folder: str, kind: str, version: int, newest: int) -> None:
    """Refuse a folder that a later version of the library wrote.

    Raises
    ------
    CheckpointError
        When its version is later than the `newest` that is known.
    """
    if version > newest:
        raise CheckpointError(
            f"the {kind} {folder} is of a later version of krishiv_py",
            got=f"version {version}, known are versions up to {newest}",
            then="it would be misread",
            hint="use the version that wrote it, or a newer one",
        )
