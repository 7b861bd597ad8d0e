"""Several streams as one, each row with the name of its stream."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.checks import a_text, column_name
from krishiv_py.plan.nodes import UnionSource, source_of
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.schema import checked
from krishiv_py.types import type_text, wider


def union_of(streams: Mapping[str, Stream], source_column: str, runner: Runner) -> Stream:
    """Return the checked union of `streams` by name."""
    if not isinstance(streams, Mapping) or not streams:
        raise PlanError("a union needs streams by name", got=shown(streams), hint='pass {"a": stream_a, "b": stream_b}')
    for name, stream in streams.items():
        a_text(name, "name of a stream", 'pass {"a": stream_a, "b": stream_b}')
        if not isinstance(stream, Stream):
            raise PlanError(
                f"{name!r} is not a stream of rows",
                got=type(stream).__name__,
                hint="pass streams as they are before .watermark(...)",
            )
    column_name(source_column, "union(source_column)")
    first = next(iter(streams.values())).schema
    for name, stream in streams.items():
        if not stream.schema.equals(first):
            raise _other_columns(name, stream.schema, next(iter(streams)), first)
    merged = checked(first.append(pa.field(source_column, pa.string())))
    parts = tuple((name, stream._node) for name, stream in streams.items())
    bounded = all(source_of(node).bounded for _, node in parts)
    hint = f"name one after the union instead: .with_late_event_handler(...); the column {source_column!r} distinguishes rows"
    late = one_handler((s._own_late_handler for s in streams.values()), "the streams of a union", hint)
    return Stream(UnionSource(parts, source_column, merged, bounded), merged, runner, late)


def _other_columns(name: str, schema: pa.Schema, first_name: str, first: pa.Schema) -> SchemaError:
    """Return the error for a stream whose columns are not those of the first one."""
    if set(schema.names) != set(first.names):
        missing = [n for n in first.names if n not in schema.names]
        extra = [n for n in schema.names if n not in first.names]
        got = "; ".join([f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(extra)}"] * bool(extra))
        hint = f"select the columns that all have, in one order: .select({', '.join(map(repr, first.names))})"
        return SchemaError(f"stream {name!r} has other columns than {first_name!r}", got=got, hint=hint)
    unlike = [
        (n, first.field(n).type, schema.field(n).type) for n in first.names if first.field(n).type != schema.field(n).type
    ]
    if not unlike:
        hint = f"write .select({', '.join(map(repr, first.names))}) on it"
        got = ", ".join(schema.names)
        return SchemaError(f"the columns of stream {name!r} are in another order", got=got, hint=hint)
    got = ", ".join(
        f"{n!r} is {type_text(one)} in {first_name!r} and {type_text(other)} in {name!r}" for n, one, other in unlike
    )
    steps: dict[str, list[str]] = {}
    for column, one, other in unlike:
        both = wider(one, other)
        for stream, type_ in ((first_name, one), (name, other)):
            if both is not None and type_ != both:
                steps.setdefault(stream, []).append(f'.with_column({column!r}, col({column!r}).cast("{type_text(both)}"))')
    written = "; ".join(f"write {''.join(casts)} on {stream!r}" for stream, casts in steps.items())
    hint = written or "give the columns one type"
    return SchemaError("the streams have columns of other types", got=got, hint=hint)
