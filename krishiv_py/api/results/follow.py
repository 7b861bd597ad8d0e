"""The steps that can follow results: they are the rows of a further stage (SEMANTICS §7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_py.plan.dedup import Duplicates
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.joins.asof import AsofType, Direction
from krishiv_py.plan.joins.base import JoinType
from krishiv_py.plan.nodes import BatchFunction
from krishiv_py.plan.windows import Window
from krishiv_py.plan.windows.assigner import WindowAssigner
from krishiv_py.plan.windows.distinct import SlidingWindows
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, HoppingWindow
from krishiv_py.plan.windows.lookback import LookBackEmit
from krishiv_py.plan.windows.panes import TimeIntervalWindowOptions
from krishiv_py.plan.windows.session import Touch

if TYPE_CHECKING:
    from krishiv_py.api.joins.joined import JoinedStream
    from krishiv_py.api.joins.lookup import LookupKeys, LookupType
    from krishiv_py.api.joins.sides import On
    from krishiv_py.api.joins.verbs import JoinSide
    from krishiv_py.api.results.rows import RowStream
    from krishiv_py.api.results.stream import ResultStream
    from krishiv_py.api.stages.keyed import KeyedStream
    from krishiv_py.api.stages.lookback import LookBackStream
    from krishiv_py.api.stages.panes import PaneStream
    from krishiv_py.api.stages.timed import TimedStream
    from krishiv_py.api.stages.windowed import WindowedStream


class FollowMethods:
    """Short forms of the steps of :meth:`results`."""

    __slots__ = ()

    def results(self) -> ResultStream:
        """The results as rows; implemented by the stage."""
        raise NotImplementedError

    def select(self, *columns: str | Expr, **named: Expr | str) -> ResultStream:
        """See :meth:`ResultStream.select`: keep and compute `columns`, and `named` ones."""
        return self.results().select(*columns, **named)

    def filter(self, condition: Expr | str) -> ResultStream:
        """See :meth:`ResultStream.filter`: keep results for which `condition` is true (HAVING)."""
        return self.results().filter(condition)

    def with_column(self, name: str, value: Expr | str) -> ResultStream:
        """See :meth:`ResultStream.with_column`: add or replace column `name` by `value`."""
        return self.results().with_column(name, value)

    def rename(self, **names: str) -> ResultStream:
        """See :meth:`ResultStream.rename`: `names` are old names with new ones."""
        return self.results().rename(**names)

    def drop(self, *columns: str) -> ResultStream:
        """See :meth:`ResultStream.drop`: leave `columns` out."""
        return self.results().drop(*columns)

    def map_batches(self, function: BatchFunction, schema: pa.Schema | str | None = None) -> ResultStream:
        """See :meth:`ResultStream.map_batches`: apply `function`, which returns rows of `schema`."""
        return self.results().map_batches(function, schema)

    def unnest(self, column: str, *, rank: str | None = None, outer: bool = False) -> ResultStream:
        """See :meth:`ResultStream.unnest`: one row for each item of the list `column`, with `rank` and `outer` as there."""
        return self.results().unnest(column, rank=rank, outer=outer)

    def lookup_join(
        self,
        table: Any,
        on: LookupKeys,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        how: LookupType = "left",
        validity: tuple[str, str] | None = None,
        at: str | None = None,
        reload: Duration | None = None,
    ) -> ResultStream:
        """See :meth:`ResultStream.lookup_join`, with its `table`, `on`, `columns`, `how`, `validity`, `at` and `reload`."""
        return self.results().lookup_join(table, on, columns=columns, how=how, validity=validity, at=at, reload=reload)

    def watermark(self, column: str, lag: Duration) -> TimedStream:
        """See :meth:`ResultStream.watermark`: a further `lag` of the next stage; `column` is the event time of results."""
        return self.results().watermark(column, lag)

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedStream:
        """See :meth:`ResultStream.key_by`: group results by `keys`, columns or expressions, and `named` ones."""
        return self.results().key_by(*keys, **named)

    def drop_duplicates(self, *columns: str | Expr, within: Duration, duplicates: Duplicates = "count") -> RowStream:
        """See :meth:`KeyedStream.drop_duplicates`: results that repeat `columns` `within` a time; `duplicates` as there."""
        return self.results().drop_duplicates(*columns, within=within, duplicates=duplicates)

    def interval_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        lower: Duration,
        upper: Duration,
        how: JoinType = "inner",
        suffixes: tuple[str, str] | None = None,
        idle_timeout: Duration | None = None,
        max_rows_per_key: int | None = None,
    ) -> JoinedStream:
        """See :meth:`KeyedStream.interval_join`, with its `right`, `on`, `lower`, `upper`, `how`, `suffixes` and the rest."""
        return self.results().interval_join(
            right,
            on,
            lower=lower,
            upper=upper,
            how=how,
            suffixes=suffixes,
            idle_timeout=idle_timeout,
            max_rows_per_key=max_rows_per_key,
        )

    def asof_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        direction: Direction = "backward",
        tolerance: Duration | None = None,
        how: AsofType = "left",
        suffixes: tuple[str, str] | None = None,
        idle_timeout: Duration | None = None,
    ) -> JoinedStream:
        """See :meth:`KeyedStream.asof_join`, with its `right`, `on`, `direction`, `tolerance`, `how` and the rest."""
        return self.results().asof_join(
            right, on, direction=direction, tolerance=tolerance, how=how, suffixes=suffixes, idle_timeout=idle_timeout
        )

    def window_join(
        self,
        right: JoinSide,
        on: On | None = None,
        *,
        window: HoppingWindow,
        how: JoinType = "inner",
        suffixes: tuple[str, str] | None = None,
        idle_timeout: Duration | None = None,
    ) -> JoinedStream:
        """See :meth:`KeyedStream.window_join`, with its `right`, `on`, `window`, `how` and the rest."""
        return self.results().window_join(right, on, window=window, how=how, suffixes=suffixes, idle_timeout=idle_timeout)

    def window(self, spec: Window | WindowAssigner | TimeIntervalWindowOptions) -> WindowedStream:
        """See :meth:`KeyedStream.window`: windows of `spec` over all results."""
        return self.results().window(spec)

    def tumbling_window(self, size: Duration, offset: Duration = 0) -> WindowedStream:
        """See :meth:`KeyedStream.tumbling_window`, with its `size` and `offset`."""
        return self.results().tumbling_window(size, offset)

    def hopping_window(
        self, size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """See :meth:`KeyedStream.hopping_window`, with its `size`, `slide`, `offset`, `allow_gaps` and `max_overlap`."""
        return self.results().hopping_window(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap)

    def sliding_window(
        self, size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """See :meth:`KeyedStream.sliding_window`, with its `size`, `slide`, `offset`, `allow_gaps` and `max_overlap`."""
        return self.hopping_window(size, slide, offset, allow_gaps=allow_gaps, max_overlap=max_overlap)

    def cumulate_window(
        self, step: Duration, size: Duration, offset: Duration = 0, *, max_overlap: int = MAX_OVERLAP
    ) -> WindowedStream:
        """See :meth:`KeyedStream.cumulate_window`, with its `step`, `size`, `offset` and `max_overlap`."""
        return self.results().cumulate_window(step, size, offset, max_overlap=max_overlap)

    def session_window(
        self, gap: Duration | Expr, *, touch: Touch | None = None, max_duration: Duration | None = None
    ) -> WindowedStream:
        """See :meth:`KeyedStream.session_window`, with its `gap`, `touch` and `max_duration`."""
        return self.results().session_window(gap, touch=touch, max_duration=max_duration)

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
        """See :meth:`KeyedStream.lookback_window`.

        It has its `size`, `two_sided`, `max_rows_per_key`, `with_row`, `exclude_self`, `emit` and
        `max_rows_per_window`.
        """
        return self.results().lookback_window(
            size,
            two_sided=two_sided,
            max_rows_per_key=max_rows_per_key,
            with_row=with_row,
            exclude_self=exclude_self,
            emit=emit,
            max_rows_per_window=max_rows_per_window,
        )

    def count_window(self, size: int, slide: int | None = None, *, max_overlap: int = MAX_OVERLAP) -> WindowedStream:
        """See :meth:`KeyedStream.count_window`, with its `size`, `slide` and `max_overlap`."""
        return self.results().count_window(size, slide, max_overlap=max_overlap)

    def windowed_by(self, windows: SlidingWindows) -> WindowedStream:
        """See :meth:`KeyedStream.windowed_by`, with its `windows`."""
        return self.results().windowed_by(windows)

    def time_interval_window(self, options: TimeIntervalWindowOptions) -> PaneStream:
        """See :meth:`KeyedStream.time_interval_window`, with its `options`."""
        return self.results().time_interval_window(options)
