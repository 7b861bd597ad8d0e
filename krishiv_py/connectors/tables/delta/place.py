"""Determine where a Delta table is, and what delta-rs says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from krishiv_py.errors import RAISED, OperatorError, PlanError, failure_text, require_extra, shown
from krishiv_py.failures.redaction import HIDDEN, is_secret
from krishiv_py.plan.checks import PathLike, a_path, a_text, setting
from krishiv_py.storage.local import absolute

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_RELOADED: Final = 20
"""After so many uses a table that is held is loaded again."""
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_ESCAPED: Final = re.compile("%[0-9a-fA-F]{2}")
_STRANGE: Final = re.compile(r"[\x00-\x1f\x7f\\\[\]|^]")


def delta() -> Any:
    """Return the module ``deltalake``.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Delta Lake", ("deltalake",), "delta", "no Delta table can be read or written")
    import deltalake

    return deltalake


def a_place(value: PathLike) -> str:
    """Return the path of a table, the same whatever folder a process is in."""
    delta()
    text = a_path(value, "path", 'pass a folder: "out/results"')
    place = absolute(text)
    local = "://" not in place or place.startswith("file:")
    if local and (_ESCAPED.search(place) or _STRANGE.search(place)):
        got, consequence = shown(text), "delta-rs takes it for another sign, and would read another folder, or none"
        hint = "give the folder a name without % before two digits, and without any of [ ] | ^, backslashes and line breaks"
        raise PlanError("a folder of a Delta table cannot be called so", got=got, then=consequence, hint=hint)
    return place


def options(value: object) -> Mapping[str, str]:
    """Settings for an object store.

    Raises
    ------
    PlanError
        For anything but texts.
    """
    if not isinstance(value, Mapping):
        hint = 'pass a dict: {"AWS_REGION": "eu-central-1"}'
        raise PlanError("`storage_options` is not a dict", got=type(value).__name__, hint=hint)
    for name in value:
        a_text(name, "storage_options", 'pass texts by name: {"AWS_REGION": "eu-central-1"}')
    return dict(setting(name, each) for name, each in value.items())


def opened(path: str, storage: Mapping[str, str], version: int | None = None) -> Any:
    """Return the table; None if there is none yet.

    Raises
    ------
    OperatorError
        When it cannot be read.
    """
    try:
        return delta_table(path, storage, version)
    except RAISED as problem:
        raise refused(path, problem, storage) from None


def delta_table(path: str, storage: Mapping[str, str], version: int | None = None) -> Any:
    """Return the table; None if there is none yet. What goes wrong is reported in delta-rs's own words."""
    module = delta()
    try:
        return module.DeltaTable(path, version=version, storage_options=dict(storage) or None)
    except module.exceptions.TableNotFoundError:
        return None


@attrs.define
class OpenTable:
    """A Delta table that stays open between batches: loading it again costs more with each version since its last checkpoint.

    delta-rs slows down over many updates of one object, so it is loaded again from time to time. It is also loaded again when
    the log no longer has the version that is held: somebody restored or replaced the table.
    """

    note: str = ""
    """A file in a folder on this machine that a query has taken: where it is not, the table is away, and is not made again."""
    _table: Any = None
    _folder: Any = None
    _uses: int = 0

    def current(self, path: str, storage: Mapping[str, str]) -> Any:
        """Return the table as it is now; None if there is none yet.

        Raises
        ------
        OperatorError
            When it cannot be read, and when its folder is away.
        """
        self._uses += 1
        if self._table is not None and self._uses % _RELOADED:
            try:
                if self._is_there(path, storage):
                    self._table.update_incremental()
                    return self._table
            except RAISED:
                self._folder = None  # what is wrong is said by the next line, or it has passed
        self._table = opened(path, storage)
        if self._table is None and self.note and _is_gone(self.note):
            then, hint = "another table would be made below the place of a mount", "mount it or put it back"
            raise OperatorError("the folder of a Delta table is gone", got=shown(path), then=then, hint=hint, transient=True)
        return self._table

    def forget(self) -> None:
        """Load the table again at the next use, after a commit that failed."""
        self._table = None

    def _is_there(self, path: str, storage: Mapping[str, str]) -> bool:
        if self._folder is None:
            self._folder = filesystem(path, storage)
        name = f"_delta_log/{self._table.version():020d}.json"
        return bool(self._folder.get_file_info(name).size)

    def __reduce__(self) -> tuple[type[OpenTable], tuple[()]]:
        return OpenTable, ()


def filesystem(path: str, storage: Mapping[str, str]) -> pafs.FileSystem:
    """Return the folder of a table, through delta-rs."""
    delta()
    import pyarrow.fs as pafs
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(path, dict(storage) or None))


def write_file(path: str, storage: Mapping[str, str], name: str, data: bytes) -> None:
    """Write a small file into the folder of a table, through delta-rs, which has the settings of its store.

    Raises
    ------
    OperatorError
        When it cannot be written.
    """
    try:
        # Arrow passes on as bytes only what it has gathered, and delta-rs takes nothing else
        with filesystem(path, storage).open_output_stream(name, buffer_size=len(data) + 1) as stream:
            stream.write(data)
    except RAISED as problem:
        raise refused(path, problem, storage) from None


def refused(path: str, problem: BaseException, storage: Mapping[str, str] | None = None) -> OperatorError:
    """Return the error for what delta-rs refuses."""
    text = without_secrets(problem, storage or {})
    if "ermission denied" in text:
        what, hint = "the Delta table may not be written", "let this user write the folder"
    elif "No space left" in text or "quota exceeded" in text:
        what = "the Delta table cannot be written"
        hint = "see to room in its folder, then start the query again: the batch is written again"
    elif "failed validation check" in text:
        what, hint = "a rule of the Delta table refuses rows", "drop its constraint or NOT NULL, or filter such rows"
    else:
        what, hint = "delta-rs refuses", "see what it says; start the query again: the batch is written again, or recognised"
    return OperatorError(what, got=f"{shown(path)}: {text}", then="the batch is not written", hint=hint)


def without_secrets(problem: BaseException, storage: Mapping[str, str]) -> str:
    """Return what an exception says, without the calls inside of delta-rs and without secrets of the store."""
    text = " ".join(_COLOUR.sub("", failure_text(problem).split("\n   0: ")[0]).split())
    for name, value in storage.items():
        if is_secret(name) and value:
            text = text.replace(value, HIDDEN)
    return text


def _is_gone(path: str) -> bool:
    """Return whether a file is not there; of one that may not be looked at, the write says what is wrong."""
    try:
        os.stat(path)
    except OSError as problem:
        return isinstance(problem, (FileNotFoundError, NotADirectoryError))
    return False
