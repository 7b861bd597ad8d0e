"""Old public names: they work for one minor version more, and warn (CONTRIBUTING.md, "Compatibility")."""

from __future__ import annotations

import warnings


def deprecated(old: str, new: str, *, callers: int = 1) -> None:
    """Warn that `old` is now called `new`, at the line that is `callers` calls above the one that asks for the warning."""
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next minor version. Hint: write {new}",
        DeprecationWarning,
        stacklevel=2 + callers,
    )
