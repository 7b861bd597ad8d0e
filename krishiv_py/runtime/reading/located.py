"""The path of a source: checked where it is given, and the columns that its folders add."""

from __future__ import annotations

import glob
import os

import attrs
import pyarrow as pa

from krishiv_py.connectors.hive import partitions
from krishiv_py.errors import SourceError
from krishiv_py.storage.folders import of_this_machine
from krishiv_py.storage.listing import PATTERN


@attrs.frozen
class Located:
    """A path that was looked at.

    Attributes
    ----------
    path : str
        Absolute where the files are on this machine.
    literal : bool
        Whether it names a folder or file as it is, though it may look like a pattern.
    """

    path: str
    literal: bool

    @property
    def for_spark(self) -> str:
        """The path as Spark takes it, for which some characters have a meaning."""
        return literal_path(self.path) if self.literal else self.path


def located(path: str, *, streaming: bool, here: bool) -> Located:
    """Look at a path where it is given; only one that is `here`, on this machine, is looked for.

    Raises
    ------
    SourceError
        When there is nothing, or a file where a folder is needed.
    PlanError
        For a scheme with one slash.
    """
    if not here:
        return Located(path, literal=False)
    own = os.path.abspath(of_this_machine(path).removeprefix("file://").removeprefix("file:"))
    if not os.path.exists(own):
        if not PATTERN.search(own):
            raise SourceError("there is no such file or folder", got=path, hint="correct the path, or make the folder before")
        if not streaming and not any(glob.iglob(own)) and "{" not in own:
            raise SourceError("no file matches the pattern", got=path, hint="correct the pattern")
        return Located(own, literal=False)
    if streaming and os.path.isfile(own):
        raise SourceError(
            "a stream of files needs a folder",
            got=f"the file {path}",
            then="no other file would ever come",
            hint="pass its folder or a pattern, or read it with streaming=False",
        )
    return Located(own, literal=True)


def literal_path(path: str) -> str:
    """A path as Spark takes it, which takes some characters for a pattern."""
    return PATTERN.sub(r"\\\g<0>", path)


def with_partitions(schema: pa.Schema, paths: list[str]) -> pa.Schema:
    """A schema read from files, and the columns that their folders add."""
    found: dict[str, list[str | None]] = {}
    for path in paths:
        for name, value in partitions(path).items():
            found.setdefault(name, []).append(value)
    present = {name.lower() for name in schema.names}
    for name, values in found.items():
        if name.lower() not in present:
            schema = schema.append(pa.field(name, _type_of(values)))
    return schema


def _type_of(values: list[str | None]) -> pa.DataType:
    """The narrowest type that holds all values, as Spark has it for partition folders."""
    column = pa.array(values, pa.string())
    for type_ in (pa.int32(), pa.int64(), pa.date32()):
        try:
            column.cast(type_)
        except pa.ArrowInvalid:
            continue
        return type_
    return pa.string()
