"""Paths as Spark reads them: which scheme is which kind of store is known here only.

What counts as input is in docs/sources.md: all files at any depth, of any name and any age, except for names that say that a
file is hidden or not finished, and except for files without bytes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import EnvironmentSetupError, SourceError
from krishiv_py.storage import hdfs
from krishiv_py.storage.local import DISK
from krishiv_py.storage.store import Store, StoreKind
from krishiv_py.storage.stores import azure, google, s3

KINDS: Final = (s3.KIND, google.KIND, azure.KIND, hdfs.KIND)
"""The stores that the library knows, apart from disks."""
_BY_SCHEME: Final = {scheme: kind for kind in KINDS for scheme in (*kind.schemes, *kind.others)}


def says_where(name: str) -> bool:
    """Return whether a setting of Hadoop's says how an object store or HDFS is reached from here."""
    return any(kind.is_setting(name) for kind in KINDS)


def kind_of(path: str) -> StoreKind | None:
    """Return the kind of store of a path; None for a disk, and for one that only Arrow may know."""
    return _BY_SCHEME.get(path.partition("://")[0]) if "://" in path else None


def store_at(uri: str) -> tuple[Store, str]:
    """Return the store of a path and the path in it. Spark encodes no character: a name may hold ``#``, ``?`` or ``%20``.

    Raises
    ------
    PlanError
        For a path without a bucket, or with credentials.
    EnvironmentSetupError
        For a store that cannot be reached with what is installed.
    """
    if is_local_path(uri):
        return DISK, local_path(uri)
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    kind = kind_of(uri)
    return _of_arrow(uri, scheme, rest) if kind is None else kind.open(scheme, host, path)


def local_path(uri: str) -> str:
    """Return a path of this machine without its scheme."""
    if not uri.startswith("file:"):
        return uri
    rest = uri.removeprefix("file:")
    return "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest


def read_at(uri: str) -> bytes | None:
    """Return the bytes of a file; None if it does not exist."""
    store, path = store_at(uri)
    return store.read(path)


def write_at(uri: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file, or replace it, whole or not at all. See :meth:`~krishiv_py.storage.store.Store.write`."""
    store, path = store_at(uri)
    store.write(path, data, durable=durable)


def check_reachable(paths: Iterable[str | None], *, written: bool = False) -> None:
    """See that the stores of some paths answer to this process, and that files may be written there if they are to be.

    It takes seconds, not the minutes for which a store that is busy is waited for later. Disks are not checked.

    Raises
    ------
    EnvironmentSetupError
        When one does not answer, or refuses.
    MissingExtraError
        When what reaches it is not installed.
    PlanError
        For credentials in a path, and for a path without a bucket.
    """
    checked: set[tuple[str, str]] = set()
    for path in paths:
        kind = None if path is None else kind_of(path)
        if kind is None or path is None:
            continue
        place = (kind.named, path if kind.by_path else path.partition("://")[2].partition("/")[0])
        if place not in checked:
            if not kind.by_path:
                store_at(path)  # refuses paths that are none
            kind.check(path, written)
            checked.add(place)


def arrow_reads(path: str) -> bool:
    """Return whether the library reads files of a path itself, and not Spark."""
    return is_local_path(path) or kind_of(path) is not None


def is_local_path(path: str) -> bool:
    """Return whether a path is on this machine's own file system."""
    return "://" not in path or path.startswith("file:")


def _of_arrow(uri: str, scheme: str, rest: str) -> tuple[Store, str]:
    host, slash, path = rest.partition("/")
    try:
        system, path_found = pafs.FileSystem.from_uri(f"{scheme}://{host}{slash}{quote(path)}")
    except (ImportError, OSError, pa.ArrowException) as problem:
        got, consequence = str(problem).splitlines()[0], "no file there can be read or written"
        hint = "use s3a://, gs://, abfss://, hdfs:// or a mounted path"
        raise EnvironmentSetupError(f"Arrow cannot reach {scheme}://", got=got, then=consequence, hint=hint) from problem
    return Store(system, f"{scheme}://"), str(path_found)


UNFINISHED: Final = (".tmp", ".inprogress", ".partial", "._copying_")
"""The end of names of files that are still being written; they get another name when they are whole."""
PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
Known: TypeAlias = Callable[[str], Container[str]]
"""The names of a folder that need no second look."""


@attrs.frozen(order=False)
class File:
    """A file that was listed.

    Attributes
    ----------
    path : str
        Its path as it is opened, with the links by which it was found.
    size : int
        Bytes.
    mtime_ns : int
        Modification time.
    real : str
        The path that tells it from other files: without links where it is on this machine.
    """

    path: str
    size: int
    mtime_ns: int
    real: str


def passed_over(path: str) -> bool:
    """Return whether a file is not finished, by its name."""
    return path.lower().endswith(UNFINISHED)


def hidden(name: str) -> bool:
    """Return whether a file or folder does not count as input, by its name, as in Spark."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def nothing_known(folder: str) -> Container[str]:
    """No file is known."""
    return ()


_SETTLED_NS: Final = 20_000_000
_SETTLED_COARSE_NS: Final = 2_100_000_000
_SURE_S: Final = 5.0
_MANY: Final = 5_000
"""To list so many names again costs more than to wait until a folder has settled."""


@attrs.define
class _ListedFolder:
    """Holds what a list of a folder showed.

    Attributes
    ----------
    state : tuple of (int, int)
        Its number, and the time of its last change, ns.
    settled : bool
        Whether any later change shows in that time.
    text : bytes
        The names, each with a slash; empty for a folder that has not many.
    rest : list of str
        Those that count and were not known.
    """

    state: tuple[int, int]
    settled: bool
    text: bytes
    rest: list[str]


@attrs.define(eq=False)
class QuietFolders:
    """Folders of this machine, and the names in them that were not known, so that they are listed only when they have changed.

    The time of a folder's last change says so. It is believed of a file system once it was seen to change with a new name, and
    no more once it did not. Every few seconds all folders are listed, whatever it says: another machine may write there.

    Attributes
    ----------
    waited_s : float
        How long the last look waited for folders that had just changed.
    """

    waited_s: float = 0.0
    _listed: dict[str, _ListedFolder] = attrs.field(factory=dict)
    _believed: dict[int, bool] = attrs.field(factory=dict)
    _sure_s: float = -math.inf
    _all: bool = True

    def begin(self) -> None:
        """Begin to list the files of a source."""
        now_s, self.waited_s = time.monotonic(), 0.0
        self._all = now_s - self._sure_s >= _SURE_S
        if self._all:
            self._sure_s = now_s

    def forget(self) -> None:
        """List all folders the next time: a name may be known no more."""
        self._listed.clear()

    def names(self, folder: str, opened: int, known: Container[str]) -> list[str]:
        """Return the names in an open folder that count and are not known."""
        before, facts = self._listed.get(folder), os.fstat(opened)
        if before is not None:
            before.rest = list(itertools.filterfalse(known.__contains__, before.rest))
            if before.text and not self._is_same(before, facts):
                facts = self._settled(opened, facts)
            if self._is_same(before, facts):
                return before.rest
        began_ns, names = time.time_ns(), os.listdir(opened)
        text = os.fsencode("/".join(names) + "/") if len(names) >= _MANY else b""
        if text and before is not None and before.text and not before.rest:
            names = _changed(before.text, text)
        rest = [name for name in itertools.filterfalse(known.__contains__, names) if not hidden(name)]
        state = facts.st_ino, facts.st_mtime_ns
        if before is not None and before.settled and not set(before.rest).issuperset(rest):
            self._believed[facts.st_dev] = before.state != state and self._believed.get(facts.st_dev, True)
        self._listed[folder] = _ListedFolder(state, _settles_ns(facts) < began_ns, text, rest)
        return rest

    def _is_same(self, before: _ListedFolder, facts: os.stat_result) -> bool:
        """Return whether a folder has the names that it had."""
        if self._all or not before.settled or not self._believed.get(facts.st_dev):
            return False
        return before.state == (facts.st_ino, facts.st_mtime_ns)

    def _settled(self, opened: int, facts: os.stat_result) -> os.stat_result:
        """Return the facts of a folder once it has settled, so that one list is enough, where that is so at once."""
        left_ns = _settles_ns(facts) + 1 - time.time_ns()
        if not self._believed.get(facts.st_dev) or not 0 < left_ns <= _SETTLED_NS:
            return facts
        time.sleep(left_ns / 1e9)
        self.waited_s += left_ns / 1e9
        return os.fstat(opened)


def _settles_ns(facts: os.stat_result) -> int:
    """Return the time after which another change of a folder shows in the time of its last change."""
    coarse = facts.st_mtime_ns % 1_000_000_000 == 0
    return facts.st_mtime_ns + (_SETTLED_COARSE_NS if coarse else _SETTLED_NS)


def _changed(before: bytes, now: bytes) -> list[str]:
    """Return the names of a list but for those with which it begins and ends as it did before.

    A file system keeps the order of the names that stay. To look for each of many names among those that are known would cost
    as much as to list them.
    """
    one, two, least = np.frombuffer(before, np.uint8), np.frombuffer(now, np.uint8), min(len(before), len(now))
    ahead = _equal(one[:least], two[:least])
    behind = _equal(one[::-1][: least - ahead], two[::-1][: least - ahead])
    begin = now.rfind(b"/", 0, ahead) + 1
    end = now.find(b"/", len(now) - behind) + 1 or len(now)  # behind a slash both have whole names
    return os.fsdecode(now[begin : end - 1]).split("/") if begin < end else []


def _equal(one: npt.NDArray[np.uint8], two: npt.NDArray[np.uint8]) -> int:
    """Return how many items are equal at the beginning."""
    differ = one != two
    return int(differ.argmax()) if differ.any() else len(one)


def files_at(path: str, *, literal: bool, known: Known = nothing_known, quiet: QuietFolders | None = None) -> list[File]:
    """List the files at a path, the oldest first, and by name where modification times are equal.

    Parameters
    ----------
    path : str
        A folder, a file or a pattern.
    literal : bool
        Whether it is not a pattern, though it may look like one.
    known : callable
        The names of a folder that are to be left out.
    quiet : QuietFolders or None
        Folders that need not be looked into; None to look into all.

    Raises
    ------
    SourceError
        For a folder that cannot be listed or entered; names it.
    """
    store, root = store_at(path)
    try:
        roots = [root] if literal or not PATTERN.search(root) else _matching(store, root)
        files = list(_local(roots, known, quiet or QuietFolders()) if store.local else _remote(store, roots, known))
    except (OSError, pa.ArrowException) as problem:
        raise _unreadable(path, problem) from problem
    log = f"{roots[0]}/_spark_metadata" if len(roots) == 1 else ""
    if log and store.arrow.get_file_info(log).type == pafs.FileType.Directory:
        written = _of_sparks_sink(store, log)
        files = [file for file in files if file.path in written]
    return sorted((f for f in files if f.size), key=lambda f: (f.mtime_ns, f.path))


def facts_of(path: str) -> tuple[int, int] | None:
    """Return the size of a file and its modification time in ns; None if it does not exist."""
    store, where = store_at(path)
    return store.facts(where)


def _unreadable(path: str, problem: Exception) -> SourceError:
    where = getattr(problem, "filename", None) or path
    hint = "let this user list and enter it (chmod u+rx on folders, u+r on files), or read another path"
    return SourceError("a folder cannot be read", got=f"{where}: {getattr(problem, 'strerror', None) or problem}", hint=hint)


def _local(roots: list[str], known: Known, quiet: QuietFolders) -> Iterator[File]:
    """Yield the files below folders of this machine; a link to what is found elsewhere gives nothing more."""
    quiet.begin()
    folders = list[tuple[str, str | None]]((root, None) for root in reversed(roots))
    links, seen, linked = list[str](), set[str](), set[str]()
    while folders or links:
        if not folders:
            links.sort(reverse=True)
            for i in range(len(links) - 1, -1, -1):  # folders first: a file in one of them is not a file of its own
                if os.path.isdir(links[i]):
                    folders.append((links.pop(i), None))
                    break
            else:
                while links:
                    yield from _linked(links.pop(), seen, linked, known)
            continue
        shown, real = folders.pop()
        if real is None:
            try:
                facts = os.stat(shown)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(facts.st_mode):
                if stat.S_ISREG(facts.st_mode):
                    links.append(shown)
                continue
            real = os.path.realpath(shown)
        if real in seen:
            continue
        seen.add(real)
        below = real.rstrip("/")
        try:
            opened = os.open(shown, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # it went meanwhile
            continue
        try:
            names = quiet.names(real, opened, known(real))
        finally:
            os.close(opened)
        found = list[str]()
        for name in names:
            path = f"{shown.rstrip('/')}/{name}"
            try:
                of_name = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(of_name.st_mode):
                found.append(name)
            elif stat.S_ISLNK(of_name.st_mode):
                links.append(path)
            elif stat.S_ISREG(of_name.st_mode) and not passed_over(name):
                yield File(f"file:{path}", of_name.st_size, of_name.st_mtime_ns, f"{below}/{name}")
        folders += [(f"{shown.rstrip('/')}/{name}", f"{below}/{name}") for name in found]


def _linked(path: str, seen: set[str], linked: set[str], known: Known) -> Iterator[File]:
    """Yield a file that a link or a pattern names, unless it was found without."""
    try:
        real, facts = os.path.realpath(path, strict=True), os.stat(path)
    except FileNotFoundError:
        return
    except OSError as problem:
        if problem.errno == 40:  # links that lead to each other
            return
        raise
    folder, name = os.path.split(real)
    if not stat.S_ISREG(facts.st_mode) or hidden(os.path.basename(path)) or passed_over(path) or real in linked:
        return
    if name in known(folder) or (folder in seen and not hidden(name) and not passed_over(name)):
        return
    linked.add(real)
    yield File(f"file:{path}", facts.st_size, facts.st_mtime_ns, real)


def _remote(store: Store, roots: list[str], known: Known) -> Iterator[File]:
    for root in roots:
        base = store.arrow.get_file_info(root)
        for each in [base] if base.is_file else store.entries(root, recursive=True):
            below = each.path.removeprefix(root).strip("/").split("/")
            if not each.is_file or any(map(hidden, below)) or passed_over(each.base_name):
                continue
            path = store.uri(each.path)
            if each.base_name not in known(posixpath.dirname(path)):
                yield File(path, each.size or 0, each.mtime_ns or 0, path)


def _matching(store: Store, pattern: str) -> list[str]:
    """Return the files and folders that a pattern names, as in Hadoop: ``*``, ``?``, ``[a-c]``, ``{a,b}``."""
    paths: dict[str, None] = {}
    for each in _alternatives(pattern):
        head, *parts = each.split("/")
        places = [head]
        for part in parts:
            places = [name for place in places for name in _children(store, place, part)]
        paths |= dict.fromkeys(places)
    return sorted(place for place in paths if _counts(store.arrow.get_file_info(place)))


def _counts(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.Directory or (info.is_file and not hidden(info.base_name))


def _children(store: Store, place: str, part: str) -> list[str]:
    if not PATTERN.search(part):
        return [f"{place}/{part}"]
    if store.local:  # Arrow leaves out links that lead nowhere
        try:
            names = os.listdir(place or "/")
        except (FileNotFoundError, NotADirectoryError):
            return []
    else:
        names = [f.base_name for f in store.entries(place or "/")]
    wanted = _regex(part)
    return [f"{place}/{name}" for name in sorted(names) if wanted.fullmatch(name)]


def _alternatives(pattern: str) -> list[str]:
    """Return a pattern without braces for each choice they give."""
    depth, begin, cuts = 0, -1, list[int]()
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        if sign == "\\":
            position += 1
        elif sign == "{":
            begin, depth = (position if not depth else begin), depth + 1
        elif sign == "," and depth == 1:
            cuts.append(position)
        elif sign == "}" and depth:
            depth -= 1
            if not depth:
                edges = [begin, *cuts, position]
                parts = [pattern[one + 1 : two] for one, two in itertools.pairwise(edges)]
                return [a for part in parts for a in _alternatives(pattern[:begin] + part + pattern[position + 1 :])]
        position += 1
    return [pattern]


def _regex(part: str) -> re.Pattern[str]:
    text, position = "", 0
    while position < len(part):
        sign = part[position]
        if sign == "\\" and position + 1 < len(part):
            position += 1
            text += re.escape(part[position])
        elif sign == "[" and (end := part.find("]", position + 2)) > 0:
            inner = part[position + 1 : end].replace("\\", "\\\\")
            text += f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            position = end
        else:
            text += {"*": ".*", "?": "."}.get(sign, re.escape(sign))
        position += 1
    return re.compile(text, re.DOTALL)


def _of_sparks_sink(store: Store, folder: str) -> set[str]:
    """Return the files that the log of Spark's file sink has."""
    numbers: dict[int, str] = {}
    for each in store.entries(folder):
        number = each.base_name.removesuffix(".compact")
        if number.isdigit() and (int(number) not in numbers or each.base_name.endswith(".compact")):
            numbers[int(number)] = each.path
    begin = max((n for n, path in numbers.items() if path.endswith(".compact")), default=0)
    files: set[str] = set()
    for number, path in sorted(numbers.items()):
        for line in (store.read(path) or b"").decode().splitlines()[1:] if number >= begin else ():
            entry = json.loads(line)
            uri = unquote(entry["path"])
            name = f"file:{local_path(uri)}" if is_local_path(uri) else uri
            (files.discard if entry.get("action") == "delete" else files.add)(name)
    return files
