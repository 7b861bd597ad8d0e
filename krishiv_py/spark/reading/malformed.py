"""What is done with input that cannot be read: the query fails and says where, or the input is put aside and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import SourceError, message

UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError, EOFError)
_SHOWN: Final = 200


@attrs.frozen
class Malformed:
    """Input that cannot be read: one line, or (without line and text) what is left of a file."""

    file: str
    line: int | None
    text: str | None
    problem: str

    def error(self) -> SourceError:
        """What a query that may lose nothing fails with, in one line."""
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        shown = "no line" if self.text is None else ascii(self.text[:_SHOWN]) + ("…" if len(self.text) > _SHOWN else "")
        return SourceError(
            message(
                f"{where}: {' '.join(self.problem.split())}",
                shown,
                "its rows would be lost",
                'fix or remove it, or read with on_malformed="side_output"',
            )
        )


def in_columns(malformed: Sequence[Malformed]) -> list[list[str | int | None]]:
    """File, line, text and problem of each, as columns."""
    return [list(column) for column in zip(*(attrs.astuple(m) for m in malformed), strict=True)]


@attrs.frozen
class Rules:
    """What a source is to do with input that does not fit.

    Attributes
    ----------
    aside : bool
        Put malformed input aside instead of failing.
    missing_null : bool
        Take a column a file has not as null instead of refusing the file.
    """

    aside: bool = False
    missing_null: bool = True


def shown_path(path: str) -> str:
    """A path as people write it."""
    return path.removeprefix("file://").removeprefix("file:") if path.startswith("file:") else path


@contextmanager
def opened(system: pafs.FileSystem, path: str, shown: str, *, as_lines: bool = False) -> Iterator[Any]:
    """A file, decompressed by its suffix if it is read in lines.

    Raises
    ------
    SourceError
        When it is not there any more or may not be read, whatever the rules are: that says nothing about its rows.
    """
    try:
        found = system.open_input_stream(path, compression=_compression(path)) if as_lines else system.open_input_file(path)
    except FileNotFoundError as problem:
        raise gone(shown) from problem
    except OSError as problem:
        raise SourceError(
            message(
                "a file cannot be opened", f"{shown}: {problem}", "its rows would be lost", "see that every worker may read it"
            )
        ) from problem
    with found:
        yield found


def gone(shown: str) -> SourceError:
    """The error for a file that was listed and is not there when it is to be read."""
    return SourceError(
        message(
            "a file went before it was read",
            shown,
            "its rows would be lost",
            "put it back; remove files only after the batch that reads them is done",
        )
    )


def _compression(path: str) -> str | None:
    ends = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
    return next((kind for end, kind in ends.items() if path.lower().endswith(end)), None)


def readable(system: pafs.FileSystem, path: str) -> bool:
    """Whether the bytes of a file can be had: then what went wrong is what is in them."""
    try:
        with system.open_input_stream(path, compression=None) as stream:
            while stream.read(1 << 22):
                pass
    except OSError:
        return False
    return True
