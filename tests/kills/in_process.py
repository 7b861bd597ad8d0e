"""Kills of ``krishiv run``: every operator over files, sends and topics, into files, topics, Delta and PostgreSQL at once.

``python -m tests.kills.in_process --kills 300 --seed 3`` runs them by hand; each run is compared with what the driver gives.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from krishiv_py import MemorySink, Session, SideOutputLateEventHandler
from krishiv_py.connectors import kafka_source
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import Broker
from krishiv_py.testing.broker import running as brokers
from tests.crash.job import JOINS, SCHEMA
from tests.kafka.test_sink import committed
from tests.kills.events import PARTITIONS, await_markers, make_topics
from tests.kills.killing import Killer, Tally
from tests.kills.run_job import BATCH, GIVEN, OPERATORS, READS, TARGETS, Run
from tests.tables.server import Server
from tests.tables.server import running as servers
from tests.tables.stores import delta_rows

ROWS: Final = 120
A_RUN: Final = 10
"""Kills of one run: its input is long enough for them."""
LATE: Final = ("user", "at", "amount", "customer", "seen", "price", "reason", "watermark")
"""Columns of late rows that are compared: those that every source gives alike."""
ARROW: Final = pa.schema([("user", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])
Rows: TypeAlias = Counter[tuple[tuple[str, str], ...]]


def rows_of_portion(seeded: random.Random, number: int) -> list[dict[str, int | None]]:
    """A second of events: some out of order, a few very late, some without a time."""
    rows = []
    for _ in range(ROWS):
        moment = number * 1_000 + seeded.randrange(1_500) - (seeded.randrange(20_000) if seeded.random() < 0.04 else 0)
        user, amount = seeded.randrange(40), seeded.randrange(100)
        rows.append({"user": user, "at": None if seeded.random() < 0.005 else moment, "amount": amount})
    return rows


def fill(run: Run, portions: int, seeded: random.Random) -> list[Any]:
    """Make the input of a run; gives its batches, as a driver takes them."""
    given = [rows_of_portion(seeded, number) for number in range(portions)]
    tables = [pa.Table.from_pylist(rows, ARROW) for rows in given]
    if run.reads == "files":
        Path(run.work, "in").mkdir()
        for number, table in enumerate(tables):
            pq.write_table(table, f"{run.work}/in/{number:06d}.parquet")
        return tables
    if run.reads == "memory":
        with Session.in_process() as session:
            _, sender = session.memory_stream(SCHEMA, spool=f"{run.work}/in")
            for table in tables:
                sender.send(table)
        return tables
    topic = run.called("in")
    make_topics(run.broker, {topic: PARTITIONS})
    to = Producer({"bootstrap.servers": run.broker, "transactional.id": topic})
    to.init_transactions(60)
    for number, rows in enumerate(given):
        to.begin_transaction()
        for row in rows:
            to.produce(topic, json.dumps(row), partition=seeded.randrange(PARTITIONS))
        if number % 7 == 3:
            to.abort_transaction(60)
        else:
            to.commit_transaction(60)
    await_markers(run.broker, topic)
    source = kafka_source(topic, bootstrap_servers=run.broker, schema=SCHEMA, max_offsets_per_batch=BATCH)
    return list(micro_batches(source))


def counted(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Rows:
    """Every row, and how often."""
    return Counter(tuple((name, repr(row[name])) for name in sorted(row) if columns is None or name in columns) for row in rows)


def expected(run: Run, batches: list[Any]) -> dict[str, Rows]:
    """What the driver gives, by output."""
    results = run.results(lambda: stream_of(SCHEMA), SideOutputLateEventHandler(MemorySink()))
    driver = Driver([stream.to(MemorySink(), name=name) for name, stream in results.items()])
    joined = run.operator in JOINS
    steps = [driver.send({"left": batch, "right": batch} if joined else batch) for batch in batches]
    given = {name: counted([row for s in steps for row in s.by_output[name].to_pylist()]) for name in results}
    given["late"] = counted([row for s in steps for row in s.late.to_pylist()], LATE)
    assert all(given.values()), "the job must have all outputs for the test to mean anything"
    return given


def written(run: Run, target: str, name: str, broker: Broker, server: Server) -> list[dict[str, Any]]:
    """The rows that a reader of a target sees."""
    if target == "kafka":
        return [json.loads(message.value()) for message in committed(broker, run.called(name))]
    if target == "postgres":
        return [row for (row,) in server.rows(f"SELECT row_to_json(t) FROM {run.called(name)} t")]
    path = Path(run.work, f"{target}_{name}")
    return delta_rows(path) if target == "delta" else pq.read_table(path).to_pylist()


def differences(run: Run, must: dict[str, Rows], broker: Broker, server: Server) -> dict[str, tuple[Rows, Rows]]:
    """Of each output that is wrong: what is missing, and what is there too much."""
    wrong = {}
    for name, rows in must.items():
        for target in (run.late,) if name == "late" else TARGETS:
            actual = counted(written(run, target, name, broker, server), LATE if name == "late" else None)
            wrong[f"{target} {name}"] = rows - actual, actual - rows
    return {output: apart for output, apart in wrong.items() if any(apart)}


def one_run(
    operator: str, reads: str, kills: list[str], seed: int, broker: Broker, server: Server, folder: Path
) -> tuple[int, Tally]:
    """One job to its end with some kills; how many there was time for, and what came of them."""
    prefix, seeded = f"t{uuid.uuid4().hex[:8]}", random.Random(f"{operator} {reads} {seed}")
    late = seeded.choice(TARGETS)
    run = Run(operator, reads, late, broker.address, server.address(), prefix, str(folder / prefix))
    given = Path(run.work, "run.json")
    given.parent.mkdir(parents=True)
    given.write_text(json.dumps(attrs.asdict(run)))
    must = expected(run, fill(run, 12 + 6 * len(kills), seeded))
    make_topics(broker.address, {run.called(name): PARTITIONS for name in must})
    command = [sys.executable, "-m", "krishiv_py", "run", "tests.kills.run_job:job", "--until-idle"]
    command += ["--checkpoint", run.checkpoint, "--profile", "single-node-durable", "--workers", str(seeded.choice([1, 2]))]
    killer = Killer(Path(run.work), command, broker, server, seeded, early_s=3.0, variables={GIVEN: str(given)})
    try:
        done = killer.run(kills)
        wrong = differences(run, must, broker, server)
    finally:
        killer.end()
    assert not wrong, f"{operator} of {reads}, seed {seed}, killed {killer.tally.kills}: {wrong}\n{killer.log()}"
    return done, killer.tally


def campaign(kills: int, seed: int, broker: Broker, server: Server, folder: Path, upto_s: float = 1e9) -> int:
    """So many kills, unless time is over before, all operators and sources in turn. How many there were."""
    killed, began = 0, time.monotonic()
    cases = itertools.cycle(itertools.product(OPERATORS, READS))
    for number, (operator, reads) in enumerate(cases):
        if killed >= kills or time.monotonic() - began > upto_s:
            break
        seeded, moment = random.Random(f"{seed} {number} what"), time.monotonic()
        wanted = seeded.choices(["tree", "broker", "database"], [2, 1, 1], k=min(A_RUN, kills - killed))
        done, tally = one_run(operator, reads, wanted, 1_000 * seed + number, broker, server, folder)
        killed += done
        took_s = time.monotonic() - moment
        print(f"{operator} of {reads}, {took_s:.0f} s, {killed} kills: {tally}", flush=True)
    return killed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.in_process", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upto", type=float, default=1e9, help="begin no other run after so many seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and database end
    with brokers() as broker, servers() as server, tempfile.TemporaryDirectory(prefix="krishiv-kills-") as folder:
        killed = campaign(given.kills, given.seed, broker, server, Path(folder), given.upto)
    print(f"{killed} kills in process, and nothing lost or doubled")


if __name__ == "__main__":
    main()
