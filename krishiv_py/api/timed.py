"""A stream with event time and a watermark."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.api.keyed import KeyedStream, checked_keys
from krishiv_py.api.runner import Runner
from krishiv_py.plan.late import CountingLateEventHandler
from krishiv_py.plan.nodes import AssignWatermark, Node
from krishiv_py.plan.options import QueryOptions
from krishiv_py.plan.schema import time_kind
from krishiv_py.plan.watermarks import WatermarkSpec


@attrs.frozen(eq=False)
class TimedStream(KeyedStream):
    """Rows with event time; without :meth:`key_by` all rows share one global key (SEMANTICS §3.8)."""

    schema: pa.Schema

    def key_by(self, *keys: str) -> KeyedStream:
        """Group by key columns; types are kept, null is a key of its own.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion.
        """
        return KeyedStream(self.input, checked_keys(keys, self.schema.names), self.options, self.late_handler, self.runner)


def timed(node: Node, schema: pa.Schema, column: str, spec: WatermarkSpec, runner: Runner) -> TimedStream:
    """A stream with checked event time."""
    time_kind(schema, column)
    assigned = AssignWatermark(node, column, spec)
    return TimedStream(assigned, (), QueryOptions(), CountingLateEventHandler(), runner, schema)
