"""The sides of a comparison: how each is started, on what input, which jobs it runs and by which rules it is measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from attrs import field, frozen

from benchmarks.data import as_csv, join
from benchmarks.envs import OWN, installed, python_of
from benchmarks.jobs import JOBS, Job
from benchmarks.truth import Rules

ROOT = Path(__file__).resolve().parents[1]
WINDOWED = frozenset({"J1", "J2", "J3"})
SPARK_JOBS = WINDOWED | {"F1", "O1", "S1"}
UPTO_J5 = frozenset({"J1", "J2", "J3", "J4", "J5"})
PIPELINES = frozenset({"P1", "P2", "P3"})
BOUNDED = Rules("none", complete=True)


def as_it_is(folder: Path) -> Path:
    """Input of sides that read the parts."""
    return folder


@frozen
class Side:
    """One side; ``package`` is what its version is read from."""

    name: str
    title: str
    module: str
    jobs: frozenset[str]
    rules: Rules
    package: str
    env: str = OWN
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Path], Path] = as_it_is
    environment: dict[str, str] = field(factory=dict)

    @property
    def available(self) -> bool:
        """Whether its environment is installed."""
        return installed(self.env)

    def runs(self, job: Job) -> bool:
        """Whether it runs `job`."""
        return job.name in self.jobs

    def command(self, job: Job, data: Path, out: Path, *more: str) -> list[str]:
        """Command that runs `job` over the prepared `data`."""
        call = ["-m", self.module, "--job", job.name, "--data", str(self.prepare(data)), "--out", str(out)]
        return [python_of(self.env), *call, *self.arguments, *more]

    def variables(self) -> dict[str, str]:
        """Environment of the process: this repository on the path."""
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environment}


SIDES: dict[str, Side] = {
    side.name: side
    for side in (
        Side("krishiv", "krishiv_py on Spark", "benchmarks.krishiv", frozenset(JOBS), Rules("event"), "krishiv_py"),
        Side(
            "krishiv_window",
            'krishiv_py, late_rule="window"',
            "benchmarks.krishiv",
            SPARK_JOBS | {"J5"},
            Rules("window", session_rule="merged"),
            "krishiv_py",
            arguments=("--late-rule", "window"),
        ),
        Side(
            "in_process",
            "krishiv_py, in process",
            "benchmarks.krishiv",
            frozenset(JOBS),
            Rules("event"),
            "krishiv_py",
            arguments=("--engine", "in-process"),
        ),
        Side(
            "native_rocksdb",
            "PySpark native, RocksDB",
            "benchmarks.peers.native_spark",
            SPARK_JOBS | PIPELINES,
            Rules("window", "merge"),
            "pyspark",
            arguments=("--state", "rocksdb"),
        ),
        Side(
            "native_hdfs",
            "PySpark native, HDFS-backed",
            "benchmarks.peers.native_spark",
            SPARK_JOBS | PIPELINES,
            Rules("window", "merge"),
            "pyspark",
            arguments=("--state", "hdfs"),
        ),
        Side(
            "tws_pandas",
            "transformWithStateInPandas by user",
            "benchmarks.peers.tws_pandas",
            frozenset({"J3", "J4", "J5"}),
            Rules("event"),
            "pyspark",
        ),
        Side(
            "flink",
            "PyFlink SQL, heap state",
            "benchmarks.peers.flink_sql",
            UPTO_J5 | PIPELINES | {"F1", "J8"},
            Rules("clean", "merge", complete=True),
            "apache-flink",
            env="flink",
            arguments=("--state", "heap"),
            prepare=join,
        ),
        Side(
            "flink_rocksdb",
            "PyFlink SQL, RocksDB",
            "benchmarks.peers.flink_sql",
            UPTO_J5 | PIPELINES | {"F1", "J8"},
            Rules("clean", "merge", complete=True),
            "apache-flink",
            env="flink",
            arguments=("--state", "rocksdb"),
            prepare=join,
        ),
        Side(
            "bytewax",
            "Bytewax",
            "benchmarks.peers.bytewax_flow",
            UPTO_J5,
            Rules("clean", "merge", complete=True),
            "bytewax",
            env="bytewax",
        ),
        Side(
            "pathway",
            "Pathway (static)",
            "benchmarks.peers.pathway_flow",
            UPTO_J5,
            BOUNDED,
            "pathway",
            env="pathway",
            prepare=as_csv,
        ),
        # Its jobs are those over Kafka; it never closes what is open when the input ends.
        Side("quix", "Quix Streams", "benchmarks.peers.kafka_quix", frozenset(), Rules("clean"), "quixstreams", env="quix"),
        Side("duckdb", "DuckDB (bounded)", "benchmarks.peers.bounded_duckdb", WINDOWED | {"F1", "J4"}, BOUNDED, "duckdb"),
        Side("polars", "Polars (bounded)", "benchmarks.peers.bounded_polars", WINDOWED | {"J4"}, BOUNDED, "polars"),
    )
}
