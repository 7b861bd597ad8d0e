"""What all window kinds share."""

from __future__ import annotations

from typing import ClassVar


class Window:
    """Base of the window kinds; a frozen value that says which rows belong together."""

    __slots__ = ()
    kind: ClassVar[str]
    bounded_state: ClassVar[bool] = True

    def describe(self) -> str:
        """One line for ``explain()``."""
        raise NotImplementedError

    def warnings(self) -> tuple[str, ...]:
        """What a user should know before running this window."""
        return ()
