"""Determine how this process reaches what is not on its disk: Spark's own settings, forwarded to Arrow and to clients
of stores and HDFS.

They belong to the process, as Hadoop's file systems do: the session notes them on the driver, and :class:`Stores` takes them to
the tasks. They are in no plan, note or repr.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

_known: Final[dict[str, str]] = {}
connections: Final[list[Callable[[], None]]] = []
"""What forgets how stores are reached; each module that keeps connections adds its own."""
_noting: Final = threading.Lock()


@attrs.frozen(repr=False)
class Stores:
    """The settings for object stores of the process it is made in; takes them with it when it is pickled to a task."""

    settings: Mapping[str, str] = attrs.field(factory=lambda: dict(_known))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self.settings),)

    def __repr__(self) -> str:
        return "Stores()"


def _arrived(settings: dict[str, str]) -> Stores:
    if settings:
        use(settings)
    return Stores(settings)


def use(settings: Mapping[str, str]) -> None:
    """Reach stores by these settings from now on: names of Hadoop's, ``fs.s3a.…`` and ``fs.gs.…``."""
    with _noting:
        if dict(settings) != _known:
            _known.clear()
            _known.update(settings)
            forget_connections()


def known_settings() -> dict[str, str]:
    """Return the settings in use."""
    return dict(_known)


def noted(*names: str) -> str | None:
    """Return a setting in use by its full name, of several the first that is there; None where there is none, or it is
    empty.
    """
    return next((_known[name] for name in names if name in _known), None) or None


def forget_connections() -> None:
    """Connect again when a store is reached the next time."""
    for forget in connections:
        forget()


os.register_at_fork(after_in_child=forget_connections)
