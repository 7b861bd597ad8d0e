"""A stream with event time and a watermark."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.keyed import KeyedStream, checked_keys
from krishiv_py.errors import ColumnError, DurationError, PlanError, message, shown
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.nodes import AssignWatermark, Filter, Node, Project, UnionSource, prefix_of, source_of
from krishiv_py.plan.options.late import CountingLateEventHandler
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.schema import time_kind


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


def timed(
    node: Node, schema: pa.Schema, column: str, spec: AnyWatermarkSpec, source_column: str | None, runner: Runner
) -> TimedStream:
    """A stream with checked event time."""
    kind = time_kind(schema, column)
    lags = [spec.lag_us] if isinstance(spec, WatermarkSpec) else [s.lag_us for _, s in spec.sources]
    if kind == "bigint_ms" and any(lag % 1_000 for lag in lags):
        raise DurationError(
            message(
                "`lag` is finer than the time column",
                f"{lags} µs",
                f"{column!r} has whole milliseconds",
                "use a lag of whole milliseconds",
            )
        )
    if isinstance(spec, MultiSourceWatermarkSpec):
        _check_sources(spec, schema, source_column)
        _check_union(spec, node, source_column)
    elif source_column is not None:
        raise PlanError(
            message(
                "`source_column` without several sources",
                shown(source_column),
                "there is only one watermark",
                "pass a MultiSourceWatermarkSpec",
            )
        )
    assigned = AssignWatermark(node, column, spec, source_column)
    return TimedStream(assigned, (), QueryOptions(), CountingLateEventHandler(), runner, schema)


def _check_sources(spec: MultiSourceWatermarkSpec, schema: pa.Schema, source_column: str | None) -> None:
    if not spec.sources:
        raise PlanError(
            message(
                "a MultiSourceWatermarkSpec without sources",
                "0 sources",
                "the watermark would never move",
                'add .source("a", WatermarkSpec.fixed_lag_ms(5_000))',
            )
        )
    if source_column is None:
        raise PlanError(
            message(
                "which column names the source?",
                "None",
                "rows could not be told apart by source",
                'pass source_column="source"',
            )
        )
    known_column(source_column, schema.names, "with_watermark(source_column)")
    if not pa.types.is_string(schema.field(source_column).type):
        raise ColumnError(
            message(
                f"column {source_column!r} cannot name sources",
                schema.field(source_column).type,
                "sources are declared by text",
                "cast it to string",
            )
        )


def _check_union(spec: MultiSourceWatermarkSpec, node: Node, source_column: str | None) -> None:
    """Names of a union are known before any row: one that nobody declared, or that nobody sends, is a slip of the pen."""
    source = source_of(node)
    if not isinstance(source, UnionSource) or source.source_column != source_column or not _kept(node, source_column):
        return
    sent, declared = [name for name, _ in source.parts], [name for name, _ in spec.sources]
    missing, extra = [n for n in declared if n not in sent], [n for n in sent if n not in declared]
    if missing:
        raise PlanError(
            message(
                "no stream of the union has the name of a declared source",
                ", ".join(map(repr, missing)),
                "it would hold the watermark for ever",
                f"the streams are {', '.join(map(repr, sent))}",
            )
        )
    if extra and spec.unknown_action != "register":
        hint = f'add .source({extra[0]!r}, WatermarkSpec.fixed_lag("5 s"))'
        raise PlanError(
            message(
                "a stream of the union is no declared source",
                ", ".join(map(repr, extra)),
                "the watermark could not follow its rows",
                hint,
            )
        )


def _kept(node: Node, column: str) -> bool:
    """Whether a column comes through the stateless steps as it was."""
    for step in prefix_of(node):
        if isinstance(step, Project):
            made_of: Expr | None = dict(step.columns).get(column)
            if not isinstance(made_of, Col) or made_of.name != column:
                return False
        elif not isinstance(step, Filter):
            return False
    return True
