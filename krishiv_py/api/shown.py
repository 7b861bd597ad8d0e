"""Determine how streams show themselves: one short line, where ``explain()`` has the plan.

The lag of a column that a DataFrame with a watermark brings along.

Lateness and watermarks as plain values: the class of one row, and a tracker of sources (SEMANTICS §2.4, §4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from krishiv_py.api.stages.order import no_such_step
from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.aggregates.outputs import computed
from krishiv_py.plan.checks import a_text, is_collection
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import FrameSource, MapBatches, Node, Project, UnionSource, Watermark, chain, source_of, stages_read
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec, lag_text, least_of
from krishiv_py.plan.schema import RESERVED
from krishiv_py.redaction import redacted

if TYPE_CHECKING:
    from typing_extensions import Self

if TYPE_CHECKING:
    from krishiv_py.kernels.input import lateness
    from krishiv_py.kernels.input import watermark as tracking
else:
    lateness = lazy("krishiv_py.kernels.input.lateness")
    tracking = lazy("krishiv_py.kernels.input.watermark")


_MOST_NAMES: Final = 6
_LONGEST: Final = 160


class ShownInALine:
    """A stream whose ``repr`` is one line: what it is, its columns, keys and window. Nothing changes it: a copy is the same."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise PlanError(
            f"{type(self).__name__} cannot be pickled",
            got="a plan that belongs to its session",
            hint="send a function that builds the pipeline: def pipeline(stream): return stream.watermark(...)",
        )

    if not TYPE_CHECKING:  # for a type checker there are no other names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_step(type(self), name)

    def _said(self) -> list[str]:
        """The parts of the line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = redacted(" ".join("; ".join(part for part in self._said() if part).split()))
        return f"<{type(self).__name__} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}>"


def some(names: Iterable[str]) -> str:
    """The first names of some, without those that are the library's own."""
    listed = [name for name in names if not name.startswith(RESERVED)]
    more = f", … {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more


def said_of(draft: Draft) -> list[str]:
    """Return what is told of a query: event time, keys, window, aggregates."""
    mark, operation = draft.input, draft.operation
    column = "" if mark.column.startswith(RESERVED) else f"event time {mark.column}, "
    timed = f"{column}watermark {_watermark(mark)}" if mark.column else ""
    named = [agg.output_name for agg in draft.aggs] if draft.output is None else computed(draft.output, draft.keys)
    return [
        timed,
        f"by {some(draft.keys)}" if draft.keys else "",
        "" if operation is None else operation.describe(),
        f"gives {some(named)}" if named else "",
    ]


def _watermark(mark: Watermark) -> str:
    """Show the distance of a watermark from the rows of sources, also where it follows results of stages."""
    source, lags = source_of(mark), _lags(mark)
    if isinstance(mark.spec, MultiSourceWatermarkSpec):
        names = [name for name, _ in mark.spec.sources]
        only = isinstance(source, UnionSource) and names == [name for name, _ in source.parts]
        return least_of(mark.spec, [lag_text(*lag) for lag in lags]) if only else mark.spec._describe()
    return f"max(event time) - {show_us(lags[0][1])}" if stages_read(mark) and len(lags) == 1 else mark.spec._describe()


def _lags(mark: Watermark) -> list[tuple[str, int]]:
    """The streams of sources by the sides of joins, each with the lag of a watermark after its rows, µs."""
    found, before = list[tuple[str, int]](), dict(stages_read(mark))
    own = mark.spec
    specs: Sequence[tuple[str | None, WatermarkSpec]] = (
        own.sources if isinstance(own, MultiSourceWatermarkSpec) else ((None, own),)
    )
    for name, spec in specs:
        if name not in before:
            found.append((name or "", spec.lag_us))
            continue
        stage = before[name]
        held_us = stage.operation.hold_back_us(stage.options) + spec.lag_us
        found += [(".".join(filter(None, (name, inner))), held_us + lag_us) for inner, lag_us in _lags(stage.input)]
    return found


def frame_lag_us(node: Node, column: str) -> int | None:
    """Return how far the watermark of the DataFrame is behind this column, µs; None where the column has none, or is
    computed.
    """
    name = column
    for step in chain(node):
        if isinstance(step, MapBatches):
            return None
        if isinstance(step, Project):
            expr = dict(step.columns).get(name)
            if not isinstance(expr, Col):
                return None
            name = expr.name
        if isinstance(step, FrameSource):
            return None if step.lags_us is None else step.lags_us.get(name)
    return None


def known_lag_us(node: Node, column: str) -> int:
    """The lag of a column that was not told with it.

    Raises
    ------
    DurationError
        Where none is known.
    """
    found = frame_lag_us(node, column) if isinstance(column, str) else None
    if found is None:
        raise DurationError(
            "the watermark has no `lag`",
            got=shown(column),
            hint='write .watermark("event_time", "5 s"); only a column of a DataFrame with .withWatermark(...) brings its own',
        )
    return found


class RowClass(Enum):
    """Says how late, or early, a row is (SEMANTICS §4.1)."""

    ON_TIME = "on_time"
    MILDLY_LATE = "mildly_late"
    VERY_LATE = "very_late"
    FUTURE = "future"


def classify(
    row_time: TimePoint, watermark: TimePoint | None, allowed_lateness: Duration = 0, future_tolerance: Duration = "60 s"
) -> RowClass:
    """The class of one row, as a query counts it.

    Parameters
    ----------
    row_time : int or datetime
        Its event time; ``int`` is milliseconds since the epoch.
    watermark : int, datetime or None
        The watermark in force; None while it is unset: then every row is on time.
    allowed_lateness : int or timedelta or str
        How far a row may be behind the watermark and still be taken in; ``int`` is milliseconds.
    future_tolerance : int or timedelta or str
        How far it may be ahead of the watermark.

    Raises
    ------
    DurationError
        For negative, float or boolean lengths and unreadable text.
    PlanError
        For a value that is not a point in time.

    Examples
    --------
    >>> classify(195_000, 200_000, "60 s")
    <RowClass.MILDLY_LATE: 'mildly_late'>
    """
    lateness_us = to_us(allowed_lateness, "allowed_lateness", allow_zero=True)
    future_us = to_us(future_tolerance, "future_tolerance", allow_zero=True)
    watermark_us = UNSET if watermark is None else time_point_us(watermark, "watermark")
    return RowClass(lateness.class_of(time_point_us(row_time, "row_time"), watermark_us, lateness_us, future_us))


class SourceTracker:
    """A watermark over sources that register with their first advance, outside of a query.

    In a query, ``MultiSourceWatermarkSpec.new().unknown("register", spec)`` does the same (SEMANTICS §2.4).

    Parameters
    ----------
    *sources : str
        Sources that are waited for from the beginning.

    Attributes
    ----------
    advance_count : int
        How often the overall watermark has moved.

    Examples
    --------
    >>> tracker = SourceTracker()
    >>> [tracker.advance(name, at) for name, at in [("a", 100), ("b", 50), ("b", 40), ("b", 150)]]
    [100000, None, None, None]
    >>> tracker.advance("a", 200), tracker.advance_count
    (150000, 2)
    """

    def __init__(self, *sources: str) -> None:
        zero = WatermarkSpec(0)
        spec = MultiSourceWatermarkSpec(tuple((name, zero) for name in sources)).unknown("register", zero)
        self._tracker = tracking.WatermarkTracker(spec)
        self.advance_count: int = 0

    @property
    def watermark_us(self) -> int:
        """The minimum over the sources, µs since the epoch; the least 64-bit integer while it is unset. It never moves back."""
        return self._tracker.current

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self.watermark_us)

    @property
    def sources_us(self) -> dict[str, int]:
        """The watermark of every source, µs."""
        return dict(self._tracker.reached)

    def advance(self, source: str, to: TimePoint) -> int | None:
        """Move one source, which registers if it is new.

        Parameters
        ----------
        source : str
            Its name.
        to : int or datetime
            Its watermark; ``int`` is milliseconds. A move backward is ignored.

        Returns
        -------
        int or None
            The overall watermark in µs if it has moved, else None.
        """
        before = self._tracker.current
        self._tracker.advance(time_point_us(to, "to"), a_text(source, "source", "pass its name"), 0)
        if self._tracker.settle(0) == before:
            return None
        self.advance_count += 1
        return self._tracker.current

    def triggerable_windows(self, windows: Iterable[tuple[TimePoint, TimePoint]]) -> list[tuple[TimePoint, TimePoint]]:
        """Those of the `windows`, pairs of start and end, that the watermark has reached: ``end <= W``, in their order."""
        if not is_collection(windows):
            raise PlanError("not windows", got=shown(windows), hint="pass pairs of start and end")
        return [w for w in windows if time_point_us(_end(w), "window_end") <= self._tracker.current]


def _end(window: object) -> TimePoint:
    if not isinstance(window, tuple) or len(window) != 2:
        raise PlanError("a window is a pair of start and end", got=shown(window), hint="pass (0, 60_000)")
    end: TimePoint = window[1]
    return end
