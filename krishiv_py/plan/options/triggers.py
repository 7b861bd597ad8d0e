"""Triggers, also those that a user brings, and accumulation: the times at which a window writes a result (SEMANTICS §5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import MOST_ROWS, a_switch, microseconds
from krishiv_py.plan.described import UserObject, attribute_of, description_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, show_us, to_us

Numbers: TypeAlias = npt.NDArray[np.int64]


@attrs.frozen(eq=False)
class OpenWindows:
    """The windows a trigger is asked about; one entry is one window of one key. Arrays cannot be written to.

    Attributes
    ----------
    keys : pyarrow.Table
        The key columns under their names; without columns if the stream has no keys.
    start, end : ndarray of int64
        The bounds, in microseconds since the epoch (UTC). The bounds of a session are those it has now.
    rows : ndarray of int64
        The rows in the window so far, at least 1.
    new_rows : ndarray of int64
        Those of them that no firing has shown. At least 1; 0 only for a session with a longest duration that rows before it
        have divided again.
    firings : ndarray of int64
        How often the window has fired. Where sessions have joined, the larger of their numbers.
    newest : ndarray of int64
        The newest event time in the window, in microseconds since the epoch.
    watermark : int or None
        The watermark in force, in microseconds since the epoch; None while no row has set it.
    now : int or None
        Processing time, in microseconds since the epoch. None unless the trigger has an ``ask_every``.

    Examples
    --------
    >>> from krishiv_py import Trigger, WindowTrigger, count
    >>> from krishiv_py.testing import Driver, ManualClock, stream_of
    >>> class Large(WindowTrigger):
    ...     ask_every = "1 s"
    ...
    ...     def fires(self, windows):
    ...         print(windows.keys.to_pylist(), windows.rows, windows.new_rows, windows.firings)
    ...         return windows.new_rows >= 2
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").trigger(Trigger.when(Large()))
    >>> driver = Driver(keyed.tumbling_window("10 s").agg(count()), clock=ManualClock())
    >>> rows = [{"user": "ann", "at": 1_000}, {"user": "ann", "at": 2_000}, {"user": "bob", "at": 3_000}]
    >>> driver.send(rows).results.select(["user", "count"]).to_pylist()
    [{'user': 'ann'}, {'user': 'bob'}] [2 1] [2 1] [0 0]
    [{'user': 'ann', 'count': 2}]
    """

    keys: pa.Table
    start: Numbers
    end: Numbers
    rows: Numbers
    new_rows: Numbers
    firings: Numbers
    newest: Numbers
    watermark: int | None
    now: int | None

    def __len__(self) -> int:
        return len(self.start)


class WindowTrigger(UserObject, ABC):
    """Says which windows fire before the watermark passes their end. Make a subclass, and pass ``Trigger.when(instance)``.

    Once in a micro-batch, after its rows are in their windows, the trigger is asked about the windows that rows of the
    micro-batch came to. Windows whose end the watermark has passed are not among them: these fire anyway. So the result
    depends on how rows were batched, other than with ``Trigger.on_count``. One call is about some of the windows: those of a
    part of the keys. Each is in one call only.

    With ``ask_every`` the trigger is also asked, at most that often in processing time, about all windows with rows that no
    firing has shown, also when no row comes.

    An instance is pickled to the workers. What it changes in itself is lost. The answer must depend on the arguments alone: a
    micro-batch that is repeated after a crash must get the same answer. A checkpoint notes the name of the class and
    :meth:`parameters`. A query with others does not go on from it. A change of the code of :meth:`fires` cannot be seen:
    change a parameter with it, for instance a version.

    Examples
    --------
    >>> from krishiv_py import Trigger, WindowTrigger, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> class Doubled(WindowTrigger):
    ...     '''Fires when a window has twice the rows that its last firing has shown.'''
    ...
    ...     def fires(self, windows):
    ...         return windows.rows >= 2 * (windows.rows - windows.new_rows)
    >>> counts = (stream_of("at bigint").watermark("at", 0)
    ...           .trigger(Trigger.when(Doubled())).tumbling_window(1_000).agg(count()))
    >>> driver = Driver(counts)
    >>> [driver.send([{"at": 1}] * n).results["count"].to_pylist() for n in (1, 1, 1, 1, 3)]
    [[1], [2], [], [4], []]
    >>> driver.close().results["count"].to_pylist()
    [7]
    """

    if TYPE_CHECKING:
        ask_every: Any  # a Duration or None, as an attribute or a property: see WindowAssigner
    else:

        @property
        def ask_every(self) -> Duration | None:
            """Return how often in processing time to ask about all windows with new rows; None: only when rows come.

            Examples
            --------
            >>> from krishiv_py import Trigger, WindowTrigger
            >>> class Minutely(WindowTrigger):
            ...     ask_every = "1 min"
            ...
            ...     def fires(self, windows):
            ...         return windows.new_rows > 0
            >>> Trigger.when(Minutely()).early.every_us
            60000000
            """
            return None

    @abstractmethod
    def fires(self, windows: OpenWindows) -> npt.NDArray[np.bool_]:
        """Return which of the windows fire now.

        Parameters
        ----------
        windows : OpenWindows
            Never empty.

        Returns
        -------
        ndarray of bool
            One for each of the windows, in their order. What the array ``numpy.asarray`` makes of it is used.
        """


@attrs.frozen
class CustomTrigger:
    """A user's trigger in a plan."""

    trigger: WindowTrigger = attrs.field(eq=False, repr=False)
    every_us: int | None
    name: str
    parameters: tuple[tuple[str, str], ...] = attrs.field(repr=False)  # one may be called as secrets are

    def describe(self) -> str:
        """Return what ``explain()`` says."""
        return self.trigger.describe()

    def noted(self) -> str:
        """Return what a checkpoint notes."""
        return f"{type(self.trigger).__qualname__}({', '.join(f'{name}={text}' for name, text in self.parameters)})"


def custom_trigger(trigger: WindowTrigger) -> CustomTrigger:
    """Return the checked `trigger`."""
    every = attribute_of(trigger, "ask_every", "window trigger", "it is not known when to ask it")
    description = description_of(trigger, "window trigger")
    return CustomTrigger(
        trigger, None if every is None else to_us(every, "ask_every"), description.name, description.parameters
    )


Accumulation: TypeAlias = Literal["accumulating", "discarding"]


@attrs.frozen
class Interval:
    """At most every `period_us` microseconds of processing time.

    Attributes
    ----------
    period_us : int
        The shortest distance of two firings, in microseconds of processing time.

    Examples
    --------
    >>> from krishiv_py import Interval, Trigger
    >>> Trigger(early=Interval.of("10 s"), late=None)
    Trigger(early=Interval(period_us=10000000), on_time=True, late=None)
    """

    period_us: int

    def __attrs_post_init__(self) -> None:
        microseconds(self.period_us, "period_us", 1, MAX_TIME_US)

    @classmethod
    def of(cls, period: Duration) -> Interval:
        """Return an interval of `period`, any duration of SEMANTICS §1.1."""
        return cls(to_us(period, "interval"))


def _count(value: object, name: str) -> int:
    if isinstance(value, str) and value == "each":
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ROWS:
        hint = 'use None, "each", a number of rows of at least 1, or what its description names'
        raise PlanError(f"`{name}` has no such setting", got=shown(value), hint=hint)
    return value


def _early(
    value: int | Literal["each"] | Interval | WindowTrigger | CustomTrigger | None,
) -> int | Interval | CustomTrigger | None:
    if isinstance(value, WindowTrigger):
        return custom_trigger(value)
    return value if value is None or isinstance(value, (Interval, CustomTrigger)) else _count(value, "early")


def _late(value: int | Literal["each", "batch", "watermark"] | None) -> int | Literal["batch", "watermark"] | None:
    named = isinstance(value, str) and value in ("batch", "watermark")
    return value if value is None or named else _count(value, "late")  # type: ignore[return-value]  # one of the two names


@attrs.frozen
class Trigger:
    """Says when the windows of a query fire.

    Parameters
    ----------
    early : int, "each", Interval, WindowTrigger or None
        Before the watermark passes the end: after that many rows of a key and window, at intervals of processing time, when a
        trigger of your own says so, or never. Counting is as if rows came one by one: the result does not depend on how rows
        were batched.
    on_time : bool
        Whether there is a firing when the watermark passes the end, ``end <= W``.
    late : "batch", "each", "watermark", int or None
        After that, for rows within the allowed lateness: once per batch, after that many rows, once when the watermark next
        grows (SPL's panes), or never.

    Notes
    -----
    SEMANTICS §5.1 to §5.3 and §5.7. With ``emit("updates")`` the on-time firing comes even if nothing changed since an early
    firing. With ``emit("retractions")`` an unchanged result is not retracted and emitted again.

    Examples
    --------
    >>> Trigger.on_count(3)
    Trigger(early=3, on_time=True, late=1)
    >>> Trigger.on_interval("10 s").late
    'batch'
    """

    early: int | Interval | CustomTrigger | None = attrs.field(default=None, converter=_early)
    on_time: bool = attrs.field(default=True)
    late: int | Literal["batch", "watermark"] | None = attrs.field(default="batch", converter=_late)

    @on_time.validator
    def _on_or_off(self, _attribute: object, value: object) -> None:
        a_switch(value, "on_time")

    @classmethod
    def on_watermark(cls) -> Trigger:
        """Once when the watermark passes the end, and once per batch when late rows changed it; the default.

        Examples
        --------
        >>> from krishiv_py import Trigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).allowed_lateness("1 min").tumbling_window("10 s").agg(count())
        >>> driver = Driver(counts.emit("updates").trigger(Trigger.on_watermark()))
        >>> [driver.send([{"at": at}]).results.column("count").to_pylist() for at in (1_000, 2_000, 12_000, 3_000)]
        [[], [], [2], [3]]
        """
        return cls()

    @classmethod
    def on_every_element(cls) -> Trigger:
        """Fire after every row, early or late, and at the watermark.

        Examples
        --------
        >>> from krishiv_py import Trigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).allowed_lateness("1 min").tumbling_window("10 s").agg(count())
        >>> driver = Driver(counts.trigger(Trigger.on_every_element()))
        >>> [driver.send([{"at": at}]).results.column("count").to_pylist() for at in (1_000, 2_000, 12_000, 3_000)]
        [[1], [2], [1, 2], [3]]
        """
        return cls(early=1, late=1)

    @classmethod
    def on_count(cls, n: int) -> Trigger:
        """Fire after every `n` rows of a key and window, and at the watermark; then again after every late row.

        Late rows are not counted up to `n`, because the last few rows would then never fire.
        """
        return cls(early=n, late=1)

    @classmethod
    def on_interval(cls, interval: Duration) -> Trigger:
        """Fire changed windows at most every `interval` of processing time, also when no row comes, and on time.

        The interval starts with the first row. Late rows correct a result once per batch.
        """
        return cls(early=Interval.of(interval))

    @classmethod
    def when(cls, trigger: WindowTrigger) -> Trigger:
        """Fire changed windows when a `trigger` of your own says so, and on time; see :class:`~krishiv_py.WindowTrigger`.

        It is asked once a micro-batch, so the result depends on how rows were batched. Late rows correct a result once per
        batch.

        Examples
        --------
        >>> from krishiv_py import Trigger, WindowTrigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> class First(WindowTrigger):
        ...     def fires(self, windows):
        ...         return windows.firings == 0
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window("10 s").agg(count())
        >>> driver = Driver(counts.trigger(Trigger.when(First())))
        >>> [driver.send([{"at": at}]).results.column("count").to_pylist() for at in (1_000, 2_000, 3_000)]
        [[1], [], []]
        """
        if not isinstance(trigger, WindowTrigger):
            raise PlanError("not a WindowTrigger", got=shown(trigger), hint="pass an instance of a subclass of WindowTrigger")
        return cls(early=trigger)

    @property
    def _period_us(self) -> int | None:
        """Return how often in processing time windows that changed are looked at; None if the clock plays no part."""
        if isinstance(self.early, Interval):
            return self.early.period_us
        return self.early.every_us if isinstance(self.early, CustomTrigger) else None

    @property
    def _row_by_row(self) -> bool:
        """Return whether single rows make windows fire, so that rows must be kept apart until they have been counted."""
        return isinstance(self.early, int) or isinstance(self.late, int)

    @property
    def _at_ends(self) -> bool:
        """Return whether no window fires before its end, so that windows that overlap can hold their rows together."""
        return self.early is None and not self._row_by_row

    def _describe(self) -> str:
        """One line for ``explain()``."""
        parts = []
        if isinstance(self.early, Interval):
            parts.append(f"early every {show_us(self.early.period_us)}")
        elif isinstance(self.early, CustomTrigger):
            parts.append(f"early when {self.early.describe()} says so")
        elif self.early is not None:
            parts.append(f"early after every {_rows(self.early)}")
        if self.on_time:
            parts.append("on time")
        if isinstance(self.late, int):
            parts.append(f"late after every {_rows(self.late)}")
        elif self.late is not None:
            parts.append({"batch": "late once per batch"}.get(self.late, "late when the watermark grows"))
        return ", ".join(parts) or "never"


def _rows(n: int) -> str:
    return "row" if n == 1 else f"{n} rows"
