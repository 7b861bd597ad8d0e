"""Large chunks of state: files next to the checkpoint, to which the state store refers.

Whatever a task gets from the state store is pickled byte by byte in the JVM, which for large chunks costs more than all else.
So a chunk above some size becomes a file that is written once, under a name of its own, and never changed; what the state
store holds under the chunk's name, and versions with each micro-batch, is the file's name. A repeated batch starts from the
state of the one before and so from the files that one had. A file no longer referred to stays for as many batches as Spark
keeps state for, since Spark can go back that far. What a failed attempt wrote, no state refers to: it is removed when a
bucket is opened for the first time in a process.

What stands for a file is its name, size and checksum, so a file that was damaged, cut or exchanged is an error when it is read.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.kernels.state.store import Meta, Pages, mapped
from krishiv_py.storage.checksums import block_checksum, damaged, decode, encode, missing
from krishiv_py.storage.files import store_at
from krishiv_py.storage.notes import no_folder
from krishiv_py.storage.store import Store, Stores

NEW_CHECKPOINT: Final = "put it back from a copy of the checkpoint, or start with a new checkpoint and output folder"
"""The way out of a damaged checkpoint."""


_MARK: Final = b"file:"  # an Arrow stream begins with four bytes 255
_NAME: Final = re.compile("([0-9a-f]+)-[0-9a-f]{12}")  # batch, and what makes it unique
_FILES: Final = "files"
_DROPPED: Final = "dropped"
_WAY_OUT: Final = (
    "it is a piece of the query's state: put it back from a copy of the checkpoint, or start with a new checkpoint and "
    "output folder"
)
_opened: Final[set[str]] = set()


@attrs.frozen
class ChunkFolder:
    """Says where the large chunks of a query lie.

    Attributes
    ----------
    checkpoint : str
        The query's checkpoint.
    batches : int
        For how many micro-batches a file is kept after its chunk was dropped.
    large_bytes : int
        From which size on a chunk becomes a file.
    durable : bool
        Whether files must survive a loss of power.
    stage : int
        The number of the stage whose state it is, from 0.
    """

    checkpoint: str
    batches: int
    large_bytes: int
    durable: bool = False
    stage: int = 0
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def of_bucket(self, bucket: int) -> str:
        """Return the folder of one bucket."""
        stage = f"stage-{self.stage + 1}/" if self.stage else ""
        return f"{self.checkpoint}/krishiv/chunks/{stage}{bucket:05d}"


class BucketChunks:
    """The large chunks of one bucket in one micro-batch; `meta` keeps chunk name → file, and files that wait for removal."""

    def __init__(self, folder: ChunkFolder, bucket: int, batch: int, meta: Meta, pages: Pages | None = None) -> None:
        self._keep = folder.batches
        self._large = folder.large_bytes
        self._durable = folder.durable
        self._written = False
        self._batch = batch
        self._store, self._root = store_at(folder.of_bucket(bucket))
        self._files = mapped(meta, _FILES, str, pages)
        self._dropped: list[list[int | str]] = meta.setdefault(_DROPPED, [])
        if self._root not in _opened:
            _opened.add(self._root)
            self._remove_orphans()

    def write(self, name: str, table: pa.Table) -> tuple[bytes, int] | None:
        """Write a chunk; returns what the state store holds of it, and its size in bytes. None for a small one."""
        self.drop(name)
        if table.nbytes < self._large:
            return None
        file = f"{self._batch:x}-{uuid.uuid4().hex[:12]}"
        size, check = write_chunk(self._store, f"{self._root}/{file}", table)
        if self._durable:
            self._store.sync(f"{self._root}/{file}")
            self._written = True
        self._files[name] = f"{file}.{size:x}.{check:08x}"
        return file_value(self._files[name]), size

    def read(self, name: str) -> pa.Table | None:
        """Return a chunk that has a file; None for one that has none."""
        file = self._files.get(name)
        return None if file is None else _checked(self._store, self._root, file)

    def drop(self, name: str) -> None:
        """Let go of the file of a chunk, if it has one."""
        file = self._files.pop(name, None)
        if file is not None:
            self._dropped.append([self._batch, file])

    def tidy(self) -> None:
        """Remove the files no state Spark could go back to refers to; to be called when all is written."""
        if self._written:
            self._store.sync(self._root)
        old = [d for d in self._dropped if int(d[0]) < self._batch - self._keep]
        self._delete([str(file) for _, file in old])
        del self._dropped[: len(old)]

    def _remove_orphans(self) -> None:
        if self._store.needs_folders:
            self._store.make_folder(self._root)
        known = {_on_disk(f) for f in (*self._files.values(), *(str(file) for _, file in self._dropped))}
        entries = self._store.entries(self._root)
        ours = [m for f in entries if (m := _NAME.fullmatch(f.base_name))]
        self._delete([m[0] for m in ours if int(m[1], 16) < self._batch and m[0] not in known])

    def _delete(self, files: list[str]) -> None:
        self._store.delete(*(f"{self._root}/{_on_disk(file)}" for file in files))  # an earlier attempt may have removed some


def _on_disk(file: str) -> str:
    """Return the name of a file without its size and checksum."""
    return file.partition(".")[0]


def write_chunk(store: Store, path: str, table: pa.Table) -> tuple[int, int]:
    """Write a chunk to a file; returns its size in bytes and its checksum."""
    if store.local:
        write_plain(store, path, table)
        with store.map(path) as mapped:  # as the page cache has it: no second copy in memory
            data = mapped.read_buffer()
            return data.size, block_checksum(data)
    data = encode(table)
    store.put(path, data)
    return len(data), block_checksum(data)


def write_plain(store: Store, path: str, table: pa.Table) -> None:
    """Write a chunk to a file nothing has to rest on."""
    with store.arrow.open_output_stream(path) as stream, pa.ipc.new_stream(stream, table.schema) as out:
        out.write_table(table)


def file_value(name: str) -> bytes:
    """Return the reference to a chunk that is a file of that name."""
    return _MARK + name.encode()


def chunk_of(value: bytes, folder: str) -> pa.Table:
    """Return the chunk that a value refers to: its bytes, or the name of its file in that folder."""
    if not value.startswith(_MARK):
        return decode(value)
    store, root = store_at(folder)
    return _checked(store, root, value.removeprefix(_MARK).decode())


def _checked(store: Store, root: str, file: str) -> pa.Table:
    """Return a file's table; local files are mapped into memory, not copied. One without size and checksum is taken as it
    is.
    """
    name, *expected = file.split(".")
    path = f"{root}/{name}"
    try:
        with no_folder(path, _WAY_OUT):
            opened = store.map(path)
    except FileNotFoundError as problem:
        raise missing(path, _WAY_OUT) from problem
    with opened as stream:
        data = stream.read_buffer()
        if expected and expected != [f"{data.size:x}", f"{block_checksum(data):08x}"]:
            raise damaged(path, f"{data.size} bytes with a wrong checksum", _WAY_OUT)
        return pa.ipc.open_stream(data).read_all()
