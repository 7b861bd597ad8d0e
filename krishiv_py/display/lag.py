"""Determine which lag of a watermark loses how many rows, by replay of rows; and the lateness of a running query next to it.

The rows are taken one by one in the order in which they arrived, or in micro-batches. A row is late under a lag when its
event time is before the watermark that the rows (or batches) before it have reached: ``late_rule("event")`` of SEMANTICS §4.1.
Of each row it is enough to know how far it was behind the newest row before it: under that lag, or a longer one, it is on time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays import grouping
from krishiv_py.connectors import values
from krishiv_py.display import arrivals, plots
from krishiv_py.display.html import shown as escaped
from krishiv_py.engine import time_watch
from krishiv_py.errors import ColumnError, PlanError, shown, users_line
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.durations import Duration, show_length, to_us
from krishiv_py.plan.options.late import SparedLateEventHandler
from krishiv_py.plan.options.watermarks import most_lag_us
from krishiv_py.plan.running import FAILED_HANDLER, Progress, behind_of, failed_of, summed
from krishiv_py.plan.schema import RESERVED
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from krishiv_py.arrays.types import Ints
    from krishiv_py.display.arrivals import Collected, RowsLike
    from krishiv_py.planner.physical import PhysicalPlan


_SHARES: Final = (1.0, 0.1, 0.05, 0.01, 0.001, 0.0001, 0.0)
"""Parts of the rows that may be lost; where no lags are given, the smallest lag for each part is tried."""
_FIRST: Final = -(2**62)
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_MOST_VALUES: Final = 20
"""So many values of `by` are shown; all are in the tables."""


@attrs.frozen(eq=False)
class LatenessProfile:
    """The lateness of rows, and what each of some lags would lose.

    :func:`lateness_profile` makes it of rows, and ``query.lateness()`` of what a running query has counted.

    Attributes
    ----------
    table : pyarrow.Table
        A row for each lag: ``lag_us`` (int64, µs), ``late`` (int64, rows that would be late) and ``late_share`` (double, from
        0 to 1). With a window also ``held`` (int64, the most rows in windows that have not fired) and ``open`` (int64, the most
        windows open at a time; with `by` one for each value). With a column of arrival times ``delay_us`` (int64, µs, null
        where nothing fired): the median time from the end of a window to its result, or without a window from an event time
        to the watermark that reaches it.
    groups : pyarrow.Table or None
        With `by`: a row for each value, largest lateness first, with ``rows``, ``behind`` (rows that came after a newer row of
        any value), ``most_us`` (the largest distance to the newest row of any value, µs) and ``own_us`` (to the newest of the
        same value).
    group_lags : pyarrow.Table or None
        With `by`: a row for each value and lag of `table`, with ``lag_us``, ``late`` and ``late_share`` (of the rows of the
        value). Values are in the order of `groups`.
    rows : int
        Rows with an event time.
    without_time : int
        Rows whose event time is null or out of range. No lag helps them.
    time, order : str
        The column of event times, and what the rows were ordered by.
    behind_us, behind_rows : ndarray of int64
        The distances to the newest row before that rows have, each once, µs, in ascending order; and how many rows have each.

    Examples
    --------
    >>> from krishiv_py import lateness_profile
    >>> profile = lateness_profile([{"at": at} for at in (0, 5_000, 2_000, 9_000)], "at")
    >>> profile.rows, profile.smallest_lag(), profile.table.slice(0, 1).to_pylist()
    (4, '3 s', [{'lag_us': 0, 'late': 1, 'late_share': 0.25}])
    """

    table: pa.Table
    groups: pa.Table | None
    group_lags: pa.Table | None
    rows: int
    without_time: int
    time: str
    order: str
    behind_us: Ints = attrs.field(repr=False)
    behind_rows: Ints = attrs.field(repr=False)

    def smallest_lag(self, loses_at_most: float = 0.0) -> str:
        """Return the smallest lag under which at most this share of the rows is late, as text for ``.watermark(...)``.

        Parameters
        ----------
        loses_at_most : float
            The share, from 0 to 1: ``0.001`` is one row of a thousand.

        Raises
        ------
        PlanError
            For a share that is not a number from 0 to 1.

        Examples
        --------
        >>> profile = lateness_profile([{"at": at} for at in (0, 5_000, 2_000, 9_000)], "at")
        >>> profile.smallest_lag(), profile.smallest_lag(loses_at_most=0.5)
        ('3 s', '0 s')
        """
        share = loses_at_most
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            hint = "pass a number from 0 to 1: 0.001 is 0.1 %"
            raise PlanError("`loses_at_most` is not part of the rows", got=shown(share), hint=hint)
        return show_length(_lag_for(self.behind_us, self.behind_rows, share))

    def plot(self) -> Figure:
        """Return a figure of the share of late rows over the lag; needs matplotlib.

        Examples
        --------
        >>> from krishiv_py import lateness_profile
        >>> figure = lateness_profile([{"at": at} for at in (0, 5_000, 2_000, 9_000)], "at").plot()
        >>> figure.savefig("/dev/null", format="png")
        """
        return plots.lags(self)

    def __str__(self) -> str:
        names, columns = self._columns()
        parts = [self._title(), aligned([names, *zip(*columns, strict=True)])]
        values = self._values(_MOST_VALUES)
        if values:
            parts += ["", aligned(values)]
            assert self.groups is not None
            left = self.groups.num_rows - _MOST_VALUES
            parts += [f"and {left} more: see profile.groups"] if left > 0 else []
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        names, columns = self._columns()
        values = self._values(_MOST_VALUES)
        shown_tables: list[list[Sequence[str]]] = [[names, *zip(*columns, strict=True)], *([values] if values else [])]
        return f"<p>{escaped(self._title())}</p>" + "".join(_table_html(lines) for lines in shown_tables)

    def _title(self) -> str:
        rows_late = int(self.behind_rows[self.behind_us > 0].sum())
        most = show_length(int(self.behind_us[self.behind_rows > 0].max(initial=0)))
        without = f", {self.without_time} without an event time" if self.without_time else ""
        given = f"{self.rows} rows by {self.time!r}, in the order of {self.order}"
        return f"{given}: {rows_late} came after a newer row, at most {most}{without}"

    def _columns(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Return titles and texts of the table."""
        reached = "result after the end" if "held" in self.table.column_names else "watermark after the time"
        shows: dict[str, tuple[str, Any]] = {
            "lag_us": ("lag", show_length),
            "late": ("late rows", str),
            "late_share": ("share", _percent),
            "held": ("rows held", str),
            "open": ("open windows", str),
            "delay_us": (reached, lambda us: "-" if us is None else show_length(us)),
        }
        names = self.table.column_names
        return tuple(shows[n][0] for n in names), [list(map(shows[n][1], self.table[n].to_pylist())) for n in names]

    def _values(self, most: int) -> list[Sequence[str]]:
        """Return a line of texts for each of the first values of `by`, under a line of titles; nothing without `by`."""
        if self.groups is None or self.group_lags is None:
            return []
        lags = self.table["lag_us"].to_pylist()
        shares = self.group_lags["late_share"].to_pylist()
        head = (self.groups.column_names[0], "rows", "behind", "at most", *(f"late at {show_length(lag)}" for lag in lags))
        lines: list[Sequence[str]] = [head]
        for index, row in enumerate(self.groups.slice(0, most).to_pylist()):
            value, rows, rows_late, most_us, _ = row.values()
            lost_shares = shares[index * len(lags) : (index + 1) * len(lags)]
            lines.append((str(value), str(rows), str(rows_late), show_length(most_us), *map(_percent, lost_shares)))
        return lines


def profile_of_counts(behind_us: Ints, behind_rows: Ints, time: str, order: str, without_time: int) -> LatenessProfile:
    """Return the profile of rows of which only distances and their numbers are known; all distances are lags to try."""
    rows = int(behind_rows.sum())
    late = rows - np.cumsum(behind_rows)
    tried = pa.table(
        {
            "lag_us": pa.array(behind_us, pa.int64()),
            "late": pa.array(late, pa.int64()),
            "late_share": pa.array(late / max(rows, 1), pa.float64()),
        }
    )
    return LatenessProfile(tried, None, None, rows, without_time, time, order, behind_us, behind_rows)


def late_over(profile: LatenessProfile, lag_us: int) -> int:
    """Return how many rows of a profile are late under a lag of so many microseconds."""
    return int(profile.behind_rows[int(np.searchsorted(profile.behind_us, lag_us, side="right")) :].sum())


def lateness_profile(
    rows: RowsLike | Collected,
    time: str,
    *,
    arrival: str | None = None,
    order: str | None = None,
    by: str | None = None,
    batch: Duration | None = None,
    window: Duration | None = None,
    lags: Sequence[Duration] | None = None,
) -> LatenessProfile:
    """Find out by replay which lag of the watermark loses how many of these rows.

    Parameters
    ----------
    rows : pyarrow.Table, RecordBatch, list of dict or object, frame or bounded stream
        Rows as they arrived: Arrow data, dicts, objects of a dataclass or another class with fields, a frame of pandas, Polars
        or DuckDB, or a stream whose source ends, which is read. A DataFrame of Spark has no order, so it needs `arrival` or
        `order`.
    time : str
        The event-time column: a timestamp, a text of ISO 8601 (without a zone it is UTC), or integer milliseconds.
    arrival : str, optional
        The column that says when a row arrived: a timestamp or such a text, or integers that grow. Without it, and without
        `order`, rows arrived as they are listed.
    order : str, optional
        A column that says only in which order rows arrived, such as an offset or a sequence number; of any type that can be
        sorted.
    by : str, optional
        A column, such as the source or the key, for whose values the lateness is shown one by one.
    batch : int or timedelta or str, optional
        Rows that arrived within the same stretch of this length form a micro-batch and are compared with the watermark before
        it (``int`` is milliseconds); needs `arrival`. Without it each row is a batch.
    window : int or timedelta or str, optional
        The size of tumbling windows: then it is shown how many rows are held, how many windows are open, and how long results
        take.
    lags : sequence, optional
        The lags to try. By default the smallest ones that lose all, 10, 5, 1, 0.1, 0.01 and 0 per cent of the rows.

    Raises
    ------
    PlanError
        For values that are not rows, a DataFrame without `arrival` or `order`, a stream without end, `batch` without `arrival`.
    ColumnError
        For a column that the rows do not have, a time column of another type, and texts that cannot be read as times.
    SchemaError
        For a frame with columns that Arrow does not have.
    DurationError
        For a length that is none.

    Warns
    -----
    RuntimeWarning
        When the numbers are probably seconds or microseconds.

    Notes
    -----
    Late is meant as in SEMANTICS §4.1 with an allowed lateness of 0: a row is late when its time is **before** the newest time
    of the rows before it, less the lag; a row exactly there is on time. A query judges a whole micro-batch by the batches
    before it, so it loses at most as many rows as shown, and exactly as many in batches of one row. A lag and an allowed
    lateness together lose what a lag of their sum loses. ``late_rule("window")`` loses no more rows than shown.

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
    arrived_by = _order_column(rows, arrival, order)
    table = arrivals.as_table(rows, "rows")
    for name, what in ((time, "time"), (arrival, "arrival"), (order, "order"), (by, "by")):
        if name is not None or what == "time":
            arrivals.require_name(name, what)
            known_column(str(name), table.column_names, "lateness_profile")
    if batch is not None and arrival is None:
        raise PlanError("`batch` needs to know when rows arrived", got="no `arrival`", hint='pass arrival="the column"')
    table = _plain(table.select(list(dict.fromkeys(filter(None, (time, arrival, order, by))))), time, arrival)
    arrived = None
    if arrival is not None:
        arrived = _arrivals(table, arrival)
        sequence = np.argsort(arrived, kind="stable")
        table, arrived = table.take(pa.array(sequence)), arrived[sequence]
    elif order is not None:
        table = table.take(arrivals.sequence(table[order], order))
    kind = arrivals.kind_of(table, time)
    times, usable = arrivals.instants(table[time], kind)
    doubt = time_watch.unlikely(int(times[usable].max()), kind, time) if usable.any() else None
    if doubt is not None:
        hint = "Hint: pass milliseconds, and make them in the pipeline too"
        warnings.warn(f"lateness_profile: {doubt.partition(' Hint: ')[0]} {hint}", RuntimeWarning, stacklevel=users_line())
    numbers = np.arange(len(times)) if batch is None or arrived is None else arrived // to_us(batch, "batch")
    kept = np.flatnonzero(usable)
    times, numbers = times[kept], numbers[kept]
    before = _newest_before(times, numbers)
    lateness = np.where(before == _FIRST, 0, np.maximum(before - times, 0))
    behind_us, behind_rows = np.unique(lateness, return_counts=True)
    tried = (
        [to_us(lag, "lags", allow_zero=True) for lag in _listed(lags)]
        if lags is not None
        else sorted({_lag_for(behind_us, behind_rows, share) for share in _SHARES})
    )
    columns: dict[str, pa.Array] = {"lag_us": pa.array(tried, pa.int64())}
    beyond = len(times) - np.append(0, np.cumsum(behind_rows))[np.searchsorted(behind_us, tried, side="right")]
    columns["late"] = pa.array(beyond, pa.int64())
    columns["late_share"] = pa.array(beyond / max(len(times), 1), pa.float64())
    of_value = None if by is None else grouping.group([table[by].take(pa.array(kept))], len(times))
    size = None if window is None else to_us(window, "window")
    clock = arrived[kept] if arrived is not None and _is_instant(table[arrival]) else None
    costs = [_Cost.of(times, before, numbers, size, lag, clock, None if of_value is None else of_value.ids) for lag in tried]
    if size is not None:
        columns["held"] = pa.array([cost.held for cost in costs], pa.int64())
        columns["open"] = pa.array([cost.open for cost in costs], pa.int64())
    if clock is not None:
        columns["delay_us"] = pa.array([cost.delay_us for cost in costs], pa.int64())
    groups = group_lags = None
    if by is not None and of_value is not None:
        named = table[by].take(pa.array(kept)).take(pa.array(of_value.first))
        groups, group_lags = _by_value(named, by, of_value.ids, of_value.n, times, numbers, lateness, tried)
    named_order = "the rows" if arrived_by is None else repr(arrived_by)
    without = len(usable) - len(kept)
    return LatenessProfile(pa.table(columns), groups, group_lags, len(kept), without, time, named_order, behind_us, behind_rows)


def _order_column(rows: object, arrival: str | None, order: str | None) -> str | None:
    """Return the column that says in which order rows arrived; None where they are listed so."""
    if arrival is not None and order is not None:
        got = f"arrival={shown(arrival)}, order={shown(order)}"
        hint = "pass `arrival` if the column has times, else `order`"
        raise PlanError("`arrival` and `order` both say in which order rows arrived", got=got, hint=hint)
    if arrival is None and order is None and arrivals.of_spark(rows):
        raise PlanError(
            "the rows of a DataFrame of Spark have no order",
            got="neither `arrival` nor `order`",
            then="lateness is a matter of the order in which rows arrived",
            hint='pass arrival="the column that says when", or order="offset"',
        )
    return order if arrival is None else arrival


def _plain(table: pa.Table, time: str, arrival: str | None) -> pa.Table:
    """Return the table with texts read as times, and event times in µs: digits below do not matter for a lag."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):  # which Polars gives, and Arrow does not sort
            table = table.set_column(i, field.name, table[field.name].cast(pa.string()))
        if field.name in (time, arrival) and field.type in _TEXTS:
            table = table.set_column(i, field.name, _read(table[field.name], field.name))
    type_ = table.schema.field(time).type
    if not (pa.types.is_timestamp(type_) and type_.unit == "ns"):
        return table
    column = table[time].cast(pa.timestamp("us", type_.tz), safe=False)
    return table.set_column(table.column_names.index(time), time, column)


def _read(texts: pa.ChunkedArray, name: str) -> pa.Array:
    """Return the times that texts are."""
    try:
        return values.column(texts.to_pylist(), pa.timestamp("us", "UTC"))
    except values.UnfitError as problem:
        got = f"row {problem.row}: {problem.why}"
        hint = 'write "2024-01-31T12:00:00Z", or pass timestamps or integer milliseconds'
        raise ColumnError(f"the texts of column {name!r} cannot be read as times", got=got, hint=hint) from None


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return texts as lines with one width a column, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _listed(lags: Any) -> Sequence[Duration]:
    if isinstance(lags, (str, bytes)) or not isinstance(lags, Sequence):
        raise PlanError("`lags` is not a list", got=shown(lags), hint='pass lags=["5 s", "1 min"]')
    return lags


def _is_instant(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_timestamp(column.type))


def _arrivals(table: pa.Table, name: str) -> Ints:
    """Return when rows arrived: µs of a timestamp, else the integers themselves."""
    column = table[name]
    if column.null_count or not (_is_instant(column) or pa.types.is_integer(column.type)):
        got = f"{column.null_count} nulls" if column.null_count else type_text(column.type)
        hint = "pass a column of timestamps or integers without nulls"
        raise PlanError(f"{name!r} does not say when rows arrived", got=got, hint=hint)
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


def _lag_for(behind_us: Ints, behind_rows: Ints, share: float) -> int:
    """Return the smallest distance, µs, that at most so many rows exceed; 0 where all may be late."""
    rows = int(behind_rows.sum())
    spared = int(np.floor(share * rows + 1e-9))
    if spared >= rows:
        return 0
    return int(behind_us[int(np.searchsorted(np.cumsum(behind_rows), rows - spared))])


@attrs.frozen
class _Cost:
    """Holds what a lag costs: rows and windows that wait at a time, at most, and how long results take (median, µs)."""

    held: int
    open: int
    delay_us: int | None

    @classmethod
    def of(
        cls, times: Ints, before: Ints, batches: Ints, size: int | None, lag: int, clock: Ints | None, values: Ints | None
    ) -> _Cost:
        """Replay the rows under a lag, in windows of a `size`; without one each time is an end, and only its delay is meant."""
        if not len(times) or (size is None and clock is None):
            return cls(0, 0, None)
        newest = np.maximum.accumulate(times)
        if size is None:
            return cls(0, 0, _delay(times, newest, lag, clock))
        taken = np.flatnonzero((before == _FIRST) | (times >= before - lag))
        ends, window = np.unique((times[taken] // size + 1) * size, return_inverse=True)
        fired = np.searchsorted(newest, ends + lag)  # the row that moves the watermark to the end
        after = np.append(np.searchsorted(batches, batches, side="right"), len(times))  # a window fires with its whole batch
        gone = after[fired]
        held = np.zeros(len(times) + 1, np.int64)
        np.add.at(held, taken, 1)
        np.add.at(held, gone[window], -1)
        of_value = window if values is None else window + len(ends) * values[taken]
        pairs, first = np.unique(of_value, return_index=True)
        opened = np.zeros(len(times) + 1, np.int64)
        np.add.at(opened, taken[first], 1)
        np.add.at(opened, gone[pairs % len(ends)], -1)
        return cls(int(np.cumsum(held).max()), int(np.cumsum(opened).max()), _delay(ends, newest, lag, clock))


def _delay(ends: Ints, newest: Ints, lag: int, clock: Ints | None) -> int | None:
    """Return the median time from an end to the arrival of the row whose watermark reaches it, µs."""
    if clock is None:
        return None
    position = np.searchsorted(newest, ends + lag)
    done = position < len(newest)
    return int(np.median(clock[position[done]] - ends[done])) if done.any() else None


def _by_value(
    named: pa.ChunkedArray, name: str, ids: Ints, n: int, times: Ints, batches: Ints, lateness: Ints, tried: Sequence[int]
) -> tuple[pa.Table, pa.Table]:
    """Return for each value how far its rows were behind, and how many of them each lag loses."""
    own, most = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.maximum.at(own, ids, _own_lateness(ids, times, batches))
    np.maximum.at(most, ids, lateness)
    rows = np.bincount(ids, minlength=n).astype(np.int64)
    lost_rows = [np.bincount(ids[lateness > lag], minlength=n).astype(np.int64) for lag in tried]
    late_rows = np.bincount(ids[lateness > 0], minlength=n).astype(np.int64)
    order = np.argsort(-most, kind="stable")
    groups = pa.table({name: named, "rows": rows, "behind": late_rows, "most_us": most, "own_us": own}).take(pa.array(order))
    late = np.stack(lost_rows, axis=1)[order] if lost_rows else np.zeros((n, 0), np.int64)
    group_lags = pa.table(
        {
            name: groups[name].take(pa.array(np.repeat(np.arange(n), len(tried)))),
            "lag_us": pa.array(np.tile(np.asarray(tried, np.int64), n), pa.int64()),
            "late": pa.array(late.ravel(), pa.int64()),
            "late_share": pa.array((late / np.maximum(rows[order], 1)[:, None]).ravel(), pa.float64()),
        }
    )
    return groups, group_lags


def _own_lateness(ids: Ints, times: Ints, batches: Ints) -> Ints:
    """Return of each row how far it is behind the newest row of its own value in the batches before, µs."""
    if not len(times):
        return times
    order = np.argsort(ids, kind="stable")
    value, batch = ids[order], batches[order]
    instants, rank = np.unique(times[order], return_inverse=True)
    newest = np.maximum.accumulate(rank + value * len(instants))  # a running maximum that begins again with each value
    starts = np.flatnonzero((np.diff(value, prepend=-1) != 0) | (np.diff(batch, prepend=batch[0] - 1) != 0))
    begin = np.repeat(starts, np.diff(starts, append=len(value)))
    known = (begin > 0) & (value[begin - 1] == value)
    before = instants[newest[begin - 1] % len(instants)]
    lateness = np.zeros(len(times), np.int64)
    lateness[order] = np.where(known, np.maximum(before - times[order], 0), 0)
    return lateness


def _table_html(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of texts, the first of which are titles, as a table."""
    cells = [
        "".join(f"<{tag} style='text-align:right'>{escaped(text)}</{tag}>" for text in line)
        for tag, line in zip(("th", *("td",) * (len(lines) - 1)), lines, strict=True)
    ]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


_WITHOUT: Final = ("null_time", "time_out_of_range", "malformed", "unknown_source", "future_dropped", "future_side_output")
"""Counters of rows that the watermark does not follow."""
_FEW: Final = 100
_MANY: Final = 50_000


def counted_profile(counters: dict[str, int], time: str, lag_us: int) -> LatenessProfile:
    """Return the lateness of what a stage has counted.

    Parameters
    ----------
    counters : dict
        What it has counted.
    time : str
        The name of its event time.
    lag_us : int
        The lag of its watermark, µs.
    """
    counted = {0: 0, lag_us: 0, **behind_of(counters)}
    without = sum(counters.get(name, 0) for name in _WITHOUT)
    counted[0] = counters.get("rows", 0) - without - sum(failed_of(counters).values()) - sum(counted.values())
    distances = np.array(sorted(counted), np.int64)
    rows = np.array([counted[int(us)] for us in distances], np.int64)
    return profile_of_counts(distances, rows, time, "the micro-batches", without)


@attrs.define(eq=False)
class DriftWatch:
    """Compares the rows of a query with a profile, in stretches of up to 50 000 rows, whenever its progress is asked for.

    Attributes
    ----------
    expected : LatenessProfile
        The profile.
    begun : LatenessProfile
        What was counted when the stretch in hand began.
    doubt : str or None
        What is wrong; None while nothing is.
    """

    expected: LatenessProfile
    begun: LatenessProfile
    doubt: str | None = None

    def take(self, now: LatenessProfile) -> str | None:
        """Look at what has been counted until `now`; gives what is wrong, in words."""
        rows = now.rows - self.begun.rows
        if rows < _FEW:
            return self.doubt
        self.doubt = self._compared(now, rows)
        if rows >= _MANY:
            self.begun = now
        return self.doubt

    def _compared(self, now: LatenessProfile, rows: int) -> str | None:
        """Return the largest lag that loses more rows than expected, beyond chance, in words."""
        for lag_us in reversed(now.behind_us[:-1].tolist()):
            late = late_over(now, lag_us) - late_over(self.begun, lag_us)
            share = late_over(self.expected, lag_us) / max(self.expected.rows, 1)
            usual = rows * share
            if late > usual + 4 * usual**0.5 + max(5, rows / 1_000):
                lag = show_length(lag_us)
                return (
                    f"{100 * late / rows:.3g} % of the last {rows} rows came more than {lag} after a newer row, "
                    f"and {100 * share:.3g} % in the lateness profile. Hint: set a longer lag, as query.lateness() shows, "
                    "or make the profile again of newer rows"
                )
        return None


@attrs.define(eq=False)
class Lateness:
    """The lateness of the stages of a running query, and the profiles that they are compared with.

    Attributes
    ----------
    plan : PhysicalPlan
        The plan.
    """

    plan: PhysicalPlan
    _watches: dict[int, DriftWatch] = attrs.field(factory=dict)

    def counted(self, progress: Progress, stage: str | None) -> LatenessProfile:
        """Return the lateness that `progress` has counted, of the first stage that judges rows or of one by its name."""
        return self._counted(progress, self.plan.timed_stage(stage))

    def expect(self, profile: object, progress: Progress, stage: str | None) -> None:
        """Compare the rows that come from now on with a profile."""
        number = self.plan.timed_stage(stage)
        self._watches[number] = DriftWatch(checked_profile(profile, self.plan), self._counted(progress, number))

    def seen(self, progress: Progress) -> Progress:
        """Return the progress, with a doubt for stages whose rows have left their profile, and for late handlers that raise."""
        moved = (watch.take(self._counted(progress, number)) for number, watch in self._watches.items())
        spared = {id(s.late): s.late for s in self.plan.stages if isinstance(s.late, SparedLateEventHandler)}.values()
        if not self._watches and not spared:
            return progress
        doubts = (*progress.doubts, *filter(None, moved), *filter(None, (handler.doubt for handler in spared)))
        failed = [{f"{FAILED_HANDLER}{handler.name}": handler.failed} for handler in spared if handler.failed]
        return attrs.evolve(progress, doubts=doubts, counters=summed([dict(progress.counters), *failed]))

    def _counted(self, progress: Progress, number: int) -> LatenessProfile:
        spec = self.plan.stages[number].spec
        own = progress.stages.get(spec.name, progress)
        time = "event time" if spec.time_column.startswith(RESERVED) else spec.time_column
        return counted_profile(own.counters, time, most_lag_us(spec.watermark))


def checked_profile(profile: object, plan: PhysicalPlan) -> LatenessProfile:
    """Return a profile that rows of a plan can be compared with.

    Raises
    ------
    PlanError
        For anything else, and for a plan that judges no rows.
    """
    if not isinstance(profile, LatenessProfile):
        raise PlanError("not a LatenessProfile", got=shown(profile), hint="pass lateness_profile(rows, time)")
    plan.timed_stage(None)
    return profile
