"""Spark's own log of a checkpoint, mended before a query goes on.

**Files a crash left between two logs.** Spark's file source writes down which files come next (``sources/<i>/<k>``), and only
then is the micro-batch that reads them planned (``offsets/<n>``). After a crash between the two, Spark would put those files
and the next ones into one batch: rows would be judged by another watermark than in an uninterrupted run, and more of them taken
in. So what no batch was planned for is struck out of the source's log; Spark finds the files again and plans them as it would
have.

**A source more.** Spark counts the sources of every batch it planned and refuses to go on with another number. A query that is
to read control files now and did not before gets a place for them: a dash, which says that nothing of that source was read.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow.fs as pafs

from krishiv_py.errors import CheckpointError, message
from krishiv_py.spark.files import file_system, write_whole

_HEAD: Final = 2
"""Lines of a planned batch before those of its sources: version and metadata."""


def forget_unplanned(checkpoint: str) -> None:
    """Strike out what file sources wrote down after the last planned micro-batch. No query may be running there."""
    system, root = file_system(checkpoint)
    planned = _planned(system, root)
    sources = system.get_file_info(pafs.FileSelector(f"{root}/sources", allow_not_found=True))
    for source in sources:
        if not source.base_name.isdigit():
            continue
        upto = planned.get(int(source.base_name), -1)
        entries = system.get_file_info(pafs.FileSelector(source.path))
        for entry in entries:
            number = entry.base_name.removesuffix(".compact")
            if number.isdigit() and int(number) > upto and _lists_files(system, entry.path):
                system.delete_file(entry.path)
                _forget_checksum(system, entry.path)


def _planned(system: pafs.FileSystem, root: str) -> dict[int, int]:
    """The last entry of every file source that a micro-batch was planned for."""
    batches = _batches(system, root)
    if not batches:
        return {}
    lines = _text(system, f"{root}/offsets/{max(batches)}").splitlines()[_HEAD:]
    offsets = [json.loads(line) if line.startswith("{") else None for line in lines]
    return {at: int(offset["logOffset"]) for at, offset in enumerate(offsets) if offset is not None and "logOffset" in offset}


def add_source(checkpoint: str) -> None:
    """Make room for one more source, the last, in every batch that was planned. May be broken off and repeated.

    Raises
    ------
    CheckpointError
        When Spark wrote its log in a form this does not know.
    """
    system, root = file_system(checkpoint)
    batches = _batches(system, root)
    if not batches:
        return
    note = f"{root}/krishiv/sources"  # how many there are to be: what an attempt that was broken off began with
    if system.get_file_info(note).type == pafs.FileType.NotFound:
        write_whole(system, note, str(len(_planned_lines(system, root, max(batches))) - _HEAD + 1).encode())
    wanted = int(_text(system, note))
    for batch in batches:
        lines = _planned_lines(system, root, batch)
        if len(lines) - _HEAD < wanted:
            path = f"{root}/offsets/{batch}"
            _forget_checksum(system, path)
            write_whole(system, path, "\n".join([*lines, "-"]).encode())


def _planned_lines(system: pafs.FileSystem, root: str, batch: int) -> list[str]:
    lines = _text(system, f"{root}/offsets/{batch}").splitlines()
    if lines[0] != "v1":
        raise CheckpointError(
            message(
                "the checkpoint was begun without control files",
                f"Spark's log in version {lines[0]}",
                "no source can be added to it",
                "use a new checkpoint folder",
            )
        )
    return lines


def _batches(system: pafs.FileSystem, root: str) -> list[int]:
    found = system.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
    return [int(f.base_name) for f in found if f.base_name.isdigit()]


def _forget_checksum(system: pafs.FileSystem, path: str) -> None:
    folder, _, name = path.rpartition("/")
    checksum = f"{folder}/.{name}.crc"
    if system.get_file_info(checksum).type == pafs.FileType.File:
        system.delete_file(checksum)


def _lists_files(system: pafs.FileSystem, path: str) -> bool:
    """Whether this is the log of a file source; others keep other things in their folder."""
    return '{"path":' in _text(system, path)


def _text(system: pafs.FileSystem, path: str) -> str:
    with system.open_input_stream(path) as stream:
        return str(stream.read().decode())
