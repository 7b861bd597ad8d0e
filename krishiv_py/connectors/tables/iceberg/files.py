"""Reads data files of an Iceberg table in a task."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from krishiv_py.connectors.tables.iceberg.place import iceberg


@functools.lru_cache(maxsize=8)
def _parsed(metadata: str, columns: str) -> tuple[Any, Any]:
    return iceberg("table.metadata").TableMetadataUtil.parse_raw(metadata), iceberg("schema").Schema.model_validate_json(
        columns
    )


@functools.lru_cache(maxsize=8)
def _io(properties: tuple[tuple[str, Any], ...], location: str) -> Any:
    return iceberg("io").load_file_io(dict(properties), location)


def rows_of(
    metadata: str, columns: str, properties: tuple[tuple[str, Any], ...], file: Mapping[str, Any], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, without those that are deleted, in the columns of these `names`.

    `metadata` and `columns` are the table and the schema to read, as JSON; `file` is one of
    :mod:`~krishiv_py.connectors.tables.iceberg.history`.
    """
    table, schema = _parsed(metadata, columns)
    wanted, io = schema.select(*names), _io(properties, table.location)
    if "spec" in file:
        spec = iceberg("partitioning").PartitionSpec.model_validate_json(file["spec"])
        table = table.model_copy(update={"partition_specs": [spec], "default_spec_id": spec.spec_id})
    task = iceberg("table").FileScanTask(_data_file(file, table), {_delete_file(*each) for each in file["deletes"]})
    read = iceberg("io.pyarrow").ArrowScan(table, io, wanted, iceberg("expressions").AlwaysTrue())
    yield from read.to_record_batches([task])


def _data_file(file: Mapping[str, Any], table: Any) -> Any:
    manifest, typedef = iceberg("manifest"), iceberg("typedef")
    from_json = iceberg("conversions").from_json
    spec = table.spec()
    values: list[Any] = []
    if "spec" in file:
        types = spec.partition_type(table.schema()).fields
        values = [None if v is None else from_json(t.field_type, v) for t, v in zip(types, file["partition"], strict=True)]
    made = manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=file["path"],
        file_format=manifest.FileFormat(file["format"]),
        partition=typedef.Record(*values),
        file_size_in_bytes=file["size"],
    )
    made.spec_id = spec.spec_id if "spec" in file else -1
    return made


def _delete_file(path: str, kind: str) -> Any:
    manifest = iceberg("manifest")
    return manifest.DataFile.from_args(
        content=manifest.DataFileContent.POSITION_DELETES, file_path=path, file_format=manifest.FileFormat(kind)
    )
