"""Modules that are loaded when they are first used, so that ``import krishiv_py`` is short.

The builder needs the SQL parser only for text, and the planner and the kernels only for a plan. A room whose modules load late
says so in its ``__init__``::

    load_modules_late(__name__)

Then ``from krishiv_py.planner import physical`` gives what stands for the module until one of its attributes is used, and type
checkers and import contracts see an ordinary import; ``from krishiv_py.planner.physical import PhysicalPlan`` loads it at once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Lazy:
    """Stands for a module: what is read or set of it is that of the module."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    @functools.cached_property
    def _module(self) -> ModuleType:
        return importlib.import_module(self._name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # copy, pickle and inspect ask for these: no reason to load a module
            raise AttributeError(attribute)
        return getattr(self._module, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._module, attribute, value)

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __delattr__(self, attribute: str) -> None:
        delattr(self._module, attribute)


def lazy(name: str) -> Any:
    """Return what stands for the module `name` of a room whose other modules load at once."""
    return _Lazy(name)


def load_modules_late(room: str) -> None:
    """Let the modules of a `room` that are imported from it load at their first use."""

    def module(name: str) -> Any:
        if name.startswith("__") or importlib.util.find_spec(f"{room}.{name}") is None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return lazy(f"{room}.{name}")

    vars(sys.modules[room])["__getattr__"] = module
