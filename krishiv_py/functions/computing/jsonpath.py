"""Paths of ``get_json_object``: ``$.a.b[0]['c']``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from krishiv_py.errors import ExpressionError, shown

_STEP: Final = re.compile(r"\.([^.\[*]+)|\[(\d{1,9})\]|\['([^'?]+)'\]")


@lru_cache(maxsize=256)
def json_path(text: str) -> tuple[str | int, ...]:
    """The steps of a path: names of fields, and places in lists, which count from 0.

    Raises
    ------
    ExpressionError
        For a value that is not a path, and for paths to more than one value.
    """
    found: list[str | int] = []
    at = 1
    while text.startswith("$") and at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            break
        name, place, quoted = step.groups()
        found.append(int(place) if place is not None else name or quoted)
        at = step.end()
    if at != len(text) or not text.startswith("$"):
        raise ExpressionError(
            "get_json_object takes a path to one value",
            got=shown(text),
            then="it leads nowhere, or to many values",
            hint="write for instance '$.user.tags[0]', or \"$['first name']\"; from_json reads whole lists",
        )
    return tuple(found)
