"""Object stores of a session: its settings, noted for Arrow and boto3, and whether Spark itself can reach ``s3a://``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.disk.files import file_system
from krishiv_py.disk.stores import NAMES, PREFIX, check_store, of_store, use
from krishiv_py.errors import EnvironmentSetupError, PlanError, message
from krishiv_py.spark.setup.config import is_connect

HADOOP: Final = "spark.hadoop."
_BUCKETS: Final = f"{PREFIX}bucket."
_FORWARDED: Final = tuple(f".{name}" for name in NAMES)
_NO_CLASS: Final = ("ClassNotFoundException", "UnsupportedFileSystemException", "No FileSystem for scheme")


def use_stores_of(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Reach stores as this session does: by its settings, those of Hadoop's files, and those `given` to its builder."""
    found = _settings(spark) | {name.removeprefix(HADOOP): value for name, value in given.items()}
    use({name: value for name, value in found.items() if name.startswith(PREFIX) and name.endswith(_FORWARDED)})


def _settings(spark: SparkSession) -> dict[str, str]:
    if is_connect(spark):
        try:
            every = spark.conf.getAll
        except (AttributeError, PySparkException):  # before Spark 4.0 there is no such list
            return {}
        return {name.removeprefix(HADOOP): str(value) for name, value in every.items()}
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    found = {name: hadoop.get(name) for name in map(PREFIX.__add__, NAMES)}  # one by one: each entry of a map is two calls
    buckets = hadoop.getPropsWithPrefix(_BUCKETS)
    if not buckets.isEmpty():
        found |= {_BUCKETS + str(each.getKey()): each.getValue() for each in buckets.entrySet().toArray()}
    found |= {name: spark.conf.get(name, found.get(name)) for name in map(PREFIX.__add__, NAMES)}  # set on the running session
    return {name: str(value) for name, value in found.items() if value is not None}


def settings_while_running(name: str) -> tuple[str, ...]:
    """The names under which a running session takes a setting: Hadoop's also as Hadoop calls them."""
    return (name, name.removeprefix(HADOOP)) if name.startswith(HADOOP) else (name,)


def check_stores(spark: SparkSession, paths: Iterable[str | None], *, by_spark: bool = True) -> None:
    """See that the stores of some paths answer, before a query begins or a file is read.

    Raises
    ------
    EnvironmentSetupError
        When a bucket, its credentials or its endpoint are wrong, or Spark has no classes for it.
    PlanError
        For ``s3://``, which Spark does not know, and for credentials in a path.
    """
    checked: set[str] = set()
    for path in paths:
        if path is None or not of_store(path):
            continue
        if by_spark and path.startswith("s3://"):
            what, hint = "Spark reads and writes S3 as s3a://", f"write s3a://{path.removeprefix('s3://')}"
            raise PlanError(message(what, path, "it knows no file system of the other name", hint))
        bucket = path.partition("://")[2].partition("/")[0]
        if bucket not in checked:
            file_system(path)  # refuses paths that are none
            check_store(path)
            checked.add(bucket)
    if checked and by_spark:
        _check_classes(spark)


def _check_classes(spark: SparkSession) -> None:
    """See that Spark has Hadoop's S3A; over Connect the server says so when the query starts."""
    if is_connect(spark):
        return
    context = spark.sparkContext
    jvm: Any = context._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("s3a", context._jsc.hadoopConfiguration())
    except Py4JError as problem:
        if not any(sign in str(problem) for sign in _NO_CLASS):
            raise
        version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        raise EnvironmentSetupError(
            message(
                "Spark has no file system for s3a://",
                "no class org.apache.hadoop.fs.s3a.S3AFileSystem",
                "it can keep no checkpoint and list no file there",
                f'write .config("spark.jars.packages", "org.apache.hadoop:hadoop-aws:{version}") before the session starts',
            )
        ) from None
