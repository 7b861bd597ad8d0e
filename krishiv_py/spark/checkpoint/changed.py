"""Input files that were changed after they were read: a query knows files by path, and does not read them again."""

from __future__ import annotations

import heapq
import os
import re
import warnings
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote, urlparse

from krishiv_py.redaction import shown_text

_NAMED: Final = 3
_OWN: Final = re.compile("/krishiv/(controls|ranges)/")
_MOST_LOOKED_AT: Final = 20_000


def warn_if_changed(logs: Iterable[tuple[str, list[dict[str, Any]]]], own: list[str]) -> None:
    """Warn where the modification time of a local file is not the one its entry in a source's log has.

    Parameters
    ----------
    logs : iterable of (str, list of dict)
        The logs of file sources, and their entries.
    own : list of str
        Folders of memory streams, whose files the library writes itself.
    """
    entries = [e for _, found in logs for e in found if e["path"].startswith("file:") and not _OWN.search(e["path"])]
    newest = sorted(entries, key=lambda e: int(e.get("timestamp", 0)))[-_MOST_LOOKED_AT:]
    _warn(sorted({path for e in newest if (path := _changed(e)) is not None and os.path.dirname(path) not in own}))


def warn_if_files_changed(names: Iterable[tuple[str, int]]) -> None:
    """Warn where the modification time of a local file is not the one it was read with, ns; 0 where that is not known."""
    newest = heapq.nlargest(_MOST_LOOKED_AT, (name for name in names if name[1]), key=lambda name: name[1])
    entries = ({"path": quote(path), "timestamp": mtime_ns // 1_000_000} for path, mtime_ns in newest)
    _warn(sorted({path for e in entries if (path := _changed(e)) is not None}))


def _warn(changed: list[str]) -> None:
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        warnings.warn(
            f"input files were changed after they were read: {', '.join(shown_text(p) for p in changed[:_NAMED])}{more}. "
            "They are not read again, and a batch that has to be repeated reads what is there now. "
            "Hint: write new rows into files of other names",
            RuntimeWarning,
            stacklevel=8,
        )


def _changed(entry: dict[str, Any]) -> str | None:
    """The path of a file that is there with another modification time (ms) than it was read with."""
    path = unquote(urlparse(entry["path"]).path)
    try:
        return path if os.stat(path).st_mtime_ns // 1_000_000 != int(entry["timestamp"]) else None
    except (OSError, KeyError, ValueError):
        return None  # gone, as files may be once they were read
