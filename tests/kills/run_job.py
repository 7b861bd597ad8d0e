"""The job of ``krishiv run`` that is killed: any operator over files, sends or a topic, into four kinds of targets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

import attrs

from krishiv_py import DeltaSink, KafkaSink, Output, ParquetSink, PostgresSink, Session, SideOutputLateEventHandler
from krishiv_py.api.stages.running import RunMethods
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Sink
from krishiv_py.in_process import core, stage
from krishiv_py.in_process.stage import Workers
from krishiv_py.plan.options.late import LateEventHandler
from tests.crash.job import SCHEMA, outputs
from tests.kills.operators import results_of

READS: Final = ("files", "memory", "kafka")
TARGETS: Final = ("files", "kafka", "delta", "postgres")
BATCH: Final = 120
"""Offsets of a micro-batch."""
GIVEN: Final = "KRISHIV_KILLED"
"""The variable with the file that says what the job is."""
FAILING: Final = "fails"
"""The file in the folder of a job with which the next task of a worker fails: before its work, or after it where it says so."""
AFTER: Final = "after"
FAILED: Final = "the worker was killed"

T = TypeVar("T")


@attrs.frozen
class Run:
    """What a job does, and where.

    Attributes
    ----------
    operator : str
        One of `OPERATORS`.
    reads : str
        One of `READS`; the topic or the folder is called `prefix` and "in".
    late : str
        Where late rows go, one of `TARGETS`; results go to all of them.
    prefix : str
        What topics and tables begin with.
    work : str
        Folder of checkpoint, input, files and Delta tables.
    """

    operator: str
    reads: str
    late: str
    broker: str
    database: str
    prefix: str
    work: str

    @property
    def checkpoint(self) -> str:
        """Its checkpoint."""
        return f"{self.work}/checkpoint"

    def called(self, name: str) -> str:
        """The topic or table of an output."""
        return f"{self.prefix}_{name}"

    def read(self, session: Session) -> Stream:
        """Its input."""
        if self.reads == "files":
            return session.read_parquet(f"{self.work}/in", SCHEMA, streaming=True, max_files_per_batch=1)
        if self.reads == "memory":
            return session.memory_stream(SCHEMA, spool=f"{self.work}/in")[0]
        topic = self.called("in")
        return session.read_kafka(topic, bootstrap_servers=self.broker, schema=SCHEMA, max_offsets_per_batch=BATCH)

    def sink(self, target: str, name: str) -> Sink:
        """Where an output goes in a target."""
        if target == "kafka":
            return KafkaSink(self.called(name), bootstrap_servers=self.broker)
        if target == "postgres":
            return PostgresSink(self.database, self.called(name))
        return (DeltaSink if target == "delta" else ParquetSink)(f"{self.work}/{target}_{name}")

    def results(self, read: Callable[[], Stream], late: LateEventHandler) -> dict[str, RunMethods]:
        """Its results, by name."""
        if self.operator == "outputs":
            return {output.name or "": output.stream for output in outputs(read, late, self.work)}
        return {"out": results_of(self.operator, read, late)}


def workers_fail(marker: Path) -> None:
    """Let a task of a worker fail when a file asks for it. Workers are threads, and share out batches of any size here."""
    calm = Workers._submit

    def failing(task: Callable[[], T]) -> T:
        try:
            after = marker.read_text() == AFTER
            marker.unlink()
        except FileNotFoundError:
            return task()
        if after:
            task()
        raise RuntimeError(FAILED)

    def submit(self: Workers, task: Callable[[], T]) -> Future[T]:
        return calm(self, lambda: failing(task))

    Workers._submit = submit  # type: ignore[method-assign]
    few_rows = "FEW_ROWS"
    for module in (core, stage):
        setattr(module, few_rows, 0)


def job(session: Session) -> list[Output]:
    """What ``krishiv run`` starts."""
    run = Run(**json.loads(Path(os.environ[GIVEN]).read_text()))
    workers_fail(Path(run.work, FAILING))
    results = run.results(lambda: run.read(session), SideOutputLateEventHandler(run.sink(run.late, "late")))
    return [
        stream.to(run.sink(target, name), name=f"{target}_{name}") for name, stream in results.items() for target in TARGETS
    ]
