"""Define what is done with input that cannot be read: the query fails and says where, or the input is set aside and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import SourceError
from krishiv_py.storage.store import Store

UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError, EOFError)


@attrs.frozen
class Rules:
    """Holds what a source is to do with input that does not fit.

    Attributes
    ----------
    aside : bool
        Put malformed inset aside instead of failing.
    missing_null : bool
        Take a column or a field that a file does not have as null instead of refusing the file.
    cut : bool
        Cut times in nanoseconds to microseconds instead of refusing the file.
    """

    aside: bool = False
    missing_null: bool = True
    cut: bool = False


def shown_path(path: str) -> str:
    """A path as people write it."""
    return path.removeprefix("file://").removeprefix("file:") if path.startswith("file:") else path


@contextmanager
def opened(store: Store, path: str, shown: str, *, as_lines: bool = False) -> Iterator[Any]:
    """A file, decompressed by its suffix if it is read in lines.

    Raises
    ------
    SourceError
        When it is not there any more or may not be read, whatever the rules are: that says nothing about its rows.
    """
    try:
        found = store.arrow.open_input_stream(path, compression=_compression(path)) if as_lines else store.open(path)
    except FileNotFoundError as problem:
        raise gone(shown) from problem
    except OSError as problem:
        raise SourceError(
            "a file cannot be opened", got=f"{shown}: {problem}", hint="see that every worker may read it"
        ) from problem
    with found:
        yield found


def gone(shown: str) -> SourceError:
    """The error for a file that was listed and is not there when it is to be read."""
    return SourceError(
        "a file went before it was read",
        got=shown,
        hint="put it back; remove files only after the batch that reads them is done",
    )


def _compression(path: str) -> str | None:
    ends = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
    return next((kind for end, kind in ends.items() if path.lower().endswith(end)), None)


def readable(store: Store, path: str) -> bool:
    """Return whether the bytes of a file can be had: then what went wrong is what is in them."""
    try:
        with store.arrow.open_input_stream(path, compression=None) as stream:
            while stream.read(1 << 22):
                pass
    except OSError:
        return False
    return True
