"""Modules that are loaded when they are first used, so that ``import krishiv_py`` is short.

The builder needs the SQL parser only for text, and the planner and the kernels only for a plan. This is the only way around
the rule that own modules are imported at the top of a file. Every use has the form below, so that type checkers and import
contracts see an ordinary import; ``tests/house`` checks that both branches name the same module::

    if TYPE_CHECKING:
        from krishiv_py.planner import physical
    else:
        physical = lazy("krishiv_py.planner.physical")
"""

from __future__ import annotations

import importlib
from typing import Any


class _Lazy:
    """Stands for a module; keeps what was asked of it, so that only the first use is looked up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # copy, pickle and inspect ask for these: no reason to load a module
            raise AttributeError(attribute)
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


def lazy(name: str) -> Any:
    """Return the module `name`, by its full name; it is imported when one of its attributes is first used."""
    return _Lazy(name)
