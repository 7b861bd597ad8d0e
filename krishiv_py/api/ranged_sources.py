"""Streams over sources that plan ranges: Kafka, Delta and Iceberg tables, and a user's own (docs/sources.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.kafka.columns import KeyFormat
from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.kafka.settings import Option
from krishiv_py.connectors.kafka.source import OnLost, ValueFormat
from krishiv_py.connectors.kafka.starting import RemoteStart as KafkaPlace
from krishiv_py.connectors.ranges import node_of
from krishiv_py.connectors.source import Source
from krishiv_py.connectors.tables.delta.making import DeltaPlace, delta_source
from krishiv_py.connectors.tables.delta.source import OnChange
from krishiv_py.connectors.tables.iceberg.making import IcebergPlace, Snapshot, iceberg_source
from krishiv_py.plan.options.malformed import OnMalformed
from krishiv_py.plan.schema import SchemaLike


class RangedSources:
    """The methods of a session that read sources of which the driver plans ranges."""

    _runner: Runner

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
            When it is not a source, or what it states does not fit together.
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
        starting: KafkaPlace = "earliest",
        ending: KafkaPlace | None = None,
        max_offsets_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        on_lost: OnLost = "fail",
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
            partitions_as_sources=partitions_as_sources,
            parallelism=parallelism,
            commit_group=commit_group,
            timeout=timeout,
            options=options,
        )
        return self.read_source(source, name=f"kafka {source.pattern or ', '.join(source.topics)}")

    def read_delta(
        self,
        path: str | os.PathLike[str],
        *,
        streaming: bool = False,
        version: int | None = None,
        starting: DeltaPlace = "earliest",
        max_files_per_batch: int | None = None,
        on_change: OnChange = "fail",
        parallelism: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """A Delta table, read by delta-rs and Arrow (docs/tables.md). Needs the extra ``delta``.

        Parameters
        ----------
        path : str or os.PathLike
            Folder or address of the table.
        streaming : bool
            Whether what is added later is read as well, version by version.
        version : int, optional
            The version to read, from 0, where it is not streaming; the last one by default.
        starting : {"earliest", "latest"} or int
            Where a new streaming query begins: with the whole table, behind its last version, or with what a version added.
            A restarted one goes on where its checkpoint says.
        max_files_per_batch : int, optional
            The most files of one micro-batch, from 1; all that are there by default.
        on_change : {"fail", "skip"}
            What to do with a later version that changes or deletes rows: stop the query, or pass over the whole version with
            a warning. Compacting a table changes no rows.
        parallelism : int, optional
            How many tasks read at once; by default one for each core of this machine.
        storage_options : mapping of str, optional
            What delta-rs needs to reach an object store. Secrets are not shown.

        Raises
        ------
        PlanError
            For arguments that mean nothing or do not go together.
        SchemaError
            For a column of a type that the library has not.
        SourceError
            When there is no table, no such version, or one that only Spark can read (deletion vectors, mapped columns).
        MissingExtraError
            When deltalake is not installed.
        """
        source = delta_source(
            path,
            streaming=streaming,
            version=version,
            starting=starting,
            max_files_per_batch=max_files_per_batch,
            on_change=on_change,
            parallelism=parallelism,
            storage_options=storage_options,
        )
        return self.read_source(source, name=f"delta {source.path}")

    def read_iceberg(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        streaming: bool = False,
        snapshot: Snapshot | None = None,
        starting: IcebergPlace = "earliest",
        max_files_per_batch: int | None = None,
        on_change: OnChange = "fail",
        parallelism: int | None = None,
    ) -> Stream:
        """An Iceberg table, read by pyiceberg and Arrow (docs/tables.md). Needs the extra ``iceberg``.

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
        parallelism : int, optional
            How many tasks read at once; by default one for each core of this machine.

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
        """
        source = iceberg_source(
            table,
            catalog=catalog,
            streaming=streaming,
            snapshot=snapshot,
            starting=starting,
            max_files_per_batch=max_files_per_batch,
            on_change=on_change,
            parallelism=parallelism,
        )
        return self.read_source(source, name=f"iceberg {source.name}")
