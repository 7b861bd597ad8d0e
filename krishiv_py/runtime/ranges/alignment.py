"""Sources that are too far ahead wait for the slowest one (SEMANTICS §10): what is not planned is not held in state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import UNSET, show_us
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.reading import planned_here


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
        name = clocks[own].named(branch.name or "")
        made[own].join(name)
        alignment_of[index] = made[own], name
    return alignment_of
