"""A user's source in a plan, and its ranges: what any engine does with a :class:`~krishiv_py.connectors.Source`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, TypeGuard, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.connectors import fit
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.connectors.source import Malformed, Planned, ReadRange, Source
from krishiv_py.errors import (
    RAISED,
    KrishivError,
    PlanError,
    SchemaError,
    SourceError,
    cause_of,
    failure_text,
    of_library,
    shown,
)
from krishiv_py.plan.checks import (
    a_number,
    a_switch,
    a_text,
    call_plainly,
    known_column,
    one_of,
    plain_methods,
    refuse_coroutine,
)
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.plan.options.late import OF_RECORDS, Fields
from krishiv_py.plan.schema import as_schema

T = TypeVar("T")


@attrs.frozen(eq=False)
class RangeSource(SourceNode):
    """A source that plans ranges; `log` is where a streaming query notes them.

    With `in_lanes` the ranges of a partition, or all where there are none, are read by one task, in their order.
    """

    title: ClassVar[str] = "Source"
    name: str
    source: Source = attrs.field(repr=False)
    schema: pa.Schema
    bounded: bool
    log: str | None = None
    in_lanes: bool = False
    malformed_fields: ClassVar[Fields] = OF_RECORDS

    def detail(self) -> str:
        more = self.source.describe()
        return f"{self.name} ({'finite' if self.bounded else 'streaming'}, {len(self.schema)} columns){more and f', {more}'}"

    @property
    def named_sources(self) -> tuple[str, tuple[str, ...]] | None:
        """Its source column and the names in it."""
        column = self.source.source_column
        return None if column is None or not self.source.watermark_sources else (column, self.source.watermark_sources)

    @property
    def lacks_order(self) -> str | None:
        """Say why its rows come in no order; None where they do."""
        return self.source.lacks_order

    @property
    def partitioned(self) -> bool:
        """Return whether its ranges say which partition they are of."""
        return type(self.source).partition_of is not Source.partition_of

    @property
    def puts_aside(self) -> bool:
        """Return whether malformed input goes to the late rows."""
        return self.source.on_malformed == "side_output"


def node_of(source: Source, name: str | None) -> RangeSource:
    """Return the plan's node for a source.

    Raises
    ------
    PlanError
        When it is not a source, or what it states does not fit together.
    """
    if not isinstance(source, Source):
        hint = "subclass krishiv_py.connectors.Source, and implement plan(last) and read(planned, columns)"
        if isinstance(source, type) and issubclass(source, Source):
            hint = f"pass an object: {source.__name__}(...)"
        raise PlanError("read_source() takes a source", got=shown(source), hint=hint)
    plain_methods(source, type(source))
    schema = as_schema(getattr(source, "schema", None))
    a_switch(source.finite, "finite")
    one_of(source.on_malformed, "on_malformed", ("fail", "side_output"))
    a_number(source.parallelism, "parallelism", 1, "state how many tasks read at once, from 1", most=10_000)
    if (
        isinstance(source.poll_seconds, bool)
        or not isinstance(source.poll_seconds, (int, float))
        or not source.poll_seconds > 0
    ):
        raise PlanError("`poll_seconds` is not a time to wait", got=shown(source.poll_seconds), hint="state seconds above 0")
    if source.source_column is not None:
        known_column(source.source_column, schema.names, "source_column")
    if (source.source_column is None) != (not source.watermark_sources):
        got = f"{shown(source.source_column)} and {shown(source.watermark_sources)}"
        raise PlanError("`source_column` and `watermark_sources` belong together", got=got, hint="state both, or neither")
    for each in source.watermark_sources:
        a_text(each, "watermark_sources", 'state names such as ("partition-0", "partition-1")')
    return RangeSource(
        type(source).__name__ if name is None else a_text(name, "name", "pass a text"), source, schema, source.finite
    )


@attrs.frozen
class NotedRanges:
    """A planned batch as it is noted: position and ranges as JSON."""

    position: str
    ranges: tuple[str, ...]


def next_ranges(source: Source, name: str, last: str | None) -> NotedRanges | None:
    """Let a source plan its next batch.

    Raises
    ------
    SourceError
        When it fails, plans what cannot be noted, or gives ranges with the position it was given; names the source.
    """
    with _blamed(source, "plan", f"the source {name} cannot plan", last):
        ranges = source.plan(None if last is None else json.loads(last))
    if ranges is None:
        return None
    if not isinstance(ranges, Planned) or isinstance(ranges.ranges, str) or not ranges.ranges:
        hint = "return Planned(position, ranges) with at least one range, or None if there is nothing"
        raise SourceError(f"the source {name} planned no batch", got=shown(ranges), hint=hint)
    try:
        noted = NotedRanges(_noted(ranges.position), tuple(map(_noted, ranges.ranges)))
    except (TypeError, ValueError) as problem:
        raise SourceError(
            f"the source {name} planned what cannot be noted",
            got=f"{shown(ranges)}: {problem}",
            then="a restart could not go on from it",
            hint="use numbers, texts, lists and dicts with texts as keys",
        ) from problem
    if last is not None and json.loads(noted.position) == json.loads(last):
        raise SourceError(
            f"the source {name} planned a batch that ends at the position it was given",
            got=f"position {last} again, with ranges",
            then="the same rows would be read for ever",
            hint=f"let {type(source).__name__}.plan give the position after the ranges, or None if there is nothing new",
        )
    return noted


@contextmanager
def _blamed(source: Source, method: str, what: str, position: str | None) -> Iterator[None]:
    """Let what a method of a source raises name the source, the position and the method; errors of ours pass."""
    try:
        yield
    except KrishivError:
        raise
    except RAISED as problem:
        hint = f"fix {type(source).__name__}.{method}"
        raise SourceError(what, got=f"position {position}", then=failure_text(problem), hint=hint) from cause_of(problem)


def tell_finished(source: Source, name: str, position: str) -> None:
    """Tell a source that a batch was published.

    Raises
    ------
    SourceError
        When it fails; names the source.
    """
    with _blamed(source, "finished", f"the source {name} cannot take note of a finished batch", position):
        call_plainly(source.finished, json.loads(position))


Backlog: TypeAlias = "int | dict[str, int]"
"""The amount that a source has and no batch has taken; of a source of partitions the amount of each."""


def backlog_of(source: Source, name: str, position: str | None) -> Backlog | None:
    """Return how much a source has after a position.

    Raises
    ------
    SourceError
        When it fails, or gives what is not a number; names the source.
    """
    with _blamed(source, "backlog", f"the source {name} cannot say how much is waiting", position):
        size: object = source.backlog(None if position is None else json.loads(position))
    if size is None or _is_size(size):
        return size
    if isinstance(size, Mapping) and all(isinstance(p, str) and _is_size(n) for p, n in size.items()):
        return dict(size)
    hint = "return a whole number from 0, one for each partition by its name, or None where it is not known"
    what = f"the source {name} gave no number of what is waiting"
    raise SourceError(what, got=shown(size), hint=hint)


def _is_size(size: object) -> TypeGuard[int]:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def partition_of(source: Source, name: str, planned: str) -> str:
    """Return the partition that a noted range reads; an empty text where the source has none.

    Raises
    ------
    SourceError
        When the source fails, or gives what is not a name; names the source.
    """
    with _blamed(source, "partition_of", f"the source {name} cannot name the partition of a range", planned):
        partition: object = source.partition_of(json.loads(planned))
    if partition is not None and not isinstance(partition, str):
        what = f"the source {name} gave no name of a partition"
        raise SourceError(what, got=shown(partition), hint="return a text, or None")
    return partition or ""


def _noted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if json.loads(text) != (list(value) if isinstance(value, tuple) else value):
        raise ValueError("it is another value when it is read back from JSON")
    text.encode()
    return text


def all_ranges(source: Source, name: str) -> list[NotedRanges]:
    """Return all batches of a finite source."""
    ranges: list[NotedRanges] = []
    while (batch := next_ranges(source, name, ranges[-1].position if ranges else None)) is not None:
        ranges.append(batch)
    return ranges


def in_runs(parts: Sequence[T], most: int, size_of: Callable[[T], int]) -> list[list[T]]:
    """Return parts of an input in at most so many runs of about equal size; one empty run if there are none."""
    whole, runs, size = sum(map(size_of, parts)), [list[T]()], 0
    for part in parts:
        if runs[-1] and size >= whole * len(runs) / most:
            runs.append([])
        runs[-1].append(part)
        size += size_of(part)
    return runs


def read_range(
    source: Source, name: str, planned: str, schema: pa.Schema, read: ReadRange | None = None
) -> Iterator[pa.RecordBatch | Malformed]:
    """Yield the rows of a noted range, batch by batch, in the columns of `schema`, which are needed, and what is not a row.

    One of several ranges is read by what the source gives for all of them, `read`.

    Raises
    ------
    SourceError
        When the source fails; names the source and the range.
    SchemaError
        When a batch lacks a column or a field, or has another type; names the source and the range.
    """
    rule = fit.READ if of_library(source) else fit.SOURCE
    try:
        read_rows = (read or source.read)(json.loads(planned), schema.names)
        refuse_coroutine(source.read, read_rows)
        if (
            hasattr(read_rows, "__dataframe__")
            or not isinstance(read_rows, Iterable)
            or isinstance(read_rows, (str, bytes, Mapping))
        ):
            what, got = f"the source {name} cannot be read, range {planned}: it gives no batches one by one", shown(read_rows)
            raise SourceError(what, got=got, hint=f"write `yield batch` in {type(source).__name__}.read, or return [batch]")
        for rows in read_rows:
            if isinstance(rows, Malformed):
                if source.on_malformed != "side_output":
                    raise rows.error()
                yield rows
                continue
            table = None if isinstance(rows, pa.RecordBatch) else arrow_table(rows)
            for batch in [rows] if table is None else table.to_batches():
                if batch.num_rows:
                    yield fit.fit_batch(batch, schema, rule)
    except KrishivError:
        raise
    except fit.MisfitError as problem:
        kind = SourceError if problem.lacks else SchemaError
        what, got = f"the source {name} cannot be read, range {planned}: {problem.what}", problem.got
        raise kind(what, got=got, hint=problem.hint) from None
    except RAISED as problem:
        raise SourceError(
            f"the source {name} cannot be read",
            got=f"range {planned}",
            then=failure_text(problem),
            hint=f"fix {type(source).__name__}.read",
        ) from problem
