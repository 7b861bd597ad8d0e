"""The sinks that a query takes, so that no row vanishes, and late rows to one of them (SEMANTICS §4.3)."""

from __future__ import annotations

import os
from typing import Final, Protocol, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import Delivery, FileSink, FolderSink, FrameSink, OnRepeat, Sink, SparkFileSink, TableSink
from krishiv_py.connectors.sinks.program import BatchConsumer, ForeachBatchSink
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.options.late import LateEventHandler, LateRows, LateWanted, OnError, SparedLateEventHandler, a_late_handler

_INTERFACES: Final = (FileSink, TableSink, FrameSink, SparkFileSink)
_WRITTEN: Final = "ParquetSink, JsonSink, MemorySink, ConsoleSink or ForeachBatchSink(function)"
_DELIVERED: Final[dict[Delivery, str]] = {
    "task_files": "files that tasks write",
    "tables": "tables on the driver",
    "frame": "a DataFrame on the cluster",
}
_REPEATED: Final[dict[OnRepeat, str]] = {
    "replace": "a repeated batch is replaced",
    "skip": "a committed batch is skipped",
    "at_least_once": "a repeated batch is given again",
}
_OWN: Final = "TransactionalSink, TableSink, FileSink or FrameSink of krishiv_py.connectors"


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose rows can be read back in this process."""

    def table(self) -> pa.Table | None:
        """Return all rows so far; None if there are none yet."""
        ...


def known_sink(value: object, what: str) -> Sink:
    """`value`, which must implement an interface of this room: rows for anything else would be lost.

    Raises
    ------
    PlanError
        With the interfaces there are; `what` are the rows it is for.
    """
    if isinstance(value, _INTERFACES):
        if isinstance(value, FolderSink):
            _check_files(value)
        return value
    hint = f"use {_WRITTEN}; for a sink of your own subclass {_OWN}"
    if isinstance(value, type) and issubclass(value, Sink):
        hint = f"pass an object: {value.__name__}(...)"
    raise PlanError(f"{what} cannot go to this sink", got=shown(value), hint=hint)


def as_sink(value: Sink | BatchConsumer, what: str) -> Sink:
    """Return a sink, or a function as a sink; `what` are the rows it is for.

    Raises
    ------
    PlanError
        For anything else.
    """
    if isinstance(value, (Sink, type)) or not callable(value):
        return known_sink(value, what)
    return ForeachBatchSink(value)


def described(sink: Sink) -> str:
    """Return what a sink states, for people."""
    return f"{sink.title} ({_DELIVERED[sink.delivery]}, {_REPEATED[sink.on_repeat]})"


def _check_files(sink: FolderSink) -> None:
    path, suffix = getattr(sink, "path", None), getattr(sink, "suffix", None)
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise PlanError(f"{sink.title} has no folder", got=shown(path), hint="give it an attribute `path` with the folder")
    if isinstance(sink, FileSink) and not (isinstance(suffix, str) and suffix.startswith(".") and "/" not in suffix):
        hint = 'give the class an attribute such as suffix = ".csv"'
        raise PlanError(f"{sink.title} has no suffix for its files", got=shown(suffix), hint=hint)


@attrs.frozen(eq=False)
class SideOutputLateEventHandler:
    """Writes whole late rows to a separate sink, exactly once together with the results.

    Attributes
    ----------
    sink : Sink
        Where late rows go.

    Examples
    --------
    >>> from krishiv_py import MemorySink, SideOutputLateEventHandler, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> late = SideOutputLateEventHandler(MemorySink())
    >>> counts = stream_of("at bigint").watermark("at", 0).with_late_event_handler(late).tumbling_window("10 s").agg(count())
    >>> driver = Driver(counts)
    >>> _ = driver.send([{"at": 12_000}])
    >>> _ = driver.send([{"at": 1_000}])
    >>> late.sink.table().to_pylist(), late.wants
    ([{'at': 1000, 'reason': 'late', 'watermark': 12000, 'lateness': 11000}], 'rows')
    """

    sink: Sink = attrs.field()

    @sink.validator
    def _is_known(self, _attribute: object, value: object) -> None:
        known_sink(value, "late rows")

    @property
    def wants(self) -> LateWanted:
        """Whole rows."""
        return "rows"

    def handle(self, late: LateRows) -> None:
        """Nothing: the runner writes the rows of `late` to :attr:`sink`, so that both outputs are published together."""


def given_handler(handler: object, on_error: OnError) -> LateEventHandler:
    """`handler`, which must be one; with ``"side_output"`` the query goes on when it raises.

    Raises
    ------
    PlanError
        For other values, and for a side output, whose sink is written with the results: it cannot be left out.
    """
    one_of(on_error, "on_error", ("fail", "side_output"))
    given = a_late_handler(handler)
    if on_error == "fail":
        return given
    if side_output(given) is not None:
        then = "late rows and results are written together, or not at all"
        hint = "leave on_error out"
        raise PlanError("a side output has no other output for its rows", got='on_error="side_output"', then=then, hint=hint)
    return SparedLateEventHandler(given)


def side_output(handler: LateEventHandler) -> Sink | None:
    """Return the sink late rows go to; None if the handler takes them itself."""
    return handler.sink if isinstance(handler, SideOutputLateEventHandler) else None
