"""Several streams as one, each row with the name of its stream."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, SchemaError, message, shown
from krishiv_py.plan.checks import a_text, column_name
from krishiv_py.plan.nodes import UnionSource, source_of
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.schema import checked


def union_of(streams: Mapping[str, Stream], source_column: str, runner: Runner) -> Stream:
    """The checked union of `streams` by name."""
    if not isinstance(streams, Mapping) or not streams:
        raise PlanError(
            message("a union needs streams by name", shown(streams), "there are no rows", 'pass {"a": stream_a, "b": stream_b}')
        )
    for name, stream in streams.items():
        a_text(name, "name of a stream", 'pass {"a": stream_a, "b": stream_b}')
        if not isinstance(stream, Stream):
            raise PlanError(
                message(
                    f"{name!r} is no stream of rows",
                    type(stream).__name__,
                    "it cannot be united with others",
                    "pass streams as they are before .watermark(...)",
                )
            )
    column_name(source_column, "union(source_column)")
    first = next(iter(streams.values())).schema
    for name, stream in streams.items():
        if not stream.schema.equals(first):
            raise SchemaError(
                message(
                    f"stream {name!r} has other columns",
                    str(stream.schema).replace("\n", ", "),
                    "the streams cannot be one",
                    f"select the columns {', '.join(first.names)}",
                )
            )
    merged = checked(first.append(pa.field(source_column, pa.string())))
    parts = tuple((name, stream.node) for name, stream in streams.items())
    bounded = all(source_of(node).bounded for _, node in parts)
    hint = f"name one behind the union instead: .with_late_event_handler(...); the column {source_column!r} tells rows apart"
    late = one_handler((s.told_late for s in streams.values()), "the streams of a union", hint)
    return Stream(UnionSource(parts, source_column, merged, bounded), merged, runner, late)
