"""Which folders a query reads and writes, by whatever spelling, and which of them may not be one, nor one inside another."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

import attrs
from pyspark.sql import SparkSession

from krishiv_py.disk import absolute
from krishiv_py.errors import PlanError, message
from krishiv_py.plan.nodes import FileSource, MemorySource, Source, UnionSource, source_of
from krishiv_py.plan.options.sinks import JsonSink, MemorySink, ParquetSink, Sink
from krishiv_py.spark.setup.config import is_local_path
from krishiv_py.spark.storage.files import file_system

Place: TypeAlias = tuple[str, ...]
RESULTS: Final = "results"
LATE: Final = "late rows"
SHARED: Final = "spark.krishiv.sharedFolders"
"""Says that local paths are mounted on every machine of the cluster."""


def homed(sink: Sink) -> Sink:
    """A sink whose path means the same to every task, wherever its process was started."""
    return attrs.evolve(sink, path=absolute(sink.path)) if isinstance(sink, (ParquetSink, JsonSink)) else sink


def place_of(path: str) -> Place:
    """File system and folders of a path: two spellings of one folder are equal. Patterns stay patterns."""
    if is_local_path(path):
        return ("", *(p for p in os.path.realpath(file_system(path)[1]).split("/") if p))
    scheme, _, rest = path.partition("://")
    return (f"{scheme.replace('s3a', 's3')}://", *(p for p in os.path.normpath(rest).split("/") if p))


def read_by(source: Source) -> list[tuple[str, str]]:
    """What a source reads: a name for people, and a path."""
    if isinstance(source, UnionSource):
        return [found for name, node in source.parts for found in read_by(source_of(node))]
    if isinstance(source, MemorySource):
        return [(f"the memory stream {source.name!r}", source.spool)]
    return [("the source", source.path)] if isinstance(source, FileSource) else []


def check_places(results: Sink | None, late: Sink | None, source: Source, checkpoint: str | None) -> None:
    """Refuse outputs that would replace, or be read as, one another, the input, or the checkpoint.

    Raises
    ------
    PlanError
        Naming both and their folders.
    """
    if late is not None and late is results and isinstance(late, MemorySink):
        raise PlanError(
            message(
                "results and late rows go to one sink",
                late,
                "the late rows of a batch would replace its results",
                "pass two: SideOutputLateEventHandler(MemorySink())",
            )
        )
    written = [(n, s.path) for n, s in ((RESULTS, results), (LATE, late)) if isinstance(s, (ParquetSink, JsonSink))]
    others = [*read_by(source), *([("the checkpoint", checkpoint)] if checkpoint is not None else [])]
    for at, one in enumerate(written):
        for other in (*written[at + 1 :], *others):
            _check_pair(one, other)
    for one in others[:-1] if checkpoint is not None else ():
        _check_pair(others[-1], one)


def _check_pair(one: tuple[str, str], other: tuple[str, str]) -> None:
    a, b = place_of(one[1]), place_of(other[1])
    short, long = sorted((a, b), key=len)
    if not all(_same(x, y) for x, y in zip(short, long, strict=False)):
        return
    rest = long[len(short) :]
    if rest and rest[0].startswith(("_", ".")):  # readers of folders skip such names
        return
    what = "one folder" if not rest else "folders of which one lies in the other"
    raise PlanError(
        message(
            f"{one[0]} and {other[0]} have {what}",
            f"{one[1]} and {other[1]}",
            "one would replace the files of the other, or be read with them",
            "use folders side by side, or an inner one whose name begins with an underscore",
        )
    )


def _same(one: str, other: str) -> bool:
    """Whether two names of a folder can be one; either may be a pattern, as in the path of a source."""
    return one == other or any(fnmatchcase(one, p) for p in _spelt(other)) or any(fnmatchcase(other, p) for p in _spelt(one))


def _spelt(pattern: str) -> list[str]:
    """A pattern with every choice in braces made; nothing for a plain name."""
    if not any(c in pattern for c in "*?[{"):
        return []
    head, brace, rest = pattern.partition("{")
    inside, closed, tail = rest.partition("}")
    if not brace or not closed:
        return [pattern]
    tails = _spelt(tail) or [tail]
    return [head + choice + t for choice in inside.split(",") for t in tails]


def check_cluster(spark: SparkSession, checkpoint: str | None, sinks: list[Sink | None], source: Source) -> None:
    """Refuse folders on this machine's own disk where tasks run on others.

    Raises
    ------
    PlanError
        Naming the path.
    """
    master = str(spark.sparkContext.master)
    if master.startswith("local") or str(spark.conf.get(SHARED, "false")).lower() == "true":
        return
    written = [s.path for s in sinks if isinstance(s, (ParquetSink, JsonSink))]
    for path in [checkpoint, *written, *(p for _, p in read_by(source))]:
        if path is None or is_local_path(path):
            raise PlanError(
                message(
                    "tasks run on other machines, and a folder is on this one",
                    f"{path or 'a temporary checkpoint'}, master {master}",
                    "they would write state and outputs where nobody finds them",
                    "use hdfs://, s3a://, gs:// or another shared path; where this one is mounted on every machine, say so: "
                    f'.config("{SHARED}", "true")',
                )
            )
