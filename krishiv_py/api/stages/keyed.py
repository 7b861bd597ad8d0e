"""Streams with a key, with and without event time."""

from __future__ import annotations

import attrs
from typing_extensions import Self

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.lookback import LookBackStream
from krishiv_py.api.stages.order import ON_TIMED, RESULTS, instead, needs
from krishiv_py.api.stages.panes import PaneStream, checked_options
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import OrderError, PlanError, message, shown
from krishiv_py.kernels.columns.evaluate import step_schema
from krishiv_py.plan.checks import known_column, one_of
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import AssignWatermark, prefix_of, source_of
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.presets import PRESETS, PresetName
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.windows import Window
from krishiv_py.plan.windows.count import count_rows
from krishiv_py.plan.windows.distinct import SlidingWindows
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, hopping, tumbling
from krishiv_py.plan.windows.lookback import lookback
from krishiv_py.plan.windows.panes import TimeIntervalWindowOptions
from krishiv_py.plan.windows.session import Touch, session
from krishiv_py.redaction import shown_text


def checked_keys(keys: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Key columns that exist, each once."""
    for key in keys:
        if not isinstance(key, str):
            raise PlanError(message("keys are column names", shown(key), "rows cannot be grouped", 'write .key_by("user_id")'))
        known_column(key, names, "key_by")
        if keys.count(key) > 1:
            raise PlanError(message("a key column is named twice", key, "it would appear twice in results", "name it once"))
    return keys


@instead(ON_TIMED)
@needs(".tumbling_window(...) or another window", "agg", *RESULTS)
@attrs.frozen(eq=False)
class KeyedStream(OptionMethods):
    """Rows with event time and key, ready for windows."""

    input: AssignWatermark = attrs.field(repr=shown_text)
    keys: tuple[str, ...]
    options: QueryOptions
    late_handler: LateEventHandler
    runner: Runner

    def _with_options(self, options: QueryOptions) -> Self:
        return attrs.evolve(self, options=options)

    def _with_handler(self, handler: LateEventHandler) -> Self:
        return attrs.evolve(self, late_handler=handler)

    def _windowed(self, window: Window) -> WindowedStream:
        return WindowedStream(self.input, self.keys, window, window.settled(self.options), self.late_handler, self.runner)

    def preset(self, name: PresetName) -> Self:
        """Set the switches of a system: lateness, late rule, emission, touching sessions, start of the watermark.

        Parameters
        ----------
        name : {"krishiv", "ripple", "spl", "kip450", "flink"}
            The system; steps after this one may change single switches again.
        """
        one_of(name, "name", tuple(PRESETS))
        chosen = PRESETS[name]
        changed = attrs.evolve(self, options=chosen.apply(self.options))
        if chosen.initial_us is None:
            return changed
        spec = attrs.evolve(self.input.spec, initial_us=chosen.initial_us)
        return attrs.evolve(changed, input=attrs.evolve(self.input, spec=spec))

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
        """
        return self._windowed(tumbling(size, offset))

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
            How many windows a row may be in; more are refused, for each has a result for its key (docs/costs.md).

        Raises
        ------
        DurationError
            For zero, negative, float or boolean lengths and unreadable text.
        PlanError
            For gaps that are not permitted, and for ``size / slide`` above `max_overlap`.
        """
        return self._windowed(hopping(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap))

    def sliding_window(
        self, size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """Krishiv's name for :meth:`hopping_window`."""
        return self.hopping_window(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap)

    def lookback_window(
        self,
        size: Duration,
        *,
        two_sided: bool = False,
        max_rows_per_key: int | None = None,
        with_row: bool = False,
        exclude_self: bool = False,
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
            Hold at most so many rows of a key: beyond them the oldest are dropped, and counted as ``limited``; those that
            had no result yet (and get none) also as ``limited_unfired``. The limit is applied after each batch.
        with_row : bool
            Let each result carry its whole row: after the aggregates, every other column of the row under its own name. So
            results of rows of equal time can be told apart.
        exclude_self : bool
            Leave the row itself out of its window; rows of equal time stay. Without another row aggregates are null, and
            counts 0 and lists empty.

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
        """
        window = lookback(
            size, two_sided=two_sided, max_rows_per_key=max_rows_per_key, with_row=with_row, exclude_self=exclude_self
        )
        return LookBackStream(self.input, self.keys, window, window.settled(self.options), self.late_handler, self.runner)

    def session_window(
        self, gap: Duration | Col, *, touch: Touch | None = None, max_duration: Duration | None = None
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
            A row at distance exactly `gap` starts a new session, or joins (as Flink, Kafka Streams and Spark have it).
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
        window = session(gap, touch=self.options.touch if touch is None else touch, max_duration=max_duration)
        if window.columns():
            schema = source_of(self.input).schema
            for step in prefix_of(self.input):
                schema = step_schema(step, schema)
            window.check_columns(schema)
        return self._windowed(window)

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
        return self._windowed(count_rows(size, slide, max_overlap=max_overlap))

    def windowed_by(self, windows: SlidingWindows) -> WindowedStream:
        """Kafka's sliding windows: one per distinct set of rows that lie within their size (KIP-450, SEMANTICS §3.5).

        Their grace is the allowed lateness, where that is not longer. A window has one result, its final one, unless ``emit``
        asks for more.

        Parameters
        ----------
        windows : SlidingWindows
            Made by ``SlidingWindows.of(size).grace(d)``.

        Raises
        ------
        PlanError
            For anything else.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> sets = stream_of("at bigint").watermark("at", 0).windowed_by(SlidingWindows.of(10)).agg(count())
        >>> Driver(sets).send([{"at": 0}, {"at": 8}, {"at": 40}]).results.to_pydict()
        {'window_start': [-10, -2, 1], 'window_end': [0, 8, 11], 'count': [1, 2, 1]}
        """
        if not isinstance(windows, SlidingWindows):
            raise PlanError(
                message(
                    "windowed_by takes SlidingWindows",
                    shown(windows),
                    "rows would be in no window",
                    "write .windowed_by(SlidingWindows.of(10_000)), or .tumbling_window(...) and its like",
                )
            )
        return self._windowed(windows)

    def time_interval_window(self, options: TimeIntervalWindowOptions) -> PaneStream:
        """SPL's event-time panes (SEMANTICS §3.6): results at each trigger, or a handler of all pane events.

        Parameters
        ----------
        options : TimeIntervalWindowOptions
            Duration, creation period, discard age and offset, under SPL's names.
        """
        window = checked_options(options)
        return PaneStream(self.input, self.keys, window, window.settled(self.options), self.late_handler, self.runner)

    def key_by(self, *keys: str) -> KeyedStream:
        """Refused, whatever `keys` are: a stream is keyed once."""
        raise OrderError(
            message(
                "the stream is keyed already",
                ", ".join(self.keys),
                "two groupings cannot both hold",
                "name all key columns in one key_by",
            )
        )
