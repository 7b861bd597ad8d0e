"""Names that this library has for one text only: what a page of docs/systems calls so, and others write in another way.

``docs/systems`` has a page for each of five texts about windows and watermarks. The names of their first examples are in
``krishiv_py`` and on its classes. More names of theirs are here, as the same objects, so that a program after such a text
can be written word by word. The page "Names of the five texts" of the reference lists them with what to write otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from krishiv_py.api.changes import Emit, Retract, changes, fold
from krishiv_py.api.lateness import RowClass, SourceTracker, classify
from krishiv_py.api.stages.keyed import WindowMethods
from krishiv_py.errors import PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.durations import Duration, TimePoint
from krishiv_py.plan.options.query import QueryTrigger
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.windows.fixed import MAX_OVERLAP
from krishiv_py.plan.windows.panes import Pane, PaneHandler

if TYPE_CHECKING:
    from krishiv_py.api.stages.windowed import WindowedStream
    from krishiv_py.testing import driver as drivers
else:  # with the kernels, which a builder does not load
    drivers = lazy("krishiv_py.testing.driver")

__all__ = [
    "Emit",
    "Pane",
    "PaneHandler",
    "QueryTrigger",
    "Retract",
    "RowClass",
    "SourceTracker",
    "changes",
    "classify",
    "fixed_lag_ms",
    "fold",
    "sliding_window",
    "try_add",
]


def sliding_window(
    stream: WindowMethods,
    size: Duration,
    slide: Duration,
    offset: Duration = 0,
    *,
    allow_gaps: bool = False,
    max_overlap: int = MAX_OVERLAP,
) -> WindowedStream:
    """Return the hopping windows of a `stream`, as :meth:`KeyedStream.sliding_window` does.

    The parameters `size`, `slide`, `offset`, `allow_gaps` and `max_overlap` are those of that method. The sliding windows of
    Kafka Streams (KIP-450) are other ones, one for each distinct set of rows: write ``.window(SlidingWindows.of(...))``.

    Examples
    --------
    >>> from krishiv_py import compat, count
    >>> from krishiv_py.testing import stream_of
    >>> compat.sliding_window(stream_of("at bigint").watermark("at", 0), "1 min", "15 s").agg(count()).schema.names
    ['window_start', 'window_end', 'count']
    """
    if not isinstance(stream, WindowMethods):
        raise PlanError("not a stream that can have windows", got=shown(stream), hint="pass stream.watermark(...)")
    return stream.hopping_window(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap)


def fixed_lag_ms(lag_ms: int, *, initial: TimePoint | None = None, idle_advance: Duration | None = None) -> WatermarkSpec:
    """Return a fixed lag of `lag_ms` milliseconds, as :meth:`WatermarkSpec.fixed_lag_ms` does.

    The parameters `initial` and `idle_advance` are those of that method.
    """
    return WatermarkSpec.fixed_lag_ms(lag_ms, initial=initial, idle_advance=idle_advance)


def try_add(driver: drivers.Driver, row: dict[str, Any]) -> dict[str, Any] | None:
    """Send one `row` to a test `driver`, and return it if it was refused, else None: as the lesson's sessions do.

    Refused are late rows and those that are dropped and counted: duplicates, rows too far ahead, rows between panes. Results
    of the batch go to the sink.

    Examples
    --------
    >>> from krishiv_py import compat, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> driver = Driver(stream_of("at bigint").watermark("at", 0).session_window(10, max_duration=100).agg(count()))
    >>> compat.try_add(driver, {"at": 50}), compat.try_add(driver, {"at": 49})
    (None, {'at': 49})
    """
    if not isinstance(driver, drivers.Driver):
        raise PlanError("not a test driver", got=shown(driver), hint="pass krishiv_py.testing.Driver(stream)")
    return driver._try_add(row)


def __dir__() -> list[str]:
    return __all__
