"""The steady mode: a file of events each second, batches of a second; CPU per second, and event-to-sink latency.

Event times are the clock's: a file holds the events of the second that ends when it appears. The job is S1,
tumbling windows of two seconds, watermark lag 5 s. The latency of a result is from ``window_end + lag``, the
earliest moment the watermark can allow it, to the moment its file is visible in the sink. The CPU of a second is
the difference of a long and a short run.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field

from benchmarks import record
from benchmarks.check import Verdict, check
from benchmarks.data import SCHEMA, KeySet, Spec, key_table
from benchmarks.jobs import JOBS
from benchmarks.measure import Measurement, measure, workplace
from benchmarks.record import Record
from benchmarks.sides import Side
from benchmarks.truth import Rules

DURATIONS_S = (90, 30)
SETTLED_S = 30
UNFINISHED_S = 15
JOB = JOBS["S1"]


def second(spec: Spec, rate: int, number: int, start_us: int) -> pa.Table:
    """Events of one second, times relative to `start_us`."""
    rng = np.random.default_rng([spec.seed, number])
    n_keys, cumulative = key_table(spec)
    if cumulative is None:
        keys = rng.integers(0, n_keys, rate)
    else:
        keys = np.minimum(np.searchsorted(cumulative, rng.random(rate), side="right"), n_keys - 1)
    times = start_us + np.sort(rng.integers(0, 1_000, rate)) * 1_000
    columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()), pa.array(rng.integers(1, 1_001, rate))]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


@define
class Load:
    """Writes the files, notes when results become visible, and tells the side to stop."""

    spec: Spec
    rate: int
    folder: Path
    out: Path
    seconds: int
    visible: dict[Path, float] = field(factory=dict)
    finished: threading.Event = field(factory=threading.Event)
    began: float = 0.0

    def produce(self) -> None:
        """One file at the end of each second."""
        self.began = float(int(time.time()) + 1)
        for number in range(self.seconds):
            table = second(self.spec, self.rate, number, int(self.began + number) * 1_000_000)
            time.sleep(max(0.0, self.began + number + 1 - time.time()))
            hidden = self.folder / f".part-{number:05d}.tmp"
            pq.write_table(table, hidden)
            hidden.rename(self.folder / f"part-{number:05d}.parquet")
        self.out.with_name(f"{self.out.name}-stop").touch()

    def watch(self) -> None:
        """Note when a result file is visible: at its commit where the sink has a log of them, else when it is there."""
        while not self.finished.wait(0.05):
            for path in self.listed():
                self.visible.setdefault(path, time.time())

    def listed(self) -> list[Path]:
        """Visible result files."""
        log = self.out / "_spark_metadata"
        if not log.exists():
            return [path for path in self.out.glob("part-*.parquet")]
        lines = [line for path in log.iterdir() if path.name.isdigit() for line in path.read_text().splitlines()[1:]]
        return [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]

    def microseconds(self, ends: pa.ChunkedArray) -> pa.ChunkedArray:
        """Ends of windows, as microseconds."""
        return ends.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())

    def latencies(self) -> dict[str, float]:
        """Percentiles over the result rows of the settled time, in seconds."""
        seconds, counts = [], []
        for path, moment in self.visible.items():
            if moment < self.began + SETTLED_S:
                continue
            ends = pq.read_table(path, columns=["window_end"], partitioning=None).column(0)
            result = self.microseconds(ends).value_counts()
            for end, number in zip(result.field("values").to_pylist(), result.field("counts").to_pylist(), strict=True):
                seconds.append(moment - end / 1e6 - JOB.lag_ms / 1e3)
                counts.append(number)
        if not seconds:
            return {}
        values = np.repeat(np.asarray(seconds), np.asarray(counts))
        return {"latency_p50_s": float(np.percentile(values, 50)), "latency_p99_s": float(np.percentile(values, 99))}


def drive(side: Side, spec: Spec, rate: int, work: Path, seconds: int) -> tuple[Measurement, dict[str, float]]:
    """One run of `seconds`, start-up included."""
    (work / "input").mkdir(parents=True)
    load = Load(spec, rate, work / "input", work / "out", seconds)
    threads = [threading.Thread(target=action, daemon=True) for action in (load.produce, load.watch)]
    for thread in threads:
        thread.start()
    command = side.command(JOB, load.folder, load.out, "--trigger", "1000")
    measured = measure(command, timeout_s=seconds + 120, log=work / "log.txt", env=side.variables())
    load.finished.set()
    for thread in threads:
        thread.join()
    return measured, load.latencies()


def stated(
    mode: str,
    data: str,
    side: Side,
    round_number: int,
    seed: int,
    seconds: tuple[int, int],
    runs: tuple[Measurement, Measurement],
    verdict: Verdict,
    latency: dict[str, float],
    begun: tuple[str, dict[str, Any]],
) -> Record:
    """What is kept of a turn: a long and a short run, their length in `seconds`, and when and where they `begun`."""
    return Record(
        mode=mode,
        job=JOB.name,
        data=data,
        side=side.name,
        round=round_number,
        seed=seed,
        unit="second",
        long_units=seconds[0],
        long=record.leg(runs[0]),
        short_units=seconds[1],
        short=record.leg(runs[1]),
        verdict=record.verdict_of(verdict),
        extra=latency,
        started=begun[0],
        commit=record.commit(),
        machine=begun[1],
        versions=record.versions(side),
    )


def turn(side: Side, keys: KeySet, rate: int, round_number: int, seed: int) -> Record:
    """A short and a long run of one side."""
    spec = Spec(0, keys, seed=seed)
    work = workplace(f"steady-{keys}-{rate}-{side.name}")
    begun = record.now(), record.machine()
    short, _ = drive(side, spec, rate, work / "short", DURATIONS_S[1])
    long, latency = drive(side, spec, rate, work / "long", DURATIONS_S[0])
    # No row is late here; a side stopped in the middle may owe what the last files would have given.
    verdict = check(JOB, work / "long" / "input", work / "long" / "out", Rules("none"), slack_us=UNFINISHED_S * 1_000_000)
    kept = stated("steady", f"{keys}-{rate}", side, round_number, seed, DURATIONS_S, (long, short), verdict, latency, begun)
    if kept.ok:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def run(sides: list[Side], sets: list[KeySet], rates: list[int], repeats: int, seed: int, results: Path) -> int:
    """All rounds, the sides interleaved."""
    well = True
    for keys in sets:
        for rate in rates:
            for round_number in range(repeats):
                for side in sides if round_number % 2 == 0 else sides[::-1]:
                    kept = turn(side, keys, rate, round_number, seed)
                    record.write(kept, results)
                    name, cost = f"steady {keys} {rate}/s {side.name}", kept.marginal("cpu_s")
                    print(f"{name}: {cost:.3f} CPU s a second, {kept.extra}, ok: {kept.ok}", flush=True)
                    well = well and kept.ok
    return 0 if well else 1
