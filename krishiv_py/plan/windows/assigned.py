"""The windows of a user's assigner, as a value of the plan (SEMANTICS §3.9)."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from krishiv_py.errors import RAISED
from krishiv_py.plan.assigner import WindowAssigner
from krishiv_py.plan.described import attribute_of, description_of
from krishiv_py.plan.durations import show_instant, show_us, to_us
from krishiv_py.plan.windows.base import Window


@attrs.frozen
class AssignedWindow(Window):
    """The windows of an assigner."""

    kind: ClassVar[str] = "assigned"
    assigner: WindowAssigner = attrs.field(eq=False)
    longest_us: int
    name: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def length_us(self) -> int:
        return self.longest_us

    def no_end(self, end_us: int) -> str | None:
        try:
            given = self.assigner.assign(np.array([end_us - 1], np.int64))
        except RAISED:  # user code: the query says so, this is only about words
            return None
        if not isinstance(given, tuple) or len(given) != 2:
            return None
        start, end = int(given[0][0]), int(given[1][0])
        if end == end_us:
            return None
        return f"no window ends at {show_instant(end_us)}: the one there is {show_instant(start)} to {show_instant(end)}"

    def identity(self) -> dict[str, str]:
        """The class of the assigner and its parameters: what a checkpoint notes."""
        return {"assigner": type(self.assigner).__qualname__, **{f"parameter {name}": text for name, text in self.parameters}}

    def describe(self) -> str:
        return f"{self.assigner.describe()}, windows of at most {show_us(self.longest_us)}"


def assigned(assigner: WindowAssigner) -> AssignedWindow:
    """The checked windows of an `assigner`."""
    longest = attribute_of(assigner, "longest", "window assigner", "a checkpoint could not note it")
    found = description_of(assigner, "window assigner")
    return AssignedWindow(assigner, to_us(longest, "longest"), found.name, found.parameters)
