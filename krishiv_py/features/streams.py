"""Training sets of labels that are a stream: logs are read as streams, and joined with the labels one after the other.

A label waits until the watermarks of labels and logs have passed its time. As of what was served, the watermark of a log
follows ``published_at``, in whose order a log grows: then all that was published by the time of the label has been read::

    published at      12        31                40
                   ───┼─────────┼────┼────────────┼──►
                                     │ label at 33, given here
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.query import NoRunner, Runner
from krishiv_py.api.sources import FileSources, RangedSources
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.connectors.sinks.features import BATCH, OF_LOG, PUBLISHED, FeatureLog, FeatureSink, FeatureTable
from krishiv_py.connectors.tables.delta.sink import DeltaSink
from krishiv_py.errors import ColumnError, OrderError, shown, users_line
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import col, lit
from krishiv_py.plan.nodes import MemorySource, Node, Stage, UnionSource, source_of
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.sides import AsOf
from krishiv_py.testing.sends import stream_of
from krishiv_py.types import type_text

_UTC: Final = pa.timestamp("us", "UTC")


@attrs.frozen
class Choice:
    """Says which feature row a label has.

    Attributes
    ----------
    as_of : str
        Which rows it may have, all ("event"), or those that were published by its time ("served").
    max_age_us : int or None
        From which age on a feature is null.
    allow_exact : bool
        Whether a feature of exactly the time of the label counts.
    known_us : int or None
        What was published later is left out.
    """

    as_of: AsOf
    max_age_us: int | None
    allow_exact: bool
    known_us: int | None


@attrs.frozen
class _Sources(FileSources, RangedSources):
    """The sources of the session that labels are from."""

    _runner: Any


def with_features(
    labels: object,
    logs: Mapping[str, FeatureSink],
    key: list[str],
    at: str,
    choice: Choice,
    lag: Duration,
    idle_timeout: Duration | None,
) -> ResultStream:
    """Return labels, whose logs are of the same keys, with the features of each log.

    Raises
    ------
    OrderError
        For labels without a watermark over their time.
    ColumnError
        For names that both have, and keys of other types.
    """
    if not isinstance(labels, OptionMethods) or labels._draft.operation is not None or labels._draft.input.column != at:
        hint = f'write labels.watermark("{at}", "1 minute"), with a lag as long as labels are out of order'
        raise OrderError("labels that are a stream have a watermark over their time", got=shown(labels), hint=hint)
    names = list(labels.schema.names)  # type: ignore[attr-defined]
    joined = labels
    for called, log in logs.items():
        on = dict(zip(key, log.keys, strict=True))
        features = _features_of(log, called, labels, on, names, choice, lag)
        names += [name for name in features.schema.names if name not in (*log.keys, *OF_LOG.names)]
        joined = joined_with(joined, features, on, choice, idle_timeout)
    assert isinstance(joined, ResultStream)
    return joined if list(joined.schema.names) == names else joined.select(*names)


def check_distinct(added: Iterable[str], names: Iterable[str], called: str) -> None:
    """Refuse columns that are added to labels and have the name of one that is there.

    Raises
    ------
    ColumnError
        For such a column.
    """
    twice = [name for name in added if name in names]
    if twice:
        hint = "rename the column of the labels, or of the pipeline that writes the log"
        raise ColumnError(f"labels and the log {called!r} have a column of one name", got=twice[0], hint=hint)


def other_keys(label: pa.DataType, feature: pa.DataType) -> ColumnError:
    """Return the error for keys that cannot be held against one another."""
    got = f"{type_text(label)} in the labels, {type_text(feature)} in the log"
    return ColumnError("the keys of labels and log have other types", got=got, hint="cast those of the labels")


def warn_of_zones(label: pa.DataType, feature: pa.DataType, called: str) -> None:
    """Warn where a time without a zone is held against an instant."""
    if pa.types.is_timestamp(label) and pa.types.is_timestamp(feature) and (label.tz is None) != (feature.tz is None):
        which = "labels" if label.tz is None else f"the log {called!r}"
        what = f"the times of {which} have no time zone, and are taken as UTC"
        warnings.warn(f"{what}. Hint: give them the zone that they were written in", RuntimeWarning, stacklevel=users_line())


def joined_with(
    labels: OptionMethods, features: TimedStream, on: Mapping[str, str], choice: Choice, idle_timeout: Duration | None = None
) -> ResultStream:
    """Return labels with features, whose last three columns are their event time, when they were published, and their batch."""
    result: ResultStream = labels._features_join(  # type: ignore[attr-defined]
        features,
        on,
        as_of=choice.as_of,
        max_age_us=choice.max_age_us,
        allow_exact=choice.allow_exact,
        idle_timeout=idle_timeout,
    )
    return result


def _features_of(
    log: FeatureSink, called: str, labels: OptionMethods, on: Mapping[str, str], names: list[str], choice: Choice, lag: Duration
) -> TimedStream:
    """Return the rows of a log, each with key, values, event time, when it was published, and its batch."""
    rows = _rows_of(log, labels._runner, streaming=not _ends(labels._draft.input))
    at, schema = f"{called}_at", labels._row_schema()
    warn_of_zones(schema.field(labels._draft.input.column).type, rows.schema.field(log.at).type, called)
    values = [name for name in rows.schema.names if name not in (*log.keys, log.at, *OF_LOG.names)]
    check_distinct((*values, at), names, called)
    for ours, theirs in on.items():
        types = schema.field(ours).type, rows.schema.field(theirs).type
        if types[0] != types[1]:
            if not all(map(pa.types.is_integer, types)) or types[0].bit_width < types[1].bit_width:
                raise other_keys(*types)
            rows = rows.with_column(theirs, col(theirs).cast(types[0]))
    rows = rows.select(*log.keys, *values, col(log.at).alias(at), PUBLISHED, BATCH)
    mark = labels._draft.input.spec
    spec = attrs.evolve(WatermarkSpec.fixed_lag(lag, clock=mark.clock), idle_advance_us=mark.idle_advance_us)
    timed = rows.with_watermark(spec, PUBLISHED if choice.as_of == "served" else at)
    timed = timed.filter(col(at).is_not_null()) if choice.as_of == "served" else timed
    return timed if choice.known_us is None else timed.filter(col(PUBLISHED) <= lit(pa.scalar(choice.known_us, _UTC).as_py()))


def _ends(node: Node) -> bool:
    """Return whether all streams that a node reads end by themselves."""
    source = source_of(node)
    if isinstance(source, Stage):
        return _ends(source.input)
    if isinstance(source, UnionSource):
        return all(_ends(part) for _, part in source.parts)
    return source.bounded and not isinstance(source, MemorySource)


def _rows_of(log: FeatureSink, runner: Runner, *, streaming: bool) -> Stream:
    """Return the rows of a log as a stream of the session that labels are from.

    Labels without a session are those of a driver, to which the rows of the log are sent, too.
    """
    if isinstance(runner, NoRunner):
        return stream_of(next(log._pieces()).schema)
    sources = _Sources(runner)
    if isinstance(log, FeatureLog):
        schema = next(log._pieces()).schema
        return sources.read_parquet(log.path, schema, streaming=streaming, missing_columns="null")
    assert isinstance(log, FeatureTable)
    table = log.table
    if isinstance(table, DeltaSink):
        rows = sources.read_delta(table.path, streaming=streaming, storage_options=table.storage_options)
    else:
        rows = sources.read_iceberg(table.table, catalog=table.catalog, streaming=streaming)
    log._whole(rows.schema.empty_table())
    return rows
