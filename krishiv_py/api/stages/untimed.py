"""Streams that have keys, and no event time yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from krishiv_py.api.computed import Named
from krishiv_py.api.shown import ShownInALine, some
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.order import JOINS, ON_KEYED, RESULTS, WINDOWS, instead, needs
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec

if TYPE_CHECKING:
    from krishiv_py.api.stages.stream import Stream


@instead(ON_KEYED)
@needs('.watermark("column", lag)', "agg", *WINDOWS, *JOINS, *RESULTS)
@attrs.frozen(eq=False, repr=False)
class KeyedUntimedStream(ShownInALine):
    """A keyed stream that still needs its event time.

    Attributes
    ----------
    keys : tuple of str
        The names of the key columns.

    Examples
    --------
    >>> from krishiv_py.testing import stream_of
    >>> keyed = stream_of("user string, at bigint").key_by("user")
    >>> keyed.watermark("at", "5 s")
    <KeyedStream user, at; event time at, watermark max(event time) - 5 s; by user>
    """

    _stream: Stream
    keys: tuple[str, ...]
    _computed: tuple[Named, ...] = attrs.field(default=(), repr=False)

    def _said(self) -> list[str]:
        return [*self._stream._said(), f"by {some(self.keys)}"]

    def _keyed(self, stream: TimedStream) -> KeyedStream:
        made = dict(self._computed)
        return stream.key_by(*(made[key].alias(key) if key in made else key for key in self.keys))

    def watermark(self, column: str, lag: Duration | None = None, *, idle_advance: Duration | None = None) -> KeyedStream:
        """See :meth:`Stream.watermark`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> keyed = stream_of("user string, at bigint").key_by("user").watermark("at", "5 s")
        >>> driver = Driver(keyed.tumbling_window("1 min").agg(count()))
        >>> driver.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}]).results.to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 1}]
        """
        return self._keyed(self._stream.watermark(column, lag, idle_advance=idle_advance))

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> KeyedStream:
        """See :meth:`Stream.with_watermark`.

        Examples
        --------
        >>> from krishiv_py import WatermarkSpec
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string, at timestamp").key_by("user").with_watermark(WatermarkSpec.fixed_lag("5 s"))
        <KeyedStream user, at; event time at, watermark max(event time) - 5 s; by user>
        """
        return self._keyed(self._stream.with_watermark(spec, column, source_column=source_column))

    def processing_time(self, name: str = "processing_time") -> KeyedStream:
        """See :meth:`Stream.processing_time`.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string").key_by("user").processing_time()
        <KeyedStream user, processing_time; event time processing_time, watermark the clock...; by user>
        """
        return self._keyed(self._stream.processing_time(name))
