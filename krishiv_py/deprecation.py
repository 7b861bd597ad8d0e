"""Old public names: they work for one minor version more, and warn (CONTRIBUTING.md, "Compatibility")."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any


def deprecated(old: str, new: str, *, callers: int = 1) -> None:
    """Warn that `old` is now called `new`, at the line that is `callers` calls above the function that calls this one."""
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next minor version. Hint: write {new}",
        DeprecationWarning,
        stacklevel=2 + callers,
    )


def moved(old: str, new: ModuleType, names: Collection[str], renamed: Mapping[str, type]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for the module `old`, which warns where an old name is used.

    It gives `names` of the module `new`, and the classes of `old` that were `renamed`, by their old names.
    """

    def getattr_of(name: str) -> Any:
        if name in renamed:
            deprecated(f"{old}.{name}", f"{old}.{renamed[name].__name__}")
            return renamed[name]
        if name not in names:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        if not sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):  # which looks before ``import`` asks
            deprecated(f"{old}.{name}", f"{new.__name__}.{name}")
        return getattr(new, name)

    return getattr_of
