"""Streams with a key, with and without event time."""

from __future__ import annotations

import attrs
from typing_extensions import Self

from krishiv_py.api.lookback import LookBackStream
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.order import RESULTS, needs
from krishiv_py.api.runner import Runner
from krishiv_py.api.windowed import WindowedStream
from krishiv_py.errors import OrderError, PlanError, message, unknown_column
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.late import LateEventHandler
from krishiv_py.plan.nodes import AssignWatermark
from krishiv_py.plan.options import QueryOptions
from krishiv_py.plan.windows import Window
from krishiv_py.plan.windows.fixed import hopping, tumbling
from krishiv_py.plan.windows.lookback import lookback


def checked_keys(keys: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Key columns that exist, each once."""
    for key in keys:
        if not isinstance(key, str):
            raise PlanError(message("keys are column names", repr(key), "rows cannot be grouped", '.key_by("user_id")'))
        if key not in names:
            raise unknown_column(key, names, "key_by")
        if keys.count(key) > 1:
            raise PlanError(message("a key column is named twice", key, "it would appear twice in results", "name it once"))
    return keys


@needs(".tumbling_window(...) or another window", "agg", *RESULTS)
@attrs.frozen(eq=False)
class KeyedStream(OptionMethods):
    """Rows with event time and key, ready for windows."""

    input: AssignWatermark
    keys: tuple[str, ...]
    options: QueryOptions
    late_handler: LateEventHandler
    runner: Runner

    def _with_options(self, options: QueryOptions) -> Self:
        return attrs.evolve(self, options=options)

    def _with_handler(self, handler: LateEventHandler) -> Self:
        return attrs.evolve(self, late_handler=handler)

    def _windowed(self, window: Window) -> WindowedStream:
        return WindowedStream(self.input, self.keys, window, self.options, self.late_handler, self.runner)

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

    def hopping_window(self, size: Duration, slide: Duration, offset: Duration = 0, *,
                       allow_gaps: bool = False) -> WindowedStream:
        """Windows of `size` that start every `slide` (SEMANTICS §3.2).

        Parameters
        ----------
        size, slide, offset : int or timedelta or str
            Length, distance of starts, and shift of starts; ``int`` is milliseconds.
        allow_gaps : bool
            Permit ``slide > size``; rows between windows are counted as ``unassigned``.
        """
        return self._windowed(hopping(size, slide, offset, allow_gaps=allow_gaps))

    def sliding_window(self, size: Duration, slide: Duration, offset: Duration = 0, *,
                       allow_gaps: bool = False) -> WindowedStream:
        """Krishiv's name for :meth:`hopping_window`."""
        return self.hopping_window(size, slide, offset, allow_gaps=allow_gaps)

    def lookback_window(
        self, size: Duration, *, two_sided: bool = False, max_rows_per_key: int | None = None
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

        Raises
        ------
        DurationError
            For negative, float or boolean sizes and unreadable text.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> recent = stream_of("at bigint").watermark("at", 0).lookback_window("30 s").agg(count())
        >>> Driver(recent).send([{"at": 0}, {"at": 30_000}, {"at": 31_000}]).results.to_pydict()
        {'window_start': [-30000, 0], 'window_end': [0, 30000], 'count': [1, 2]}
        """
        window = lookback(size, two_sided=two_sided, max_rows_per_key=max_rows_per_key)
        return LookBackStream(self.input, self.keys, window, self.options, self.late_handler, self.runner)

    def key_by(self, *keys: str) -> KeyedStream:
        """Refused, whatever `keys` are: a stream is keyed once."""
        raise OrderError(message("the stream is keyed already", ", ".join(self.keys), "two groupings cannot both hold",
                                 "name all key columns in one key_by"))
