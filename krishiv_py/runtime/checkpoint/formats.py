"""The format of a checkpoint: which versions of the library can go on from it (docs/state.md, "Checkpoints and versions")."""

from __future__ import annotations

import json
from typing import Any, Final

from krishiv_py.errors import CheckpointError
from krishiv_py.version import __version__

FORMAT: Final = 1
"""Of the plan note, the ledger, the chunks of state and the names they have; raised when an older one cannot be read."""


def format_note(engine: str) -> dict[str, Any]:
    """Return what a plan note says of the format and of who wrote it: this version of the library, on an `engine`."""
    return {"format": FORMAT, "written by": ", ".join(filter(None, [f"krishiv_py {__version__}", engine]))}


def unnumbered(data: bytes) -> dict[str, Any] | None:
    """The plan note of a version that knew neither formats nor checksums; None if this is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"plan", "buckets"} <= found.keys() else None


def check_format(note: dict[str, Any], checkpoint: str) -> None:
    """See that this version of the library can read a checkpoint, by its plan note.

    Raises
    ------
    CheckpointError
        When it has another format, or none; names it, and which version wrote it if that is known.
    """
    found = note.get("format")
    if found == FORMAT:
        return
    got = "none, from before formats had numbers" if found is None else f"format {found!r}"
    by = f", written by {note['written by']}" if "written by" in note else ""
    raise CheckpointError(
        f"the checkpoint {checkpoint} has a format this version cannot read",
        got=f"{got}{by}; krishiv_py {__version__} reads format {FORMAT}",
        hint="go on with the version that wrote it, or start with a new checkpoint and output folder",
    )
