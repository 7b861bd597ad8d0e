"""Names of columns, fields and results: what can be one, and how it is in the text of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from krishiv_py.errors import ExpressionError, shown

_PLAIN: Final = re.compile(r"[^\W\d]\w*")
_WORDS: Final = frozenset({"None", "True", "False", "nan", "inf"})  # constants are written so


def quoted(name: str) -> str:
    """Return a name as it is in the text of an expression: in backquotes where it could be taken for something else."""
    return name if name == "*" or (_PLAIN.fullmatch(name) and name not in _WORDS) else "`" + name.replace("`", "``") + "`"


def checked_name(name: object, what: str) -> str:
    """Refuse what cannot be a name."""
    if not isinstance(name, str) or not name or not encodable(name):
        raise ExpressionError(f"{what} is named by a non-empty text", got=shown(name), hint='write "name"')
    return name


def encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def free(name: str, taken: Iterable[str]) -> str:
    """Return the `name`, with ``_`` added until no name of `taken` is equal to it; case does not matter."""
    lowered = {t.lower() for t in taken}
    while name.lower() in lowered:
        name += "_"
    return name
