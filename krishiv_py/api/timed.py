"""A stream with event time and a watermark."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.api.keyed import KeyedStream, checked_keys
from krishiv_py.api.runner import Runner
from krishiv_py.errors import ColumnError, DurationError, PlanError, message, shown
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.late import CountingLateEventHandler
from krishiv_py.plan.nodes import AssignWatermark, Node
from krishiv_py.plan.options import QueryOptions
from krishiv_py.plan.schema import time_kind
from krishiv_py.plan.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec


@attrs.frozen(eq=False)
class TimedStream(KeyedStream):
    """Rows with event time; without :meth:`key_by` all rows share one global key (SEMANTICS §3.8)."""

    schema: pa.Schema

    def key_by(self, *keys: str) -> KeyedStream:
        """Group by the columns called `keys`; types are kept, null is a key of its own.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion.
        """
        return KeyedStream(self.input, checked_keys(keys, self.schema.names), self.options, self.late_handler, self.runner)


def timed(node: Node, schema: pa.Schema, column: str, spec: AnyWatermarkSpec, source_column: str | None,
          runner: Runner) -> TimedStream:
    """A stream with checked event time."""
    kind = time_kind(schema, column)
    lags = [spec.lag_us] if isinstance(spec, WatermarkSpec) else [s.lag_us for _, s in spec.sources]
    if kind == "bigint_ms" and any(lag % 1_000 for lag in lags):
        raise DurationError(message("`lag` is finer than the time column", f"{lags} µs", f"{column!r} has whole milliseconds",
                                    "use a lag of whole milliseconds"))
    if isinstance(spec, MultiSourceWatermarkSpec):
        _check_sources(spec, schema, source_column)
    elif source_column is not None:
        raise PlanError(message("`source_column` without several sources", shown(source_column), "there is only one watermark",
                                "pass a MultiSourceWatermarkSpec"))
    assigned = AssignWatermark(node, column, spec, source_column)
    return TimedStream(assigned, (), QueryOptions(), CountingLateEventHandler(), runner, schema)


def _check_sources(spec: MultiSourceWatermarkSpec, schema: pa.Schema, source_column: str | None) -> None:
    if not spec.sources:
        raise PlanError(message("a MultiSourceWatermarkSpec without sources", "0 sources", "the watermark would never move",
                                'add .source("a", WatermarkSpec.fixed_lag_ms(5_000))'))
    if source_column is None:
        raise PlanError(message("which column names the source?", "None", "rows could not be told apart by source",
                                'pass source_column="source"'))
    known_column(source_column, schema.names, "with_watermark(source_column)")
    if not pa.types.is_string(schema.field(source_column).type):
        raise ColumnError(message(f"column {source_column!r} cannot name sources", schema.field(source_column).type,
                                  "sources are declared by text", "cast it to string"))
