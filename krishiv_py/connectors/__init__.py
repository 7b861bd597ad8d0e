"""Determine where rows come from and where they go: small interfaces, and one file for each implementation.

A sink subclasses one of :class:`FileSink` (tasks write Arrow to files), :class:`TableSink` (the driver gets Arrow tables),
:class:`TransactionalSink` (the same, with a transaction for each batch), :class:`FrameSink` (a Spark DataFrame) or
:class:`SparkFileSink` (files that Spark writes). docs/outputs.md has a section "Your own sink" with an example.

A source subclasses :class:`Source`: the driver plans ranges, tasks read them. docs/sources.md has a section "Your own source".

This room imports the plan and what is below it, and no Spark: ``krishiv_py/spark`` connects it to Spark.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)

from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.sink import (
    Delivery,
    FileSink,
    FrameSink,
    OnRepeat,
    OutputBatch,
    OutputName,
    Sink,
    SparkFileSink,
    TableSink,
    TransactionalSink,
)
from krishiv_py.connectors.source import JsonValue, Malformed, Planned, Source
from krishiv_py.connectors.tables.delta.source import delta_source
from krishiv_py.connectors.tables.iceberg.source import iceberg_source
from krishiv_py.connectors.tables.keys import NetChanges, net_changes
from krishiv_py.connectors.tables.replication import postgres_changes_source
from krishiv_py.storage.datasets import Dataset

__all__ = [
    "Dataset",
    "Delivery",
    "FileSink",
    "FrameSink",
    "JsonValue",
    "Malformed",
    "NetChanges",
    "OnRepeat",
    "OutputBatch",
    "OutputName",
    "Planned",
    "Sink",
    "Source",
    "SparkFileSink",
    "TableSink",
    "TransactionalSink",
    "delta_source",
    "iceberg_source",
    "kafka_source",
    "net_changes",
    "postgres_changes_source",
]


def __dir__() -> list[str]:
    return __all__
