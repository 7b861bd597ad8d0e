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
    steps: list[str | int] = []
    position = 1
    while text.startswith("$") and position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            break
        name, place, quoted = step.groups()
        steps.append(int(place) if place is not None else name or quoted)
        position = step.end()
    if position != len(text) or not text.startswith("$"):
        raise ExpressionError(
            "get_json_object takes a path to one value",
            got=shown(text),
            then="it leads nowhere, or to many values",
            hint="write for instance '$.user.tags[0]', or \"$['first name']\"; from_json reads whole lists",
        )
    return tuple(steps)
