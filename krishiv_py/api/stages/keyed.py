"""Streams with a key: windows, ``window(spec)`` and a short form for each kind, joins and the step that drops duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

import attrs
import pyarrow as pa

from krishiv_py.api.computed import keys_of, visible, with_computed
from krishiv_py.api.joins import JoinMethods
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import check, evaluate
from krishiv_py.api.stages.changing import TableMethods, by_change_time
from krishiv_py.api.stages.matched import MatchMethods
from krishiv_py.api.stages.processed import ProcessMethods
from krishiv_py.api.stages.windowed import LookBackStream, PaneStream, WindowedStream, checked_options
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.described import WindowAssigner
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Project, Stage, source_of
from krishiv_py.plan.operation import Duplicates, deduplication, passing
from krishiv_py.plan.schema import require_columns
from krishiv_py.plan.windows import WindowOperation
from krishiv_py.plan.windows.count import count_rows
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, assigned, cumulate, hopping, tumbling
from krishiv_py.plan.windows.lookback import LookBackEmit, LookBackWindow, SlidingWindows, lookback
from krishiv_py.plan.windows.panes import TimeIntervalWindowOptions
from krishiv_py.plan.windows.session import COMPUTED_GAP, SessionWindow, Touch, session
from krishiv_py.plan.windows.window import check_ticks, finer_than_ms

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


@attrs.frozen(eq=False, repr=False)
class DedupMethods(OptionMethods):
    """A stage whose duplicates can be dropped."""

    def drop_duplicates(self, *columns: str | Expr, within: Duration, duplicates: Duplicates = "count") -> ResultStream:
        """Let the first row of each identity pass, and drop the rows that repeat it (SEMANTICS §8).

        A row passes in the micro-batch in which it arrives, with all its columns. It is a duplicate when a row with the same
        values in `columns` has passed whose event time is less than `within` away, before or after. Duplicates are counted
        as ``duplicates``. Null equals null.

        Parameters
        ----------
        *columns : str or Expr
            What makes two rows the same: columns, or expressions over them, which rows do not get as columns. By default the
            keys of the stream; without keys, all columns.
        within : int or timedelta or str
            How far apart in event time duplicates can be; ``int`` is milliseconds. A row is kept in state for so long, and
            for the lag and the allowed lateness.
        duplicates : {"count", "side_output"}
            Only count duplicates, or also hand them to the late handler with the reason ``duplicate``.

        Returns
        -------
        ResultStream
            The rows that pass, with their columns as they came. They can be run, or be windowed in another stage.

        Raises
        ------
        ColumnError
            For columns that do not exist, and for values that cannot be compared.
        DurationError
            For a zero, negative, float or boolean `within`, and unreadable text.
        PlanError
            For options that do not apply here: triggers, emit modes, panes.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> clicks = stream_of("id string, at bigint").watermark("at", "5 s").drop_duplicates("id", within="1 min")
        >>> driver = Driver(clicks)
        >>> rows = [{"id": "a", "at": 0}, {"id": "a", "at": 59_999}, {"id": "b", "at": 60_000}, {"id": "a", "at": 60_000}]
        >>> driver.send(rows).results.to_pylist()
        [{'id': 'a', 'at': 0}, {'id': 'b', 'at': 60000}, {'id': 'a', 'at': 60000}]
        >>> driver.counters["duplicates"]
        1
        """
        schema = self._row_schema()
        once = [c for i, c in enumerate(columns) if not isinstance(c, str) or c not in columns[:i]]
        names, computed = keys_of(once, visible(schema), "drop_duplicates")
        own = tuple(self._draft.input.input.computes) if isinstance(self._draft.input.input, Project) else ()
        hidden = (*own, *(name for name, _ in computed))
        identity = names or self._draft.keys or tuple(f.name for f in passing(schema))
        mark = with_computed(self._draft.input, schema, computed)
        return self._results(
            attrs.evolve(self._draft, input=mark, keys=identity).doing(deduplication(within, duplicates, hidden))
        )


S = TypeVar("S", bound=WindowedStream)


@attrs.frozen(eq=False, repr=False)
class WindowMethods(OptionMethods):
    """A stage that windows come next to."""

    @overload
    def window(self, spec: LookBackWindow) -> LookBackStream: ...
    @overload
    def window(self, spec: TimeIntervalWindowOptions) -> PaneStream: ...
    @overload
    def window(self, spec: WindowOperation | SlidingWindows | WindowAssigner) -> WindowedStream: ...
    def window(self, spec: WindowOperation | SlidingWindows | WindowAssigner | TimeIntervalWindowOptions) -> WindowedStream:
        """Windows of any kind, as a value; the other methods are short forms of this one.

        Parameters
        ----------
        spec : window
            Made by a function of :mod:`krishiv_py.windows`, such as ``tumbling("1 min")`` or ``calendar_window("month")``;
            ``SlidingWindows`` or ``TimeIntervalWindowOptions``; or a :class:`~krishiv_py.WindowAssigner` of your own
            (SEMANTICS §3.9).

        Raises
        ------
        PlanError
            For anything else.

        Examples
        --------
        >>> from krishiv_py import calendar_window, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> days = stream_of("at timestamp").watermark("at", 0).window(calendar_window("day", "Europe/Berlin")).agg(count())
        >>> import datetime as dt
        >>> driver = Driver(days)
        >>> _ = driver.send([{"at": dt.datetime(2024, 3, 31, 12, tzinfo=dt.timezone.utc)}])
        >>> row = driver.close().results.to_pylist()[0]
        >>> row["window_end"] - row["window_start"]
        datetime.timedelta(seconds=82800)
        """
        if isinstance(spec, WindowAssigner):
            return self._windowed(assigned(spec), WindowedStream)
        if isinstance(spec, TimeIntervalWindowOptions):
            return self._windowed(checked_options(spec), PaneStream)
        if isinstance(spec, SlidingWindows):
            return self._windowed(spec._window(), WindowedStream)
        if not isinstance(spec, WindowOperation):
            hint = 'write .window(krishiv_py.windows.tumbling("1 min")), SlidingWindows.of(10_000) or a WindowAssigner()'
            raise PlanError("not a window", got=shown(spec), hint=hint)
        stage = {"lookback": LookBackStream, "time_interval": PaneStream}.get(spec.kind, WindowedStream)
        return self._windowed(spec, stage)

    def _windowed(self, window: WindowOperation, stage: type[S]) -> S:
        draft, rows = self._draft, self._row_schema() if window.extent.gap_column else pa.schema([])
        if isinstance(below := source_of(draft.input), Stage):
            check.check_followed(below, window)
            draft = attrs.evolve(draft, input=by_change_time(draft.input, below))
        if isinstance(window, SessionWindow) and window.gap is not None:
            require_columns(window.gap, visible(rows), "session_window")
            length = pa.field(COMPUTED_GAP, evaluate.expr_type(window.gap, visible(rows)))
            draft = attrs.evolve(draft, input=with_computed(draft.input, rows, [(COMPUTED_GAP, window.gap)]))
            rows = rows.append(length)
        if window.extent.gap_column:
            window.check_columns(rows)
        if finer := finer_than_ms(window):
            column = draft.input.column
            check_ticks(finer, self._row_schema().field(column).type, column)
        return stage(draft.doing(window), self._runner)

    def tumbling_window(self, size: Duration, offset: Duration = 0) -> WindowedStream:
        """Windows of `size` that touch and never overlap (SEMANTICS §3.1).

        Parameters
        ----------
        size : int or timedelta or str
            Length; ``int`` is milliseconds.
        offset : int or timedelta or str
            Shift of all window starts from the epoch, modulo `size`; may be negative.

        Raises
        ------
        DurationError
            For zero, negative, float or boolean sizes and unreadable text.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "1 s").tumbling_window(10, offset=3).agg(count()))
        >>> _ = driver.send([{"at": at} for at in (1, 4, 12, 14)])
        >>> [(row["window_start"], row["count"]) for row in driver.close().results.to_pylist()]
        [(-7, 1), (3, 2), (13, 1)]
        """
        return self.window(tumbling(size, offset))

    def hopping_window(
        self, size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """Windows of `size` that start every `slide` (SEMANTICS §3.2).

        Parameters
        ----------
        size, slide, offset : int or timedelta or str
            Length, distance of starts, and shift of starts; ``int`` is milliseconds.
        allow_gaps : bool
            Permit ``slide > size``; rows between windows are counted as ``unassigned``.
        max_overlap : int
            How many windows a row may be in. More are refused, because each has a result for its key (docs/costs.md).

        Raises
        ------
        DurationError
            For zero, negative, float or boolean lengths and unreadable text.
        PlanError
            For gaps that are not permitted, and for ``size / slide`` above `max_overlap`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "1 s").hopping_window(size=10, slide=5).agg(count()))
        >>> _ = driver.send([{"at": at} for at in (1, 7)])
        >>> [(row["window_start"], row["window_end"], row["count"]) for row in driver.close().results.to_pylist()]
        [(-5, 5, 1), (0, 10, 2), (5, 15, 1)]
        """
        return self.window(hopping(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap))

    def sliding_window(
        self, size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """Overlapping windows of one `size`, a new one every `slide`: Krishiv's name for :meth:`hopping_window`.

        The parameters `offset`, `allow_gaps` and `max_overlap`, and the errors, are those of that method. The sliding windows
        of Kafka Streams are other ones: :class:`~krishiv_py.SlidingWindows`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 0).sliding_window("10 s", "5 s").agg(count()))
        >>> _ = driver.send([{"at": 7_000}])
        >>> [(row["window_start"], row["window_end"]) for row in driver.close().results.to_pylist()]
        [(0, 10000), (5000, 15000)]
        """
        return self.hopping_window(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap)

    def cumulate_window(
        self, step: Duration, size: Duration, offset: Duration = 0, *, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """Windows of one start that grow by `step` until they have `size`, as CUMULATE in Flink SQL (SEMANTICS §11.1).

        Parameters
        ----------
        step, size, offset : int or timedelta or str
            Growth, full length (a multiple of `step`), and shift of starts; ``int`` is milliseconds.
        max_overlap : int
            How many windows a row may be in; a row is kept once in each of them.

        Raises
        ------
        PlanError
            For a `size` that is not a multiple of `step`, and for ``size / step`` above `max_overlap`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "1 s").cumulate_window(step=5, size=15).agg(count()))
        >>> _ = driver.send([{"at": at} for at in (1, 7)])
        >>> [(row["window_start"], row["window_end"], row["count"]) for row in driver.close().results.to_pylist()]
        [(0, 5, 1), (0, 10, 2), (0, 15, 2)]
        """
        return self.window(cumulate(step, size, offset, max_overlap=max_overlap))

    def lookback_window(
        self,
        size: Duration,
        *,
        two_sided: bool = False,
        max_rows_per_key: int | None = None,
        with_row: bool = False,
        exclude_self: bool = False,
        emit: LookBackEmit = "watermark",
        max_rows_per_window: int | None = None,
    ) -> LookBackStream:
        """One window per row: the rows of its key in ``[t - size, t]``, both ends inclusive (SEMANTICS §3.4).

        A row's result comes when the watermark has passed its time (``two_sided``: its window's end), so that rows of equal
        time see each other. A row is late when ``t < W - allowed lateness``, under either late rule.

        Parameters
        ----------
        size : int or timedelta or str
            How far back a row sees; ``int`` is milliseconds; 0 is legal and leaves rows of the same instant.
        two_sided : bool
            Look ahead as well: ``[t - size, t + size]``.
        max_rows_per_key : int, optional
            Let a window be the newest rows of its range, at most so many, the row itself always among them. Every row has a
            result; results over a part of their range are counted as ``limited_results``. Of each key so many rows are kept,
            and those that wait for their result. How rows are divided into batches does not matter.
        with_row : bool
            Add the whole row to each result: after the aggregates, every other column of the row under its own name. You can
            then distinguish results of rows of equal time.
        exclude_self : bool
            Exclude the row itself from its window; other rows of equal time stay. If there are no other rows, aggregates are
            null, counts are 0 and lists are empty.
        emit : {"watermark", "arrival"}
            When a row has its result. ``"arrival"``: in the batch that brings it, over the rows that have arrived before it
            and the row itself. It has this one result, which rows that come later never change, and how rows are divided into
            batches does not matter. The watermark then only says which rows are late and how long rows are kept
            (SEMANTICS §11.4).
        max_rows_per_window : int, optional
            Let at most this many rows of a key into a window, the first to arrive. Another row takes part in no window, has
            no result, is not kept, and is counted as ``limited``. The rule: fewer rows than the limit that arrived before, and
            take part, are within `size` of the row in event time (``two_sided``: within twice the size). How rows are divided
            into batches does not matter.

        Raises
        ------
        DurationError
            For negative, float or boolean sizes and unreadable text.
        PlanError
            From ``agg``, for a column of the row that is named like an aggregate or a column of the window.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> recent = stream_of("at bigint").watermark("at", 0).lookback_window("30 s").agg(count())
        >>> Driver(recent).send([{"at": 0}, {"at": 30_000}, {"at": 31_000}]).results.to_pydict()
        {'window_start': [-30000, 0], 'window_end': [0, 30000], 'count': [1, 2]}
        >>> at_once = stream_of("at bigint").watermark("at", 0).lookback_window("30 s", emit="arrival").agg(count())
        >>> Driver(at_once).send([{"at": 0}, {"at": 30_000}, {"at": 31_000}]).results.to_pydict()
        {'window_start': [-30000, 0, 1000], 'window_end': [0, 30000, 31000], 'count': [1, 2, 2]}
        """
        window = lookback(
            size,
            two_sided=two_sided,
            max_rows_per_key=max_rows_per_key,
            with_row=with_row,
            exclude_self=exclude_self,
            emit=emit,
            max_rows_per_window=max_rows_per_window,
        )
        return self.window(window)

    def session_window(
        self, gap: Duration | Expr, *, touch: Touch | None = None, max_duration: Duration | None = None
    ) -> WindowedStream:
        """Windows of activity: rows of a key that follow each other within `gap` (SEMANTICS §3.3).

        Every row opens ``[t, t + gap)``; spans of one key that overlap are one session, in whatever order rows arrive.

        Parameters
        ----------
        gap : int or timedelta or str or Col
            Length of the pause that ends a session; ``int`` is milliseconds. Or a column with a gap for every row (integer
            milliseconds, or a duration type): a text that starts with a digit is a duration, any other text names a column.
            Rows whose gap is null, zero or negative belong to no session and are counted as ``unassigned``.
        touch : {"separate", "merge"}
            A row at distance exactly `gap` starts a new session, or joins (as Flink, Kafka Streams and Spark have it). Unless
            given, what the preset says, or else ``"separate"``.
        max_duration : int or timedelta or str, optional
            The longest a session may last: a row joins only while ``t - first < max_duration``, and the session ends at
            ``min(last + gap, first + max_duration)``. Without it `explain` warns that state is unbounded.

        Raises
        ------
        DurationError
            For a zero, negative, float or boolean gap or longest duration, and unreadable text.
        ColumnError
            For a gap column that does not exist or holds no lengths of time.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("user string, at bigint").watermark("at", 0).key_by("user").session_window("5 s").agg(count())
        >>> driver = Driver(visits)
        >>> rows = [{"user": "a", "at": 1_000}, {"user": "a", "at": 4_000}, {"user": "b", "at": 20_000}]
        >>> driver.send(rows).results.to_pylist()
        [{'user': 'a', 'window_start': 1000, 'window_end': 9000, 'count': 2}]
        """
        window = session(gap, touch=touch, max_duration=max_duration)
        return self.window(window)

    def count_window(self, size: int, slide: int | None = None, *, max_overlap: int = MAX_OVERLAP) -> WindowedStream:
        """Every `size` rows of a key in order of arrival (SEMANTICS §3.7).

        ``window_start`` and ``window_end`` are ``int64`` row numbers of the key, counted from 0. A window fires when it is
        full, whatever the watermark; what is not full at the end of input fires then.

        Parameters
        ----------
        size : int
            Rows in a window, from 1.
        slide : int, optional
            Rows between two starts, at most `size`, which is the default.
        max_overlap : int
            How many windows a row may be in, as for :meth:`hopping_window`.

        Examples
        --------
        >>> from krishiv_py import sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> pairs = stream_of("at bigint, n bigint").watermark("at", 0).count_window(2).agg(sum("n"))
        >>> Driver(pairs).send([{"at": 1, "n": 10}, {"at": 1, "n": 20}, {"at": 1, "n": 30}]).results.to_pylist()
        [{'window_start': 0, 'window_end': 2, 'sum_n': 30}]
        """
        return self.window(count_rows(size, slide, max_overlap=max_overlap))

    def windowed_by(
        self, windows: WindowOperation | SlidingWindows | WindowAssigner | TimeIntervalWindowOptions
    ) -> WindowedStream:
        """:meth:`window` under Kafka's name, for ``SlidingWindows`` and every other window.

        ``SlidingWindows`` are one window per distinct set of rows that lie within their size (KIP-450, SEMANTICS §3.5). Their
        grace is the allowed lateness, unless a longer one is set. A window has one final result, unless ``emit`` sets another
        mode. With ``direction="forward"`` each distinct timestamp gives one result.

        Parameters
        ----------
        windows : window
            ``SlidingWindows.of(size).grace(d)``, or what :meth:`window` takes.

        Raises
        ------
        PlanError
            For anything else.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows
        >>> from krishiv_py.testing import Driver, stream_of
        >>> sets = stream_of("at bigint").watermark("at", 0).windowed_by(SlidingWindows.of(10)).count()
        >>> Driver(sets).send([{"at": 0}, {"at": 8}, {"at": 40}]).results.to_pydict()
        {'window_start': [-10, -2, 1], 'window_end': [0, 8, 11], 'count': [1, 2, 1]}
        """
        return self.window(windows)

    def time_interval_window(self, options: TimeIntervalWindowOptions) -> PaneStream:
        """SPL's event-time panes (SEMANTICS §3.6): results at each trigger, or a handler of all pane events.

        Parameters
        ----------
        options : TimeIntervalWindowOptions
            Duration, creation period, discard age and offset, under SPL's names.

        Examples
        --------
        >>> from krishiv_py import TimeIntervalWindowOptions, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> options = TimeIntervalWindowOptions("10 s", creation_period="5 s")
        >>> driver = Driver(stream_of("at bigint").watermark("at", 0).time_interval_window(options).agg(count()))
        >>> out = driver.send([{"at": 1_000}, {"at": 12_000}]).results
        >>> [(row["window_start"], row["window_end"], row["pane_timing"], row["count"]) for row in out.to_pylist()]
        [(-5000, 5000, 'on_complete', 1), (0, 10000, 'on_complete', 1)]
        """
        return self._windowed(checked_options(options), PaneStream)


@attrs.frozen(eq=False, repr=False)
class KeyedStream(WindowMethods, JoinMethods, DedupMethods, ProcessMethods, MatchMethods, TableMethods):
    """Rows with event time and key, ready for windows.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    >>> driver = Driver(keyed.tumbling_window(10).agg(count()))
    >>> _ = driver.send([{"user": "ann", "at": 1}, {"user": "bob", "at": 2}, {"user": "ann", "at": 3}])
    >>> [(row["user"], row["count"]) for row in driver.close().results.to_pylist()]
    [('ann', 2), ('bob', 1)]
    """

    _kind = "timed"
