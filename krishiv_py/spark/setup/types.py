"""Arrow types in Spark's words, and back."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType, TimestampType

from krishiv_py.errors import SchemaError
from krishiv_py.plan.schema import found_schema
from krishiv_py.types import TYPE_NAMES

_FLAT: Final[dict[str, type[DataType]]] = {
    "string": StringType,
    "binary": BinaryType,
    "int": IntegerType,
    "bigint": LongType,
    "timestamp": TimestampType,
}


def flat_type(text: str) -> StructType:
    """Columns of plain types: ``"name string, blob binary"``. The JVM would take half a second to load its parser."""
    struct = StructType()
    for column in text.split(", "):
        name, type_ = column.split(" ")
        struct.add(name, _FLAT[type_]())
    return struct


def spark_ddl(schema: pa.Schema) -> str:
    """Return an Arrow schema as Spark DDL."""
    return ", ".join(f"{quoted(f.name)} {spark_type(f.type)}" for f in schema)


def quoted(name: str) -> str:
    """Return a name as Spark reads it whatever is in it: a dot, a backtick."""
    return f"`{name.replace('`', '``')}`"


_DDL = {**TYPE_NAMES, pa.null(): "void"}


def spark_type(type_: pa.DataType) -> str:
    """Return an Arrow type in Spark's words."""
    if type_ in _DDL:
        return _DDL[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"array<{spark_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{spark_type(type_.key_type)},{spark_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return "struct<" + ",".join(f"{quoted(f.name)}:{spark_type(f.type)}" for f in type_) + ">"
    if pa.types.is_duration(type_):
        return "interval day to second"
    raise SchemaError("Spark has no such type", got=type_, hint="cast or drop the column")


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a DataFrame; columns whose types no stream can have are left out, and noted."""
    return found_schema(frame.schema)
