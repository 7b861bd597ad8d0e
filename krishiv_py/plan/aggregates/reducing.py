"""Values of a window combined two by two: Kafka's ``reduce`` as a user-defined aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from krishiv_py.errors import PlanError, message, shown


@attrs.frozen
class Reduce:
    """Combines values by a function of two of them. An accumulator is a list of at most one value."""

    function: Callable[[Any, Any], Any]

    def __attrs_post_init__(self) -> None:
        if not callable(self.function):
            hint = 'write .reduce("amount", lambda a, b: max(a, b))'
            raise PlanError(message("reduce takes a function of two values", shown(self.function), "nothing is combined", hint))

    def create(self) -> list[Any]:
        """No value yet."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """One more value."""
        return [self.function(accumulator[0], value)] if accumulator else [value]

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The values of both."""
        return self.add(left, right[0]) if right else left

    def finish(self, accumulator: list[Any]) -> Any:
        """What they came to; null without any."""
        return accumulator[0] if accumulator else None
