"""Warnings of times that look wrong: clocks that run ahead (SEMANTICS §4.4), other units, partitions that drift apart.

The unit is checked on the largest event time of every batch, which the tasks note for the watermark. A number of seconds
since 1970 that is read as milliseconds lies in January or February 1970, so only times there count: of a date between
September 2001 and 2099 in the right unit. Small numbers, as tests have them, lie before. A length that was given as a number
without unit, and is one that people write for seconds, is named where event times are such dates.

Partitions with one watermark drift apart when their event times are read in another order than they were written live. A
partition is named when rows of it are late that a watermark of its own would have taken, or when all that was read of it is
below the watermark.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import ismethod
from typing import Final

import attrs

from krishiv_py.engine.stage import Notes, Reached, reached
from krishiv_py.errors import shown
from krishiv_py.failures.redaction import shown_text
from krishiv_py.plan.durations import UNSET, DoubtfulLength, show_instant, show_length, show_us
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.schema import RESERVED, TimeKind
from krishiv_py.planner.physical import PhysicalPlan

_LOG: Final = logging.getLogger("krishiv_py.future")
_EVERY_S: Final = 600.0
_FROM, _TO = 1_000_000_000, 4_102_444_800
"""Seconds since 1970 of 2001-09-09 and of 2100-01-01: dates between them are likely."""
_FIRST_DATE_US, _LAST_DATE_US = _FROM * 1_000_000, _TO * 1_000_000
_FROM_MS_US, _TO_MS_US = _FROM * 1_000, _TO * 1_000
"""Such event times in µs are likely dates in seconds that were read as milliseconds."""
_FROM_NS_US, _TO_NS_US = _FROM * 1_000_000_000, _TO * 1_000_000_000
"""Such event times in µs are likely dates in microseconds that were read as milliseconds."""
_YEAR_US: Final = 31_556_952_000_000


def unlikely(time_us: int, kind: TimeKind, column: str) -> str | None:
    """Say why an event time of a column is probably wrong, and the step that helps; None for a likely one.

    Examples
    --------
    >>> text = unlikely(1_732_867_260_000, "bigint_ms", "at")  # a number of seconds, read as milliseconds
    >>> print(text.split("Hint: ")[1])
    .with_column("at", "at * 1000") before .watermark(...)
    >>> unlikely(1_000_000, "bigint_ms", "at") is None
    True
    """
    if not (_FROM_MS_US <= time_us < _TO_MS_US or _FROM_NS_US <= time_us < _TO_NS_US):
        return None
    known = not column.startswith(RESERVED)  # a join of streams has two columns, and calls the time by a name of its own
    column = column if known else "at"
    year = 1970 + int(time_us / _YEAR_US)
    read_as = show_instant(time_us) if year < 9_999 else f"the year {year}"
    seen = f"event times{f' of {shown(column)}' if known else ''} are read as {read_as}"
    quoted = column if column.isidentifier() else f"`{column}`"
    step = 'Hint: .with_column("{}", "{}") before .watermark(...)'
    if time_us < _TO_MS_US:
        if kind == "bigint_ms":
            why, times = "the numbers are probably seconds, and event times are milliseconds", f"{quoted} * 1000"
            return f"{seen}; {why}. {step.format(column, times)}"
        why = "the times were probably made of numbers of a larger unit, such as seconds taken for milliseconds"
        return f"{seen}; {why}. Hint: make them of the numbers again, for instance with timestamp_millis(n * 1000)"
    if kind == "bigint_ms":
        why = "the numbers are probably microseconds, and event times are milliseconds"
        return f"{seen}; {why}. {step.format(column, f'cast({quoted} / 1000 as bigint)')}"
    return None


def lengths_in_doubt(part: object) -> dict[str, DoubtfulLength]:
    """Return the lengths in a part of a plan that may have been meant as seconds, by the names of their parameters."""
    if isinstance(part, DoubtfulLength):
        return {part.name: part}
    inside: Iterable[object]
    class_: type = type(part)
    if isinstance(part, tuple):
        inside = part
    elif ismethod(part):  # as the one of a table that is loaded again
        inside = (part.__self__,)
    elif attrs.has(class_) and class_.__module__.startswith("krishiv_py"):
        inside = (getattr(part, field.name) for field in attrs.fields(class_))
    else:
        return {}
    return {name: length for each in inside for name, length in lengths_in_doubt(each).items()}


def _without_unit(lengths: Mapping[str, DoubtfulLength], time_us: int) -> str:
    """Say that lengths are probably seconds, and what to write; `time_us` is an event time."""
    numbers = {name: us // 1_000 for name, us in lengths.items()}
    shown_as = ", ".join(f"{name} {n} is {show_us(n * 1_000)}" for name, n in numbers.items())
    some = next(iter(numbers.values()))
    return (
        f"a number without unit is milliseconds ({shown_as}), and event times are dates such as {show_instant(time_us)}; "
        f'seconds are probably meant. Hint: write "{some} seconds", or "{some} ms" if it is meant so'
    )


@attrs.define(eq=False)
class TimeWatch:
    """Warns of future rows, at most once in ten minutes for each source, and once of event times of another unit.

    Attributes
    ----------
    plan : PhysicalPlan
        What the sources and tolerances are.
    title : str
        The name of the query.
    seconds : callable
        A clock that never goes back, s.
    doubts : tuple of str
        What looks wrong in the event times so far, a text for each stage.
    """

    plan: PhysicalPlan
    title: str
    seconds: Callable[[], float] = time.monotonic
    doubts: tuple[str, ...] = ()
    _warned: dict[tuple[int, str], float] = attrs.field(factory=dict)
    _unchecked: set[int] = attrs.field()
    """Stages whose event times have the right unit, as those of results and of the clock, or are in `doubts` already."""
    _measured: bool = False
    """True once the lengths of the plan have been held against a date."""
    _reached: dict[int, dict[str, int]] = attrs.field(factory=dict)
    """The largest event time of each partition of a stage, µs, as far as this run knows."""
    _drifts: dict[int, str] = attrs.field(factory=dict)

    @_unchecked.default
    def _never_checked(self) -> set[int]:
        readers = {number for read in self.plan.reads for number, _ in read.takers}
        return {n for n, stage in enumerate(self.plan.stages) if n not in readers or stage.spec.watermark._by_clock}

    def take(self, stage: int, notes: Sequence[Notes]) -> None:
        """Warn of what the tasks of a batch have noted of the rows that a `stage` reads."""
        for noted in notes:
            for source, n in noted.ahead.items():
                now = self.seconds()
                if now - self._warned.get((stage, source), -_EVERY_S) >= _EVERY_S:
                    self._warned[stage, source] = now
                    self._warn(stage, source, n)
            if stage not in self._unchecked and noted.maxima:
                self._doubt(stage, noted.maxima.values())
            for time_us in () if self._measured else noted.maxima.values():
                if _FIRST_DATE_US <= time_us < _LAST_DATE_US:
                    self._measure(time_us)
                    break
        partitions: dict[str, Reached] = {}
        for noted in notes:
            reached(partitions, noted.partitions)
        if partitions:
            self._compare(stage, partitions)

    @property
    def partition_times_us(self) -> dict[str, int]:
        """The largest event time of each partition in this run, µs."""
        times_us_of: dict[str, int] = {}
        for times in self._reached.values():
            times_us_of |= {partition: max(time_us, times_us_of.get(partition, UNSET)) for partition, time_us in times.items()}
        return times_us_of

    def _doubt(self, stage: int, maxima: Iterable[int]) -> None:
        """Look at the largest times of a batch."""
        spec = self.plan.stages[stage].spec
        problem = next(filter(None, (unlikely(t, spec.time_kind, spec.time_column) for t in maxima)), None)
        if problem is not None:
            self._unchecked.add(stage)
            self._say(problem)

    def _measure(self, a_date: int) -> None:
        """Look at the lengths of all stages once there is a date among the event times."""
        self._measured = True
        specs = [stage.spec for stage in self.plan.stages]
        functions = tuple(getattr(step, "function", None) for spec in specs for step in (*spec.prefix, *spec.after))
        lengths = lengths_in_doubt((*((spec.watermark, spec.operation, spec.options) for spec in specs), functions))
        if lengths:
            self._say(_without_unit(lengths, a_date))

    def _say(self, problem: str) -> None:
        if problem not in self.doubts:
            self.doubts = (*self.doubts, problem)
            warnings.warn(f"query {shown_text(self.title)}: {problem}", RuntimeWarning, stacklevel=2)

    def _compare(self, stage: int, given: Mapping[str, Reached]) -> None:
        """Look for partitions that others make late; `given` is what a batch read of each.

        A first batch says only where the partitions are. Streams of a stage that reads several have watermarks of their own.
        """
        spec, known = self.plan.stages[stage].spec.watermark, self._reached.setdefault(stage, {})
        readers = [number for read in self.plan.reads for number, _ in read.takers if number == stage]
        if isinstance(spec, WatermarkSpec) and not spec._by_clock and len(readers) == 1 and known:
            leader = max(known, key=lambda partition: known[partition])
            slower = []
            for partition, (top_us, late, latest_late_us) in given.items():
                before_us = known.get(partition, UNSET)
                loses = late > 0 and latest_late_us >= before_us - spec.lag_us
                at_us = latest_late_us if loses else max(top_us, before_us)
                if partition != leader and at_us < known[leader] - spec.lag_us:
                    slower.append((known[leader] - at_us, partition, late if loses else 0))
            if slower:
                self._warn_of_drift(stage, leader, spec.lag_us, slower)
        for partition, (top_us, _, _) in given.items():
            known[partition] = max(known.get(partition, UNSET), top_us)

    def _warn_of_drift(self, stage: int, leader: str, lag_us: int, slower: list[tuple[int, str, int]]) -> None:
        """Warn of the partition farthest from the `leader`, at most once in ten minutes, and when rows begin to be late."""
        by_us, partition, _ = max(slower)
        late = sum(rows for _, _, rows in slower)
        what, now = f"partitions{' late' if late else ''}", self.seconds()
        if now - self._warned.get((stage, what), -_EVERY_S) < _EVERY_S:
            return
        self._warned[stage, what] = now
        more = f" (and of {len(slower) - 1} more partitions)" if len(slower) > 1 else ""
        effect = f"{late} rows of this batch are late" if late else "rows may be late"
        problem = (
            f"event times of the partition {shown(partition)}{more} are {show_length(by_us)} before those that {shown(leader)} "
            f"had reached, more than the lag of {show_us(lag_us)}, and all partitions have one watermark: {effect}. "
            "Hint: give each partition a watermark (read_kafka(..., partitions_as_sources=True); `source_column` and "
            f"`watermark_sources` of a source of your own), or set a lag above {show_length(by_us)}"
        )
        self.doubts = (*(text for text in self.doubts if text != self._drifts.get(stage)), problem)
        self._drifts[stage] = problem
        warnings.warn(f"query {shown_text(self.title)}: {problem}", RuntimeWarning, stacklevel=2)

    def _warn(self, stage: int, source: str, n: int) -> None:
        options = self.plan.stages[stage].spec.options
        read = [r.source.detail() for r in self.plan.reads if any(number == stage for number, _ in r.takers)]
        reference = "clock" if options.future_reference == "clock" else "watermark"
        fate = {"warn": "they are processed", "drop": "they are dropped", "side_output": "they are in the late output"}
        _LOG.warning(
            "query %s: rows of the source %s are more than %s ahead of the %s: %d in this batch, %s. "
            "Hint: correct the clock of the source, or set another .future_tolerance(...)",
            shown_text(self.title),
            shown_text(source or ", ".join(read)),
            show_us(options.future_us),
            reference,
            n,
            fate[options.future_action],
        )
