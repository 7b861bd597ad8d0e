"""Limits of a batch: no more than runs in the time that is wanted, and of no source too far ahead of the slowest one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import UNSET, show_us
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.reading import planned_here

_SMALLEST: Final = 1 << 10
_LEAST_SHRUNK: Final = 0.25


@attrs.define
class Limit:
    """The largest size of a batch. A send or a file that alone has more is a batch of its own.

    Attributes
    ----------
    most_rows, most_bytes : int
        The bounds; bytes are those in memory, of files those on disk.
    target_s : float or None
        How long a batch should take; None: it takes what is there, up to the bounds.
    """

    most_rows: int
    most_bytes: int
    target_s: float | None = None
    _share: float = 1.0
    _full: bool = False

    def __attrs_post_init__(self) -> None:
        if self.target_s is not None:
            self._share = _SMALLEST / self.most_rows

    @property
    def rows(self) -> int:
        """Return how many rows the next batch takes."""
        return max(int(self.most_rows * self._share), 1)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the next batch takes."""
        return max(int(self.most_bytes * self._share), 1)

    def took(self, rows: int, nbytes: int) -> None:
        """Note what was planned for the next batch."""
        self._full = 2 * rows >= self.rows or 2 * nbytes >= self.nbytes

    def ran(self, seconds: float) -> None:
        """Follow the time that a batch took: after a long one the next is smaller, after a short and full one twice as large.

        Examples
        --------
        >>> limit = Limit(1 << 20, 1 << 30, target_s=0.2)
        >>> limit.took(limit.rows, 0); limit.ran(0.01); limit.rows
        2048
        >>> limit.ran(0.4); limit.rows
        1024
        """
        if self.target_s is None:
            return
        if seconds > self.target_s:
            self._share *= max(self.target_s / seconds, _LEAST_SHRUNK)
        elif self._full and seconds < self.target_s / 2:
            self._share = min(2 * self._share, 1.0)
        self._full = False


@attrs.define(eq=False)
class Alignment:
    """Says who of the sources of one clock may go on; safe to ask from any thread.

    A source is held back while its watermark is more than `max_drift_us` ahead of that of another one, which has input still
    to come. One that has nothing to read holds the others for `idle_us`, and not at all where there is no such time. So the
    slowest one that can go on always does.

    Attributes
    ----------
    max_drift_us : int
        How far ahead of the slowest source one may be, µs.
    idle_us : int or None
        For how long a source without input holds the others.
    now : callable
        Processing time, µs.
    reached : callable
        The watermark of every source after the last batch, µs.
    held : dict
        How often each source was held back.
    changed : callable
        Called when another source is held back, or one no more.
    """

    max_drift_us: int
    idle_us: int | None
    now: Callable[[], int]
    reached: Callable[[], Mapping[str, int]]
    held: dict[str, int] = attrs.field(factory=dict)
    changed: Callable[[], None] = lambda: None
    _sources: list[str] = attrs.field(factory=list)
    _quiet: dict[str, int] = attrs.field(factory=dict)
    _over: set[str] = attrs.field(factory=set)
    _waits: dict[str, str] = attrs.field(factory=dict)
    _lock: Any = attrs.field(factory=threading.Lock)

    def join(self, name: str) -> None:
        """A source of this clock."""
        self._sources.append(name)

    def holds(self, name: str) -> bool:
        """Return whether a source has to wait; to be asked before it plans."""
        with self._lock:
            reached, before = self.reached(), self._waits.get(name)
            mine = reached.get(name, UNSET)
            slow = [n for n in self._sources if n != name and self._counts(n) and self._is_slower(reached.get(n, UNSET), mine)]
            for_whom = min(slow, key=lambda n: reached.get(n, UNSET), default=None)
            if for_whom is None:
                self._waits.pop(name, None)
            else:
                self._waits[name] = for_whom
                if before is None:
                    self.held[name] = self.held.get(name, 0) + 1
        if for_whom != before:
            self.changed()  # not under the lock: whoever hears of it asks back
        return for_whom is not None

    def planned(self, name: str) -> None:
        """A source had something to read."""
        with self._lock:
            self._quiet.pop(name, None)

    def nothing(self, name: str) -> None:
        """A source has nothing to read at the moment."""
        with self._lock:
            self._quiet.setdefault(name, self.now())

    def over(self, name: str) -> None:
        """A source has ended."""
        with self._lock:
            self._over.add(name)
            waited = self._waits.pop(name, None)
        if waited is not None:
            self.changed()

    def waiting(self) -> list[str]:
        """Return what is held back at the moment, in words."""
        with self._lock:
            drift = show_us(self.max_drift_us)
            return [
                f"Source {name!r} is held back: it is more than {drift} (max_drift) ahead of source {slow!r}."
                for name, slow in sorted(self._waits.items())
            ]

    def _is_slower(self, other: int, mine: int) -> bool:
        return mine != UNSET and (other == UNSET or mine - other > self.max_drift_us)

    def _counts(self, name: str) -> bool:
        """Return whether a source can still come to where the others are, as far as anybody knows."""
        since = self._quiet.get(name)
        return name not in self._over and (since is None or (self.idle_us is not None and self.now() - since <= self.idle_us))


def alignments(
    plan: PhysicalPlan, reached: Callable[[], Mapping[str, int]], now: Callable[[], int]
) -> dict[int, tuple[Alignment, str]]:
    """Return who waits for whom, by the number of the source, with what it is called.

    Raises
    ------
    PlanError
        For sources that Spark plans itself.
    """
    clocks = plan.clocks.clocks
    made: dict[int, Alignment] = {}
    for number, clock in enumerate(clocks):
        mark = clock.watermark
        if isinstance(mark, MultiSourceWatermarkSpec) and mark.max_drift_us is not None:
            made[number] = Alignment(mark.max_drift_us, mark.idle_timeout_us, now, reached)
    alignment_of: dict[int, tuple[Alignment, str]] = {}
    for index, read in enumerate(plan.reads):
        number, branch = read.takers[0]
        own = plan.stages[number].clock
        if own is None or plan.drift_us(read) is None:
            continue
        if not (isinstance(read.source, (RangeSource, MemorySource)) or planned_here(read.source)):
            raise PlanError(
                "max_drift holds back sources whose batches the library plans",
                got=f"{read.source.title} {read.source.detail()}",
                then="Spark plans its batches, and nobody could make it wait",
                hint="leave max_drift out, or unite streams of Kafka, memory streams, files or sources of your own",
            )
        name = clocks[own].named(branch.part or "")
        made[own].join(name)
        alignment_of[index] = made[own], name
    return alignment_of
