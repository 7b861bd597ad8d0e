"""Hadoop's checksums: a file ``.<name>.crc`` next to each file of a local folder. Spark reads much without a look at them."""

from __future__ import annotations

from typing import Final

from krishiv_py.storage.checksums import checksum, damaged, missing
from krishiv_py.storage.store import Store

NEW_CHECKPOINT: Final = "put it back from a copy of the checkpoint, or start with a new checkpoint and output folder"
"""The way out of a damaged checkpoint."""

_HEAD: Final = b"crc\0"


def checked(store: Store, path: str) -> bytes:
    """Return what a file of Spark's holds, after a look at its checksum, where there is one.

    Raises
    ------
    CheckpointError
        When it is missing, or not what its checksum says; names it.
    """
    data = store.read(path)
    if data is None:
        raise missing(path, NEW_CHECKPOINT)
    if store.local:
        kept = store.read(sum_of(path))
        if kept is not None and kept != sums(data, int.from_bytes(kept[4:8], "big")):
            raise damaged(path, f"{len(data)} bytes with a wrong checksum", NEW_CHECKPOINT)
    return data


def checked_lines(store: Store, path: str) -> list[str]:
    """The lines of a text file of Spark's; raises as :func:`checked`, and when it is not a text."""
    data = checked(store, path)
    try:
        return data.decode().split("\n")
    except UnicodeDecodeError as problem:
        raise damaged(path, f"{len(data)} bytes that are not text", NEW_CHECKPOINT) from problem


def sum_of(path: str) -> str:
    """Return where the checksum of a file lies."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def sums(data: bytes, step: int) -> bytes:
    """A checksum file: a magic word, how many bytes a checksum covers, and the checksums."""
    if step <= 0:
        return b""
    sums = [checksum(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)]
    return _HEAD + step.to_bytes(4, "big") + b"".join(sums)
