"""Input files that were changed after they were read: a query knows files by path, and does not read them again."""

from __future__ import annotations

import heapq
import os
import warnings
from collections.abc import Iterable
from typing import Final

from krishiv_py.errors import users_line
from krishiv_py.redaction import shown_text

_NAMED: Final = 3
_MOST_LOOKED_AT: Final = 20_000


def warn_if_files_changed(names: Iterable[tuple[str, int]]) -> None:
    """Warn where the modification time of a local file is not the one it was read with, ns; 0 where that is not known.

    Parameters
    ----------
    names : iterable of (str, int)
        Paths of files that were planned, and their times.
    """
    newest = heapq.nlargest(_MOST_LOOKED_AT, (name for name in names if name[1]), key=lambda name: name[1])
    changed = sorted(path for path, mtime_ns in newest if _is_other(path, mtime_ns))
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        warnings.warn(
            f"input files were changed after they were read: {', '.join(shown_text(p) for p in changed[:_NAMED])}{more}. "
            "They are not read again, and a batch that has to be repeated stops over them. "
            "Hint: write new rows into files of other names",
            RuntimeWarning,
            stacklevel=users_line(),
        )


def _is_other(path: str, mtime_ns: int) -> bool:
    """Return whether a file is there with another modification time (ms) than it was read with."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000 != mtime_ns // 1_000_000
    except OSError:
        return False  # gone, as files may be once they were read
