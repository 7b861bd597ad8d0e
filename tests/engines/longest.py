"""A user-defined aggregate that takes any value, in a module workers can import."""

from __future__ import annotations

from typing import Any


class Longest:
    """Of the texts of all values the longest, and of those the greatest; how many there were."""

    def create(self) -> Any:
        return (0, "")

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.merge(accumulator, (1, repr(value)))

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], max(left[1], right[1], key=lambda text: (len(text), text))

    def finish(self, accumulator: Any) -> Any:
        return f"{accumulator[0]} {accumulator[1]}"
