"""One topic, live and caught up, in any batches, in process and on Spark: the row clock gives the same rows (SEMANTICS §2.8).

The long form is ``nox -s answers``: two million events at 5 000 a second. ``KRISHIV_EVENTS`` and ``KRISHIV_RATE`` say others.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from krishiv_py import Batches, ParquetSink, ResultStream, Session, SideOutputLateEventHandler, Stream, avg, count, sum
from krishiv_py.api.query import Query
from krishiv_py.arrays.types import Ints
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing.broker import Broker

pytestmark = pytest.mark.two_tasks

LONG: Final = "KRISHIV_EVENTS" in os.environ
EVENTS: Final = int(os.environ.get("KRISHIV_EVENTS", "12000"))
RATE: Final = int(os.environ.get("KRISHIV_RATE", "5000"))
PARTITIONS: Final = 4
DDL: Final = "user bigint, at bigint, amount double"
LAG_MS: Final = 5_000
_EVERY_MS, _LATE_MS = 10, 60_000
_USERS: Final = 500
_STEPS_A_SECOND: Final = 20
_AT_ONCE: Final = 100_000


@attrs.frozen
class Events:
    """Events in the order in which they are sent: of a hundred five are later than the lag, nine out of order within it."""

    users: Ints
    times: Ints
    partitions: Ints

    @classmethod
    def made(cls, number: int) -> Events:
        dice = np.random.default_rng(5)
        behind = np.where(dice.random(number) < 0.1, dice.integers(0, LAG_MS, number), 0)
        late = dice.random(number) < 0.05
        behind[late] = dice.integers(LAG_MS + 1_000, _LATE_MS, np.count_nonzero(late))
        times = 1_700_000_000_000 + np.arange(number) * _EVERY_MS - behind
        return cls(dice.integers(0, _USERS, number), times, dice.integers(0, PARTITIONS, number))

    def records(self, begin: int, end: int) -> Iterator[tuple[int, str]]:
        rows = zip(
            self.users[begin:end].tolist(), self.times[begin:end].tolist(), self.partitions[begin:end].tolist(), strict=True
        )
        for number, (user, at, partition) in enumerate(rows, begin):
            yield partition, f'{{"user": {user}, "at": {at}, "amount": {number % 1_000 / 100}}}'


def send(events: Events, address: str, topic: str, begin: int, end: int, rate: int | None = None) -> None:
    """Send some of the events, at once or so many a second."""
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000})
    began, share = time.monotonic(), _AT_ONCE if rate is None else max(1, rate // _STEPS_A_SECOND)
    for step, place in enumerate(range(begin, end, share)):
        if rate is not None:
            time.sleep(max(0.0, began + step / _STEPS_A_SECOND - time.monotonic()))
        for partition, value in events.records(place, min(place + share, end)):
            producer.produce(topic, value, partition=partition)
        producer.poll(0) if rate is not None else producer.flush(60)
    assert producer.flush(60) == 0


def windows(rows: Stream, clock: RowsClock) -> ResultStream:
    timed = rows.watermark("at", LAG_MS, clock=clock).key_by("user")
    return timed.tumbling_window("10 s").agg(count(), sum("amount"), avg("amount"))


def sessions(rows: Stream, clock: RowsClock) -> ResultStream:
    timed = rows.watermark("at", LAG_MS, clock=clock).key_by("user")
    return timed.session_window("4 s").agg(count(), sum("amount"))


JOBS: Final[dict[str, Callable[[Stream, RowsClock], ResultStream]]] = {
    **({"windows": windows} if LONG else {}),
    "sessions": sessions,
}


def in_order(table: pa.Table) -> pa.Table:
    """Rows by all columns; a folder without a file has none."""
    by = [(name, "ascending") for name in table.column_names]
    return table.sort_by(by).combine_chunks() if by else table


@attrs.frozen(eq=False)
class Answer:
    """What a query has given: how many batches it took, its results and its late rows, in one order."""

    batches: int
    results: pa.Table
    late: pa.Table

    @classmethod
    def of(cls, query: Query, folder: Path) -> Answer:
        """What lies in the folders of a query that has ended."""
        tables = [pq.read_table(folder / name) for name in ("out", "late")]
        return cls(query.progress.batch_id + 1, *map(in_order, tables))

    def same_as(self, other: Answer) -> bool:
        return bool(self.results.equals(other.results) and self.late.equals(other.late))


@attrs.frozen
class Reading:
    """A topic that is read by one engine."""

    session: Session
    address: str
    topic: str

    def start(self, job: str, folder: Path, clock: RowsClock = "row", most: int | None = None, *, live: bool = False) -> Query:
        read = self.session.read_kafka(self.topic, bootstrap_servers=self.address, schema=DDL, max_offsets_per_batch=most)
        plan = JOBS[job](read, clock).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(folder / "late")))
        batches = None if live else Batches.available_now()
        return plan.start(ParquetSink(folder / "out"), checkpoint=str(folder / "checkpoint"), batches=batches)

    def caught_up(self, job: str, folder: Path, clock: RowsClock = "row", most: int | None = None) -> Answer:
        query = self.start(job, folder, clock, most)
        assert query.await_termination("1 h")
        return Answer.of(query, folder)


def noted(job: str, engine: str, how: str, answer: Answer, expected: Answer) -> bool:
    """Print a line of the table; gives whether an answer is the expected one."""
    same = answer.same_as(expected)
    figures = (answer.batches, answer.results.num_rows, answer.late.num_rows, "equal" if same else "others")
    print("|", " | ".join(map(str, (job, engine, how, *figures))), "|", flush=True)
    return same


def test_live_and_caught_up_are_equal_row_for_row(
    session: Session, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name, events = topic(PARTITIONS), Events.made(EVENTS)
    of_spark = (None, EVENTS // 7) if LONG else (EVENTS // 7,)  # a query of it takes seconds to start
    limits = {"in process": (None, EVENTS // 7, EVENTS // 40), "Spark": of_spark}
    with Session.in_process() as in_process:
        engines = {"in process": Reading(in_process, broker.address, name), "Spark": Reading(session, broker.address, name)}
        send(events, broker.address, name, 0, first := EVENTS // 20)  # so that no partition is silent at first
        folders = {(job, engine): tmp_path / f"live {job} {engine}" for job in JOBS for engine in engines}
        live = {(job, engine): engines[engine].start(job, folder, live=True) for (job, engine), folder in folders.items()}
        send(events, broker.address, name, first, EVENTS, RATE)
        for query in live.values():
            query.process_all_available()
            query.stop()
        print("\n| | engine | read | batches | results | late rows | |\n|---|---|---|---:|---:|---:|---|")
        for job in JOBS:
            expected = Answer.of(live[job, "in process"], folders[job, "in process"])
            assert expected.late.num_rows > EVENTS // 30, "the test would prove little without late rows"
            same = [
                noted(job, engine, "live", Answer.of(live[job, engine], folders[job, engine]), expected) for engine in engines
            ]
            for engine, reading in engines.items():
                for most in limits[engine]:
                    answer = reading.caught_up(job, tmp_path / f"{job} {engine} {most}", most=most)
                    same.append(noted(job, engine, f"caught up, at most {most or 'all'} a batch", answer, expected))
            assert all(same)


@pytest.mark.slow
def test_catch_ups_under_the_clock_of_batches_differ(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> None:
    """The contrast: with the row clock all answers are one, and with the clock of batches each cut has its own late rows."""
    name, events = topic(PARTITIONS), Events.made(EVENTS)
    send(events, broker.address, name, 0, EVENTS)
    print("\n| | engine | read | batches | results | late rows | |\n|---|---|---|---:|---:|---:|---|")
    late: dict[RowsClock, set[int]] = {"row": set(), "batch": set()}
    with Session.in_process() as session:
        reading = Reading(session, broker.address, name)
        expected = reading.caught_up("sessions", tmp_path / "expected")
        for clock, most in itertools.product(late, (None, EVENTS // 7, EVENTS // 40)):
            answer = reading.caught_up("sessions", tmp_path / f"{clock} {most}", clock, most)
            how = f"caught up, at most {most or 'all'} a batch, clock of {'rows' if clock == 'row' else 'batches'}"
            same = noted("sessions", "in process", how, answer, expected)
            assert same == (clock == "row"), how
            late[clock].add(answer.late.num_rows)
    assert len(late["row"]) == 1
    assert len(late["batch"]) > 1
