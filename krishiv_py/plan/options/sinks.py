"""Where results and late rows go."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, message, shown
from krishiv_py.plan.checks import a_number, a_switch, a_text, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, to_us
from krishiv_py.redaction import shown_text


def _folder(value: str | os.PathLike[str]) -> str:
    return a_text(os.fspath(value) if isinstance(value, os.PathLike) else value, "path", 'pass a folder: "out/results"')


class Sink:
    """Base of the sinks below, which are all there are: a query refuses another subclass, whose rows nobody would write."""

    __slots__ = ()


@attrs.frozen
class ParquetSink(Sink):
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md)."""

    path: str = attrs.field(converter=_folder, repr=shown_text)


@attrs.frozen
class JsonSink(Sink):
    """Files of JSON lines in a folder; exactly once like :class:`ParquetSink`."""

    path: str = attrs.field(converter=_folder, repr=shown_text)


@attrs.frozen(eq=False)
class MemorySink(Sink):
    """Arrow tables in the driver's memory: :meth:`table` gives all rows so far."""

    tables: dict[int, list[pa.Table]] = attrs.field(factory=dict, repr=False)

    def put(self, batch_id: int, tables: list[pa.Table]) -> None:
        """Take (or replace) the rows of one micro-batch.

        Parameters
        ----------
        batch_id : int
            Number of the micro-batch, from 0.
        tables : list of pyarrow.Table
            Its rows; an empty list removes what an earlier attempt put.
        """
        a_number(batch_id, "batch_id", 0, "pass the number of the micro-batch", most=(1 << 63) - 1)
        if not isinstance(tables, list) or not all(isinstance(t, pa.Table) for t in tables):
            raise PlanError(
                message(
                    "a memory sink takes a list of Arrow tables",
                    shown(tables),
                    "its rows cannot be read",
                    "pass for instance [table]",
                )
            )
        if tables:
            self.tables[batch_id] = tables
        else:
            self.tables.pop(batch_id, None)

    def table(self) -> pa.Table | None:
        """All rows in the order of their micro-batches; None while there were none."""
        parts = [t for batch in sorted(self.tables) for t in self.tables[batch]]
        return pa.concat_tables(parts) if parts else None


@attrs.frozen
class ConsoleSink(Sink):
    """Prints every non-empty micro-batch."""

    max_rows: int = attrs.field(default=20)

    @max_rows.validator
    def _shows_rows(self, _attribute: object, value: object) -> None:
        a_number(value, "max_rows", 1, "pass how many rows of a micro-batch are printed, from 1")


BatchConsumer: TypeAlias = Callable[[Any, int], None]


@attrs.frozen(eq=False)
class ForeachBatchSink(Sink):
    """Calls ``function(dataframe, batch_id)`` for every micro-batch, with a Spark DataFrame of results."""

    function: BatchConsumer = attrs.field()

    @function.validator
    def _can_be_called(self, _attribute: object, value: object) -> None:
        if not callable(value):
            raise PlanError(
                message(
                    "a batch is taken by a function",
                    shown(value),
                    "results would go nowhere",
                    "pass a function of a DataFrame and a batch number",
                )
            )


@attrs.frozen
class QueryTrigger:
    """When Spark plans the next micro-batch of a query.

    Use one of :meth:`as_fast_as_possible` (default), :meth:`every` and :meth:`available_now`.
    """

    kind: str = "fast"
    interval_us: int = 0
    flush: bool = False

    def __attrs_post_init__(self) -> None:
        one_of(self.kind, "kind", ("fast", "every", "available_now"))
        microseconds(self.interval_us, "interval_us", 1_000 if self.kind == "every" else 0, MAX_TIME_US)
        a_switch(self.flush, "flush")

    @classmethod
    def as_fast_as_possible(cls) -> QueryTrigger:
        """The next micro-batch as soon as the last one is done and there is input."""
        return cls()

    @classmethod
    def every(cls, interval: Duration) -> QueryTrigger:
        """A micro-batch every `interval` of wall-clock time, with what has come by then."""
        return cls("every", to_us(interval, "interval"))

    @classmethod
    def available_now(cls, *, flush: bool = False) -> QueryTrigger:
        """Take what is there, in batches of the source's size, then stop.

        With `flush` the end of what is there counts as the end of input: every open window fires (SEMANTICS §2.5), and the
        watermark of the checkpoint moves to plus infinity for good: **every row that a later run from it reads is late**. Use
        it for input that is complete. Without it open windows stay in the checkpoint for the next run.
        """
        return cls("available_now", 0, flush)


KINDS: Final = (ParquetSink, JsonSink, MemorySink, ConsoleSink, ForeachBatchSink)
"""All sinks an engine writes to."""


def known_sink(value: object, what: str) -> Sink:
    """`value`, which must be one of :data:`KINDS`: rows for any other would vanish."""
    if not isinstance(value, KINDS):
        names = ", ".join(k.__name__ for k in KINDS)
        raise PlanError(
            message(
                f"{what} cannot go to this sink",
                shown(value),
                "they would vanish",
                f"use one of {names}; ForeachBatchSink(function) writes anywhere",
            )
        )
    return value
