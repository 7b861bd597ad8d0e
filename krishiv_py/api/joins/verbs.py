"""The joins of a stream with event time (SEMANTICS §9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from krishiv_py.api.joins.sides import On, Sides, checked_suffixes, merged_draft, sides_of, whole_ticks
from krishiv_py.api.options import OptionMethods
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.joins.asof import ASOF_TYPES, DIRECTIONS, AsofJoin, AsofType, Direction
from krishiv_py.plan.joins.base import Join, JoinType
from krishiv_py.plan.joins.interval import JOIN_TYPES, IntervalJoin
from krishiv_py.plan.joins.sides import both, named
from krishiv_py.plan.joins.windowed import WindowJoin
from krishiv_py.plan.windows.fixed import HoppingWindow
from krishiv_py.plan.windows.ticks import finer_than_ms

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream

Suffixes: TypeAlias = "tuple[str, str]"
JoinSide: TypeAlias = "JoinMethods"
"""What can be the right side of a join."""


@attrs.frozen(eq=False, repr=False)
class JoinMethods(OptionMethods):
    """A stage that can be joined with another stream."""

    def interval_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        lower: Duration,
        upper: Duration,
        how: JoinType = "inner",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
        max_rows_per_key: int | None = None,
    ) -> ResultStream:
        """Join with another stream: rows of equal key meet when ``left + lower <= right <= left + upper`` (SEMANTICS §9.1).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or Expr or list or dict, optional
            The key columns: of one name on both sides, or left names with right ones. Or expressions: one for both sides, or a
            pair with one for each, ``on=(col("a").lower(), col("b").lower())``; results have the left one's alias or text.
            May be left out if both streams are keyed; the keys then go together in their order.
        lower, upper : int or timedelta or str
            How far the time of a right row may be from that of a left one, both bounds inclusive; ``int`` is milliseconds,
            negative is before.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            Whether rows without a partner are given with nulls, once none can come; or left rows alone that have one
            (``"semi"``, at its arrival) or none (``"anti"``).
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).
        max_rows_per_key : int, optional
            How many rows of a key each side keeps, the first to arrive of those whose event times are as close as rows can
            stay (docs/joins.md). A row beyond that takes part in no pair, is not kept, and is counted (``limited``). No limit
            by default.

        Returns
        -------
        ResultStream
            Results have the keys, the columns of the left and of the right side, and ``join_time``, the later of both times.
            ``"semi"`` and ``"anti"`` give keys and left columns only.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, ``lower > upper``, and columns of one name.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> shown = stream_of("ad string, at bigint").watermark("at", 0)
        >>> clicked = stream_of("ad string, clicked bigint").watermark("clicked", 0)
        >>> driver = Driver(shown.interval_join(clicked, "ad", lower=0, upper="10 s"))
        >>> _ = driver.send({"left": [{"ad": "x", "at": 1_000}, {"ad": "y", "at": 2_000}]})
        >>> driver.send({"right": [{"ad": "x", "clicked": 4_000}, {"ad": "y", "clicked": 13_000}]}).results.to_pylist()
        [{'ad': 'x', 'at': 1000, 'clicked': 4000, 'join_time': 4000}]
        """
        bounds = (
            to_us(lower, "lower", allow_zero=True, allow_negative=True),
            to_us(upper, "upper", allow_zero=True, allow_negative=True),
        )
        one_of(how, "how", JOIN_TYPES)
        if bounds[0] > bounds[1]:
            raise PlanError(
                "`lower` is beyond `upper`",
                got=f"lower={shown(lower)}, upper={shown(upper)}",
                hint='write for instance lower="-10 minutes", upper="5 minutes": both are added to the time of the left row',
            )
        found = sides_of(self, right, on, "interval_join", left_time=how in ("semi", "anti"))
        for name, bound in zip(("lower", "upper"), bounds, strict=True):
            whole_ticks(found, name, bound)
        columns = named(*found, checked_suffixes(suffixes))
        if max_rows_per_key is not None:
            a_number(max_rows_per_key, "max_rows_per_key", 1, "pass a positive whole number, or None for no limit")
        return self._joined(right, found, IntervalJoin(columns, how, *bounds, max_rows_per_key), idle_timeout)

    def asof_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        direction: Direction = "backward",
        tolerance: Duration | None = None,
        how: AsofType = "left",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
    ) -> ResultStream:
        """Join every row with the row of another stream that is nearest in time (SEMANTICS §9.2).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or list of str or dict, optional
            The key columns, as in :meth:`interval_join`.
        direction : {"backward", "forward", "nearest"}
            Take the newest row at or before the time of the left row, the oldest at or after it, or the closer one of both (of
            two equally close ones the earlier). Of rows of equal time the latest arrival is taken.
        tolerance : int or timedelta or str, optional
            How far away it may be at the most; ``int`` is milliseconds. Forward and nearest need it. Without it the newest
            row of every key stays in state for ever, unless a TTL is set.
        how : {"left", "inner"}
            Whether left rows without a partner are given with nulls, or only counted (``unmatched``).
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys. By default the name of the right side gets ``_right``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).

        Returns
        -------
        ResultStream
            Results have the keys and the columns of the left and of the right side. Their event time is that of the left row.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, a missing tolerance, and columns of one name.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> trades = stream_of("stock string, at bigint").watermark("at", 0)
        >>> quotes = stream_of("stock string, quoted bigint, price double").watermark("quoted", 0)
        >>> driver = Driver(trades.asof_join(quotes, "stock", tolerance="1 min"))
        >>> old, new = [{"stock": "x", "quoted": t, "price": p} for t, p in ((1_000, 5.0), (3_000, 6.0))]
        >>> _ = driver.send({"left": [{"stock": "x", "at": 2_000}], "right": [old, new]})
        >>> driver.close().results.to_pylist()
        [{'stock': 'x', 'at': 2000, 'quoted': 1000, 'price': 5.0}]
        """
        one_of(direction, "direction", DIRECTIONS)
        one_of(how, "how", ASOF_TYPES)
        if tolerance is None and direction != "backward":
            raise PlanError(
                f'direction="{direction}" needs a tolerance',
                got="None",
                then="a left row would wait for ever for a partner that may still come",
                hint='write tolerance="10 seconds"',
            )
        tolerance_us = None if tolerance is None else to_us(tolerance, "tolerance", allow_zero=True)
        found = sides_of(self, right, on, "asof_join", left_time=True)
        if tolerance_us is not None:
            whole_ticks(found, "tolerance", tolerance_us)
        columns = named(*found, checked_suffixes(suffixes))
        return self._joined(right, found, AsofJoin(columns, how, direction, tolerance_us), idle_timeout)

    def window_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        window: HoppingWindow,
        how: JoinType = "inner",
        suffixes: Suffixes | None = None,
        idle_timeout: Duration | None = None,
    ) -> ResultStream:
        """Join with another stream: rows of equal key meet in every window that holds both (SEMANTICS §9.3).

        Parameters
        ----------
        right : TimedStream or KeyedStream
            The other stream, with a watermark of its own; results of a stage have one.
        on : str or list of str or dict, optional
            The key columns, as in :meth:`interval_join`.
        window : TumblingWindow or HoppingWindow
            The windows: ``krishiv_py.windows.tumbling("1 min")`` or ``hopping(...)``.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            Whether rows without a partner in a window are given with nulls; or left rows alone that have one (``"semi"``) or
            none (``"anti"``).
        suffixes : (str, str), optional
            Suffixes for names that both sides have besides keys, and for ``window_start`` and ``window_end`` of a side. By
            default those of the right side get ``_right``, and the bounds of a left side ``_left``.
        idle_timeout : int or timedelta or str, optional
            Leave a side out of the watermark that is silent for longer than this (processing time).

        Returns
        -------
        ResultStream
            Results have the keys, ``window_start`` and ``window_end``, and the columns of the left and of the right side
            (``"semi"`` and ``"anti"``: of the left one). They come once their window is final.

        Raises
        ------
        OrderError
            For a side without watermark.
        PlanError
            For missing keys, keys that do not fit, other windows, and columns of one name.

        Examples
        --------
        >>> from krishiv_py import windows
        >>> from krishiv_py.testing import Driver, stream_of
        >>> asked = stream_of("user string, at bigint").watermark("at", 0)
        >>> bought = stream_of("user string, paid bigint").watermark("paid", 0)
        >>> driver = Driver(asked.window_join(bought, "user", window=windows.tumbling("10 s")))
        >>> _ = driver.send({"left": [{"user": "ann", "at": 1_000}], "right": [{"user": "ann", "paid": 9_000}]})
        >>> driver.close().results.to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 10000, 'at': 1000, 'paid': 9000}]
        """
        one_of(how, "how", JOIN_TYPES)
        if not isinstance(window, HoppingWindow):
            raise PlanError(
                "a window join takes tumbling or hopping windows",
                got=shown(window),
                hint='write window=krishiv_py.windows.tumbling("1 min")',
            )
        found = sides_of(self, right, on, "window_join")
        for name, length in finer_than_ms(window).items():
            whole_ticks(found, name, length)
        bounds = ("window_start", "window_end")
        columns = named(*found, checked_suffixes(suffixes), taken=bounds)
        return self._joined(right, found, WindowJoin(columns, how, window), idle_timeout)

    def _joined(self, right: object, sides: Sides, join: Join, idle_timeout: Duration | None) -> ResultStream:
        idle_us = None if idle_timeout is None else to_us(idle_timeout, "idle_timeout")
        merged = both(*sides, join.sides, idle_us)
        assert isinstance(right, OptionMethods)
        draft = merged_draft(self._draft, right._draft)
        return self._results(attrs.evolve(draft, input=merged.input, keys=merged.keys, operation=join))
