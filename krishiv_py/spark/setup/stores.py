"""Object stores of a session: its settings, noted for Arrow and others, and whether Spark itself can reach them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, PlanError
from krishiv_py.spark.setup.config import is_connect
from krishiv_py.storage.files import check_reachable, kind_of, says_where
from krishiv_py.storage.hdfs import DEFAULT, PREFIXES
from krishiv_py.storage.settings import use
from krishiv_py.storage.stores import azure, google
from krishiv_py.storage.stores.options import HADOOP
from krishiv_py.storage.stores.s3 import NAMES, PREFIX

_BUCKETS: Final = f"{PREFIX}bucket."
_GOOGLE: Final = tuple(google.PREFIX + name for name in google.NAMES)
_AZURE: Final = tuple(azure.PREFIX + name for name in azure.NAMES)
_ACCOUNTS: Final = f"{azure.PREFIX}account."
_EVERY: Final = (*(PREFIX + name for name in NAMES), *_GOOGLE, *_AZURE)
_NO_CLASS: Final = ("ClassNotFoundException", "UnsupportedFileSystemException", "No FileSystem for scheme")
_CLASSES: Final = {
    "s3a": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "gs": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "abfss": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    "abfs": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
}
_BLOCK: Final = "fs.gs.block.size"
_AZURE_JAR: Final = 'write .config("spark.jars.packages", "org.apache.hadoop:hadoop-azure:{}") before the session starts'
_HINTS: Final = {
    "s3a": 'write .config("spark.jars.packages", "org.apache.hadoop:hadoop-aws:{}") before the session starts',
    "abfss": _AZURE_JAR,
    "abfs": _AZURE_JAR,
    "gs": "put Google's connector into spark.jars before the session starts, with its settings: docs/object-stores.md",
}


def use_stores_of(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Reach stores as this session does: by its settings, those of Hadoop's files, and those `given` to its builder."""
    settings = _settings(spark) | {name.removeprefix(HADOOP): value for name, value in given.items()}
    use({name: value for name, value in settings.items() if says_where(name)})


def _settings(spark: SparkSession) -> dict[str, str]:
    if is_connect(spark):
        try:
            every = spark.conf.getAll
        except (AttributeError, PySparkException):  # before Spark 4.0 there is no such list
            return {}
        return {name.removeprefix(HADOOP): str(value) for name, value in every.items()}
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {name: hadoop.get(name) for name in _EVERY}  # one by one: each entry of a map is two calls
    for prefix in (_BUCKETS, _ACCOUNTS):
        own = hadoop.getPropsWithPrefix(prefix)
        if not own.isEmpty():
            settings |= {prefix + str(each.getKey()): each.getValue() for each in own.entrySet().toArray()}
    settings |= {name: spark.conf.get(name, settings.get(name)) for name in _EVERY}  # set on the running session
    return {name: str(value) for name, value in settings.items() if value is not None} | _of_hdfs(spark)


def _of_hdfs(spark: SparkSession) -> dict[str, str]:
    """Settings for HDFS that Spark was given; those of Hadoop's files are read where HADOOP_CONF_DIR is."""
    conf, settings = spark.sparkContext._jsc.sc().conf(), dict[str, str]()
    for prefix in (DEFAULT, *PREFIXES):
        settings |= {prefix + each._1(): each._2() for each in conf.getAllWithPrefix(HADOOP + prefix)}
    return settings


def settings_while_running(name: str) -> tuple[str, ...]:
    """Return the names under which a running session takes a setting: Hadoop's also as Hadoop calls them."""
    return (name, name.removeprefix(HADOOP)) if name.startswith(HADOOP) else (name,)


def check_stores(spark: SparkSession, paths: Iterable[str | None], *, by_spark: bool = True, written: bool = False) -> None:
    """See that the stores of some paths answer, before a query begins or a file is read.

    Raises
    ------
    EnvironmentSetupError
        When a bucket, its credentials or its endpoint are wrong, no namenode answers, or Spark has no classes for it.
    MissingExtraError
        When what reaches it is not installed.
    PlanError
        For ``s3://`` and ``gcs://``, which Spark does not know, and for credentials in a path.
    """
    kinds = [(path, kind) for path in paths if path is not None and (kind := kind_of(path)) is not None]
    for path, kind in kinds if by_spark else ():
        scheme, _, rest = path.partition("://")
        spelt = kind.schemes[0]
        if scheme in kind.others:
            what, hint = f"Spark reads and writes {kind.named} as {spelt}://", f"write {spelt}://{rest}"
            raise PlanError(what, got=path, hint=hint)
    check_reachable((path for path, _ in kinds), written=written)
    if by_spark:
        for scheme in dict.fromkeys(path.partition("://")[0] for path, _ in kinds):
            if scheme in _CLASSES:
                _check_classes(spark, scheme)


def _check_classes(spark: SparkSession, scheme: str) -> None:
    """See that Spark has a file system for a scheme; over Connect the server says so when the query starts."""
    if is_connect(spark):
        return
    context = spark.sparkContext
    jvm: Any = context._jvm
    hadoop = context._jsc.hadoopConfiguration()
    try:
        loaded_class = jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop)
    except Py4JError as problem:
        if not any(sign in str(problem) for sign in _NO_CLASS):
            raise
        version = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        raise _no_system(scheme, f"no class {_CLASSES[scheme]}", _HINTS[scheme].format(version)) from None
    block = hadoop.get(_BLOCK)
    if loaded_class.getName() == _CLASSES["gs"] and block is not None and not block.isdigit():
        raise _no_system(
            scheme, f"{_BLOCK} is {block}", f'write .config("{HADOOP}{_BLOCK}", 67108864): Google\'s connector takes bytes'
        )


def _no_system(scheme: str, got: str, hint: str) -> EnvironmentSetupError:
    what, consequence = f"Spark has no file system for {scheme}://", "it can keep no checkpoint and list no file there"
    return EnvironmentSetupError(what, got=got, then=consequence, hint=hint)
