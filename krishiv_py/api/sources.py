"""Streams that a session makes: over files, sources that plan ranges and Spark (docs/sources.md), and of other streams."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from krishiv_py.api.query import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import archive as archives
from krishiv_py.connectors.kafka.client import Option
from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.kafka.source import KafkaPosition, KeyFormat, OnLost, Tombstones, ValueFormat
from krishiv_py.connectors.ranges import RangeSource, node_of
from krishiv_py.connectors.source import Source
from krishiv_py.connectors.tables.delta.source import delta_source
from krishiv_py.connectors.tables.iceberg.source import Snapshot, iceberg_source
from krishiv_py.connectors.tables.replication import ChangesPlace, OnTruncate, postgres_changes_source
from krishiv_py.connectors.tables.source import OnChange, TablePlace
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.checks import PathLike, Setting, a_number, a_path, a_switch, a_text, column_name, one_of, setting
from krishiv_py.plan.nodes import FileFormat, FileSource, UnionSource, source_of
from krishiv_py.plan.options.late import AfterRead, MissingColumns, Nanoseconds, OnMalformed, one_handler
from krishiv_py.plan.schema import SchemaLike, as_schema, checked
from krishiv_py.storage.files import arrow_reads, hidden, is_local_path
from krishiv_py.storage.local import absolute
from krishiv_py.types import type_text, wider

_SAME: Final = {"delimiter": "sep", "charset": "encoding"}
"""Options of CSV that have two names."""


_WHOLE: Final = "all files of an archive are read lane by lane, and whole"


class FileRunner(Runner, Protocol):
    """A runner that knows files."""

    def located(self, path: str, streaming: bool) -> tuple[str, bool]:
        """Return the path to read, and whether it names a folder or file as it is."""

    def infer(self, path: tuple[str, bool], kind: str, options: dict[str, str]) -> pa.Schema:
        """Return the schema of the files that are there."""


class FileSources:
    """The methods of a session that read files."""

    _runner: FileRunner

    def read_parquet(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        missing_columns: MissingColumns = "fail",
        nanoseconds: Nanoseconds = "fail",
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
        lane: str | None = None,
        order: str | None = None,
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
            What to do if a file lacks a column that the query reads, or a field of a struct in it: refuse the file, or read
            the column or field as null.
        nanoseconds : {"fail", "cut"}
            What to do with times and durations that are finer than a microsecond: refuse the file, or cut them to
            microseconds, towards the past.
        on_malformed : {"fail", "side_output"}
            What to do with a file that cannot be read or does not fit: stop the query with an error that names it, or add
            it to the late rows with the reason ``malformed``.
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).
        lane : str, optional
            For a bounded stream over an archive of a topic: the column with the lane of a row, such as ``"partition"``; text or
            whole numbers. With ``clock="row"`` each of them has a clock of its own (SEMANTICS §2.8). Needs `order`.
        order : str, optional
            The column by which the rows of a lane follow one another, such as ``"offset"``: whole numbers or times. Files may
            hold them in any order, but each file a stretch of its own of a lane. Without it files come by modification time,
            and rows as they lie in them.

        Raises
        ------
        SourceError
            When no file or folder matches the path; in a run, where the files of a lane lie between one another.
        PlanError
            For a number of files below 1, and for arguments of another type.
        ColumnError
            For a column `lane` or `order` that is missing or of another type.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> from krishiv_py import Session, count
        >>> with Session.in_process() as session:
        ...     folder = session.temporary_folder("clicks")
        ...     pq.write_table(pa.table({"user": ["ann", "bob"], "at": [1, 2]}), f"{folder}/a.parquet")
        ...     clicks = session.read_parquet(folder, "user string, at bigint")
        ...     clicks.watermark("at", 0).tumbling_window(10).agg(count()).collect().to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 2}]
        """
        one_of(missing_columns, "missing_columns", ("fail", "null"))
        one_of(nanoseconds, "nanoseconds", ("fail", "cut"))
        lenient, done = (missing_columns, nanoseconds), (after_read, archive)
        files = self._files("parquet", path, schema, streaming, max_files_per_batch, {}, on_malformed, lenient, done)
        if lane is None and order is None:
            return files
        source = files._node
        assert isinstance(source, FileSource)
        if on_malformed != "fail":
            raise PlanError(_WHOLE, got=f"on_malformed={on_malformed!r}", hint="leave out on_malformed")
        found = archives.ParquetFolder(
            path=source.path, literal=source.literal, rule=archives.rule_of(missing_columns, nanoseconds)
        )
        node = archive_of(found, source.schema, lane, order, max_files_per_batch, streaming=streaming)
        return Stream(node, node.schema, self._runner)

    def read_json(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
        **options: str,
    ) -> Stream:
        r"""Files of JSON lines at `path`, at any depth; which files count is in docs/sources.md.

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
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).
        **options : str
            Options of Spark's reader.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.

        Examples
        --------
        >>> import pathlib
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     folder = pathlib.Path(session.temporary_folder("clicks"))
        ...     _ = (folder / "a.json").write_text('{"user": "ann", "at": "2024-05-01T12:00:00Z"}\n')
        ...     clicks = session.read_json(folder, "user string, at timestamp")
        ...     clicks.collect()["user"].to_pylist()
        ['ann']
        """
        done = after_read, archive
        return self._files("json", path, schema, streaming, max_files_per_batch, options, on_malformed, done=done)

    def read_csv(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
        **options: str,
    ) -> Stream:
        r"""CSV files at `path`, at any depth; which files count is in docs/sources.md.

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
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).
        **options : str
            Options of Spark's reader, for instance ``header="true"``.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.

        Examples
        --------
        >>> import pathlib
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     folder = pathlib.Path(session.temporary_folder("clicks"))
        ...     _ = (folder / "a.csv").write_text("user;clicks\nann;3\n")
        ...     session.read_csv(folder, "user string, clicks bigint", header="true", sep=";").collect().to_pylist()
        [{'user': 'ann', 'clicks': 3}]
        """
        done = after_read, archive
        return self._files("csv", path, schema, streaming, max_files_per_batch, options, on_malformed, done=done)

    def _files(
        self,
        kind: FileFormat,
        path: PathLike,
        schema: SchemaLike | Any,
        streaming: bool,
        max_files: int | None,
        options: dict[str, str],
        on_malformed: OnMalformed,
        lenient: tuple[MissingColumns, Nanoseconds] = ("fail", "fail"),
        done: tuple[AfterRead, PathLike | None] = ("keep", None),
    ) -> Stream:
        hint = 'pass a folder, a file or a pattern such as "events/*.parquet"'
        if isinstance(path, (list, tuple, set)):
            hint += "; of several folders make one stream with session.union({...})"
        name = a_path(path, "path", hint)
        after_read, archive = _after_read(*done, name, streaming=streaming)
        a_switch(streaming, "streaming")
        one_of(on_malformed, "on_malformed", ("fail", "side_output"))
        if max_files is not None:
            a_number(max_files, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
        settings = dict(setting(k, v) for k, v in options.items())
        spelled = dict[str, str]()
        for taken in settings:
            if (other := spelled.setdefault(_SAME.get(taken.lower(), taken.lower()), taken)) != taken:
                got = f"{other}={settings[other]!r} and {taken}={settings[taken]!r}"
                hint = f"leave out {other} or {taken}: they are one option, whose name ignores case"
                raise PlanError("an option is given twice", got=got, hint=hint)
            if taken.lower() in ("mode", "columnnameofcorruptrecord", "badrecordspath"):
                hint = 'use on_malformed="fail" or "side_output"'
                raise PlanError(f"the option {taken!r} would drop input in silence", got=settings[taken], hint=hint)
        columns = as_schema(schema) if schema is not None else None
        located = self._runner.located(name, streaming)
        columns = self._runner.infer(located, kind, settings) if columns is None else columns
        source = FileSource(
            located[0],
            kind,
            columns,
            bounded=not streaming,
            max_files_per_batch=max_files,
            options=tuple(sorted(settings.items())),
            literal=located[1],
            missing_columns=lenient[0],
            nanoseconds=lenient[1],
            on_malformed=on_malformed,
            after_read=after_read,
            archive=archive,
        )
        return Stream(source, columns, self._runner)


def _after_read(after_read: AfterRead, archive: PathLike | None, path: str, *, streaming: bool) -> tuple[AfterRead, str | None]:
    """Return what is done with files that were read."""
    one_of(after_read, "after_read", ("keep", "archive", "delete"))
    if (archive is None) == (after_read == "archive"):
        got = f"after_read={after_read!r}, archive={shown(archive)}"
        hint = 'pass after_read="archive" and archive="/a/folder", or neither'
        raise PlanError('`archive` is the folder of after_read="archive"', got=got, hint=hint)
    if after_read != "keep" and (not streaming or not arrow_reads(path)):
        elsewhere = path, "use s3a://, gs://, hdfs:// or a folder of this machine"
        got, hint = elsewhere if streaming else ("streaming=False", "pass streaming=True")
        what = "files are moved or removed only when a streaming query whose batches the library plans has read them"
        raise PlanError(what, got=got, then="they would stay where they are", hint=f"{hint}, or leave after_read out")
    if archive is None:
        return after_read, None
    folder = absolute(a_path(archive, "archive", "pass a folder")).rstrip("/")
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(absolute(path)))
    if (
        is_local_path(folder)
        and is_local_path(path)
        and not inside.startswith("..")
        and not any(map(hidden, inside.split("/")))
    ):
        hint = f"use a folder elsewhere, or a hidden one: {os.path.join(path, '_archive')}"
        raise PlanError("the archive lies in the folder that is read", got=folder, then="files would be read again", hint=hint)
    if is_local_path(folder) != is_local_path(absolute(path)):
        hint = "use a folder on the file system of the files"
        raise PlanError("files are moved within one file system only", got=folder, hint=hint)
    return after_read, folder


class RangedSources:
    """The methods of a session that read sources of which the driver plans ranges."""

    _runner: Runner

    def read_source(self, source: Source, *, name: str | None = None) -> Stream:
        """Return a stream over a source of your own (docs/sources.md, "Your own source").

        Parameters
        ----------
        source : Source
            An object of a subclass of :class:`krishiv_py.connectors.Source`.
        name : str, optional
            Shown in plans and errors; the name of its class by default.

        Raises
        ------
        PlanError
            When it is not a source, or what it states does not fit together.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import Session
        >>> from krishiv_py.connectors import Planned, Source
        >>> class Numbers(Source):
        ...     schema = pa.schema([("n", pa.int64())])
        ...     finite = True
        ...
        ...     def plan(self, last):
        ...         return Planned(3, [[0, 3]]) if last is None else None
        ...
        ...     def read(self, planned, columns):
        ...         yield pa.record_batch({"n": list(range(*planned))})
        >>> with Session.in_process() as session:
        ...     session.read_source(Numbers()).filter("n > 0").collect().to_pylist()
        [{'n': 1}, {'n': 2}]
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
        avro_reader_schema: str | None = None,
        protobuf_message: Any = None,
        schema_registry: str | Mapping[str, str | int | float | bool] | None = None,
        key: str | None = None,
        key_format: KeyFormat = "string",
        key_schema: SchemaLike | Any = None,
        avro_key_schema: str | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
        topic: str | None = None,
        partition: str | None = None,
        offset: str | None = None,
        starting: KafkaPosition = "earliest",
        ending: KafkaPosition | None = None,
        max_offsets_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        on_lost: OnLost = "fail",
        tombstones: Tombstones = "malformed",
        partitions_as_sources: bool = False,
        parallelism: int | None = None,
        commit_group: str | None = None,
        timeout: str = "60 s",
        options: Mapping[str, Option] | None = None,
    ) -> Stream:
        """Topics of Kafka, fetched and decoded in the tasks (docs/kafka.md). Needs the extra ``kafka``.

        Parameters
        ----------
        topics : str or sequence of str
            What to read; several topics have the same columns. A text that begins with ``^`` is a regular expression: topics
            that fit it and are made later are read too, from their first record.
        bootstrap_servers : str
            ``host:port``, several separated by commas.
        schema : pyarrow.Schema or StructType or str
            Columns of the value. For ``value_format="bytes"`` one binary column, by default ``value``; for ``"protobuf"`` all
            fields of the message by default.
        value_format : {"json", "avro", "protobuf", "arrow", "bytes"}
            How values are written: one JSON object, Avro record or protobuf message each; an Arrow IPC stream or file of many
            rows each; or as they are.
        avro_schema : str, optional
            JSON text of the schema of Avro values that do not begin with the number of one.
        avro_reader_schema : str, optional
            JSON text of the schema to read Avro values with: those of other schemas are resolved to it, with its defaults and
            aliases. Without it, a column that a value does not have is null.
        protobuf_message : generated class or (path, str), optional
            The type of protobuf values: a class that ``protoc`` made, or a file of descriptors (``protoc --include_imports
            --descriptor_set_out``) and the full name of the message.
        schema_registry : str or mapping, optional
            Address of the registry in which the schemas of Avro values are looked up, or settings of its client with ``url``.
            With protobuf and JSON, values begin with the number of a schema, which must be one of that kind.
        key, timestamp, headers, topic, partition, offset : str, optional
            Names of columns to add: key, time of the record (``timestamp``), headers (list of name and value) and place.
        key_format : {"string", "bytes", "json", "avro"}
            Type of the column for `key`; JSON and Avro keys are decoded to the columns of `key_schema`.
        key_schema : pyarrow.Schema or StructType or str, optional
            Columns of JSON and Avro keys. An Avro key that is not a record is the only column. They are null without a key.
        avro_key_schema : str, optional
            JSON text of the schema of Avro keys that do not begin with the number of one in the registry.
        starting : {"earliest", "latest"}, datetime, int (ms since the epoch) or mapping of partition to offset
            Where a new query begins. A restarted one goes on where its checkpoint says.
        ending : the same, optional
            Where the stream ends; without it, it does not. ``"latest"`` is what is there when the query begins.
        max_offsets_per_batch : int, optional
            The most offsets of one micro-batch, from 1, in the order of the records' timestamps; all there is by default.
        on_malformed : {"fail", "side_output"}
            What to do with a record that is not a row: stop the query with an error that names it, or add it to the late rows.
        on_lost : {"fail", "warn"}
            What to do when records expired before they were read: stop the query, or go on with a warning.
        tombstones : {"malformed", "null"}
            What a record without a value is: malformed, or a row whose value is null in every column. ``from_changelog`` reads
            such a row as a deletion (upserts), or passes over it (Debezium).
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
            Settings of librdkafka, for instance ``security.protocol``. Values of secret ones are never shown. ``oauth_cb`` is a
            function that returns tokens, as confluent-kafka has it; it is sent to the tasks.

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

        Examples
        --------
        >>> from krishiv_py import ParquetSink, count
        >>> def started(session):
        ...     clicks = session.read_kafka("clicks", bootstrap_servers="localhost:9092", schema="user string, at bigint")
        ...     per_user = clicks.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count())
        ...     return per_user.start(ParquetSink("out"), checkpoint="checkpoint")
        """
        source = kafka_source(
            topics,
            bootstrap_servers=bootstrap_servers,
            schema=schema,
            value_format=value_format,
            avro_schema=avro_schema,
            avro_reader_schema=avro_reader_schema,
            protobuf_message=protobuf_message,
            schema_registry=schema_registry,
            key=key,
            key_format=key_format,
            key_schema=key_schema,
            avro_key_schema=avro_key_schema,
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
            tombstones=tombstones,
            partitions_as_sources=partitions_as_sources,
            parallelism=parallelism,
            commit_group=commit_group,
            timeout=timeout,
            options=options,
        )
        return self.read_source(source, name=f"kafka {source.pattern or ', '.join(source.topics)}")

    def read_delta(
        self,
        path: PathLike,
        *,
        streaming: bool = False,
        version: int | None = None,
        starting: TablePlace = "earliest",
        max_files_per_batch: int | None = None,
        on_change: OnChange = "fail",
        changes: bool = False,
        parallelism: int | None = None,
        storage_options: Mapping[str, Setting] | None = None,
        lane: str | None = None,
        order: str | None = None,
    ) -> Stream:
        """Return a Delta table, read by delta-rs and Arrow (docs/tables.md). Needs the extra ``delta``.

        Parameters
        ----------
        path : str or os.PathLike
            Folder or address of the table.
        streaming : bool
            Whether what is added later is read as well, version by version.
        version : int, optional
            The version to read, from 0, where it is not streaming; the last one by default.
        starting : {"earliest", "latest"} or int
            Where a new streaming query begins: with the whole table, after its last version, or with what a version added.
            A restarted one goes on where its checkpoint says.
        max_files_per_batch : int, optional
            The most files of one micro-batch, from 1; all that are there by default.
        on_change : {"fail", "skip"}
            What to do with a later version that changes or deletes rows: stop the query, or pass over the whole version with
            a warning. Compacting a table changes no rows.
        changes : bool
            Whether rows are the changes of the table, with ``_change_type`` (``insert``, ``delete``, ``update_preimage``,
            ``update_postimage``), ``_commit_version`` and ``_commit_timestamp``: its rows as they are where it begins, then
            what each version did. ``.from_changelog("cdf", key=...)`` makes the table of them. A version without a change
            data feed gives the rows of the files that it took out and put in. Not streaming, it ends with `version`; `starting`
            may be a number.
        parallelism : int, optional
            How many tasks read at once; by default one for each core of this machine.
        storage_options : mapping of str, optional
            What delta-rs needs to reach an object store. Secrets are not shown.
        lane, order : str, optional
            For an archive of a topic that is not streaming: the columns with the lane of a row, and with its place in it, as of
            :meth:`~krishiv_py.Session.read_parquet`. A table has no order of its own, so ``clock="row"`` needs them.

        Raises
        ------
        PlanError
            For arguments that mean nothing or do not go together.
        SchemaError
            For a column of a type that the library does not have.
        SourceError
            When there is no table, no such version, or one that only Spark can read (deletion vectors, mapped columns).
        MissingExtraError
            When deltalake is not installed.

        Examples
        --------
        >>> import deltalake
        >>> import pyarrow as pa
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     folder = session.temporary_folder("table")
        ...     deltalake.write_deltalake(folder, pa.table({"user": ["ann", "bob"]}))
        ...     session.read_delta(folder, version=0).collect().to_pylist()
        [{'user': 'ann'}, {'user': 'bob'}]
        """
        source = delta_source(
            path,
            streaming=streaming,
            version=version,
            starting=starting,
            max_files_per_batch=max_files_per_batch,
            on_change=on_change,
            changes=changes,
            parallelism=parallelism,
            storage_options=storage_options,
        )
        if lane is None and order is None:
            return self.read_source(source, name=f"delta {source.path}")
        node = archive_of(archives.TableFiles(source), source.schema, lane, order, max_files_per_batch, streaming=streaming)
        return Stream(node, node.schema, self._runner)

    def read_iceberg(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, Setting],
        streaming: bool = False,
        snapshot: Snapshot | None = None,
        starting: TablePlace = "earliest",
        max_files_per_batch: int | None = None,
        on_change: OnChange = "fail",
        changes: bool = False,
        parallelism: int | None = None,
        lane: str | None = None,
        order: str | None = None,
    ) -> Stream:
        """Return an Iceberg table, read by pyiceberg and Arrow (docs/tables.md). Needs the extra ``iceberg``.

        Parameters
        ----------
        table : str
            Namespace and name, such as ``lake.events``.
        catalog : str or mapping of str
            The name of a catalog in ``~/.pyiceberg.yaml``, or its properties:
            ``{"type": "sql", "uri": ..., "warehouse": ...}``. Secrets are not shown.
        streaming : bool
            Whether what is appended later is read as well, snapshot by snapshot.
        snapshot : int, str or datetime, optional
            What to read where it is not streaming: the number of a snapshot, the name of a tag or branch, or a time with a
            zone, for the table as it was then. The current snapshot by default.
        starting : {"earliest", "latest"} or int
            Where a new streaming query begins: with the whole table, after its current snapshot, or with what the snapshot of
            this number added. A restarted one goes on where its checkpoint says.
        max_files_per_batch : int, optional
            The most files of one micro-batch, from 1; all that are there by default.
        on_change : {"fail", "skip"}
            What to do with a later snapshot that changes or deletes rows: stop the query, or pass over the whole snapshot with
            a warning. Compacting a table changes no rows.
        changes : bool
            Whether rows are the changes of the table, with ``_change_type`` (``insert``, ``delete``, ``update_preimage``,
            ``update_postimage``), ``_commit_version`` and ``_commit_timestamp``: its rows as they are where it begins, then
            what each snapshot did. ``.from_changelog("cdf", key=...)`` makes the table of them. Rows of files that a
            snapshot took out and put in are deletions and insertions. Not streaming, it ends with `snapshot`; `starting` may be
            a number.
        parallelism : int, optional
            How many tasks read at once; by default one for each core of this machine.
        lane, order : str, optional
            For an archive of a topic that is not streaming: the columns with the lane of a row, and with its place in it, as of
            :meth:`~krishiv_py.Session.read_parquet`. A table has no order of its own, so ``clock="row"`` needs them.

        Raises
        ------
        PlanError
            For arguments that mean nothing or do not go together.
        SchemaError
            For a column of a type that the library does not have.
        SourceError
            When there is no table, no such snapshot, or the catalog does not answer.
        MissingExtraError
            When pyiceberg is not installed.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_hour(session):
        ...     lake = {"type": "rest", "uri": "http://localhost:8181"}
        ...     events = session.read_iceberg("lake.events", catalog=lake, streaming=True)
        ...     return events.watermark("at", "1 min").tumbling_window("1 hour").agg(count())
        """
        source = iceberg_source(
            table,
            catalog=catalog,
            streaming=streaming,
            snapshot=snapshot,
            starting=starting,
            max_files_per_batch=max_files_per_batch,
            on_change=on_change,
            changes=changes,
            parallelism=parallelism,
        )
        if lane is None and order is None:
            return self.read_source(source, name=f"iceberg {source.name}")
        node = archive_of(archives.TableFiles(source), source.schema, lane, order, max_files_per_batch, streaming=streaming)
        return Stream(node, node.schema, self._runner)

    def read_postgres_changes(
        self,
        conninfo: str,
        table: str,
        *,
        slot: str,
        publication: str,
        starting: ChangesPlace = "earliest",
        create: bool = True,
        max_changes_per_batch: int = 100_000,
        on_truncate: OnTruncate = "fail",
    ) -> Stream:
        """Return the changes of a table of PostgreSQL, by logical replication (docs/change-data-capture.md).

        Needs the extra ``postgres``.

        Rows have the columns of the table and those of a change feed: ``_change_type`` (``insert``, ``delete``,
        ``update_preimage``, ``update_postimage``), ``_commit_version``, the place of the change in the log, and
        ``_commit_timestamp``. ``.from_changelog("cdf", key=...)`` makes the table of them.

        Parameters
        ----------
        conninfo : str
            The database, as libpq reads it: ``postgresql://host/database`` or ``host=... dbname=...``.
        table : str
            ``table`` or ``schema.table``, upper and lower case as written.
        slot : str
            The replication slot, of this query alone: the server keeps its log until the query has read it.
        publication : str
            The publication that has the table.
        starting : {"earliest", "latest"}
            Where a new query begins: with the table as it is and what follows, or with what the slot has. A restarted one goes
            on where its checkpoint says.
        create : bool
            Whether slot and publication are made when the query begins, if they are missing.
        max_changes_per_batch : int
            After how many changes a batch ends, from 1; a transaction is in one batch.
        on_truncate : {"fail", "side_output"}
            What to do when the table is truncated, which says of no row that it is gone: stop the query, or go on with a row
            ``truncate``, which is none of the table and goes to the late handler.

        Raises
        ------
        PlanError
            For a server without ``wal_level = logical``, a table that does not exist, and a publication without all of it.
        OperatorError
            When the server cannot be reached.
        MissingExtraError
            When psycopg is not installed.

        Examples
        --------
        >>> def customers(session):
        ...     shop = "host=db dbname=shop user=reader"
        ...     rows = session.read_postgres_changes(shop, "customers", slot="krishiv_customers", publication="krishiv")
        ...     return rows.from_changelog("cdf", key="id")
        """
        source = postgres_changes_source(
            conninfo,
            table,
            slot=slot,
            publication=publication,
            starting=starting,
            create=create,
            max_changes_per_batch=max_changes_per_batch,
            on_truncate=on_truncate,
        )
        return self.read_source(source, name=f"postgres {'.'.join(source.path)}")


def archive_of(
    files: archives.ArchiveFiles,
    schema: pa.Schema,
    lane: str | None,
    order: str | None,
    most: int | None,
    *,
    streaming: bool = False,
) -> RangeSource:
    """Return the source of files of which columns name the lane of a row, and its place in it.

    Raises
    ------
    PlanError
        For a lane without an order, and for files of which more may come.
    ColumnError
        For a column that is missing or of another type.
    """
    if streaming:
        raise PlanError(_WHOLE, got="streaming=True", hint="leave out streaming")
    if order is None:
        raise PlanError("a lane needs an order", got=f"lane={lane!r}", hint='write lane="partition", order="offset"')
    ordered = archives.ArchiveSource(
        files=files,
        schema=schema,
        lane=None if lane is None else a_text(lane, "lane", 'pass the name of a column: lane="partition"'),
        order=a_text(order, "order", 'pass the name of a column: order="offset"'),
        most=most,
    )
    return node_of(ordered, "archive")


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
                hint="pass streams as they are before .watermark(...), and set it on the union: .watermark(...) for all rows, "
                "or .with_watermark(spec, ..., source_column=...) with a MultiSourceWatermarkSpec, a lag for each stream",
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
        common = [n for n in first.names if n in schema.names]
        ways = f"write .select({', '.join(map(repr, common))}) on {'it' if common == first.names else 'each stream'}"
        hint = ways if common else "no column is in both; give those that mean the same one name with .rename(...)"
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


class FrameRunner(Runner, Protocol):
    """A runner that knows DataFrames."""

    def frame_stream(self, frame: Any) -> Stream:
        """Return a stream over a DataFrame."""

    def table_stream(self, name: str, streaming: bool) -> Stream:
        """Return a stream over a table of the catalog."""


class OtherStreams:
    """The methods of a session that make streams of DataFrames and of streams."""

    _runner: FrameRunner

    @property
    def spark(self) -> Any:
        """The Spark session that is used."""
        raise NotImplementedError

    def rate(self, rows_per_second: int = 1) -> Stream:
        """Spark's generator: `rows_per_second` rows of ``timestamp`` and ``value``, for trying things out.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_ten_seconds(session):
        ...     return session.rate(100).watermark("timestamp", 0).tumbling_window("10 s").agg(count())
        """
        if isinstance(rows_per_second, bool) or not isinstance(rows_per_second, int) or rows_per_second < 1:
            raise PlanError("`rows_per_second` is not a rate", got=shown(rows_per_second), hint="use 1 or more")
        return self.from_dataframe(self.spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load())

    def from_dataframe(self, frame: Any) -> Stream:
        """Return a stream over the Spark DataFrame `frame`, streaming or not.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_hour(session):
        ...     frame = session.spark.readStream.format("delta").load("/data/clicks")
        ...     return session.from_dataframe(frame).watermark("at", "1 min").tumbling_window("1 hour").agg(count())
        """
        if not isinstance(getattr(frame, "isStreaming", None), bool):
            raise PlanError("not a Spark DataFrame", got=type(frame).__name__, hint="pass a Spark DataFrame")
        return self._runner.frame_stream(frame)

    def table(self, name: str, *, streaming: bool = False) -> Stream:
        """Return a stream over the table or view `name` of Spark's catalog (docs/sources.md, "DataFrames").

        Parameters
        ----------
        name : str
            As SQL names it: ``"events"``, ``"db.events"``, ``"catalog.db.events"``.
        streaming : bool
            Also read rows that come later, where the table's format can be read as a stream. Otherwise the table as it is
            when the stream is run is a bounded stream.

        Raises
        ------
        SourceError
            When there is no such table, or it cannot be read so.
        PlanError
            For a value that is not a name.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_hour(session):
        ...     return session.table("db.clicks").watermark("at", "1 min").tumbling_window("1 hour").agg(count())
        """
        a_text(name, "name", 'write session.table("db.events")')
        a_switch(streaming, "streaming")
        return self._runner.table_stream(name, streaming)

    def union(self, streams: Mapping[str, Stream], *, source_column: str = "source") -> Stream:
        """Several streams as one, each row with the name of its stream.

        Declare their watermarks with :class:`~krishiv_py.MultiSourceWatermarkSpec` and ``source_column=...``; closing the
        sender of one stream ends that stream only. With ``.watermark(...)``, one for all rows, the end of input comes when all
        streams have ended.

        Parameters
        ----------
        streams : mapping of str to Stream
            Streams with equal columns, by name.
        source_column : str
            Name of the added text column.

        Raises
        ------
        SchemaError
            When the streams have different columns.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     web, from_web = session.memory_stream("at bigint", name="web")
        ...     app, from_app = session.memory_stream("at bigint", name="app")
        ...     _ = from_web.send([{"at": 1}, {"at": 2}]), from_app.send([{"at": 3}])
        ...     _ = from_web.close(), from_app.close()
        ...     both = session.union({"web": web, "app": app})
        ...     both.collect().to_pylist()
        [{'at': 1, 'source': 'web'}, {'at': 2, 'source': 'web'}, {'at': 3, 'source': 'app'}]
        """
        return union_of(streams, source_column, self._runner)
