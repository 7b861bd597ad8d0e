"""Files a crash left between two logs of Spark.

Spark's file source writes down which files come next (``sources/<i>/<k>``), and only then is the micro-batch that reads them
planned (``offsets/<n>``). After a crash between the two, Spark would put those files and the next ones into one batch: rows
would be judged by another watermark than in an uninterrupted run, and more of them taken in. So before a query goes on,
what no batch was planned for is struck out of the source's log; Spark finds the files again and plans them as it would have.
"""

from __future__ import annotations

import json

import pyarrow.fs as pafs

from krishiv_py.spark.files import file_system


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
                checksum = f"{source.path}/.{entry.base_name}.crc"
                if system.get_file_info(checksum).type == pafs.FileType.File:
                    system.delete_file(checksum)


def _planned(system: pafs.FileSystem, root: str) -> dict[int, int]:
    """The last entry of every file source that a micro-batch was planned for."""
    found = system.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
    batches = [int(f.base_name) for f in found if f.base_name.isdigit()]
    if not batches:
        return {}
    lines = _text(system, f"{root}/offsets/{max(batches)}").splitlines()[2:]
    offsets = [json.loads(line) if line.startswith("{") else None for line in lines]
    return {at: int(offset["logOffset"]) for at, offset in enumerate(offsets) if offset is not None and "logOffset" in offset}


def _lists_files(system: pafs.FileSystem, path: str) -> bool:
    """Whether this is the log of a file source; others keep other things in their folder."""
    return '{"path":' in _text(system, path)


def _text(system: pafs.FileSystem, path: str) -> str:
    with system.open_input_stream(path) as stream:
        return str(stream.read().decode())
