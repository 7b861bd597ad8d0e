"""The row clock: each row is classified by the rows before it in its lane (SEMANTICS §2.8).

A lane is what a source gives in an order: a partition of a topic, a memory stream, a folder. Its clock goes on with each row,
however the rows are cut into batches; the watermark of the stage is the least of its lanes::

    event times of a lane      3    9    7    2   11
    newest one before each     -    3    9    9    9
    classified by, with a lag of 5 -   -2    4    4    4     the row of time 2 is late
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, last_rows
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec

_LANE: Final = "\x1f"


def lane_name(source: str, lane: str) -> str:
    """Return what a lane of a source is called where clocks are kept; a source that is one lane has its own name."""
    return f"{source}{_LANE}{lane}" if lane else source


def lane_of(stream: str, partition: str) -> str:
    """Return the lane of a partition of a stream: the stream is named where there are others next to it."""
    return "/".join(filter(None, (stream, partition)))


def is_lane_of(name: str, stream: str) -> bool:
    """Return whether a name is that of a lane of a stream that is named in lanes."""
    lane = name.partition(_LANE)[2]
    return bool(stream) and (lane == stream or lane.startswith(f"{stream}/"))


def source_of_lane(name: str) -> str:
    """Return the source of a lane."""
    return name.partition(_LANE)[0]


def renamed_lane(name: str, source: str) -> str:
    """Return what a lane is called when its source is called otherwise."""
    return lane_name(source, name.partition(_LANE)[2])


def is_lane(name: str) -> bool:
    """Return whether a name is that of one of several lanes of a source."""
    return _LANE in name


def shown_lane(name: str) -> str:
    """Return what people read: the source and the lane.

    Examples
    --------
    >>> shown_lane(lane_name("", "orders-0")), shown_lane(lane_name("web", "orders-0")), shown_lane("web")
    ('orders-0', 'web/orders-0', 'web')
    """
    return name.replace(_LANE, "/").lstrip("/")


@attrs.frozen(eq=False)
class RowMarks:
    """Holds what each row of a batch is classified by.

    Attributes
    ----------
    watermarks : ndarray of int64
        The watermark of each row, µs.
    newest : ndarray of int64
        The largest event time of its lane before each row, µs; ``UNSET`` before the first.
    ahead : ndarray of bool
        The rows that are further ahead of their watermark than tolerated.
    maxima : dict
        The largest event time of each lane after these rows, µs.
    """

    watermarks: Ints
    newest: Ints
    ahead: Mask
    maxima: dict[str, int]

    def put_back(self, order: Ints) -> RowMarks:
        """Return the marks of rows that were put in this order, in the order that they had."""
        places = last_rows(order, len(order))
        return RowMarks(self.watermarks[places], self.newest[places], self.ahead[places], self.maxima)


@attrs.frozen(eq=False)
class RowsBehind:
    """Holds the rows of a batch that are older than one before them in their lane; often few, so little is computed for each.

    Attributes
    ----------
    rows : ndarray of int64
        Where they are.
    distances : ndarray of int64
        The distance of each to the newest row before it, µs; above 0.
    """

    rows: Ints
    distances: Ints


@attrs.define(eq=False)
class RowClock:
    """The clock of the rows of one batch, which come in the order of their lanes.

    Attributes
    ----------
    spec : WatermarkSpec or MultiSourceWatermarkSpec
        The lag of each source.
    newest : dict
        The largest event time of each lane so far, µs.
    advanced : dict
        The largest explicit watermark of lanes that had one, µs.
    floor_us : int
        The watermark of the stage when the batch began, µs: a lane that is new, or was idle, is classified by it.
    """

    spec: AnyWatermarkSpec
    newest: dict[str, int]
    advanced: dict[str, int]
    floor_us: int

    def behind(self, lane: str, times: Ints, bounds: tuple[int, int]) -> RowsBehind | None:
        """Return which of the next rows of a lane are older than one before them; the lane goes on with :meth:`went`.

        None where another clock than that of the lane has a say: at the begin of a lane, and after an explicit watermark.

        Parameters
        ----------
        lane : str
            The lane; empty for a stream that is one.
        times : ndarray of int64
            Event times, µs, in the order of the lane; all of them count.
        bounds : (int, int)
            The smallest and the largest of them.
        """
        assert not isinstance(self.spec, MultiSourceWatermarkSpec)
        name = lane_name("", lane)
        before, floor_us = self.newest.get(name, UNSET), max(self.floor_us, self.advanced.get(name, UNSET))
        if bounds[0] < floor_us and (before == UNSET or floor_us > before - self.spec.lag_us):
            return None
        if bounds[0] >= before and (bounds[0] == bounds[1] or (times[1:] >= times[:-1]).all()):
            return RowsBehind(times[:0], times[:0])
        top = np.maximum.accumulate(times)
        if times[0] < before:
            np.maximum(top, before, out=top)
        rows = np.flatnonzero(times < top)
        return RowsBehind(rows, top[rows] - times[rows])

    def went(self, lane: str, newest_us: int) -> dict[str, int]:
        """Take the largest event time of rows whose lane goes on with them; gives that of the lane after them."""
        name = lane_name("", lane)
        self.newest[name] = max(self.newest.get(name, UNSET), newest_us)
        return {name: self.newest[name]}

    def marks(
        self, lane: str, times: Ints, usable: Mask, sources: pa.Array | None = None, future_us: int | None = None
    ) -> RowMarks:
        """Return what the next rows of a lane are classified by; the clock goes on with them.

        Parameters
        ----------
        lane : str
            The lane; empty for a stream that is one.
        times : ndarray of int64
            Event times, µs, in the order of the lane.
        usable : ndarray of bool
            The rows whose times count.
        sources : pyarrow.Array, optional
            The source of each row, where a column names it: the rows of each are a lane.
        future_us : int, optional
            Rows so far ahead of their watermark do not move it; None where they do.
        """
        n = len(times)
        marks = RowMarks(np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.bool_), {})
        if sources is None:
            self._judge(lane_name("", lane), times, usable, future_us, marks, slice(None))
            return marks
        coded = sources.dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, source in [(-1, None), *enumerate(coded.dictionary.to_pylist())]:
            rows = np.flatnonzero(codes == code)
            if source is None or not self._follows(source):  # a row without a known source moves no clock
                marks.watermarks[rows], marks.newest[rows] = self.floor_us, UNSET
            elif len(rows):
                name = lane_name(source, "" if lane == source else lane)
                self._judge(name, times[rows], usable[rows], future_us, marks, rows)
        return marks

    def advance(self, watermark_us: int, source: str | None) -> None:
        """Take an explicit watermark of a source, or of all, between two rows."""
        if source is None:
            self.floor_us = max(self.floor_us, watermark_us)
            return
        for name in {*self.newest, source}:
            if source_of_lane(name) == source:
                self.advanced[name] = max(self.advanced.get(name, UNSET), watermark_us)

    def _judge(self, name: str, times: Ints, usable: Mask, future_us: int | None, marks: RowMarks, rows: Ints | slice) -> None:
        """Write what some rows, all of one lane, are classified by."""
        lag_us, n = self._lag_us(source_of_lane(name)), len(times)
        top = np.empty(n + 1, np.int64)
        top[0] = self.newest.get(name, UNSET)
        top[1:] = times if usable.all() else np.where(usable, times, UNSET)
        np.maximum.accumulate(top, out=top)
        floor_us = max(self.floor_us, self.advanced.get(name, UNSET))
        watermarks = _behind(top[:n], lag_us, floor_us)
        ahead: Mask = np.zeros(n, np.bool_)
        if future_us is not None and floor_us != END_OF_TIME:
            ahead = usable & (watermarks != UNSET) & (times - future_us > watermarks)
            if ahead.any():
                self._one_by_one(times, usable, (lag_us, floor_us, future_us), int(ahead.argmax()), top, ahead)
                watermarks = _behind(top[:n], lag_us, floor_us)
        marks.watermarks[rows], marks.newest[rows], marks.ahead[rows] = watermarks, top[:n], ahead
        self.newest[name] = int(top[n])
        if top[n] != UNSET:
            marks.maxima[name] = int(top[n])

    @staticmethod
    def _one_by_one(times: Ints, usable: Mask, settings: tuple[int, int, int], first: int, top: Ints, ahead: Mask) -> None:
        """Decide from the `first` row that is ahead on, one by one: whether it moves the clock says which row is ahead next."""
        lag_us, floor_us, future_us = settings
        newest = int(top[first])
        for row, (time_us, counts) in enumerate(zip(times[first:].tolist(), usable[first:].tolist(), strict=True), first):
            top[row] = newest
            mark = max(UNSET if newest == UNSET else max(newest - lag_us, -MAX_TIME_US), floor_us)
            ahead[row] = counts and mark != UNSET and time_us > mark + future_us
            if counts and not ahead[row]:
                newest = max(newest, time_us)
        top[len(times)] = newest

    def _lag_us(self, source: str) -> int:
        if not isinstance(self.spec, MultiSourceWatermarkSpec):
            return self.spec.lag_us
        own = dict(self.spec.sources).get(source, self.spec.unknown_spec)
        assert own is not None
        return own.lag_us

    def _follows(self, source: str) -> bool:
        mark = self.spec
        assert isinstance(mark, MultiSourceWatermarkSpec)
        return mark.unknown_spec is not None or any(source == name for name, _ in mark.sources)


def _behind(newest: Ints, lag_us: int, floor_us: int) -> Ints:
    """Return the watermark of rows by the newest event time before each, which never goes back."""
    unset = int(np.searchsorted(newest, UNSET, side="right"))
    watermarks = np.empty(len(newest), np.int64)
    watermarks[:unset] = floor_us
    np.maximum(newest[unset:] - lag_us, max(floor_us, -MAX_TIME_US), out=watermarks[unset:])
    return watermarks
