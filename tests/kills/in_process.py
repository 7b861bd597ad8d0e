"""Kills of ``krishiv run``: every operator over files, sends and topics, into files, topics, Delta and PostgreSQL at once.

``python -m tests.kills.in_process --kills 300 --seed 3`` runs them by hand. Each run is compared with what the driver gives, at
its end, and in between after kills that leave something to read: no output may hold a part of a batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from deltalake.exceptions import TableNotFoundError

from krishiv_py import MemorySink, Session, SideOutputLateEventHandler
from krishiv_py.connectors import kafka_source
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import Broker
from krishiv_py.testing.broker import running as brokers
from tests.crash.job import JOINS, SCHEMA
from tests.kafka.test_sink import committed
from tests.kills.events import PARTITIONS, await_markers, make_topics
from tests.kills.killing import HANGS_S, Killer, Tally
from tests.kills.operators import OPERATORS
from tests.kills.run_job import AFTER, BATCH, FAILED, FAILING, GIVEN, READS, TARGETS, Run
from tests.tables.server import Server
from tests.tables.server import running as servers
from tests.tables.stores import delta_rows

ROWS: Final = 120
A_RUN: Final = 4
"""Kills of one run: its input is long enough for them."""
WHAT: Final = {"tree": 3, "worker": 2, "broker": 1, "database": 1}
"""What is killed, and how often each: processes and workers end sooner than a broker comes back."""
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
            to.flush()  # the broker refuses to take back one without rows
            to.abort_transaction(60)
        else:
            to.commit_transaction(60)
    await_markers(run.broker, topic)
    source = kafka_source(topic, bootstrap_servers=run.broker, schema=SCHEMA, max_offsets_per_batch=BATCH)
    return list(micro_batches(source))


def counted(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Rows:
    """Every row, and how often."""
    return Counter(tuple((name, repr(row[name])) for name in sorted(row) if columns is None or name in columns) for row in rows)


def expected(run: Run, batches: list[Any]) -> dict[str, list[Rows]]:
    """What the driver gives, by output and batch."""
    results = run.results(lambda: stream_of(SCHEMA), SideOutputLateEventHandler(MemorySink()))
    driver = Driver([stream.to(MemorySink(), name=name) for name, stream in results.items()])
    joined = run.operator in JOINS
    steps = [driver.send({"left": batch, "right": batch} if joined else batch) for batch in batches]
    given = {name: [counted(s.by_output[name].to_pylist()) for s in steps] for name in results}
    given["late"] = [counted(s.late.to_pylist(), LATE) for s in steps]
    assert all(map(any, given.values())), "the job must have all outputs for the test to mean anything"
    return given


def written(run: Run, target: str, name: str, broker: Broker, server: Server) -> list[dict[str, Any]]:
    """The rows that a reader of a target sees."""
    if target == "kafka":
        return [json.loads(message.value()) for message in committed(broker, run.called(name))]
    if target == "postgres":
        return [row for (row,) in server.rows(f"SELECT row_to_json(t) FROM {run.called(name)} t")]
    path = Path(run.work, f"{target}_{name}")
    return delta_rows(path) if target == "delta" else pq.read_table(path).to_pylist()


def parts(run: Run, must: dict[str, list[Rows]], broker: Broker, server: Server) -> list[str]:
    """The outputs that hold something else than the first so many batches."""
    wrong = []
    for name, batches in must.items():
        for target in (run.late,) if name == "late" else TARGETS:
            actual, whole = outcome(run, target, name, broker, server), Rows()
            for batch in batches:
                if whole.total() >= actual.total():
                    break
                whole += batch
            if whole != actual:
                wrong.append(f"{target} {name}: {actual - whole} too much, {whole - actual} missing")
    return wrong


_NOT_YET: Final = (FileNotFoundError, psycopg.errors.UndefinedTable, TableNotFoundError)


def outcome(run: Run, target: str, name: str, broker: Broker, server: Server) -> Rows:
    """What an output holds; nothing before its first batch."""
    try:
        return counted(written(run, target, name, broker, server), LATE if name == "late" else None)
    except _NOT_YET:
        return Rows()


def differences(run: Run, must: dict[str, list[Rows]], broker: Broker, server: Server) -> dict[str, tuple[Rows, Rows]]:
    """Of each output that is wrong: what is missing, and what is there too much."""
    wrong = {}
    for name, batches in must.items():
        rows = sum(batches, Rows())
        for target in (run.late,) if name == "late" else TARGETS:
            actual = outcome(run, target, name, broker, server)
            wrong[f"{target} {name}"] = rows - actual, actual - rows
    return {output: apart for output, apart in wrong.items() if any(apart)}


@attrs.define
class ProcessKiller(Killer):
    """One job in process, whose workers are threads.

    Attributes
    ----------
    check : callable
        Looks at the outputs while the job is down.
    """

    check: Callable[[], list[str]] = list
    checks: int = 0

    def kill(self, what: str) -> None:
        """See Killer; what a process that was killed left has to be whole."""
        Killer.kill(self, what)
        if what in ("tree", "worker") and self.seeded.random() < 0.5:
            wrong = self.check()
            assert not wrong, f"after {what} was killed: {wrong}\n{self.log()}"
            self.checks += 1

    def kill_a_worker(self, job: subprocess.Popen[bytes]) -> None:
        """Let a task of a worker fail, before or after its work; the query must fail with that."""
        marker, waiting = self.work / FAILING, self.work / "failing"
        waiting.write_text(self.seeded.choice(["before", AFTER]))
        waiting.rename(marker)
        until = time.monotonic() + HANGS_S
        while job.poll() is None:
            assert time.monotonic() < until, f"the job hangs after a worker was killed: {self.log()}"
            time.sleep(0.02)
        if marker.exists():  # it ended before
            marker.unlink()
            self.tally.kills.pop()
            return
        assert job.returncode == 1 and FAILED in self.error(), f"{job.returncode}: {self.log()}"


def one_run(
    operator: str, reads: str, kills: list[str], seed: int, broker: Broker, server: Server, folder: Path
) -> tuple[Tally, int]:
    """One job to its end with some kills, as many as there is time for; how often its outputs were looked at before."""
    prefix, seeded = f"t{uuid.uuid4().hex[:8]}", random.Random(f"{operator} {reads} {seed}")
    late = seeded.choice(TARGETS)
    run = Run(operator, reads, late, broker.address, server.address(), prefix, str(folder / prefix))
    given = Path(run.work, "run.json")
    given.parent.mkdir(parents=True)
    given.write_text(json.dumps(attrs.asdict(run)))
    must = expected(run, fill(run, 12 + 6 * len(kills), seeded))
    make_topics(broker.address, {run.called(name): PARTITIONS for name in must})
    command = [sys.executable, "-m", "krishiv_py", "run", "tests.kills.run_job:job", "--until-idle"]
    workers = seeded.choice([2, 3] if "worker" in kills else [1, 2])
    command += ["--checkpoint", run.checkpoint, "--profile", "single-node-durable", "--workers", str(workers)]
    killer = ProcessKiller(
        Path(run.work),
        command,
        broker,
        server,
        seeded,
        early_s=3.0,
        variables={GIVEN: str(given)},
        check=lambda: parts(run, must, broker, server),
    )
    try:
        killer.run(kills)
        wrong = differences(run, must, broker, server)
    finally:
        killer.end()
    assert not wrong, f"{operator} of {reads}, seed {seed}, killed {killer.tally.kills}: {wrong}\n{killer.log()}"
    return killer.tally, killer.checks


def campaign(
    kills: int, seed: int, broker: Broker, server: Server, folder: Path, upto_s: float = 1e9, first: int = 0
) -> Counter[str]:
    """So many kills, unless time is over before, all operators and sources in turn from the `first` one on.

    Gives how many there were of each kind, and under ``"checks"`` how often outputs were looked at before the end.
    """
    done, began = Counter[str](), time.monotonic()
    cases = list(itertools.product(OPERATORS, READS))
    for number in itertools.count(first):
        operator, reads = cases[number % len(cases)]
        killed = sum(done[what] for what in WHAT)
        if killed >= kills or time.monotonic() - began > upto_s:
            break
        seeded, moment = random.Random(f"{seed} {number} what"), time.monotonic()
        wanted = seeded.choices(list(WHAT), list(WHAT.values()), k=min(A_RUN, kills - killed))
        tally, checks = one_run(operator, reads, wanted, 1_000 * seed + number, broker, server, folder)
        done += Counter({**Counter(tally.kills), "checks": checks})
        took_s = time.monotonic() - moment
        print(f"{number}: {operator} of {reads}, {took_s:.0f} s, {dict(done)}: {tally}", flush=True)
    return done


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.in_process", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the operator and source to begin with, by number")
    parser.add_argument("--upto", type=float, default=1e9, help="begin no other run after so many seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and database end
    with brokers() as broker, servers() as server, tempfile.TemporaryDirectory(prefix="krishiv-kills-") as folder:
        done = campaign(given.kills, given.seed, broker, server, Path(folder), given.upto, given.first)
    checks = done.pop("checks")
    print(f"{done.total()} kills in process {dict(done)}, {checks} checks between, and nothing lost, doubled or in parts")


if __name__ == "__main__":
    main()
