"""Chains of changes of queries with checkpoints: in place where that is taken, else over savepoints, with restarts between.

The law *within the lag* of :mod:`tests.in_process.test_evolution_laws`: each result of the plan is given once, no row is late.
``python -m tests.in_process.test_evolution_laws_live 300`` tries 300 seeds, with ``spark`` before the number on Spark.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import Batches, CheckpointError, MemorySink, Session
from krishiv_py.testing import Driver
from tests.in_process import test_evolution_laws as laws
from tests.in_process.test_evolution import Rows
from tests.in_process.test_evolution_laws import OF_TWO, OPERATORS, OUT_OF_ORDER, RIGHT, SCHEMA, Times, drawn, rows_of
from tests.in_process.test_evolution_random import try_all

pytestmark = pytest.mark.filterwarnings("ignore:the MemorySink of query")  # its runs share it
LAG, LONGER = (20_000, 20_000), (300_000, 300_000)
KINDS = [name for name in OPERATORS if name != "union"]  # of one session each source is a stream of its own


class Live:
    """A query that is stopped and started again with other plans."""

    def __init__(self, session: Session, kind: str, folder: Path) -> None:
        self.session, self.kind, self.folder, self.number = session, kind, folder, 0
        self.streams, self.senders = {}, {}
        for name, schema in (("left", SCHEMA), ("right", RIGHT))[: 2 if kind in OF_TWO else 1]:
            self.streams[name], self.senders[name] = session.memory_stream(schema, name=name, spool=str(folder / name))
        self.checkpoint = str(folder / "checkpoint")
        self.savepoint = ""
        self.query: Any = None
        self.sink = MemorySink()  # of all its runs: a batch that a stop breaks off after it was published is run again
        self.results: list[str] = []
        self.how: list[str] = []

    def start(self, times: Times, **more: Any) -> None:
        streams = self.streams
        with pytest.MonkeyPatch.context() as patch:  # the operators of the laws, over these streams
            patch.setattr(laws, "stream_of", lambda schema: streams["left" if schema == SCHEMA else "right"])
            plan = OPERATORS[self.kind](times)
        self.query, self.times = plan.start(self.sink, checkpoint=self.checkpoint, **more), times

    def change(self, times: Times, *, in_place: bool) -> None:
        """Go on with other times."""
        self.stop()
        self.number += 1
        if in_place:
            try:
                self.start(times)
                self.how.append("in place")
                return
            except CheckpointError:
                pass
        self.how.append("over a savepoint")
        path, old = str(self.folder / f"savepoint {self.number}"), self.checkpoint
        try:
            self.session.savepoint(old, path)
        except CheckpointError as unfinished:
            if "no batch since it began" in str(unfinished):  # on Spark, whose first batch takes over what was written
                self.checkpoint = str(self.folder / f"checkpoint {self.number}")
                self.start(times, savepoint=self.savepoint)
                return
            if "has run no batch" in str(unfinished):  # there is nothing to go on from
                self.checkpoint = str(self.folder / f"checkpoint {self.number}")
                self.start(times)
                return
            # on Spark a stop breaks off the batch that runs; the hint of the error says how it is finished
            assert "is not finished" in str(unfinished), unfinished
            self.start(self.times, batches=Batches.available_now())
            self.query.await_termination()
            self.stop()
            self.session.savepoint(old, path)
        self.checkpoint, self.savepoint = str(self.folder / f"checkpoint {self.number}"), path
        self.start(times, savepoint=path)

    def send(self, batch: laws.Sends) -> None:
        for name, rows in batch.items():
            if rows:
                self.senders[name].send(rows)
        self.query.process_all_available()

    def end(self) -> None:
        for sender in self.senders.values():
            sender.close()
        self.query.process_all_available()
        self.late = dict(self.query.progress.late)["late"]
        self.stop()
        self.results = [repr(row) for tables in self.sink.tables.values() for table in tables for row in table.to_pylist()]

    def stop(self) -> None:
        self.query.stop()


def live(seed: int, folder: Path, opened: Callable[[random.Random], Session]) -> str:
    """A query whose plan changes at any time, with rows that no plan takes for late."""
    chance = random.Random(f"live {seed}")
    kind, times = chance.choice(KINDS), drawn(chance)
    sent = rows_of(chance, kind, OUT_OF_ORDER)[:5]
    with opened(chance) as session:
        run = Live(session, kind, folder)
        run.start(times)
        went = f"{kind} {times}"
        for number, batch in enumerate(sent):
            run.send(batch)
            for _ in range(chance.choice([0, 1, 1, 2])):
                times = drawn(chance)
                run.change(times, in_place=chance.random() < 0.5)
                went = f"{went}; after batch {number}: {times} {run.how[-1]}"
        run.end()
    once = Driver(OPERATORS[kind](times))
    outs = [laws.said(laws.sent_to(once, batch))[0] for batch in sent] + [laws.said(once.close())[0]]
    expected = Counter(row for rows in outs for row in rows)
    missing, more = expected - Counter(run.results), Counter(run.results) - expected
    assert not missing and not more and not run.late, (seed, went, "missing", missing, "more", more, "late", run.late)
    return went


def in_process(chance: random.Random) -> Session:
    return Session.in_process(workers=chance.choice([1, 3]))


def on_spark(chance: random.Random) -> Session:
    return Session.embedded()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", [*range(8), 223])
def test_a_query_whose_plan_changes_gives_each_result_once(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, in_process)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lateness_that_comes_back_before_a_batch_fires_nothing_twice(kind: str, tmp_path: Path) -> None:
    """The smaller one over a savepoint, which writes the state again; then the old one in place, with other lags."""
    before, smaller, again = (Times(lags, (late, late, late)) for lags, late in ((LAG, 60_000), (LAG, 0), (LONGER, 60_000)))
    sent = [{name: moved(rows, number) for name, rows in rows_of(random.Random(4), kind, 0)[1].items()} for number in range(5)]
    with Session.in_process() as session:
        run = Live(session, kind, tmp_path)
        run.start(before)
        for batch in sent:
            run.send(batch)
        run.change(smaller, in_place=False)
        run.change(again, in_place=True)
        run.end()
    once = Driver(OPERATORS[kind](again))
    outs = [laws.said(laws.sent_to(once, batch))[0] for batch in sent] + [laws.said(once.close())[0]]
    assert sorted(run.results) == sorted(row for rows in outs for row in rows)


def moved(rows: Rows, number: int) -> Rows:
    """Return rows two minutes later for each batch."""
    return [{name: value + 120_000 * number if name in ("at", "rat") else value for name, value in row.items()} for row in rows]


if __name__ == "__main__":
    engine = on_spark if "spark" in sys.argv else in_process
    sys.argv = [text for text in sys.argv if text != "spark"]
    try_all(lambda seed, folder: live(seed, folder, engine))
