"""A topic that events flow into: the time from when a result could be known to when it can be read, and the CPU of a second.

Event times are the clock's, and each event is sent when its time comes. The job is S1, windows of two seconds with a lag of
five, in batches of a second; results are parquet files. As in the steady mode (``benchmarks/steady.py``), latency counts from
``window_end + lag``, and the CPU of a second is the difference of a long and a short run.

With ``--trigger 0`` batches follow one another as soon as possible, and results go to a topic: ours in transactions, the
hand-written side at least once. A result counts when a consumer that reads committed records has it. The parts of a micro-batch
are kept too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field
from confluent_kafka import Consumer, Producer

from benchmarks import record, steady
from benchmarks.check import check
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
SLICE_MS = 10
"""Events are sent so often: one waits half of it on average, and that is in the latency."""
SETTLED_S = 30
PREPARED_A_SECOND = 10
"""The seconds of events that are made in a second, at least."""
PERCENTILES = {"latency_p50_s": 50, "latency_p99_s": 99}


@define
class Flow(steady.Load):
    """Sends events when their time comes; keeps them as files too, for the check."""

    address: str = ""
    topic: str = ""
    to: str = ""
    seen: list[tuple[float, bytes]] = field(factory=list)

    def produce(self) -> None:
        """Send the events of a slice at its end."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0})
        self.began = float(int(time.time()) + 2 + self.seconds // PREPARED_A_SECOND)
        slices = [values for number in range(self.seconds) for values in self.second(number)]
        if time.time() > self.began:
            raise SystemExit("the events were not ready in time")
        for number, values in enumerate(slices, 1):
            time.sleep(max(0.0, self.began + number * SLICE_MS / 1e3 - time.time()))
            for i, value in enumerate(values):
                producer.produce(self.topic, value, partition=i % topics.PARTITIONS)
            producer.poll(0)
        if left := producer.flush(30):
            raise SystemExit(f"{left} records did not reach the broker")
        self.out.with_name(f"{self.out.name}-stop").touch()

    def second(self, number: int) -> list[list[bytes]]:
        """Events of a second in slices: made before the first is sent, for windows end with a second."""
        start_us = int(self.began + number) * 1_000_000
        table = steady.second(self.spec, self.rate, number, start_us)
        pq.write_table(table, self.folder / f"part-{number:05d}.parquet")
        since = pc.divide(pc.subtract(table["event_time"].cast(pa.int64()), start_us), SLICE_MS * 1_000)
        return [topics.values(table.filter(pc.equal(since, place))) for place in range(1_000 // SLICE_MS)]

    def consume(self) -> None:
        """Note when results of a topic are seen; keep them as a file for the check."""
        settings = {"group.id": "latency", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": self.address, "fetch.wait.max.ms": 10, **settings})
        consumer.subscribe([self.to])
        while not self.finished.is_set():
            for result in consumer.consume(10_000, 0) or consumer.consume(1, 0.1):
                if result.error() is None:
                    self.seen.append((time.time(), result.value() or b""))
        consumer.close()
        rows = pa.Table.from_pylist([json.loads(value) for _, value in self.seen])
        for name in ("window_start", "window_end") if self.seen else ():
            times = pc.multiply(rows[name], 1_000).cast(pa.timestamp("us", tz="UTC"))
            rows = rows.set_column(rows.schema.get_field_index(name), name, times)
        self.out.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.out / "part-seen.parquet")

    def latencies(self) -> dict[str, float]:
        """Percentiles, as for files; and the parts of a micro-batch, ms."""
        if not self.to:
            return steady.Load.latencies(self)
        late = [
            moment - json.loads(v)["window_end"] / 1e3 - JOB.lag_ms / 1e3
            for moment, v in self.seen
            if moment > self.began + SETTLED_S
        ]
        parts = self.out.with_name(f"{self.out.name}-parts.json")
        given: dict[str, float] = json.loads(parts.read_text()) if parts.exists() else {}
        result = {name: float(np.percentile(late, moment)) for name, moment in PERCENTILES.items()} if late else {}
        return {**result, **given}

    def microseconds(self, ends: pa.ChunkedArray) -> pa.ChunkedArray:
        """Ours are milliseconds, as the column was."""
        return pc.multiply(ends, 1_000) if pa.types.is_integer(ends.type) else steady.Load.microseconds(self, ends)


def drive(
    side: str, spec: Spec, rate: int, address: str, work: Path, seconds: int, trigger_ms: int
) -> tuple[Measurement, dict[str, float]]:
    """One run of `seconds`, start-up included; results go to a topic where batches follow one another at once."""
    (work / "input").mkdir(parents=True)
    to = "" if trigger_ms else topics.made(address)
    flow = Flow(spec, rate, work / "input", work / "out", seconds, address=address, topic=topics.made(address), to=to)
    threads = [threading.Thread(target=action, daemon=True) for action in (flow.produce, flow.consume if to else flow.watch)]
    for thread in threads:
        thread.start()
    more = ["--trigger", str(trigger_ms), "--batch-rows", str(100 * rate), *(["--to", to] if to else [])]
    given = measured(side, JOB, address, flow.topic, flow.out, seconds + 120, *more)
    flow.finished.set()
    for thread in threads:
        thread.join()
    return given, flow.latencies()


def turn(side: str, keys: KeySet, address: str, number: int, given: argparse.Namespace) -> Record:
    """A short and a long run of one side."""
    rate, seed, trigger, seconds = given.rate, given.seed, given.trigger, tuple(given.seconds)
    spec, work = Spec(0, keys, seed=seed), workplace(f"kafka-latency-{side}")
    begun = record.now(), record.machine()
    short, _ = drive(side, spec, rate, address, work / "short", seconds[1], trigger)
    long, result = drive(side, spec, rate, address, work / "long", seconds[0], trigger)
    slack = steady.UNFINISHED_S * 1_000_000  # a side that is stopped in the middle may owe what came last
    places = work / "long" / "input", work / "long" / "out"
    verdict = judge(side, JOB, *places, Rules("none"), slack) if trigger else check(JOB, *places, Rules("none"), slack_us=slack)
    data, runs = f"{rate:,} a second, {KEYS[keys]:,}{'' if trigger else ', at once'}", (long, short)
    kept = steady.stated("kafka latency", data, SIDES[side], number, seed, seconds, runs, verdict, result, begun)
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
                    kept = turn(side, names[keys], broker.address, number, given)
                    report.write(kept, given.results)
                    cost = kept.marginal("cpu_s")
                    print(f"{kept.data} keys, {side}: {cost:.3f} CPU s a second, {kept.extra}, ok: {kept.ok}", flush=True)
                    well = well and kept.ok
    return well
