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
        """See :meth:`Stream.watermark`."""
        return self._keyed(self._stream.watermark(column, lag, idle_advance=idle_advance))

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> KeyedStream:
        """See :meth:`Stream.with_watermark`."""
        return self._keyed(self._stream.with_watermark(spec, column, source_column=source_column))

    def processing_time(self, name: str = "processing_time") -> KeyedStream:
        """See :meth:`Stream.processing_time`."""
        return self._keyed(self._stream.processing_time(name))
