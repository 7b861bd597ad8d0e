"""All functions of expressions, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from krishiv_py.functions import conditions, elements, hashes, json_text, lists, maps, numbers, text, times
from krishiv_py.functions.definition import DEFINED, Definition

FAMILIES: Final = (text, numbers, times, lists, elements, maps, conditions, hashes, json_text)
"""The files of definitions; a new one joins here."""
FUNCTIONS: Final[Mapping[str, Definition]] = DEFINED
