"""Watermark specifications (SEMANTICS §2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_switch, a_text, microseconds, one_of
from krishiv_py.plan.durations import (
    END_OF_TIME,
    MAX_TIME_US,
    UNSET,
    Duration,
    TimePoint,
    milliseconds,
    show_instant,
    show_us,
    time_point_us,
    to_us,
)

PARTITION_IDLE: Final = "30 seconds"
"""For how long a partition of a source may be silent before the others no longer wait for it, where nobody says otherwise."""
SAVEPOINT: Final = "savepoint"
"""As the start of a watermark: that of the savepoint from which a query begins."""
UnknownSource: TypeAlias = Literal["side_output", "fail", "register"]
RowsClock: TypeAlias = Literal["batch", "row"]
"""The clock of rows: the watermark of their batch, or that of the rows before them in their lane (SEMANTICS §2.8)."""
CLOCKS: Final[tuple[RowsClock, ...]] = ("batch", "row")


@attrs.frozen
class WatermarkSpec:
    """Says how the watermark of one source follows its event times: ``W = max(seen) - lag``.

    Attributes
    ----------
    lag_us : int
        How far rows may be out of order, in microseconds.
    initial_us : int
        The watermark before any row; ``UNSET`` (minus infinity) unless given.
    idle_advance_us : int or None
        After how much processing time without rows the watermark goes on with the clock; None: never.
    from_savepoint : bool
        Whether a source that a savepoint does not know begins at the watermark of the savepoint (SEMANTICS §12.4).
    clock : {"batch", "row"} or None
        What rows are classified by; see :meth:`fixed_lag`. None: what the session says.

    Examples
    --------
    >>> from krishiv_py import WatermarkSpec
    >>> WatermarkSpec(lag_us=5_000_000) == WatermarkSpec.fixed_lag("5 s")
    True
    """

    lag_us: int
    initial_us: int = UNSET
    idle_advance_us: int | None = None
    from_savepoint: bool = False
    clock: RowsClock | None = None
    _by_clock: ClassVar[bool] = False
    """True for a watermark that follows the clock itself, and not rows."""

    def __attrs_post_init__(self) -> None:
        microseconds(self.lag_us, "lag_us", 0, MAX_TIME_US)
        microseconds(self.initial_us, "initial_us", UNSET, END_OF_TIME)
        _checked_advance(self.idle_advance_us)
        a_switch(self.from_savepoint, "from_savepoint")
        rows_clock(self.clock)

    @classmethod
    def fixed_lag_ms(
        cls,
        lag_ms: int,
        *,
        initial: TimePoint | None = None,
        idle_advance: Duration | None = None,
        clock: RowsClock | None = None,
    ) -> WatermarkSpec:
        """Return a fixed lag of `lag_ms` milliseconds; `initial`, `idle_advance` and `clock` are those of :meth:`fixed_lag`.

        Examples
        --------
        >>> from krishiv_py import WatermarkSpec
        >>> WatermarkSpec.fixed_lag_ms(5_000) == WatermarkSpec.fixed_lag("5 seconds")
        True
        """
        return cls.fixed_lag(milliseconds(lag_ms, "lag_ms"), initial=initial, idle_advance=idle_advance, clock=clock)

    @classmethod
    def fixed_lag(
        cls,
        lag: Duration,
        *,
        initial: TimePoint | None = None,
        idle_advance: Duration | None = None,
        clock: RowsClock | None = None,
    ) -> WatermarkSpec:
        """Return a fixed lag as any duration of SEMANTICS §1.1.

        Parameters
        ----------
        lag : int or timedelta or str
            How far rows may be out of order; ``int`` is milliseconds; 0 is legal.
        initial : int or datetime or "savepoint", optional
            Where the watermark starts (``int`` is milliseconds since the epoch) instead of unset. ``"savepoint"``: a source
            that the savepoint of ``start(..., savepoint=...)`` does not know starts at the watermark of the savepoint, and
            nobody waits for its first row (SEMANTICS §12.4); without a savepoint it starts unset.
        idle_advance : int or timedelta or str, optional
            When no row has come for this long (processing time), the watermark goes on at the speed of the clock from where
            it was, until a row comes: a quiet stream closes its windows (SEMANTICS §10). Never by default.
        clock : {"batch", "row"}, optional
            What says whether a row is late: the watermark in force in its batch, or that of the rows before it in its lane, so
            that results do not depend on how rows are cut into batches (SEMANTICS §2.8). By default what the session says,
            which is ``"batch"`` where it says nothing.

        Examples
        --------
        >>> from krishiv_py import WatermarkSpec, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> timed = stream_of("at bigint").with_watermark(WatermarkSpec.fixed_lag("5 s"), "at")
        >>> driver = Driver(timed.tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 12_000}])
        >>> driver.watermark
        '1970-01-01T00:00:07Z'
        """
        lag_us = to_us(lag, "lag", allow_zero=True)
        advance_us = None if idle_advance is None else to_us(idle_advance, "idle_advance")
        return cls(lag_us, _start_us(initial), advance_us, _by_savepoint(initial), clock)

    @property
    def by_row(self) -> bool:
        """Return whether each row is classified by the rows before it.

        Examples
        --------
        >>> from krishiv_py import WatermarkSpec
        >>> WatermarkSpec.fixed_lag("5 s", clock="row").by_row, WatermarkSpec.fixed_lag("5 s").by_row
        (True, False)
        """
        return self.clock == "row"

    def _starting(self, initial_us: int) -> WatermarkSpec:
        """With a start of `initial_us`, unless it has its own."""
        return attrs.evolve(self, initial_us=initial_us) if self.initial_us == UNSET else self

    def _describe(self) -> str:
        """One line for ``explain()``."""
        start = "" if self.initial_us == UNSET else f", from {show_instant(self.initial_us)}"
        start += ", from the savepoint" if self.from_savepoint else ""
        newest = "max(event time of the rows before)" if self.by_row else "max(event time)"
        return f"{newest} - {show_us(self.lag_us)}{start}{_shown_advance(self.idle_advance_us)}"


@attrs.frozen
class MultiSourceWatermarkSpec:
    """Several sources: the watermark is the minimum over them, each with its own lag (SEMANTICS §2.4).

    The watermark stays unset until every declared source has sent a row. With an idle timeout, a source without rows for
    longer than that (processing time) is ignored until its next row. Rows of an undeclared source, or with a null source, go
    to the late output with the reason ``unknown_source`` and are counted, unless :meth:`unknown` sets another action.

    Attributes
    ----------
    sources : tuple of (str, WatermarkSpec)
        The declared sources, by their value in the source column.
    idle_timeout_us : int or None
        After how much processing time a silent source is ignored, in microseconds.
    initial_us : int
        The watermark before any row; ``UNSET`` (minus infinity) unless given.
    unknown_action : {"side_output", "fail", "register"}
        See :meth:`unknown`.
    unknown_spec : WatermarkSpec or None
        How the watermark of a source that registers follows its rows.
    idle_advance_us : int or None
        See :meth:`idle_advance`, in microseconds.
    max_drift_us : int or None
        See :meth:`max_drift`, in microseconds.
    from_savepoint : bool
        Whether every source that a savepoint does not know begins at its watermark.
    clock : {"batch", "row"} or None
        What rows are classified by; see :meth:`WatermarkSpec.fixed_lag`. None: what the session says.
    passive : tuple of str
        Sources whose rows are classified by the watermark and do not move it: of a join with a table, the table.

    Examples
    --------
    >>> spec = (MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    ...         .source("a", WatermarkSpec.fixed_lag(1_000)).source("b", WatermarkSpec.fixed_lag(5_000)))
    >>> [name for name, _ in spec.sources]
    ['a', 'b']
    """

    sources: tuple[tuple[str, WatermarkSpec], ...] = ()
    idle_timeout_us: int | None = None
    initial_us: int = UNSET
    unknown_action: UnknownSource = "side_output"
    unknown_spec: WatermarkSpec | None = None
    idle_advance_us: int | None = None
    max_drift_us: int | None = None
    from_savepoint: bool = False
    clock: RowsClock | None = None
    passive: tuple[str, ...] = ()
    _by_clock: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        a_switch(self.from_savepoint, "from_savepoint")
        if not isinstance(self.sources, tuple) or not all(isinstance(s, tuple) and len(s) == 2 for s in self.sources):
            hint = 'write MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(5_000))'
            raise PlanError("`sources` are pairs of name and WatermarkSpec", got=shown(self.sources), hint=hint)
        for i, (name, spec) in enumerate(self.sources):
            a_text(name, "source", 'write .source("a", WatermarkSpec.fixed_lag(5_000))')
            if any(name == known for known, _ in self.sources[:i]):
                hint = 'write .source("a", WatermarkSpec.fixed_lag(5_000))'
                raise PlanError("a source needs a name of its own", got=shown(name), hint=hint)
            _is_spec(spec, f"source {name!r}")
            if spec.clock is not None:
                hint = f"write MultiSourceWatermarkSpec.new(clock={spec.clock!r})"
                raise PlanError(
                    f"source {name!r} has a clock of its own", got=f"clock={spec.clock!r}", then=_ONE_CLOCK, hint=hint
                )
        rows_clock(self.clock)
        if not isinstance(self.passive, tuple) or not all(isinstance(name, str) and name for name in self.passive):
            hint = 'write passive=("prices",) with names of sources that are not in `sources`'
            raise PlanError("`passive` are names of sources", got=shown(self.passive), hint=hint)
        if self.idle_timeout_us is not None:
            microseconds(self.idle_timeout_us, "idle_timeout_us", 1, MAX_TIME_US)
        microseconds(self.initial_us, "initial_us", UNSET, END_OF_TIME)
        _checked_advance(self.idle_advance_us)
        a_switch(self.from_savepoint, "from_savepoint")
        if self.max_drift_us is not None:
            microseconds(self.max_drift_us, "max_drift_us", 1, MAX_TIME_US)
        one_of(self.unknown_action, "unknown", ("side_output", "fail", "register"))
        if self.unknown_action == "register":
            _is_spec(self.unknown_spec, 'unknown("register")')
        elif self.unknown_spec is not None:
            hint = 'leave it out, or write .unknown("register", spec)'
            raise PlanError(f"unknown({self.unknown_action!r}) takes no WatermarkSpec", got=shown(self.unknown_spec), hint=hint)

    @classmethod
    def new(
        cls,
        *,
        idle_timeout: Duration | None = None,
        initial: TimePoint | None = None,
        idle_advance: Duration | None = None,
        max_drift: Duration | None = None,
        clock: RowsClock | None = None,
    ) -> MultiSourceWatermarkSpec:
        """No source yet; add them with :meth:`source`.

        Parameters
        ----------
        idle_timeout : int or timedelta or str, optional
            Ignore a source without rows for longer than this (processing time); never by default.
        initial : int or datetime or "savepoint", optional
            Where the watermark starts (``int`` is milliseconds since the epoch) instead of unset; ``"savepoint"`` as in
            :meth:`WatermarkSpec.fixed_lag`, for every source.
        idle_advance : int or timedelta or str, optional
            When every source has been silent for this long (processing time), the watermark goes on at the speed of the clock
            from where it was, until a row comes (SEMANTICS §10). Never by default.
        max_drift : int or timedelta or str, optional
            See :meth:`max_drift`.
        clock : {"batch", "row"}, optional
            What rows are classified by, of all sources; see :meth:`WatermarkSpec.fixed_lag`.
        """
        idle_us = None if idle_timeout is None else to_us(idle_timeout, "idle_timeout")
        spec = cls((), idle_us, _start_us(initial), from_savepoint=_by_savepoint(initial), clock=clock)
        spec = spec if max_drift is None else spec.max_drift(max_drift)
        return spec if idle_advance is None else spec.idle_advance(idle_advance)

    def source(self, name: str, spec: WatermarkSpec) -> MultiSourceWatermarkSpec:
        """Declare a source by the value it has in the source column.

        Parameters
        ----------
        name : str
            Its value in the source column.
        spec : WatermarkSpec
            How its watermark follows its rows.
        """
        return attrs.evolve(self, sources=(*self.sources, (name, spec)))

    def idle_timeout(self, timeout: Duration) -> MultiSourceWatermarkSpec:
        """Leave a source out that is silent for longer than `timeout` of processing time.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
        >>> from krishiv_py.testing import Driver, ManualClock, stream_of
        >>> each = WatermarkSpec.fixed_lag(0)
        >>> both = MultiSourceWatermarkSpec.new().source("north", each).source("south", each)
        >>> rows = stream_of("site string, at bigint")
        >>> timed = rows.with_watermark(both.idle_timeout("30 s"), "at", source_column="site")
        >>> clock = ManualClock()
        >>> driver = Driver(timed.tumbling_window("10 s").agg(count()), clock=clock)
        >>> _ = driver.send([{"site": "north", "at": 12_000}])
        >>> driver.watermark
        'unset'
        >>> _ = clock.advance("31 s")
        >>> _ = driver.send([{"site": "north", "at": 13_000}])
        >>> driver.watermark, driver.progress.idle_sources
        ('1970-01-01T00:00:13Z', ('south',))
        """
        return attrs.evolve(self, idle_timeout_us=to_us(timeout, "idle_timeout"))

    def idle_advance(self, after: Duration) -> MultiSourceWatermarkSpec:
        """Let the watermark go on with the clock when every source has been silent for `after` of processing time.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
        >>> from krishiv_py.testing import Driver, ManualClock, stream_of
        >>> each = WatermarkSpec.fixed_lag(0)
        >>> both = MultiSourceWatermarkSpec.new().source("north", each).source("south", each)
        >>> rows = stream_of("site string, at bigint")
        >>> timed = rows.with_watermark(both.idle_advance("30 s"), "at", source_column="site")
        >>> clock = ManualClock()
        >>> driver = Driver(timed.tumbling_window("10 s").agg(count()), clock=clock)
        >>> _ = driver.send([{"site": "north", "at": 12_000}, {"site": "south", "at": 12_000}])
        >>> _ = clock.advance("40 s")
        >>> _ = driver.tick()
        >>> driver.watermark
        '1970-01-01T00:00:22Z'
        """
        return attrs.evolve(self, idle_advance_us=to_us(after, "idle_advance"))

    def max_drift(self, drift: Duration) -> MultiSourceWatermarkSpec:
        """Hold a stream of a union back while its watermark is more than `drift` ahead of the slowest one's.

        For streams of ``read_kafka``, ``read_source`` and ``memory_stream`` in a running query: no batch is planned until the
        others have come nearer, so that what waits for them is not kept in state. What was planned before is read, so a stream
        can be two batches further ahead. A stream that has ended holds nobody, and one that has nothing to read holds the
        others for the idle timeout only, without one not at all.

        Parameters
        ----------
        drift : int or timedelta or str
            How far ahead; ``int`` is milliseconds.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec
        >>> each = WatermarkSpec.fixed_lag("5 s")
        >>> both = MultiSourceWatermarkSpec.new().source("north", each).source("south", each)
        >>> both.max_drift("10 minutes").max_drift_us
        600000000
        """
        return attrs.evolve(self, max_drift_us=to_us(drift, "max_drift"))

    def unknown(self, action: UnknownSource, spec: WatermarkSpec | None = None) -> MultiSourceWatermarkSpec:
        """Say what becomes of rows whose source is not declared (SEMANTICS §2.4).

        Parameters
        ----------
        action : {"side_output", "fail", "register"}
            Hand them to the late handler with the reason ``unknown_source`` and count them (default); stop the query with an
            error that names the source; or count the source as declared from the batch of its first row on.
        spec : WatermarkSpec, optional
            How the watermark of such a source follows its rows; for ``"register"``, and needed there.

        Notes
        -----
        A null source is not a source: its rows are never registered. Every name that registers stays in the state of the
        watermark, so names should be few; with an idle timeout those that fall silent do not hold the watermark.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
        >>> from krishiv_py.testing import Driver, ManualClock, stream_of
        >>> each = WatermarkSpec.fixed_lag(0)
        >>> both = MultiSourceWatermarkSpec.new().source("north", each).source("south", each)
        >>> rows = stream_of("site string, at bigint")
        >>> timed = rows.with_watermark(both.unknown("register", each), "at", source_column="site")
        >>> driver = Driver(timed.tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"site": "west", "at": 12_000}])
        >>> driver.source_watermarks_us["west"]
        12000000
        """
        return attrs.evolve(self, unknown_action=action, unknown_spec=spec)

    @property
    def by_row(self) -> bool:
        """Return whether each row is classified by the rows before it.

        Examples
        --------
        >>> from krishiv_py import MultiSourceWatermarkSpec
        >>> MultiSourceWatermarkSpec.new(clock="row").by_row
        True
        """
        return self.clock == "row"

    def _starting(self, initial_us: int) -> MultiSourceWatermarkSpec:
        """With a start of `initial_us`, unless it has its own."""
        return attrs.evolve(self, initial_us=initial_us) if self.initial_us == UNSET else self

    def _describe(self) -> str:
        """One line for ``explain()``."""
        new = {
            "side_output": "to the late output (unknown_source)",
            "fail": "stop the query",
            "register": f"register - {show_us(self.unknown_spec.lag_us)}" if self.unknown_spec else "",
        }[self.unknown_action]
        return f"{least_of(self, [lag_text(name, spec.lag_us) for name, spec in self.sources])}; rows of other sources: {new}"


def rows_clock(clock: object) -> None:
    """See that a clock is one of rows; None is left to the session."""
    if clock is not None:
        one_of(clock, "clock", CLOCKS)


def least_of(spec: MultiSourceWatermarkSpec, sources: Sequence[str]) -> str:
    """Return what the watermark is the least of: its `sources`, each as a text that says its lag."""
    parts = ", ".join(sources)
    idle = f", idle after {show_us(spec.idle_timeout_us)}" if spec.idle_timeout_us is not None else ""
    idle += _shown_advance(spec.idle_advance_us)
    idle += "" if spec.max_drift_us is None else f", none more than {show_us(spec.max_drift_us)} ahead"
    idle += ", row by row" if spec.by_row else ""
    idle += "".join(f", whatever {name} has reached" for name in spec.passive)
    return f"min over {parts}{idle}"


def lag_text(name: str, lag_us: int) -> str:
    """Return a source whose watermark follows its rows at a distance."""
    return f"{name} - {show_us(lag_us)}"


def most_lag_us(spec: WatermarkSpec | MultiSourceWatermarkSpec) -> int:
    """Return the largest lag of any source."""
    if isinstance(spec, WatermarkSpec):
        return spec.lag_us
    specs = [one for _, one in spec.sources] + ([] if spec.unknown_spec is None else [spec.unknown_spec])
    return max((one.lag_us for one in specs), default=0)


_ONE_CLOCK: Final = "rows of all sources are classified in one way"


def _is_spec(spec: object, whose: str) -> None:
    if not isinstance(spec, WatermarkSpec):
        raise PlanError(f"{whose} has no WatermarkSpec", got=shown(spec), hint="pass WatermarkSpec.fixed_lag(5_000)")
    if spec._by_clock:
        then = "all sources would go by the same, and rows that belong together could not be recognised by their times"
        hint = 'give every side an event time: .watermark("at", "5 seconds")'
        raise PlanError(f"{whose} goes by the clock", got=".processing_time()", then=then, hint=hint)
    if spec.idle_advance_us is not None:
        raise PlanError(
            f"{whose} cannot go on with the clock by itself",
            got=f"idle_advance={show_us(spec.idle_advance_us)}",
            then="the watermark goes on only when no source at all sends rows",
            hint=f'leave it out, and write .idle_advance("{show_us(spec.idle_advance_us)}") on the MultiSourceWatermarkSpec',
        )


def _start_us(initial: TimePoint | None) -> int:
    """Return where a watermark starts before any row, µs; unset where a savepoint says it."""
    return UNSET if initial is None or _by_savepoint(initial) else time_point_us(initial, "initial")


def _by_savepoint(initial: TimePoint | None) -> bool:
    return isinstance(initial, str) and initial == SAVEPOINT


def _checked_advance(advance_us: int | None) -> None:
    if advance_us is not None:
        microseconds(advance_us, "idle_advance_us", 1, MAX_TIME_US)


def _shown_advance(advance_us: int | None) -> str:
    return "" if advance_us is None else f", with the clock after {show_us(advance_us)} without rows"


AnyWatermarkSpec: TypeAlias = "WatermarkSpec | MultiSourceWatermarkSpec"
