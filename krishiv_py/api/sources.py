"""Streams over files: what a session can read (docs/sources.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.kafka.columns import KeyFormat
from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.kafka.source import OnLost, ValueFormat
from krishiv_py.connectors.kafka.starting import Told as KafkaPlace
from krishiv_py.connectors.ranges import node_of
from krishiv_py.connectors.source import Source
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.plan.checks import a_number, a_switch, one_of, setting
from krishiv_py.plan.names import encodable
from krishiv_py.plan.nodes import FileFormat, FileSource
from krishiv_py.plan.options.malformed import MissingColumns, OnMalformed
from krishiv_py.plan.schema import SchemaLike, as_schema

PathLike: TypeAlias = "str | os.PathLike[str]"


class FileRunner(Runner, Protocol):
    """A runner that knows files."""

    def located(self, path: str, streaming: bool) -> tuple[str, bool]:
        """The path to read, and whether it names a folder or file as it stands."""
        ...

    def infer(self, path: tuple[str, bool], kind: str, options: dict[str, str]) -> pa.Schema:
        """The schema of the files that are there."""
        ...


class FileSources:
    """The methods of a session that read files and other sources."""

    _runner: FileRunner

    def read_parquet(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        missing_columns: MissingColumns = "fail",
        on_malformed: OnMalformed = "fail",
    ) -> Stream:
        """Parquet files at `path`, at any depth, read by Arrow; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        missing_columns : {"fail", "null"}
            What to do if a file lacks a column that the query reads: refuse the file, or read the column as null.
        on_malformed : {"fail", "side_output"}
            What to do with a file that cannot be read or does not fit: stop the query with an error that names it, or add
            it to the late rows with the reason ``malformed``.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        one_of(missing_columns, "missing_columns", ("fail", "null"))
        return self._files("parquet", path, schema, streaming, max_files_per_batch, {}, on_malformed, missing_columns)

    def read_json(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        **options: str,
    ) -> Stream:
        """Files of JSON lines at `path`, at any depth; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        on_malformed : {"fail", "side_output"}
            What to do with a line that is not a row: stop the query with an error that names file, line and
            text, or add it to the late rows with the reason ``malformed``.
        **options : str
            Options of Spark's reader.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        return self._files("json", path, schema, streaming, max_files_per_batch, options, on_malformed)

    def read_csv(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        **options: str,
    ) -> Stream:
        """CSV files at `path`, at any depth; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        on_malformed : {"fail", "side_output"}
            What to do with a record that does not fit: stop the query with an error that names file, line and
            text, or add it to the late rows with the reason ``malformed``.
        **options : str
            Options of Spark's reader, for instance ``header="true"``.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        return self._files("csv", path, schema, streaming, max_files_per_batch, options, on_malformed)

    def read_source(self, source: Source, *, name: str | None = None) -> Stream:
        """A stream over a source of your own (docs/sources.md, "Your own source").

        Parameters
        ----------
        source : Source
            An object of a subclass of :class:`krishiv_py.connectors.Source`.
        name : str, optional
            Shown in plans and errors; the name of its class by default.

        Raises
        ------
        PlanError
            When it is no source, or what it states does not fit together.
        """
        node = node_of(source, name)
        return Stream(node, node.schema, self._runner)

    def read_kafka(
        self,
        topics: str | Sequence[str],
        *,
        bootstrap_servers: str,
        schema: SchemaLike | Any = None,
        value_format: ValueFormat = "json",
        avro_schema: str | None = None,
        schema_registry: str | Mapping[str, str | int | float | bool] | None = None,
        key: str | None = None,
        key_format: KeyFormat = "string",
        timestamp: str | None = None,
        headers: str | None = None,
        topic: str | None = None,
        partition: str | None = None,
        offset: str | None = None,
        starting: KafkaPlace = "earliest",
        ending: KafkaPlace | None = None,
        max_offsets_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        on_lost: OnLost = "fail",
        partitions_as_sources: bool = False,
        parallelism: int | None = None,
        commit_group: str | None = None,
        timeout: str = "60 s",
        options: Mapping[str, str | int | float | bool] | None = None,
    ) -> Stream:
        """Topics of Kafka, fetched and decoded in the tasks (docs/kafka.md). Needs the extra ``krishiv_py[kafka]``.

        Parameters
        ----------
        topics : str or sequence of str
            What to read; several topics have the same columns.
        bootstrap_servers : str
            ``host:port``, several separated by commas.
        schema : pyarrow.Schema or StructType or str
            Columns of the value. For ``value_format="bytes"`` one binary column, by default ``value``.
        value_format : {"json", "avro", "bytes"}
            How values are written: one JSON object or one Avro record each, or as they are.
        avro_schema : str, optional
            JSON text of the schema of Avro values that do not begin with the number of one.
        schema_registry : str or mapping, optional
            Address of the registry in which the schemas of Avro values are looked up, or settings of its client with ``url``.
        key, timestamp, headers, topic, partition, offset : str, optional
            Names of columns to add: key, time of the record (``timestamp``), headers (list of name and value) and place.
        key_format : {"string", "bytes"}
            Type of the column for `key`.
        starting : {"earliest", "latest"}, datetime, int (ms since the epoch) or mapping of partition to offset
            Where a new query begins. A restarted one goes on where its checkpoint says.
        ending : the same, optional
            Where the stream ends; without it, it does not. ``"latest"`` is what is there when the query begins.
        max_offsets_per_batch : int, optional
            The most offsets of one micro-batch, from 1, shared in proportion to what waits; everything there is by default.
        on_malformed : {"fail", "side_output"}
            What to do with a record that is no row: stop the query with an error that names it, or add it to the late rows.
        on_lost : {"fail", "warn"}
            What to do when records expired before they were read: stop the query, or go on with a warning.
        partitions_as_sources : bool
            Add a column ``kafka_source`` with ``topic-partition``, to declare each partition as a watermark source.
        parallelism : int, optional
            How many tasks fetch at once; by default one for each partition, at most one for each core of this machine.
        commit_group : str, optional
            A consumer group in whose name the offsets of published batches are committed, for lag monitors. The query itself
            never reads them.
        timeout : str
            How long to wait for a broker before the query fails.
        options : mapping, optional
            Settings of librdkafka, for instance ``security.protocol``. Values of secret ones are never shown.

        Raises
        ------
        PlanError
            For arguments that mean nothing, and for options that the library sets itself.
        SchemaError
            For a schema that is missing, and for two columns of one name.
        SourceError
            When no broker answers within `timeout`, or a topic does not exist.
        MissingExtraError
            When confluent-kafka is not installed.
        """
        source = kafka_source(
            topics,
            bootstrap_servers=bootstrap_servers,
            schema=schema,
            value_format=value_format,
            avro_schema=avro_schema,
            schema_registry=schema_registry,
            key=key,
            key_format=key_format,
            timestamp=timestamp,
            headers=headers,
            topic=topic,
            partition=partition,
            offset=offset,
            starting=starting,
            ending=ending,
            max_offsets_per_batch=max_offsets_per_batch,
            on_malformed=on_malformed,
            on_lost=on_lost,
            partitions_as_sources=partitions_as_sources,
            parallelism=parallelism,
            commit_group=commit_group,
            timeout=timeout,
            options=options,
        )
        return self.read_source(source, name=f"kafka {', '.join(source.topics)}")

    def _files(
        self,
        kind: FileFormat,
        path: PathLike,
        schema: SchemaLike | Any,
        streaming: bool,
        max_files: int | None,
        options: dict[str, str],
        on_malformed: OnMalformed,
        missing_columns: MissingColumns = "fail",
    ) -> Stream:
        name = checked_path(path)
        a_switch(streaming, "streaming")
        one_of(on_malformed, "on_malformed", ("fail", "side_output"))
        if max_files is not None:
            a_number(max_files, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
        settings = dict(setting(k, v) for k, v in options.items())
        for taken in settings:
            if taken.lower() in ("mode", "columnnameofcorruptrecord", "badrecordspath"):
                raise PlanError(
                    message(
                        f"the option {taken!r} would drop input in silence",
                        settings[taken],
                        "no row may vanish",
                        'use on_malformed="fail" or "side_output"',
                    )
                )
        columns = as_schema(schema) if schema is not None else None
        found = self._runner.located(name, streaming)
        columns = self._runner.infer(found, kind, settings) if columns is None else columns
        source = FileSource(
            found[0],
            kind,
            columns,
            bounded=not streaming,
            max_files_per_batch=max_files,
            options=tuple(sorted(settings.items())),
            literal=found[1],
            missing_columns=missing_columns,
            on_malformed=on_malformed,
        )
        return Stream(source, columns, self._runner)


def checked_path(path: object) -> str:
    """A path as text."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if isinstance(text, str) and text.strip() and "\0" not in text and encodable(text):
            return text
    hint = 'pass a folder, a file or a pattern such as "events/*.parquet"'
    if isinstance(path, (list, tuple, set)):
        hint += "; of several folders make one stream with session.union({...})"
    raise PlanError(message("`path` is no path", shown(path), "there is nothing to read", hint))
