"""Names of counters, and what earlier versions called them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from krishiv_py.deprecation import deprecated

RENAMED: Final = {"out_of_range": "time_out_of_range"}
"""Old names, with the new ones: a counter is called like the reason in a late row."""


class Counters(dict[str, int]):
    """Counts by name. An old name gives the count of the new one, and warns."""

    def __missing__(self, name: str) -> int:
        return self._renamed(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The count of `name`, or the `default`."""
        if name not in self and RENAMED.get(name) in self:
            return self._renamed(name)
        return super().get(name, default)

    def _renamed(self, name: str) -> int:
        new = RENAMED.get(name)
        if new is None or new not in self:
            raise KeyError(name)
        deprecated(f"the counter {name!r}", repr(new), callers=2)
        return self[new]


BEHIND: Final = "behind_us_"
"""The beginning of a counter of rows that came so many µs after a newer row, at most (see ``query.lateness()``)."""


FAILED: Final = "failed:"
"""The beginning of a counter of rows that failed an expectation, or a function, of that name, and went to the late output."""
FAILED_DROPPED: Final = "failed_dropped:"
"""The same of rows that were dropped."""


def failed_of(counters: dict[str, int]) -> dict[str, int]:
    """Return how many rows failed, by the name of the expectation or function.

    Examples
    --------
    >>> failed_of({"rows": 9, "failed:amount > 0": 2, "failed_dropped:amount > 0": 1})
    {'amount > 0': 3}
    """
    found: dict[str, int] = {}
    for counter, n in counters.items():
        kind, colon, name = counter.partition(":")
        if f"{kind}{colon}" in (FAILED, FAILED_DROPPED):
            found[name] = found.get(name, 0) + n
    return found


def behind_of(counters: dict[str, int]) -> dict[int, int]:
    """Return how many rows came after a newer one: by the largest distance, µs, that each counter stands for.

    Examples
    --------
    >>> behind_of({"rows": 9, "behind_us_5000": 2, "behind_us_1000": 1})
    {1000: 1, 5000: 2}
    """
    return dict(sorted((int(name[len(BEHIND) :]), n) for name, n in counters.items() if name.startswith(BEHIND)))


def summed(every: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of counters by name."""
    found: dict[str, int] = {}
    for counters in every:
        for name, n in counters.items():
            found[name] = found.get(name, 0) + n
    return found


def under_new_names(counters: dict[str, int]) -> dict[str, int]:
    """The `counters` of a checkpoint, which an earlier version may have written; changed in place."""
    for old, new in RENAMED.items():
        if old in counters:
            counters[new] = counters.get(new, 0) + counters.pop(old)
    return counters
