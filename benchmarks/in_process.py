"""The engine in this process: the first result, single sends, small batches, and files next to the kernels alone. No Spark.

``python -m benchmarks in_process --rounds 3`` prints a line for each measure and round; in every round each measure has its
turn. CPU is that of the process that works, so another load of the machine shows in the times, and less in CPU seconds.
``--only sends one`` runs some measures; each runs in a process of its own. ``--only J1:A:2000000 J1:A:2000000:row`` holds the
two clocks of rows against one another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import Batches, MemorySink, ParquetSink, Session, count, own_process
from krishiv_py import sum as total
from krishiv_py.connectors.sink import OutputBatch, TableSink
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user_id bigint, event_time timestamp, amount bigint"
ARROW = pa.schema([("user_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
KEYS, BATCHES, SKIPPED = 5_000, 1_000, 20
ORIGIN_US = 1_767_225_600_000_000
SECONDS, WINDOW_MS = 20, 20
FIRST = """
from krishiv_py import MemorySink, Session, count
with Session.in_process() as session:
    stream, sender = session.memory_stream("user string, at bigint")
    query = stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(count()).start(MemorySink())
    sender.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 70_000}])
    query.process_all_available()
    assert query.results()["count"].to_pylist() == [1]
"""


def first() -> dict[str, float]:
    """The first result of a memory stream, from nothing."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", FIRST], check=True)
    wall_s, after = time.perf_counter() - began, os.times()
    return {"wall_s": wall_s, "cpu_s": after[2] + after[3] - before[2] - before[3]}


class Arrivals(TableSink):
    """Notes when a window has its result."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def last_committed(self, batch: OutputBatch) -> int | None:
        """None: nothing is kept."""
        return None

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take the ends of the windows."""
        now = time.perf_counter()
        for table in tables:
            for end in np.unique(table["window_end"].to_numpy()).tolist():
                self.at[int(end)] = now


def sends(rate: int = 5_000, clock: Any = "batch") -> dict[str, float]:
    """So many events a second in single sends, with a checkpoint: from the event that ends a window to its result."""
    sink, sent = Arrivals(), dict[int, float]()
    with tempfile.TemporaryDirectory() as home, Session.in_process() as session:
        schema = pa.schema([("user", pa.int64()), ("at", pa.int64())])
        stream, sender = session.memory_stream("user bigint, at bigint")
        plan = stream.watermark("at", 0, clock=clock).key_by("user").tumbling_window(WINDOW_MS).agg(count())
        query = plan.start(sink, checkpoint=f"{home}/checkpoint")
        began, cpu, last, events = time.perf_counter(), time.process_time(), 0, 0
        for number in range(rate * SECONDS):
            due = began + number / rate
            if time.perf_counter() > due + 1:  # this machine cannot send so many: the figures are of fewer
                break
            events += 1
            while (wait := due - time.perf_counter()) > 0:
                time.sleep(min(wait, 0.001))
            moment = number * 1_000 // rate
            if moment // WINDOW_MS != last:
                last = moment // WINDOW_MS
                sent[last * WINDOW_MS] = time.perf_counter()
            sender.send(pa.record_batch([pa.array([number % 50]), pa.array([moment])], schema=schema))
        took = time.perf_counter() - began
        query.process_all_available()
        cpu, batches = time.process_time() - cpu, query.progress.batch_id + 1
        query.stop()
    late = np.array([(sink.at[end] - moment) * 1e3 for end, moment in sent.items() if end in sink.at])
    return {
        "p50_ms": float(np.percentile(late, 50)),
        "p99_ms": float(np.percentile(late, 99)),
        "events_per_s": events / took,
        "events_per_batch": events / batches,
        "cpu_ms_an_event": cpu / events * 1e3,
    }


SERVER = """
import sys, uvicorn
from pathlib import Path
from examples.serving import service
uvicorn.run(service(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning")
"""
REQUESTS, SERVED_S, PROBED = 500, 10, 25


def serving() -> dict[str, float]:
    """The web service of ``examples/serving.py`` at 500 requests a second: from an event that is posted to its count by GET."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as home:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server = subprocess.Popen([sys.executable, "-c", SERVER, home, str(port)], cwd=Path(__file__).parents[1])
        try:
            late, spent = asyncio.run(_clients(port))
        finally:
            server.terminate()
            server.wait(30)
    return {
        "p50_ms": float(np.percentile(late, 50)),
        "p99_ms": float(np.percentile(late, 99)),
        "requests_per_s": REQUESTS * SERVED_S / spent,
        "probes": float(len(late)),
    }


async def _clients(port: int) -> tuple[list[float], float]:
    """Post at a steady rate; one event in 25 is looked for until its count is served. Gives milliseconds, and seconds."""
    for _ in range(300):
        with contextlib.suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            break
        await asyncio.sleep(0.1)
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(32):
        idle.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    late = list[float]()

    async def ask(request: str, body: str = "") -> bytes:
        reader, writer = await idle.get()
        head = f"{request} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
        result = await reader.readexactly(length)
        idle.put_nowait((reader, writer))
        return result

    async def post(number: int) -> None:
        moment, user = time.perf_counter(), f"u{number}" if number % PROBED == 0 else f"v{number % 1_000}"
        await ask("POST /events", json.dumps([{"user": user, "at": f"2026-01-01T00:{number // 1_000:02d}:30Z"}]))
        while number % PROBED == 0 and b":1}" not in await ask(f"GET /counts/{user}"):
            await asyncio.sleep(0.001)
        if number % PROBED == 0 and number >= REQUESTS:  # the first second warms up
            late.append((time.perf_counter() - moment) * 1e3)

    began, posts = time.perf_counter(), list[asyncio.Task[None]]()
    for number in range(REQUESTS * SERVED_S):
        if (wait := began + number / REQUESTS - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        posts.append(asyncio.create_task(post(number)))
    await asyncio.wait_for(asyncio.gather(*posts), 120)
    return late, time.perf_counter() - began


def small(rows: int, build: Callable[[Any], Any], clock: Any = "batch") -> tuple[Driver, list[pa.RecordBatch]]:
    """A driver, and batches of so many rows."""
    driver = Driver(build(stream_of(SCHEMA).watermark("event_time", 5_000, clock=clock).key_by("user_id")))
    dice, batches = np.random.default_rng(1), []
    for number in range(BATCHES + SKIPPED):
        times = ORIGIN_US + np.arange(number * rows, (number + 1) * rows) * 200
        columns = [dice.integers(0, KEYS, rows), pa.array(times).cast(ARROW.field(1).type), dice.integers(0, 1_000, rows)]
        batches.append(pa.record_batch(columns, schema=ARROW))
    return driver, batches


def in_batches(rows: int, build: Callable[[Any], Any], clock: Any = "batch") -> dict[str, float]:
    """A thousand small batches of the kernels, as the test driver runs them."""
    driver, batches = small(rows, build, clock)
    for batch in batches[:SKIPPED]:
        driver.send(batch)
    began = time.process_time()
    for batch in batches[SKIPPED:]:
        driver.send(batch)
    cpu = time.process_time() - began
    return {"cpu_ms_a_batch": cpu / BATCHES * 1e3, "million_rows_a_cpu_s": rows * BATCHES / cpu / 1e6}


def tumbling(keyed: Any) -> Any:
    """Counts and sums of a minute."""
    return keyed.tumbling_window(60_000).agg(count(), total("amount"))


def on_arrival(keyed: Any) -> Any:
    """What each row finds in the 30 s before it, when it comes."""
    return keyed.lookback_window(30_000, emit="arrival").agg(count(), total("amount"))


def hundred() -> dict[str, float]:
    """Batches of a hundred rows."""
    return in_batches(100, tumbling)


def one() -> dict[str, float]:
    """Batches of one row."""
    return in_batches(1, tumbling)


def sends_by_row() -> dict[str, float]:
    """Single sends with the row clock, whose results come a batch earlier."""
    return sends(clock="row")


def one_by_row() -> dict[str, float]:
    """Batches of one row with the row clock."""
    return in_batches(1, tumbling, "row")


def queried() -> dict[str, float]:
    """A thousand sends of a hundred rows to a query with a checkpoint, each of them waited for: one batch each."""
    _, batches = small(100, tumbling)
    with tempfile.TemporaryDirectory() as home, Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = tumbling(stream.watermark("event_time", 5_000).key_by("user_id")).start(MemorySink(), checkpoint=f"{home}/c")
        for batch in batches[:SKIPPED]:
            sender.send(batch)
        query.process_all_available()
        began, before = time.process_time(), query.progress.batch_id
        for batch in batches[SKIPPED:]:
            sender.send(batch)
            query.process_all_available()
        cpu, done = time.process_time() - began, query.progress.batch_id - before
        query.stop()
    return {"cpu_ms_a_batch": cpu / done * 1e3, "million_rows_a_cpu_s": 100 * BATCHES / cpu / 1e6}


def arrival() -> dict[str, float]:
    """Look-back on arrival, in batches of 10 000 rows."""
    driver, _ = small(1, on_arrival)
    dice, rows, spent = np.random.default_rng(1), 10_000, 0.0
    for number in range(50):
        times = pa.array(ORIGIN_US + np.arange(number * rows, (number + 1) * rows) * 200).cast(ARROW.field(1).type)
        batch = pa.record_batch([dice.integers(0, KEYS, rows), times, dice.integers(0, 1_000, rows)], schema=ARROW)
        began = time.process_time()
        driver.send(batch)
        spent += time.process_time() - began
    return {"million_rows_a_cpu_s": 50 * rows / spent / 1e6}


def job(name: str, keys: str, events: int, clock: Any = "batch") -> dict[str, float]:
    """A job from parquet files in this process, and by the kernels alone over the same rows in memory."""
    from benchmarks.data import Spec, make, parts_of  # only here
    from benchmarks.jobs import JOBS
    from benchmarks.krishiv import keyed, windowed

    folder, what = make(Spec(events, keys)), JOBS[name]  # type: ignore[arg-type]

    def plan(stream: Any) -> Any:
        windows = windowed(keyed(stream, what, clock), what)
        if what.allowed_lateness_ms:
            windows = windows.allowed_lateness(what.allowed_lateness_ms)
        made = windows.agg(count(), total("amount"))
        return made.emit("retractions") if what.retractions else made

    with tempfile.TemporaryDirectory() as home, Session.in_process() as session:
        began = time.process_time()
        stream = session.read_parquet(str(folder), SCHEMA, streaming=True, max_files_per_batch=5)
        query = plan(stream).start(
            ParquetSink(f"{home}/out"), checkpoint=f"{home}/c", batches=Batches.available_now(flush=True)
        )
        query.await_termination()
        in_process = time.process_time() - began
    tables = [pq.read_table(path, partitioning=None) for path in parts_of(folder)]
    driver, began = Driver(plan(stream_of(SCHEMA)), idle_batches=False), time.process_time()
    for low in range(0, len(tables), 5):
        driver.send(pa.concat_tables(tables[low : low + 5]))
    driver.close()
    kernels = time.process_time() - began
    return {"cpu_s": in_process, "kernels_cpu_s": kernels, "ratio": in_process / kernels}


def cores() -> dict[str, float]:
    """Two million rows of 500 000 keys from parquet files, by one worker and by two. It needs two idle cores."""
    from benchmarks.data import Spec, make  # only here

    folder = make(Spec(2_000_000, "B"))

    def once(workers: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as home, Session.in_process(workers=workers) as session:
            began, cpu = time.perf_counter(), time.process_time()
            stream = session.read_parquet(str(folder), SCHEMA, streaming=True, max_files_per_batch=10)
            counts = tumbling(stream.watermark("event_time", 5_000).key_by("user_id"))
            batches = Batches.available_now(flush=True)
            counts.start(ParquetSink(f"{home}/out"), checkpoint=f"{home}/c", batches=batches).await_termination()
            return time.perf_counter() - began, time.process_time() - cpu

    once(1)
    (wall, cpu), (shared, more) = once(1), once(2)
    return {"wall_s": wall, "cpu_s": cpu, "wall_of_two_s": shared, "cpu_of_two_s": more, "speed_up": wall / shared}


MEASURES: dict[str, Callable[[], dict[str, float]]] = {
    "first": first,
    "sends": sends,
    "sends_by_row": sends_by_row,
    "serving": serving,
    "hundred": hundred,
    "one": one,
    "one_by_row": one_by_row,
    "queried": queried,
    "arrival": arrival,
    "cores": cores,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks in_process", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", metavar="MEASURE", help=f"{', '.join(MEASURES)}, or a job such as J1:A:2000000:row"
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="of the jobs J1 to J5, with both sets of keys")
    parser.add_argument("--here", action="store_true", help="run the only measure in this process")
    given = parser.parse_args(argv)
    jobs = [f"J{number}:{keys}:{given.events}" for number in range(1, 6) for keys in "AB"]
    for number in range(given.rounds):
        for measure in given.only or [*MEASURES, *jobs]:
            if given.here:
                own_process()  # as `krishiv run` does
                name, *rest = measure.split(":")
                result = MEASURES[name]() if not rest else job(name, rest[0], int(rest[1]), *rest[2:])
                print(json.dumps(result))
                continue
            command = [sys.executable, "-m", "benchmarks", "in_process", "--here", "--rounds", "1", "--only", measure]
            ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
            figures = json.loads(ran.stdout.splitlines()[-1])
            print(f"| {measure} | {number + 1} | " + ", ".join(f"{k} {v:.3f}" for k, v in figures.items()) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
