"""Stages in settled order on Spark next to the same by hand: ``python -m benchmarks.ordered_sides [--sides ...]``.

Each side reads files of 100 000 rows of 10 000 keys, a file a batch. Its figure is that of all its files less that of the first
one, so start-up is left out; a fast side gets more files. CPU seconds are those of the whole process tree.

- ``idle``: count the rows of a key, and report it once it was silent for a minute; ``absence`` is the same without code.
- ``pattern``: three steps in sequence, the first of which is rare.

By hand are ``transformWithStateInPandas``, which takes the rows of a key in a batch by time and its timers after them, and so
gives the same only as long as no key needs both in order; and Bytewax, whose timers go by the clock, so that it sees a silence
with the next row of its key. Quix has neither timers of a key nor patterns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OWN: Final = "own"
# mypy: disable-error-code="misc"
# (the base classes are Any where Bytewax is not installed)
SEND, KEYS, LAG_MS, SILENT_MS = 100_000, 10_000, 1_000, 60_000
SCHEMA: Final = "key bigint, at timestamp, kind bigint, value bigint"
SIDES: Final = {
    "krishiv idle": (OWN, 31),
    "krishiv idle rounds": (OWN, 41),
    "krishiv absence": (OWN, 41),
    "krishiv pattern": (OWN, 41),
    "tws idle": (OWN, 3),
    "tws pattern": (OWN, 3),
    "bytewax idle": ("bytewax", 21),
}
"""The environment of each, and how many files it reads."""


def write_input(folder: Path, files: int) -> None:
    """Write the files."""
    chance = np.random.default_rng(1)
    for number in range(files):
        kinds = np.where(chance.random(SEND) < 0.001, 0, chance.integers(1, 10, SEND))
        at = np.sort(chance.integers(number * 60_000, (number + 1) * 60_000, SEND)) * 1_000
        columns = {"key": chance.integers(0, KEYS, SEND), "at": pa.array(at, pa.timestamp("us", "UTC")), "kind": kinds}
        pq.write_table(pa.table({**columns, "value": chance.integers(0, 1_000, SEND)}), folder / f"{number:06d}.parquet")


# ---- krishiv_py


def krishiv(stage: str, data: str, work: str) -> None:
    """Run a stage on Spark."""
    from benchmarks import ordered
    from krishiv_py import Batches, ParquetSink, Session

    stages: dict[str, Callable[[Any], Any]] = {
        "idle": lambda s: s.process(ordered.ByRow(), returns="rows bigint", state=ordered.Seen),
        "idle rounds": lambda s: s.process(ordered.ByRound(), returns="rows bigint", state=ordered.Seen),
        "absence": lambda s: s.absent("1 minute"),
        "pattern": ordered.STAGES["pattern, three steps, rare"],
    }
    with Session.builder().master("local[2]").get_or_create() as session:
        rows = session.read_parquet(data, SCHEMA, streaming=True, max_files_per_batch=1)
        results = stages[stage](rows.watermark("at", "1 s").key_by("key"))
        query = results.start(ParquetSink(f"{work}/out"), checkpoint=f"{work}/checkpoint", batches=Batches.available_now())
        query.await_termination()


# ---- by hand on Spark


def by_hand(job: str, data: str, work: str) -> None:
    """Run ``transformWithStateInPandas``."""
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Idle(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle, self.rows = handle, handle.getValueState("rows", "n BIGINT, due BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            times = [t for frame in rows for t in frame["at"].astype("datetime64[ms]").astype("int64")]
            n, due = self.rows.get() or (0, 0)
            if due:
                self.handle.deleteTimer(due)
            due = max(times) + SILENT_MS
            self.rows.update((n + len(times), due))
            self.handle.registerTimer(due)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
            yield pd.DataFrame({"key": [key[0]], "n": [self.rows.get()[0]]})

    class ThreeSteps(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", "step BIGINT, began BIGINT, value BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            frame = pd.concat(list(rows)).sort_values("at", kind="stable")
            step, began, value = self.state.get() or (0, 0, 0)
            found = []
            times = frame["at"].astype("datetime64[ms]").astype("int64")
            for at, kind, v in zip(times, frame["kind"], frame["value"], strict=True):
                if step and at >= began + 300_000:
                    step = 0
                step = step + 1 if kind == step else int(kind == 0)
                if step == 1:
                    began, value = at, v
                if step == 3:
                    found.append(value)
                    step = 0
            self.state.update((int(step), int(began), int(value)))
            yield pd.DataFrame({"key": [key[0]] * len(found), "n": found})

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", "false")
    )
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session = spark.config("spark.sql.streaming.stateStore.providerClass", rocks).getOrCreate()
    frame = (
        session.readStream.schema("key long, at timestamp, kind long, value long").option("maxFilesPerTrigger", 1).parquet(data)
    )
    grouped = frame.withWatermark("at", "1 second").groupBy("key")
    processor = Idle() if job == "idle" else ThreeSteps()
    given = grouped.transformWithStateInPandas(processor, "key long, n long", "append", "eventTime")
    writer = (
        given.writeStream.format("parquet").option("path", f"{work}/out").option("checkpointLocation", f"{work}/checkpoint")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()


# ---- by hand on Bytewax


def bytewax(data: str, work: str) -> None:
    """Run a ``StatefulBatchLogic``."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.run import cli_main

    class Part(StatelessSourcePartition[Any]):
        def __init__(self) -> None:
            self.batches = (b for f in sorted(Path(data).glob("*.parquet")) for b in pq.ParquetFile(f).iter_batches(10_000))

        def next_batch(self) -> list[Any]:
            batch = next(self.batches)
            times = batch.column("at").cast(pa.int64()).to_pylist()
            return list(zip(batch.column("key").cast(pa.string()).to_pylist(), times, strict=True))

    class Files(DynamicSource[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
            return Part()

    class Idle(StatefulBatchLogic[Any, Any, Any]):
        def __init__(self, state: Any) -> None:
            given: tuple[int, int] = state or (0, 0)
            self.rows, self.last = given

        def on_batch(self, values: list[int]) -> tuple[list[int], bool]:
            found = []
            for at in values:
                if self.rows and at >= self.last + SILENT_MS * 1_000:
                    found.append(self.rows)
                self.rows, self.last = self.rows + 1, at
            return found, StatefulBatchLogic.RETAIN

        def snapshot(self) -> Any:
            return self.rows, self.last

    class Counting(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Nowhere(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Counting:
            return Counting()

    flow = Dataflow("idle")
    op.output("out", op.stateful_batch("idle", op.input("in", flow, Files()), Idle), Nowhere())
    cli_main(flow)


def run(side: str, data: str, work: str) -> None:
    """Run a side, in a process of its own."""
    kind, _, job = side.partition(" ")
    if kind == "bytewax":
        bytewax(data, work)
    else:
        (krishiv if kind == "krishiv" else by_hand)(job, data, work)


def measured(side: str) -> float:
    """Return the rows a CPU second of a side."""
    from benchmarks.envs import python_of  # environments of peers lack what measures
    from benchmarks.measure import measure

    took, files = [], SIDES[side][1]
    for n in (1, files):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "in")
            data.mkdir()
            write_input(data, n)
            command = [python_of(SIDES[side][0]), "-m", "benchmarks.ordered_sides", "--run", side, str(data), folder]
            done = measure(command, timeout_s=1_500, log=Path(folder, "log"))
            if done.exit_code:
                raise RuntimeError(f"{side}: {Path(folder, 'log').read_text()[-2_000:]}")
            took.append(done.cpu_s)
    return (files - 1) * SEND / max(took[1] - took[0], 1e-9)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ordered_sides", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sides", nargs="*", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--run", nargs=3, metavar=("SIDE", "DATA", "WORK"))
    given = parser.parse_args(argv)
    if given.run:
        run(*given.run)
        return 0
    from benchmarks.envs import installed
    from benchmarks.measure import become_subreaper

    become_subreaper()
    for side in given.sides:
        if installed(SIDES[side][0]):
            print(f"{side:20} {measured(side) / 1e6:8.4f} million rows a CPU second", flush=True)
        else:
            print(f"{side:20} python -m benchmarks.envs {SIDES[side][0]} makes its environment", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
