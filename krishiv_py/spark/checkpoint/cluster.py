"""Folders that every machine of a cluster must reach: refused by their names, and tried by tasks before a query starts."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.errors import PlanError
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.spark.setup.config import SHARED, folders_shared, is_connect, is_here
from krishiv_py.spark.setup.survey import TOKEN, Folder, Machine, survey
from krishiv_py.storage.files import is_local_path, store_at

_LINGER_S: Final = 0.02
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")


def check_cluster(spark: SparkSession, checkpoint: str | None, sinks: list[Sink | None], source: SourceNode) -> None:
    """Refuse folders on this machine's own disk where tasks run on others.

    Raises
    ------
    PlanError
        Naming the path.
    """
    if is_connect(spark):  # tasks are asked whether they find them
        return
    master = str(spark.sparkContext.master)
    if master.startswith("local") or folders_shared(spark):
        return
    written = [folder for folder in map(folder_of, sinks) if folder is not None]
    for path in [checkpoint, *written, *(p for _, p in source.places)]:
        if path is None or is_local_path(path):
            raise PlanError(
                "tasks run on other machines, and a folder is on this one",
                got=f"{path or 'a temporary checkpoint'}, master {master}",
                then="they would write state and outputs where nobody finds them",
                hint="use hdfs://, s3a://, gs:// or another shared path; where this one is mounted on every machine, say so: "
                f'.config("{SHARED}", "true")',
            )


def check_reach(spark: SparkSession, written: Sequence[str], read: Sequence[str]) -> None:
    """Refuse folders that tasks on other machines do not find: each must read what the driver wrote there.

    `written` are folders that tasks write into, which are made if need be; `read` those they only read.

    Raises
    ------
    PlanError
        Naming the folder, the executor, its machine and what went wrong there.
    """
    if not is_connect(spark) and is_here(str(spark.sparkContext.master)):
        return
    with probed(written, read) as folders:
        # over Connect nobody knows how many executors there are, and when all of them were asked
        for machine in survey(spark, folders, _LINGER_S, *([1] if is_connect(spark) else [])):
            for path, problem in machine.problems.items():
                raise _unreached(path, problem, machine)


@contextlib.contextmanager
def probed(written: Sequence[str], read: Sequence[str] = ()) -> Iterator[list[Folder]]:
    """Folders to be tried, for the time of the body: with a token of the driver in each that is `written`."""
    tried: list[Folder] = []
    try:
        for path in dict.fromkeys(written):
            store, root = store_at(path)
            store.make_folder(root)
            tried.append(Folder(path, TOKEN + uuid.uuid4().hex))
            store.put(f"{root}/{tried[-1].token}", str(tried[-1].token).encode())
        yield [*tried, *(Folder(above, None) for above in dict.fromkeys(map(_plain, read)) if above)]
    finally:
        for folder in tried:
            store, root = store_at(folder.path)
            with contextlib.suppress(OSError, pa.ArrowException):
                store.delete(f"{root}/{folder.token}")


def _plain(path: str) -> str:
    """Return the part of a path before what may be a pattern."""
    match = _PATTERN.search(path)
    return path if match is None else path[: match.start()].rpartition("/")[0]


def _unreached(path: str, problem: str, machine: Machine) -> PlanError:
    return PlanError(
        "a task does not find a folder of the query",
        got=f"{path}, executor {machine.executor} on {machine.host}: {problem}",
        then="it would write state and outputs where nobody finds them",
        hint="use a path that every machine reaches; `krishiv doctor --master ... --checkpoint ...` shows which do",
    )
