"""The sinks that a query takes: those that implement one of the interfaces, so that no row vanishes."""

from __future__ import annotations

import os
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from krishiv_py.connectors.sink import (
    Delivery,
    FileSink,
    FolderSink,
    FrameSink,
    OnRepeat,
    Sink,
    SparkFileSink,
    TableSink,
)
from krishiv_py.connectors.sinks.program import BatchConsumer, ForeachBatchSink
from krishiv_py.errors import PlanError, shown

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
        raise PlanError(
            f"{sink.title} has no suffix for its files",
            got=shown(suffix),
            hint='give the class an attribute such as suffix = ".csv"',
        )
