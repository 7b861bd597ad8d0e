"""Settings of a Spark session: those of the durability profiles (SEMANTICS §6.2), and those by which stores are reached."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.api.session_options import HADOOP, DurabilityProfile
from krishiv_py.errors import EnvironmentSetupError, PlanError
from krishiv_py.plan.checks import PROFILES
from krishiv_py.plan.options.query import Batches
from krishiv_py.runtime.session import check_kept
from krishiv_py.spark import internals
from krishiv_py.storage.files import check_reachable, is_local_path, kind_of, says_where
from krishiv_py.storage.hdfs import DEFAULT, PREFIXES
from krishiv_py.storage.local import spark_folder
from krishiv_py.storage.store import use
from krishiv_py.storage.stores import azure, google
from krishiv_py.storage.stores.s3 import NAMES, PREFIX

_MOST_BUCKETS: Final = 4_096
_BUCKETS: Final[dict[str, str]] = {"distributed-durable": "64"}
"""A query on a cluster may have to go on with more tasks (docs/state.md); on one machine there are not more."""
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
"""The setting that says of how many micro-batches Spark keeps state and plans."""
CHUNK_FILE_BYTES: Final = "spark.krishiv.chunkFileBytes"
"""From this size, in bytes, a chunk is a file: of state next to the checkpoint, between tasks of one machine for a while."""

BUCKETS: Final = "spark.krishiv.buckets"
"""In how many parts, at least, a new checkpoint keeps its state; with 1 there is one for each shuffle partition."""

JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"

FSYNC: Final = "spark.krishiv.fsync"
"""The switch for files that must survive a loss of power (docs/state.md); by default where the profile is a durable one."""

SHARED: Final = "spark.krishiv.sharedFolders"
"""Says that local paths are mounted on every machine of the cluster."""

QUERY_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    RETAINED: "20",
    # As Spark has it for stateful operators: tasks share Python workers only where their environments are equal.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    CHUNK_FILE_BYTES: str(64 << 10),
}
"""Settable on a running session: what the streaming and bounded adapters rely on."""


_JVM: Final = " ".join(
    (
        # a run of a few minutes would spend more on optimising Spark's planner than the planner ever takes
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
        "-XX:+UseSerialGC -Xms160m -Xmn64m",  # G1 marks the whole heap again and again when objects are as large as chunks
    )
)


def _logging() -> str:
    """Return a log of errors only, from the first line on, unless somebody has configured Spark's log."""
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    if os.path.exists(os.path.join(home, "log4j2.properties")):
        return ""
    return f" -Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def query_settings(profile: DurabilityProfile) -> dict[str, str]:
    """Return what is set on every session, also on one that was there."""
    return {**QUERY_SETTINGS, FSYNC: str(profile != "dev-local").lower(), BUCKETS: _BUCKETS.get(profile, "1")}


def session_settings(cores: int | None = None, *, here: bool = True) -> dict[str, str]:
    """Return all settings of an embedded session but those of its profile.

    `here` says that its tasks run in this process's JVM, and not on a cluster.
    """
    partitions = cores or os.cpu_count() or 2
    settings = {
        **QUERY_SETTINGS,
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        JVM_OPTIONS: _JVM + _logging(),
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",  # the same, or operators would not share workers
        "spark.sql.adaptive.enabled": "false",
        # of many files each would be looked up by a task of its own
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(4 * partitions),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    if here:  # executors on other machines call the driver by its name in the network
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_SOCKETS_IN: Final = "spark.python.unix.domain.socket.dir"
_LONGEST_FOLDER: Final = 104 - len("/.00000000-0000-0000-0000-000000000000.sock") - 1
"""In bytes, for the path of a socket: macOS takes 103, Linux 107."""


def own_folder(master: str | None) -> dict[str, str]:
    """Return the settings for what an embedded Spark keeps in this process's folder, which goes even if the JVM is killed.

    Its sockets are there as well. A port is open to every program of the machine, and Spark's server of the state of a task
    takes the first that calls: where that was another program, the task waited in vain.
    """
    if not is_here(master):
        return {}
    folder = spark_folder()
    settings = {} if os.environ.get("SPARK_LOCAL_DIRS") else {"spark.local.dir": folder}
    if hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        settings |= {_SOCKETS: "true", _SOCKETS_IN: folder}
    return settings


_CHUNKS_ONLY: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_PROGRAMS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""For local paths. The one that Spark takes starts the program ``readlink`` for each file, a quarter of a micro-batch."""
_SOURCES_S: Final = 30
_CHANGING: Final = threading.Lock()


@contextmanager
def started_under(spark: SparkSession, checkpoint: str, batches: Batches, *, chunks_only: bool) -> Iterator[None]:
    """Start a query under settings of its own; it keeps them, so those of the session are put back.

    With `chunks_only` the JVM sees a few chunks a batch: to generate code for them costs more than it saves.
    """
    wanted = dict(_CHUNKS_ONLY) if chunks_only else {}
    with _CHANGING:
        if is_local_path(checkpoint) and spark.conf.get(_FILE_MANAGER, None) is None:
            wanted[_FILE_MANAGER] = _WITHOUT_PROGRAMS
        wanted |= {RETAINED: str(retained(spark, batches))} if batches._kept else {}
        before = {name: spark.conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def with_sources(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query has made its sources: it makes them after its start, and by the settings of the session."""
    end = time.monotonic() + _SOURCES_S
    while query.isActive and query.status["message"].startswith("Initializing") and time.monotonic() < end:
        time.sleep(0.002)
    return query


def setting(spark: SparkSession, name: str) -> int:
    """Return a whole number among a session's settings."""
    value = spark.conf.get(name)
    assert value is not None
    return int(value)


def retained(spark: SparkSession, batches: Batches) -> int:
    """Return of how many micro-batches Spark keeps state and plans: of one more than those that the query keeps, too."""
    return max(setting(spark, RETAINED), batches._kept + 2 if batches._kept else 0)


def buckets_wanted(spark: SparkSession) -> int:
    """In how many parts a new checkpoint keeps its state: as many for each shuffle partition, at least what is set."""
    partitions = setting(spark, "spark.sql.shuffle.partitions")
    given = str(spark.conf.get(BUCKETS, "1"))
    if not given.isdecimal() or not 1 <= int(given) <= _MOST_BUCKETS:
        hint = f"set a number from 1 to {_MOST_BUCKETS}, 64 for example"
        raise PlanError(f"{BUCKETS} is not a number of buckets", got=given, hint=hint)
    return partitions * -(-int(given) // partitions)


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect: the driver is in another process, perhaps on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_here(master: str | None) -> bool:
    """Return whether tasks of a Spark with this `master` run in the JVM of the driver."""
    return (master or "local").split("[")[0] == "local"


def cores_of(master: str | None) -> int | None:
    """Return how many cores a local `master` names; None if it names none."""
    inside = (master or "").removeprefix("local[").removesuffix("]")
    return int(inside) if inside.isdigit() else None


def folders_shared(spark: SparkSession) -> bool:
    """Return whether local paths are said to be mounted on every machine."""
    return str(spark.conf.get(SHARED, "false")).lower() == "true"


def checked_profile(profile: str) -> DurabilityProfile:
    """Refuse an unknown durability profile."""
    for known in PROFILES:
        if profile == known:
            return known
    raise PlanError("unknown durability profile", got=repr(profile), hint=f"use one of {', '.join(map(repr, PROFILES))}")


def check_checkpoint(profile: DurabilityProfile, checkpoint: str | None, *, mounted: bool = False) -> None:
    """Refuse a checkpoint that does not keep what the profile promises; `mounted` says that local paths are shared ones."""
    check_kept(profile, checkpoint)
    if checkpoint is not None and profile == "distributed-durable" and is_local_path(checkpoint) and not mounted:
        raise PlanError(
            "profile 'distributed-durable' needs a shared checkpoint",
            got=checkpoint,
            then="a local path is lost with its machine",
            hint="use hdfs://, s3a://, gs:// or another shared path; where this one is mounted on every machine, say so: "
            f'.config("{SHARED}", "true")',
        )


_OF_BUCKETS: Final = f"{PREFIX}bucket."
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
    hadoop = internals.java_context(spark.sparkContext).hadoopConfiguration()
    settings = {name: hadoop.get(name) for name in _EVERY}  # one by one: each entry of a map is two calls
    for prefix in (_OF_BUCKETS, _ACCOUNTS):
        own = hadoop.getPropsWithPrefix(prefix)
        if not own.isEmpty():
            settings |= {prefix + str(each.getKey()): each.getValue() for each in own.entrySet().toArray()}
    settings |= {name: spark.conf.get(name, settings.get(name)) for name in _EVERY}  # set on the running session
    return {name: str(value) for name, value in settings.items() if value is not None} | _of_hdfs(spark)


def _of_hdfs(spark: SparkSession) -> dict[str, str]:
    """Settings for HDFS that Spark was given; those of Hadoop's files are read where HADOOP_CONF_DIR is."""
    conf, settings = internals.java_context(spark.sparkContext).sc().conf(), dict[str, str]()
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
    jvm, hadoop = internals.java(context), internals.java_context(context).hadoopConfiguration()
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


_SEED: Final = 42


def _rotate(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF


def murmur3_int(value: int) -> int:
    """Spark's hash of an ``int`` column (Murmur3_x86_32), as a signed 32-bit number."""
    k = _rotate((value & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h = (_rotate(_SEED ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h


def bucket_ids(partitions: int) -> tuple[int, ...]:
    """Bucket numbers of which every partition gets exactly one."""
    ids: dict[int, int] = {}
    candidates = itertools.count()
    while len(ids) < partitions:
        candidate = next(candidates)
        ids.setdefault(murmur3_int(candidate) % partitions, candidate)
    return tuple(ids.values())
