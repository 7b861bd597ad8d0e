"""The timers of the keys of a step by one clock, as columns.

Each key has a run of places. One that is full moves to the end, twice as long::

    places    idle 90 │ due 95 │ idle 40 │ free │ t7 12
              └──── key a ─────┴──── key b ─────┴ key c

So a round costs what its keys have set, however many names of timers there are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.ordered import NEVER
from krishiv_py.plan.process_calls import Objects, filled


class TimerTable:
    """See the module's docstring.

    Parameters
    ----------
    n : int
        How many keys there are.
    owners, names, times
        The timers that are set: key, name and time, µs.
    """

    def __init__(self, n: int, owners: Ints, names: pa.Array, times: Ints) -> None:
        order = np.argsort(owners, kind="stable")
        coded = names.dictionary_encode()
        self._codes = {name: code for code, name in enumerate(coded.dictionary.to_pylist())}
        self._texts, self._ranks = filled([]), np.empty(0, np.int64)
        self._widths = np.bincount(owners, minlength=n)
        self._begins = np.cumsum(self._widths) - self._widths
        self._code, self._due = coded.indices.to_numpy().astype(np.int64)[order], times[order]
        self._used = len(times)

    def soonest(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return when the first timer of each of some keys is due, and its place; of equal time the first one by name."""
        due, at = np.full(len(keys), NEVER), np.full(len(keys), -1)
        places, of = self._places(keys)
        if not len(places):
            return due, at
        times = self._due[places]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        due[of[begins]] = np.minimum.reduceat(times, begins)
        first = np.flatnonzero((times == due[of]) & (times != NEVER))
        places, of = places[first], of[first]
        if (of[1:] == of[:-1]).any():
            order = np.lexsort((self._ranks_of(places), of))[::-1]  # of several writes to one place the last one counts
            places, of = places[order], of[order]
        at[of] = places
        return due, at

    def names_at(self, places: Ints) -> Objects:
        """Return the names of the timers at some places."""
        self._follow_names()
        names: Objects = self._texts[self._code[places]]
        return names

    def remove(self, places: Ints) -> None:
        """Remove the timers at some places."""
        self._due[places] = NEVER

    def set(self, keys: Ints, name: str | Objects, due_us: Ints) -> None:
        """Set a timer of each of some keys, or move it; a name for all of them, or one for each."""
        codes = self._coded(name, len(keys))
        places, of = self._places(keys)
        at, live = np.full(len(keys), -1), self._due[places] != NEVER
        at[of[~live]] = places[~live]
        mine = live & (self._code[places] == codes[of])
        at[of[mine]] = places[mine]
        lacks = np.flatnonzero(at < 0)
        if len(lacks):
            at[lacks] = self._longer(keys[lacks])
        self._code[at], self._due[at] = codes, due_us

    def cancel(self, keys: Ints, name: str | Objects) -> None:
        """Remove the timer of a name of each of some keys, where there is one."""
        places, of = self._places(keys)
        self._due[places[self._code[places] == self._coded(name, len(keys))[of]]] = NEVER

    def clear(self, keys: Ints) -> None:
        """Remove all timers of some keys."""
        if self._used:
            self._due[self._places(keys)[0]] = NEVER

    def all(self) -> tuple[Ints, pa.Array, Ints]:
        """Return for each timer its key, its name and its time, by key."""
        places, owners = self._places(np.arange(len(self._widths)))
        live = self._due[places] != NEVER
        places = places[live]
        names = pa.array(list(self._codes), pa.string()).take(pa.array(self._code[places]))
        return owners[live], names, self._due[places]

    def of_key(self, key: int) -> dict[str, int]:
        """Return the timers of a key."""
        places, _ = self._places(np.array([key]))
        places = places[self._due[places] != NEVER]
        return dict(zip(self.names_at(places).tolist(), self._due[places].tolist(), strict=True))

    def _places(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return the places of some keys, and of which of these each one is."""
        widths = self._widths[keys]
        of = np.repeat(np.arange(len(keys)), widths)
        first = self._begins[keys] - (np.cumsum(widths) - widths)
        return np.arange(len(of)) + first[of], of

    def _longer(self, keys: Ints) -> Ints:
        """Make the runs of some keys longer; return the first new place of each."""
        (places, of), widths, old = self._places(keys), self._widths[keys], self._begins[keys]
        longer = np.maximum(2 * widths, 1)
        begins = self._used + np.cumsum(longer) - longer
        self._used += int(longer.sum())
        if self._used > len(self._due):
            more = max(self._used, 2 * len(self._due)) - len(self._due)
            self._due = np.concatenate([self._due, np.full(more, NEVER)])
            self._code = np.concatenate([self._code, np.zeros(more, np.int64)])
        moved = places - old[of] + begins[of]
        self._due[moved], self._code[moved] = self._due[places], self._code[places]
        self._begins[keys], self._widths[keys] = begins, longer
        return begins + widths

    def _coded(self, name: str | Objects, n: int) -> Ints:
        codes = self._codes
        if isinstance(name, str):
            return np.full(n, codes.setdefault(name, len(codes)))
        return np.fromiter((codes.setdefault(each, len(codes)) for each in name), np.int64, n)

    def _follow_names(self) -> None:
        """Follow the names that were added: their texts, and their order."""
        if len(self._texts) < len(self._codes):
            names = list(self._codes)
            self._texts, self._ranks = filled(names), np.empty(len(names), np.int64)
            self._ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))

    def _ranks_of(self, places: Ints) -> Ints:
        self._follow_names()
        ranks: Ints = self._ranks[self._code[places]]
        return ranks
