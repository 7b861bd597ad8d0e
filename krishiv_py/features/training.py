"""Training sets: labels with the features that each had at its time (SEMANTICS §17.3).

A label row takes the newest feature row of its key before the label's time. Which rows there are to choose from is one of two
truths: ``"event"``, all rows that the log has, or ``"served"``, those that a reader could have read at that time::

    event time of the feature     10        20
    published at                    12          31
                               ─────┼─────┼────┼──►  time of the label
                                    │     25   │
    "event" at 25 sees the row of 20, "served" still that of 10
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.connectors.lookup_table import in_types_of_streams
from krishiv_py.connectors.sinks.features import OF_LOG, PUBLISHED, FeatureSink
from krishiv_py.errors import ColumnError, PlanError, shown
from krishiv_py.features.buckets import bucket_of_rows, in_buckets
from krishiv_py.features.streams import Choice, check_distinct, joined_with, other_keys, warn_of_zones, with_features
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.plan.checks import a_switch, a_text, is_collection, known_column, one_of
from krishiv_py.plan.durations import Duration, TimePoint, time_point_us, to_us
from krishiv_py.plan.schema import time_kind
from krishiv_py.plan.sides import AsOf
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.sends import stream_of
from krishiv_py.types import type_text

_TRUTHS: Final = ("served", "event")
_TIME: Final = pa.timestamp("us", "UTC")
_KEY, _AT, _NUMBER, _EVENT, _FOUND = "key", "at", "number", "event", "found"
"""The columns of both sides of the join; those of the key are numbered."""
_NONE: Final = -1


@overload
def training_set(
    labels: TimedStream | ResultStream,
    logs: Mapping[str, FeatureSink],
    *,
    key: str | Iterable[str],
    at: str,
    as_of: AsOf = ...,
    max_age: Duration | None = ...,
    allow_exact: bool = ...,
    known_at: TimePoint | None = ...,
    lag: Duration | None = ...,
    idle_timeout: Duration | None = ...,
) -> ResultStream: ...


@overload
def training_set(
    labels: Any,
    logs: Mapping[str, FeatureSink],
    *,
    key: str | Iterable[str],
    at: str,
    as_of: AsOf = ...,
    max_age: Duration | None = ...,
    allow_exact: bool = ...,
    known_at: TimePoint | None = ...,
) -> pa.Table: ...


def training_set(
    labels: Any,
    logs: Mapping[str, FeatureSink],
    *,
    key: str | Iterable[str],
    at: str,
    as_of: AsOf = "served",
    max_age: Duration | None = None,
    allow_exact: bool = False,
    known_at: TimePoint | None = None,
    lag: Duration | None = None,
    idle_timeout: Duration | None = None,
) -> pa.Table | ResultStream:
    """Return labels with the features that each had at its time (SEMANTICS §17.3).

    Each label is there once, in its order. It has the newest feature row of its key by event time, strictly before the label;
    of rows of equal time the one that was published last. A label without key or time, of an unknown key, or before the first
    feature has nulls.

    Parameters
    ----------
    labels : pyarrow.Table or frame, or TimedStream or ResultStream
        The labels: key, time, and whatever else. A stream has a watermark over `at`.
    logs : dict of str to FeatureLog or FeatureTable
        The feature logs, by a name of your own.
    key : str or list of str
        The key columns of the labels, in the order of those of the logs.
    at : str
        The time of a label: ``timestamp``, ``timestamp_ntz`` or ``bigint`` milliseconds.
    as_of : {"served", "event"}
        Which feature rows a label may have: those that were published at or before its time, as a reader would have found
        them, or all, also corrections and rows that came later.
    max_age : int or timedelta or str, optional
        A feature that is so much older than the label, or more, is null; ``int`` is milliseconds. No limit by default.
    allow_exact : bool
        Whether a feature of exactly the label's time counts. By default it does not, as the labelled event itself is often one
        of those that made it.
    known_at : int or datetime or str, optional
        Leave out what was published later, so that a set can be made once more; ``int`` is milliseconds since the epoch.

    lag : int or timedelta or str, optional
        For labels that are a stream, how far rows of a log are out of order: by ``published_at`` where it is as served, which
        is 0 unless said, and by event time otherwise, which must be said. Rows further back are late.
    idle_timeout : int or timedelta or str, optional
        For labels that are a stream: leave a log out of the watermark in which nothing came for longer than this (processing
        time). Otherwise a label waits until the log has a row that was published after it.

    Returns
    -------
    pyarrow.Table or ResultStream
        The columns of the labels, and of each log its values and ``<name>_at``, the event time of the feature row. A stream of
        labels gives a stream: each label once, when the watermarks of labels and logs have passed its time. There a label
        without time goes to the late handler, as everywhere.

    Raises
    ------
    PlanError
        For arguments that do not fit together.
    ColumnError
        For columns that are missing, or of other types, and for names that both have.
    OrderError
        For a stream of labels without a watermark over their time.
    SourceError
        For a log that cannot be read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.features import FeatureLog, training_set
    >>> from krishiv_py.testing import Driver, ManualClock, stream_of
    >>> import tempfile
    >>> log, clock = FeatureLog(tempfile.mkdtemp(), key="card", at="at"), ManualClock()
    >>> driver = Driver(stream_of("card string, at bigint, spent bigint"), sink=log, clock=clock)
    >>> for now, at, spent in ((12, 10, 5), (31, 20, 7)):
    ...     _ = clock.set(now)
    ...     _ = driver.send([{"card": "a", "at": at, "spent": spent}])
    >>> labels = pa.table({"card": ["a", "a"], "decided": [25, 40], "fraud": [False, True]})
    >>> training_set(labels, {"card": log}, key="card", at="decided")["spent"].to_pylist()
    [5, 7]
    >>> training_set(labels, {"card": log}, key="card", at="decided", as_of="event")["spent"].to_pylist()
    [7, 7]
    """
    one_of(as_of, "as_of", _TRUTHS)
    a_switch(allow_exact, "allow_exact")
    age_us = None if max_age is None else to_us(max_age, "max_age")
    known_us = None if known_at is None else time_point_us(known_at, "known_at")
    is_stream = isinstance(labels, (Stream, OptionMethods))
    rows = None if is_stream else arrow_table(labels)
    if rows is None and not is_stream:
        hint = "pass a pyarrow.Table, a frame of pandas or Polars, or a stream"
        raise PlanError("labels are a table or a stream", got=shown(labels), hint=hint)
    names = [key] if isinstance(key, str) else list(key) if is_collection(key) else []
    if not names:
        raise PlanError("training_set has no key", got=shown(key), hint='write key="card", or a list of columns')
    schema = _schema_of(labels) if rows is None else rows.schema
    for name in (*names, at):
        known_column(name, schema.names, "training_set(labels)")
    if not isinstance(logs, Mapping) or not logs or not all(isinstance(log, FeatureSink) for log in logs.values()):
        hint = 'write {"card": FeatureLog(path, key="card", at="at")}'
        raise PlanError("training_set takes feature logs by name", got=shown(logs), hint=hint)
    for called, log in logs.items():
        a_text(called, "logs", "name a log by a text")
        if len(names) != len(log.keys):
            got = f"key={names}, and {list(log.keys)} in the log"
            hint = "name as many key columns of the labels as the log has"
            raise PlanError(f"labels and the log {called!r} have other keys", got=got, hint=hint)
    choice = Choice(as_of, age_us, allow_exact, known_us)
    if rows is None:
        if lag is None and as_of == "event":
            then = "a feature could come later than its time by any length"
            hint = 'write lag="1 hour", as long as rows of the log come after their event time'
            raise PlanError('as_of="event" of a stream needs a lag', got="None", then=then, hint=hint)
        return with_features(labels, logs, names, at, choice, 0 if lag is None else lag, idle_timeout)
    for name, value in (("lag", lag), ("idle_timeout", idle_timeout)):
        if value is not None:
            hint = f"leave {name} out, or pass a stream of labels"
            raise PlanError(f"{name} is for labels that are a stream", got=f"{name}={shown(value)}", hint=hint)
    side, result = _joined_side(rows, names, at), rows
    for called, log in logs.items():
        found = list[tuple[Ints, pa.Table]]()
        of: Ints | None = None
        for bucket, features in in_buckets(log._pieces(), log.keys):
            if bucket is None or bucket == 0:
                warn_of_zones(rows.schema.field(at).type, features.schema.field(log.at).type, called)
            mine = side
            if bucket is not None:
                of = bucket_of_rows(side, [name for name in side.column_names if name.startswith(_KEY)]) if of is None else of
                mine = pick(side, np.flatnonzero(of == bucket))
            labelled, chosen = _newest(mine, _readable(features, log, known_us), choice)
            found.append((labelled, pick(features, chosen)))
        result = _with_values(result, found, log, called)
    return result


def _schema_of(labels: Stream | OptionMethods) -> pa.Schema:
    return labels.schema if isinstance(labels, Stream) else labels._row_schema()


def _event_times(column: pa.ChunkedArray, name: str) -> tuple[Ints, Mask]:
    """Return times in µs, and which can be used.

    Raises
    ------
    ColumnError
        For a column that has no times.
    """
    if not (pa.types.is_timestamp(column.type) or pa.types.is_int64(column.type)):
        hint = "cast it to a timestamp, or to bigint milliseconds"
        raise ColumnError(f"column {name!r} cannot be event time", got=type_text(column.type), hint=hint)
    kind = time_kind(pa.schema([(name, column.type)]), name)
    stamped = stamp(pa.concat_arrays([*column.chunks, pa.array([], column.type)]), kind)
    return stamped.times, ~(stamped.null | stamped.out_of_range)


def _joined_side(rows: pa.Table, keys: Sequence[str], at: str) -> pa.Table:
    """Return keys, time and number of the rows that have a time, as the join takes them."""
    columns = in_types_of_streams(rows.select(list(keys))).columns
    times, timed = _event_times(rows[at], at)
    named = {f"{_KEY}{number}": column for number, column in enumerate(columns)}
    table = pa.table({**named, _AT: pa.array(times).cast(_TIME), _NUMBER: pa.array(np.arange(rows.num_rows))})
    return table.filter(pa.array(timed))


def _readable(features: pa.Table, log: FeatureSink, known_us: int | None) -> pa.Table:
    """Return the rows that have a time, and were known then, as the join takes them."""
    rows = _joined_side(features, log.keys, log.at)
    numbers = rows[_NUMBER]
    made = pa.table({name: rows[name] for name in rows.column_names if name.startswith(_KEY)})
    made = made.append_column(_FOUND, numbers).append_column(_EVENT, rows[_AT])
    for field in OF_LOG:
        made = made.append_column(field.name, features[field.name].take(numbers).cast(field.type))
    if known_us is None:
        return made
    return made.filter(pc.less_equal(made[PUBLISHED], pa.scalar(known_us, _TIME)))


def _newest(labels: pa.Table, features: pa.Table, choice: Choice) -> tuple[Ints, Ints]:
    """Return the numbers of labels that have a feature row, and those of these rows."""
    labels, features = _same_keys(labels, features)
    keys = [name for name in labels.column_names if name.startswith(_KEY)]
    of_features = PUBLISHED if choice.as_of == "served" else _EVENT
    left, right = (stream_of(side.schema).watermark(time, 0) for side, time in ((labels, _AT), (features, of_features)))
    driver = Driver(joined_with(left, right, dict(zip(keys, keys, strict=True)), choice), idle_batches=False)
    steps = driver.send({"left": labels, "right": features}), driver.close()
    met = pa.concat_tables([step.results.select([_NUMBER, _FOUND]) for step in steps])
    met = met.filter(met[_FOUND].is_valid())
    return met[_NUMBER].to_numpy(), met[_FOUND].to_numpy()


def _same_keys(labels: pa.Table, rights: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return both sides with keys of one type.

    Raises
    ------
    ColumnError
        For keys that cannot be held against one another.
    """
    for name in [name for name in labels.column_names if name.startswith(_KEY)]:
        types = [side.schema.field(name).type for side in (labels, rights)]
        if all(map(pa.types.is_integer, types)):
            place = labels.schema.get_field_index(name), rights.schema.get_field_index(name)
            labels = labels.set_column(place[0], name, labels[name].cast(pa.int64()))
            rights = rights.set_column(place[1], name, rights[name].cast(pa.int64()))
        elif types[0] != types[1]:
            raise other_keys(*types)
    return labels, rights


def _with_values(result: pa.Table, found: Sequence[tuple[Ints, pa.Table]], log: FeatureSink, called: str) -> pa.Table:
    """Return labels with the values of the rows that were found for some of them, and their times.

    Raises
    ------
    ColumnError
        Where both have a column of one name.
    """
    features = pa.concat_tables([rows for _, rows in found])
    places = np.full(result.num_rows, _NONE)
    places[np.concatenate([labels for labels, _ in found])] = np.arange(features.num_rows)
    values = [name for name in features.column_names if name not in (*log.keys, log.at, *OF_LOG.names)]
    taken = features.select([*values, log.at]).take(pa.array(places, mask=places == _NONE))
    names = [*values, f"{called}_at"]
    check_distinct(names, result.column_names, called)
    for name, column in zip(names, taken.columns, strict=True):
        result = result.append_column(name, column)
    return result
