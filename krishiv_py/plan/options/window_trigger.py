"""Triggers that a user brings (SEMANTICS §5.7): a class is asked which open windows fire now, whole columns at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.plan.described import Described, attribute_of, description_of
from krishiv_py.plan.durations import Duration, to_us

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


class WindowTrigger(Described, ABC):
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

    @property
    def ask_every(self) -> Duration | None:
        """Return how often in processing time to ask about all windows with new rows; None: only when rows come."""
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
    """The checked `trigger`."""
    every = attribute_of(trigger, "ask_every", "window trigger", "it is not known when to ask it")
    found = description_of(trigger, "window trigger")
    return CustomTrigger(trigger, None if every is None else to_us(every, "ask_every"), found.name, found.parameters)
