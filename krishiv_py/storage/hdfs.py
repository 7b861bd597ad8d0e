"""HDFS without Java: clients of namenodes, a file system of Arrow's over them, and a check that they answer.

hdfs-native speaks Hadoop's protocol, and reads Hadoop's files of settings by itself. A client of it has threads and
connections, which a forked child does not have: there a client of the parent's would wait for ever, even when it is thrown
away. So the child makes its own. In the file system a move replaces its target in one step, and errors are those of a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import posixpath
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import EnvironmentSetupError, require_extra
from krishiv_py.storage.store import Store, StoreKind, Version, known_settings

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions


DEFAULT: Final = "fs.defaultFS"
PREFIXES: Final = ("dfs.", "hadoop.security.authentication")
"""Settings that are forwarded, next to the default file system."""
USER: Final = "HADOOP_USER_NAME"
_SPARKS_USER: Final = "SPARK_USER"
_UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
_KEPT_S: Final = 3.2
"""For how long hdfs-native keeps a connection to a datanode, for any client of the process, and a little more."""
_REFUSALS: Final[dict[str, type[OSError]]] = {
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotDirectoryException": NotADirectoryError,
    "NotDirectoryException": NotADirectoryError,
    "NotReplicatedYetException": BlockingIOError,
    "RetriableException": BlockingIOError,
    "SafeModeException": BlockingIOError,
    "StandbyException": BlockingIOError,
}
_clients: Final[dict[str, tuple[Mapping[str, str], Client]]] = {}
_making: Final = threading.RLock()
_safe_at: list[float] = [0.0]


def is_hdfs_setting(name: str) -> bool:
    """Return whether a setting of Hadoop's says something about HDFS."""
    return name == DEFAULT or name.startswith(PREFIXES)


def hdfs_settings() -> dict[str, str]:
    """Return the settings in use."""
    return {name: value for name, value in known_settings().items() if is_hdfs_setting(name)}


def hdfs_client(host: str) -> Client:
    """Return the client for a namenode ``host:port``, or a name service; for the default file system if `host` is empty.

    Raises
    ------
    MissingExtraError
        When hdfs-native is not installed.
    """
    settings = hdfs_settings()
    with _making:
        client_of_host = _clients.get(host)
        if client_of_host is None or client_of_host[0] != settings:
            time.sleep(max(0.0, _safe_at[0] - time.monotonic()))
            client_of_host = _clients[host] = settings, new_client(host, settings)
    return client_of_host[1]


def new_client(host: str, settings: Mapping[str, str]) -> Client:
    """Return a client of its own, by these settings."""
    require_extra("HDFS", ("hdfs_native",), "hdfs", "no file there can be read or written")
    from hdfs_native import Client

    if USER not in os.environ and _SPARKS_USER in os.environ:
        os.environ[USER] = os.environ[_SPARKS_USER]  # as the JVM of a task does
    with as_os_errors():
        return Client(f"hdfs://{host}", dict(settings))


def write_options() -> WriteOptions:
    """Return how new files are written: they replace others, with the replication and size of blocks that were set."""
    from hdfs_native import WriteOptions

    settings = hdfs_settings()
    replication, block = settings.get("dfs.replication"), settings.get("dfs.blocksize")
    return WriteOptions(
        overwrite=True,
        create_parent=False,
        replication=int(replication) if replication else None,
        block_size=_bytes(block) if block else None,
    )


def _bytes(text: str) -> int:
    """Return a size as Hadoop writes it: ``134217728`` or ``128m``."""
    unit = _UNITS.get(text[-1].lower())
    return int(text) if unit is None else int(text[:-1]) << unit


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Let what the namenode refuses be an error of the operating system's, in one line and not with the stack of its Java.

    Raises
    ------
    OSError
        For whatever hdfs-native raises.
    """
    try:
        yield
    except RuntimeError as problem:
        kind, text = _split_error(str(problem))
        raise _REFUSALS.get(kind, OSError)(text) from None
    except OSError as problem:
        text = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        kind_of = IsADirectoryError if text.startswith("Path is not a file") else type(problem)
        raise kind_of(text) from None


def _split_error(text: str) -> tuple[str, str]:
    r"""Class and first line of what Rust shows as ``RPCError("class", "text\n\tat …")``."""
    first = text.split("\\n", 1)[0].splitlines()[0] if text else text
    head, quote, rest = first.partition('("')
    name, comma, said = rest.partition('", "')
    if not quote:
        return "", first
    if not comma:
        return "", f"{head}: {rest.rstrip(')').rstrip(chr(34))}"
    return name.rpartition(".")[2], said.removesuffix('")').replace('\\"', '"')


def _forked() -> None:
    """In a child that was forked: leave the parent's clients alone, whose end would wait for their threads."""
    if not _clients:
        return
    keep: Any = ctypes.pythonapi.Py_IncRef
    for _, client in _clients.values():
        keep(ctypes.py_object(client))
    _clients.clear()
    _safe_at[0] = time.monotonic() + _KEPT_S


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
os.register_at_fork(after_in_child=_forked)
_BUFFER: Final = 1 << 20
_MS: Final = 1_000_000
_REPORTED_S: Final = 30.0
"""For how long to wait for the report of a block; a datanode that lives sends it at once."""
_POLL_S: Final = 0.05


def hdfs_path(path: str) -> str:
    """Return a path as the namenode wants it."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def hdfs_system(host: str) -> pafs.FileSystem:
    """Arrow's file system for a namenode ``host:port`` or a name service; the default one's if `host` is empty.

    Raises
    ------
    MissingExtraError
        When hdfs-native is not installed.
    """
    hdfs_client(host)
    return pafs.PyFileSystem(Hdfs(host))


@attrs.frozen
class Hdfs(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Holds what Arrow asks for. It holds no connection, so it goes to tasks as it is.

    Attributes
    ----------
    host : str
        A namenode, ``host:port``, or a name service; empty for the default file system.
    """

    host: str

    def get_type_name(self) -> str:
        """Arrow puts ``py::`` before it."""
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        """Without ``.``, ``..`` and slashes that say nothing."""
        return hdfs_path(path)

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Return what is there."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        try:
            with as_os_errors():
                return _shown(path, hdfs_client(self.host).get_file_info(hdfs_path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return what is in a folder."""
        root = hdfs_path(selector.base_dir)
        try:
            with as_os_errors():
                entries = list(hdfs_client(self.host).list_status(root, selector.recursive))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        if len(entries) == 1 and entries[0].path.rstrip("/") == root and not entries[0].isdir:
            raise NotADirectoryError(f"{root} is not a folder")
        return [_shown(f"{selector.base_dir.rstrip('/')}/{posixpath.relpath(each.path, root)}", each) for each in entries]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Make a folder, unless it is there."""
        with as_os_errors():
            hdfs_client(self.host).mkdirs(hdfs_path(path), create_parent=recursive)

    def delete_dir(self, path: str) -> None:
        """Remove a folder and all that is in it."""
        self._need(path, folder=True)
        self._delete(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove all that is in a folder."""
        for entry in self.get_file_info_selector(pafs.FileSelector(path, allow_not_found=missing_dir_ok)):
            self._delete(entry.path)

    def delete_root_dir_contents(self) -> None:
        """Remove everything."""
        self.delete_dir_contents("/")

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        self._need(path, folder=False)
        self._delete(path)

    def _need(self, path: str, *, folder: bool) -> None:
        kind = self._info(path).type
        if kind == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{path} is not there")
        if folder and kind == pafs.FileType.File:
            raise NotADirectoryError(f"{path} is a file")
        if not folder and kind == pafs.FileType.Directory:
            raise IsADirectoryError(f"{path} is a folder")

    def _delete(self, path: str) -> None:
        with as_os_errors():
            if not hdfs_client(self.host).delete(hdfs_path(path), recursive=True):
                raise FileNotFoundError(f"{path} is not there")

    def move(self, src: str, dest: str) -> None:
        """Give a file or folder another name, in place of what has that name, in one step."""
        if hdfs_path(src) == hdfs_path(dest):
            return
        with as_os_errors():
            hdfs_client(self.host).rename(hdfs_path(src), hdfs_path(dest), overwrite=True)

    def rename(self, src: str, dest: str) -> None:
        """The same, but nothing is replaced: of two at once one gets FileExistsError."""
        with as_os_errors():
            hdfs_client(self.host).rename(hdfs_path(src), hdfs_path(dest), overwrite=False)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file."""
        with self.open_input_stream(src) as read, self.open_output_stream(dest, None) as written:
            shutil.copyfileobj(read, written, _BUFFER)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Read a file."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Read a file, from any place in it."""
        return pa.PythonFile(_InputFile(self.host, hdfs_path(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        """Write a file, in place of another; it is whole when it is closed."""
        with as_os_errors():
            written = hdfs_client(self.host).create(hdfs_path(path), write_options())
        return pa.PythonFile(io.BufferedWriter(_RawFile(written), _BUFFER), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        """Write at the end of a file."""
        if self._info(path).type == pafs.FileType.NotFound:
            return self.open_output_stream(path, metadata)
        until, written = time.monotonic() + _REPORTED_S, None
        while written is None:
            try:
                with as_os_errors():
                    written = hdfs_client(self.host).append(hdfs_path(path))
            except BlockingIOError:  # no datanode has reported yet what was closed a moment ago
                if time.monotonic() > until:
                    raise
                time.sleep(_POLL_S)
        return pa.PythonFile(io.BufferedWriter(_RawFile(written), _BUFFER), mode="w")


@attrs.frozen
class Hadoop(Store):
    """HDFS. It has no versions of its own: a file's version is what it holds."""

    replaces_if: ClassVar[bool] = False

    def version(self, path: str) -> Version | None:
        """See Store."""
        return self.read(path)

    def write_if(self, path: str, data: bytes, version: Version | None) -> Version | None:
        """See Store.

        Of many that write a path at once one gets it: only one can rename a file away, and none onto another. Who was too late
        to see that has renamed the new one, and puts it back: for a moment there is none.
        """
        hdfs: Hdfs = self.arrow.handler
        new, old = (f"{path}.{uuid.uuid4().hex}.{kind}" for kind in ("new", "old"))
        try:
            self.put(new, data)
            if version is not None:
                hdfs.rename(path, old)
                if self.read(old) != version:
                    hdfs.rename(old, path)
                    return None
            hdfs.rename(new, path)
            return data
        except (FileNotFoundError, FileExistsError):
            return None
        finally:
            self.delete(new, old)


class _RawFile(io.RawIOBase):
    """A file of hdfs-native's that tells what goes wrong as an error of the operating system's."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return bool(self._file.readable())

    def writable(self) -> bool:
        return bool(self._file.writable())

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int | None = -1) -> bytes:
        with as_os_errors():
            return bytes(self._file.read(-1 if size is None else size))

    def write(self, data: Any) -> int:
        with as_os_errors():
            return int(self._file.write(data))

    def close(self) -> None:
        if not self.closed:
            super().close()
            with as_os_errors():
                self._file.close()


class _InputFile(_RawFile):
    """A file that is read, to the length it has: the last block of one that was closed just now may be known a moment later.

    Until the datanodes have reported it hdfs-native has only what comes before it, and says that the file ends there.
    """

    def __init__(self, host: str, path: str) -> None:
        with as_os_errors():
            super().__init__(hdfs_client(host).read(path))
        self._host, self._path = host, path
        self._length: int | None = None

    def _size(self) -> int:
        """Return what the namenode says; it is asked only where an end is met."""
        if self._length is None:
            with as_os_errors():
                self._length = int(hdfs_client(self._host).get_file_info(self._path).length)
        return self._length

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        to = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: 0}[whence]
        if whence == io.SEEK_END:
            to += self._size()
        if to > len(self._file):  # hdfs-native would end the process's call by a panic
            to = min(to, self._size())
            self._wait_for(to)
        return super().seek(to)

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if data or size == 0 or self.tell() >= self._size():
            return data
        self._wait_for(self._size())
        return super().read(size)

    def _wait_for(self, size: int) -> None:
        """Open it again until so many bytes of it are known."""
        until = time.monotonic() + _REPORTED_S
        while len(self._file) < size:
            if time.monotonic() > until:
                got = f"{len(self._file)} of {self._length} bytes"
                raise OSError(f"{self._path} ends after {got}: no datanode has reported its last block")
            time.sleep(_POLL_S)
            position = self.tell()
            with as_os_errors():
                self._file = hdfs_client(self._host).read(self._path)
            self._file.seek(min(position, len(self._file)))


def _shown(path: str, info: Any) -> pafs.FileInfo:
    """Return a file's facts as Arrow shows them."""
    kind = pafs.FileType.Directory if info.isdir else pafs.FileType.File
    return pafs.FileInfo(path, kind, mtime_ns=info.modification_time * _MS, size=None if info.isdir else info.length)


_ANSWER_S: Final = 20
_IMPATIENT: Final = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.base.millis": "100"}
_WHY: Final = (
    (("No NameNode hosts found",), "no namenode of this name is known"),
    ((f"No {DEFAULT} setting", "Default FS", "default FS"), "it names no host, and the default file system is not in HDFS"),
    (
        ("Connection refused", "No answer", "resolve", "lookup", "Name or service", "timed out", "unreachable"),
        "no namenode answers",
    ),
    (("Permission denied", "denied"), "the user may not do that"),
    (("afe mode",), "the namenode takes no files yet"),
)
_LASTING_REASONS: Final = [why for signs, why in _WHY if signs[0] not in ("Connection refused", "afe mode")]
_HINT: Final = (
    "see to the namenode and to Spark's settings spark.hadoop.fs.defaultFS and spark.hadoop.dfs.…, or HADOOP_CONF_DIR; the "
    "user is HADOOP_USER_NAME, else the one of the process"
)


def check_hdfs(path: str, *, written: bool = False) -> None:
    """See that the namenode of a path answers, and that files may be written there if they are to be.

    Raises
    ------
    EnvironmentSetupError
        When it does not, its name is unknown, or the user may not.
    MissingExtraError
        When hdfs-native is not installed.
    """
    host, _, rest = path.removeprefix("hdfs://").partition("/")
    try:
        _answer(host)
        if written:
            _write(Hdfs(host), hdfs_path(rest))
    except OSError as problem:
        raise _unreached(path, str(problem)) from problem


def _answer(host: str) -> None:
    """Ask the namenode for its root; a machine that swallows what it is sent answers never."""
    client = new_client(host, hdfs_settings() | _IMPATIENT)
    failed: list[BaseException | None] = []

    def ask() -> None:
        try:
            with as_os_errors():
                client.get_file_info("/")
        except OSError as problem:
            failed.append(problem)
        else:
            failed.append(None)

    _within(ask, failed)


def _within(ask: Callable[[], None], failed: list[BaseException | None]) -> None:
    asking = threading.Thread(target=ask, name="krishiv-hdfs", daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    if not failed:
        raise TimeoutError(f"No answer in {_ANSWER_S} s")
    if failed[0] is not None:
        raise failed[0]


def _write(system: Hdfs, folder: str) -> None:
    """Make the folder, and a file in it for a moment."""
    system.create_dir(folder, recursive=True)
    path = f"{folder}/_krishiv-probe-{uuid.uuid4().hex[:8]}"
    system.open_output_stream(path, None).close()
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def _unreached(path: str, problem: str) -> EnvironmentSetupError:
    why = next((why for signs, why in _WHY if any(sign in problem for sign in signs)), "the namenode refuses")
    return EnvironmentSetupError(
        f"{path} cannot be reached: {why}", got=problem, hint=_HINT, transient=why not in _LASTING_REASONS
    )


def _open(scheme: str, host: str, path: str) -> tuple[Store, str]:
    return Hadoop(hdfs_system(host), f"{scheme}://{host}"), hdfs_path(path)


KIND: Final = StoreKind(
    ("hdfs",),
    (),
    "HDFS",
    _open,
    check=lambda path, written: check_hdfs(path, written=written),
    is_setting=is_hdfs_setting,
    by_path=True,
)
