"""Which lag of a watermark loses how many rows: found by replay of rows, without a pipeline.

The rows are taken one by one in the order in which they arrived, or in micro-batches. A row is late under a lag when its
event time is before the watermark that the rows (or batches) before it have reached: ``late_rule("event")`` of SEMANTICS §4.1.
Of each row it is enough to know how far it was behind the newest row before it: under that lag, or a longer one, it is on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.display.html import shown as escaped
from krishiv_py.errors import PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.durations import Duration, show_us, to_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from krishiv_py.arrays import grouping
    from krishiv_py.arrays.types import Ints
    from krishiv_py.display import arrivals, plots, tables
    from krishiv_py.display.tables import RowsLike
else:
    arrivals = lazy("krishiv_py.display.arrivals")
    grouping = lazy("krishiv_py.arrays.grouping")
    tables = lazy("krishiv_py.display.tables")
    plots = lazy("krishiv_py.display.plots")

_SHARES: Final = (1.0, 0.1, 0.05, 0.01, 0.001, 0.0001, 0.0)
"""Parts of the rows that may be lost; where no lags are given, the smallest lag for each part is tried."""
_FIRST: Final = -(2**62)


@attrs.frozen(eq=False)
class LatenessProfile:
    """The lateness of rows, and what each of some lags would lose; made by :func:`lateness_profile`.

    Attributes
    ----------
    table : pyarrow.Table
        A row for each lag: ``lag_us`` (int64, µs), ``late`` (int64, rows that would be late) and ``late_share`` (double, from
        0 to 1). With a window also ``held`` (int64, the most rows in windows that have not fired) and, with a column of
        arrival times, ``delay_us`` (int64, µs, the median time from the end of a window to its result; null where none fired).
    groups : pyarrow.Table or None
        With `by`: a row for each value, largest lateness first, with ``rows``, ``behind`` (rows that came after a newer row of
        any value), ``most_us`` (the largest distance to the newest row of any value, µs) and ``own_us`` (to the newest of the
        same value).
    rows : int
        Rows with an event time.
    without_time : int
        Rows whose event time is null or out of range. No lag helps them.
    time, order : str
        The column of event times, and what the rows were ordered by.
    lateness_us : ndarray of int64
        How far each row was behind the newest row before it, in microseconds, in ascending order.
    """

    table: pa.Table
    groups: pa.Table | None
    rows: int
    without_time: int
    time: str
    order: str
    lateness_us: Ints = attrs.field(repr=False)

    def smallest_lag(self, share: float = 0.0) -> str:
        """Return the smallest lag under which at most this `share` of the rows is late, as text for ``.watermark(...)``.

        Raises
        ------
        PlanError
            For a share that is no number from 0 to 1.

        Examples
        --------
        >>> profile = lateness_profile([{"at": at} for at in (0, 5_000, 2_000, 9_000)], "at")
        >>> profile.smallest_lag(), profile.smallest_lag(0.5)
        ('3 s', '0 s')
        """
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise PlanError("`share` is no part of the rows", got=shown(share), hint="pass a number from 0 to 1")
        return _length(_lag_for(self.lateness_us, share))

    def plot(self) -> Figure:
        """Return a figure of the share of late rows over the lag; needs matplotlib."""
        return plots.lags(self)

    def __str__(self) -> str:
        names, columns = self._columns()
        return "\n".join([self._title(), aligned([names, *zip(*columns, strict=True)])])

    def _repr_html_(self) -> str:
        names, columns = self._columns()
        lines = [
            "".join(f"<td style='text-align:right'>{escaped(text)}</td>" for text in row) for row in zip(*columns, strict=True)
        ]
        head = "".join(f"<th style='text-align:right'>{escaped(name)}</th>" for name in names)
        return (
            f"<p>{escaped(self._title())}</p><table><tr>{head}</tr>"
            + "".join(f"<tr>{line}</tr>" for line in lines)
            + "</table>"
        )

    def _title(self) -> str:
        behind = int(np.count_nonzero(self.lateness_us))
        most = _length(int(self.lateness_us[-1])) if len(self.lateness_us) else "0 s"
        without = f", {self.without_time} without an event time" if self.without_time else ""
        given = f"{self.rows} rows by {self.time!r}, in the order of {self.order}"
        return f"{given}: {behind} came after a newer row, at most {most}{without}"

    def _columns(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Return titles and texts of the table."""
        shows: dict[str, tuple[str, Any]] = {
            "lag_us": ("lag", _length),
            "late": ("late rows", str),
            "late_share": ("share", lambda x: f"{100 * x:.4g} %"),
            "held": ("rows held", str),
            "delay_us": ("result after the end", lambda us: "-" if us is None else _length(us)),
        }
        names = self.table.column_names
        return tuple(shows[n][0] for n in names), [list(map(shows[n][1], self.table[n].to_pylist())) for n in names]


def lateness_profile(
    rows: RowsLike,
    time: str,
    *,
    arrival: str | None = None,
    by: str | None = None,
    batch: Duration | None = None,
    window: Duration | None = None,
    lags: Sequence[Duration] | None = None,
) -> LatenessProfile:
    """Find out by replay which lag of the watermark loses how many of these rows.

    Parameters
    ----------
    rows : pyarrow.Table, RecordBatch, list of dict, or pandas DataFrame
        Rows as they arrived. A Spark DataFrame has no order: pass ``frame.toArrow()`` and name the column `arrival`.
    time : str
        The event-time column: a timestamp, or integer milliseconds.
    arrival : str, optional
        The column that says when a row arrived, or in which order: a timestamp, or integers. Without it rows arrived as they
        are listed.
    by : str, optional
        A column, such as the source, for whose values the lateness is shown one by one.
    batch : int or timedelta or str, optional
        Rows that arrived within the same stretch of this length form a micro-batch and are compared with the watermark before
        it (``int`` is milliseconds); needs `arrival`. Without it each row is a batch.
    window : int or timedelta or str, optional
        The size of tumbling windows: then it is shown how many rows are held, and how long results take.
    lags : sequence, optional
        The lags to try. By default the smallest ones that lose all, 10, 5, 1, 0.1, 0.01 and 0 per cent of the rows.

    Raises
    ------
    PlanError
        For what are no rows, and for `batch` without `arrival`.
    ColumnError
        For a column that the rows do not have, or a time column of another type.
    DurationError
        For a length that is none.

    Notes
    -----
    Late is meant as in SEMANTICS §4.1 with an allowed lateness of 0. A lag and an allowed lateness together lose what a lag of
    their sum loses. ``late_rule("window")`` loses no more rows than shown.

    Examples
    --------
    >>> rows = [{"at": at} for at in (1_000, 9_000, 4_000, 12_000, 11_000, 30_000, 8_000)]
    >>> print(lateness_profile(rows, "at", lags=["0 s", "1 s", "5 s"]))
    7 rows by 'at', in the order of the rows: 3 came after a newer row, at most 22 s
    lag  late rows    share
    0 s          3  42.86 %
    1 s          2  28.57 %
    5 s          1  14.29 %
    """
    table = tables.as_table(rows, "rows")
    for name, value in (("time", time), ("arrival", arrival), ("by", by)):
        if value is not None or name == "time":
            tables.require_name(value, name)
            known_column(value, table.column_names, "lateness_profile")
    if batch is not None and arrival is None:
        raise PlanError("`batch` needs `arrival`", got=shown(batch), hint="pass arrival=, the column that says when")
    arrived = None if arrival is None else _arrivals(table, arrival)
    if arrived is not None:
        order = np.argsort(arrived, kind="stable")
        table, arrived = table.take(pa.array(order)), arrived[order]
    times, usable = arrivals.instants(table[time], arrivals.kind_of(table, time))
    numbers = np.arange(len(times)) if batch is None or arrived is None else arrived // to_us(batch, "batch")
    kept = np.flatnonzero(usable)
    times, numbers = times[kept], numbers[kept]
    before = _newest_before(times, numbers)
    lateness = np.where(before == _FIRST, 0, np.maximum(before - times, 0))
    ordered = np.sort(lateness)
    tried = [to_us(lag, "lags", allow_zero=True) for lag in _listed(lags)] if lags is not None else _default_lags(ordered)
    found: dict[str, pa.Array] = {
        "lag_us": pa.array(tried, pa.int64()),
        "late": pa.array([len(ordered) - int(np.searchsorted(ordered, lag, side="right")) for lag in tried], pa.int64()),
    }
    found["late_share"] = pa.array(found["late"].to_numpy() / max(len(ordered), 1))
    if window is not None:
        size = to_us(window, "window")
        clock = arrived[kept] if arrived is not None and _is_instant(table[arrival]) else None
        costs = [_held_and_delay(times, before, numbers, size, lag, clock) for lag in tried]
        found["held"] = pa.array([held for held, _ in costs], pa.int64())
        if clock is not None:
            found["delay_us"] = pa.array([delay for _, delay in costs], pa.int64())
    groups = None if by is None else _by_value(table[by].take(pa.array(kept)), by, times, numbers, lateness)
    return LatenessProfile(
        pa.table(found),
        groups,
        len(kept),
        len(usable) - len(kept),
        time,
        "the rows" if arrival is None else repr(arrival),
        ordered,
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return texts as lines with one width a column, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _listed(lags: Any) -> Sequence[Duration]:
    if isinstance(lags, (str, bytes)) or not isinstance(lags, Sequence):
        raise PlanError("`lags` is no list", got=shown(lags), hint='pass lags=["5 s", "1 min"]')
    return lags


def _is_instant(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_timestamp(column.type))


def _arrivals(table: pa.Table, name: str) -> Ints:
    """Return when rows arrived: µs of a timestamp, else the integers themselves."""
    column = table[name]
    if column.null_count or not (_is_instant(column) or pa.types.is_integer(column.type)):
        got = f"{column.null_count} nulls" if column.null_count else str(column.type)
        raise PlanError(
            f"{name!r} does not say when rows arrived", got=got, hint="pass a column of timestamps or integers without nulls"
        )
    if _is_instant(column):
        return arrivals.instants(column, arrivals.kind_of(table, name))[0]
    return np.asarray(column.cast(pa.int64()).to_numpy())


def _newest_before(times: Ints, batches: Ints) -> Ints:
    """Return of each row the newest event time of the batches before its own."""
    if not len(times):
        return times
    newest = np.maximum.accumulate(times)
    first = np.flatnonzero(np.diff(batches, prepend=batches[0] - 1))
    begin = np.repeat(first, np.diff(first, append=len(batches)))
    return np.where(begin == 0, _FIRST, newest[begin - 1])


def _lag_for(ordered: Ints, share: float) -> int:
    """Return the smallest lag, µs, that at most so many rows exceed."""
    spared = int(np.floor(share * len(ordered) + 1e-9))
    return int(ordered[len(ordered) - 1 - spared]) if spared < len(ordered) else 0


def _default_lags(ordered: Ints) -> list[int]:
    return sorted({_lag_for(ordered, share) for share in _SHARES})


def _held_and_delay(
    times: Ints, before: Ints, batches: Ints, size: int, lag: int, clock: Ints | None
) -> tuple[int, int | None]:
    """Return the most rows that wait in windows at a time, and the median time from the end of a window to its result, µs."""
    if not len(times):
        return 0, None
    on_time = (before == _FIRST) | (times >= before - lag)
    ends = (times[on_time] // size + 1) * size
    newest = np.maximum.accumulate(times)
    fired = np.searchsorted(newest, ends + lag)  # the row that moves the watermark to the end
    after = np.append(np.searchsorted(batches, batches, side="right"), len(times))  # a window fires with its whole batch
    change = np.zeros(len(times) + 1, np.int64)
    np.add.at(change, np.flatnonzero(on_time), 1)
    np.add.at(change, after[fired], -1)
    held = int(np.cumsum(change).max())
    if clock is None:
        return held, None
    windows = np.unique(ends)
    at = np.searchsorted(newest, windows + lag)
    done = at < len(times)
    return held, int(np.median(clock[at[done]] - windows[done])) if done.any() else None


def _by_value(column: pa.ChunkedArray, name: str, times: Ints, batches: Ints, lateness: Ints) -> pa.Table:
    """Return for each value how far its rows were behind."""
    grouped = grouping.group([column], len(times))
    ids, n = grouped.ids, grouped.n
    own = np.zeros(n, np.int64)
    order = np.argsort(ids, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(order) else []:
        before = _newest_before(times[rows], batches[rows])
        own[ids[rows[0]]] = int(np.where(before == _FIRST, 0, np.maximum(before - times[rows], 0)).max())
    most = np.zeros(n, np.int64)
    np.maximum.at(most, ids, lateness)
    behind = np.bincount(ids, weights=lateness > 0, minlength=n).astype(np.int64)
    found = pa.table(
        {
            name: column.take(pa.array(grouped.first)),
            "rows": np.bincount(ids, minlength=n),
            "behind": behind,
            "most_us": most,
            "own_us": own,
        }
    )
    return found.take(pa.array(np.argsort(-most, kind="stable")))


def _length(us: int) -> str:
    """Return a length for people; the text is one that steps take."""
    return "0 s" if us == 0 else show_us(us)
