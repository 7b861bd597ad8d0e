"""A topic that events flow into: the time from when a result could be known to when it can be read, and the CPU of a second.

Event times are the clock's, and each event is sent when its time comes. The job is S1, windows of two seconds with a lag of
five, in batches of a second; results are parquet files. As in the steady mode (``benchmarks/steady.py``), latency counts from
``window_end + lag``, and the CPU of a second is the difference of a long and a short run.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define
from confluent_kafka import Producer

from benchmarks import record, steady
from benchmarks.data import KEYS, KeySet, Spec
from benchmarks.jobs import JOBS
from benchmarks.kafka import native, report, topics
from benchmarks.kafka.task import STEADY
from benchmarks.kafka.turns import judge, measured
from benchmarks.measure import Measurement, workplace
from benchmarks.record import Record
from benchmarks.sides import SIDES
from benchmarks.truth import Rules
from krishiv_py.testing.broker import running

JOB = JOBS[STEADY]
DURATIONS_S = (120, 40)
SLICE_MS = 50


@define
class Flow(steady.Load):
    """Sends events when their time comes; keeps them as files too, for the check."""

    address: str = ""
    topic: str = ""

    def produce(self) -> None:
        """Twenty slices a second."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5})
        self.began = float(int(time.time()) + 1)
        for number in range(self.seconds):
            start_us = int(self.began + number) * 1_000_000
            table = steady.second(self.spec, self.rate, number, start_us)
            pq.write_table(table, self.folder / f"part-{number:05d}.parquet")
            since = pc.subtract(table["event_time"].cast(pa.int64()), start_us)
            for end_ms in range(SLICE_MS, 1_001, SLICE_MS):
                low, high = (end_ms - SLICE_MS) * 1_000, end_ms * 1_000
                rows = table.filter(pc.and_(pc.greater_equal(since, low), pc.less(since, high)))
                time.sleep(max(0.0, self.began + number + end_ms / 1e3 - time.time()))
                for at, value in enumerate(topics.values(rows)):
                    producer.produce(self.topic, value, partition=at % topics.PARTITIONS)
                producer.poll(0)
        if left := producer.flush(30):
            raise SystemExit(f"{left} records did not reach the broker")
        self.out.with_name(f"{self.out.name}-stop").touch()

    def microseconds(self, ends: pa.ChunkedArray) -> pa.ChunkedArray:
        """Ours are milliseconds, as the column was."""
        return pc.multiply(ends, 1_000) if pa.types.is_integer(ends.type) else steady.Load.microseconds(self, ends)


def drive(side: str, spec: Spec, rate: int, address: str, work: Path, seconds: int) -> tuple[Measurement, dict[str, float]]:
    """One run of `seconds`, start-up included."""
    (work / "input").mkdir(parents=True)
    flow = Flow(spec, rate, work / "input", work / "out", seconds, address=address, topic=topics.made(address))
    threads = [threading.Thread(target=action, daemon=True) for action in (flow.produce, flow.watch)]
    for thread in threads:
        thread.start()
    more = "--trigger", "1000", "--batch-rows", str(100 * rate)
    told = measured(side, JOB, address, flow.topic, flow.out, seconds + 120, *more)
    flow.finished.set()
    for thread in threads:
        thread.join()
    return told, flow.latencies()


def turn(side: str, keys: KeySet, rate: int, address: str, number: int, seed: int) -> Record:
    """A short and a long run of one side."""
    spec, work = Spec(0, keys, seed=seed), workplace(f"kafka-latency-{side}")
    begun = record.now(), record.machine()
    short, _ = drive(side, spec, rate, address, work / "short", DURATIONS_S[1])
    long, found = drive(side, spec, rate, address, work / "long", DURATIONS_S[0])
    slack = steady.UNFINISHED_S * 1_000_000  # a side that is stopped in the middle may owe what came last
    verdict = judge(side, JOB, work / "long" / "input", work / "long" / "out", Rules("none"), slack)
    data, runs = f"{rate:,} a second, {KEYS[keys]:,}", (long, short)
    kept = steady.told("kafka latency", data, SIDES[side], number, seed, DURATIONS_S, runs, verdict, found, begun)
    if kept.ok:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def run(given: argparse.Namespace) -> bool:
    """All rounds, the sides in turn; whether all went well."""
    native.JARS.fetch()
    well = True
    names: dict[int, KeySet] = {count: name for name, count in KEYS.items()}
    with running() as broker:
        for keys in given.keys:
            for number in range(given.rounds):
                for side in given.sides if number % 2 == 0 else given.sides[::-1]:
                    kept = turn(side, names[keys], given.rate, broker.address, number, given.seed)
                    report.write(kept, given.results)
                    cost = kept.marginal("cpu_s")
                    print(f"{kept.data} keys, {side}: {cost:.3f} CPU s a second, {kept.extra}, ok: {kept.ok}", flush=True)
                    well = well and kept.ok
    return well
