"""Random histories of one stream: any operator, archive and seam, with restarts, give what one run gives (SEMANTICS §12.5).

``python -m tests.in_process.test_history_random 0 300`` tries 300 seeds.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import MemorySink, PlanError, Session, SideOutputLateEventHandler, StateTtlConfig, Trigger
from krishiv_py.testing import Driver, stream_of
from scripts.docs.changes import OF_TESTS, OPERATORS, N
from tests.in_process.test_evolution import Rows
from tests.in_process.test_evolution_random import try_all

COLUMNS: Final = "k string, at bigint, v bigint"
ARROW: Final = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
Step = Callable[[Any], Any]
TOTAL: Final = kv.sum("v").alias("total")


def _two_stages(stream: Any) -> Any:
    first = stream.key_by("k").tumbling_window("20 s").agg(N, TOTAL)
    return first.key_by("k").tumbling_window("1 minute").agg(kv.max("total").alias("most"))


def _of_table(make: Any) -> Step:
    """A stage of the table of changes."""

    def made(stream: Any) -> Any:
        stage = make(stream, OF_TESTS)
        return stage if isinstance(stage, kv.ResultStream) else stage.agg(N, TOTAL)

    return made


KINDS: Final[dict[str, Step]] = {
    **{name: _of_table(make) for name, make in OPERATORS.items() if name != "interval join"},
    "on arrival": lambda s: s.key_by("k").lookback_window("1 minute", emit="arrival").agg(N, TOTAL),
    "calendar": lambda s: s.key_by("k").calendar_window("hour", timezone="Asia/Kathmandu").agg(N, TOTAL),
    "two stages": _two_stages,
}


def drawn(chance: random.Random) -> tuple[str, Step]:
    """Some plan that the library takes: its text, and what makes it of a stream of rows."""
    while True:
        kind = chance.choice(list(KINDS))
        lag, late = chance.choice([0, 5_000, 20_000]), chance.choice([0, 15_000, 60_000])
        rule, emit = chance.choice(["event", "window"]), chance.choice([None, "final", "updates", "retractions"])
        trigger, discards = chance.choice([None, None, 1, 3]), chance.random() < 0.3
        ttl, few = chance.choice([None, None, "1 minute"]), chance.random() < 0.3
        options = kind, lag, late, rule, emit, trigger, discards, ttl, few

        def made(stream: Any, options: Any = options) -> Any:
            kind, lag, late, rule, emit, trigger, discards, ttl, few = options
            timed = stream.filter("v % 5 <> 0") if few else stream
            timed = timed.watermark("at", lag).allowed_lateness(late).late_rule(rule)
            timed = timed if emit is None else timed.emit(emit)
            timed = timed if trigger is None else timed.trigger(Trigger.on_count(trigger))
            timed = timed.accumulation("discarding") if discards else timed
            timed = timed if ttl is None else timed.with_state_ttl(StateTtlConfig(ttl))
            return KINDS[kind](timed).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))

        try:
            Driver(made(stream_of(COLUMNS)))
        except PlanError:
            continue
        return str(options), made


def batches(chance: random.Random, n: int) -> list[Rows]:
    """Rows a little out of order, some very late, some without a time or a key."""
    now, sent = 0, []
    for _ in range(n):
        rows: Rows = []
        for _ in range(chance.choice([1, 6, 15])):
            now += chance.randrange(0, 6_000)
            time = now - (chance.randrange(120_000) if chance.random() < 0.1 else chance.randrange(6_000))
            key = None if chance.random() < 0.05 else chance.choice("abc")
            rows.append({"k": key, "at": None if chance.random() < 0.03 else time, "v": len(rows)})
        sent.append(rows)
    return sent


def archive(chance: random.Random, session: Session, past: list[Rows], folder: Path) -> Any:
    """The past as files, or as a memory stream that is open or closed; a batch each."""
    form = chance.choice(["parquet", "json", "open", "closed"])
    if form in ("open", "closed"):
        stream, sender = session.memory_stream(COLUMNS)
        for rows in past:
            sender.send(rows)
        if form == "closed":
            sender.close()
        return stream
    where = folder / "archive"
    where.mkdir()
    for number, rows in enumerate(past):
        file = where / f"{number:03d}.{form}"
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows, ARROW), file)
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (number + 1, number + 1))
    read = session.read_parquet if form == "parquet" else session.read_json
    return read(str(where), schema=COLUMNS, max_files_per_batch=1)


def counted(rows: Rows) -> Counter[str]:
    """How often each row is there."""
    return Counter(repr(sorted(row.items())) for row in rows)


def trial(seed: int, folder: Path) -> str:
    """Compare one history with one run; gives what was compared."""
    chance = random.Random(f"history {seed}")
    said, made = drawn(chance)
    sent = batches(chance, 8)
    seam, stops = chance.randrange(9), chance.random() < 0.4
    driver = Driver(made(stream_of(COLUMNS)))
    steps = [driver.send(rows) for rows in sent]
    expected = [row for step in steps for row in step.results.to_pylist()]
    late = [row for step in steps for row in list(step.late_by_stage.values())[-1].to_pylist()]
    results, refused = MemorySink(), MemorySink()
    with Session.in_process(workers=chance.choice([1, 2])) as session:
        live, sender = session.memory_stream(COLUMNS, name="orders")
        given = {"orders": archive(chance, session, sent[:seam], folder)}
        plan = made(live).with_late_event_handler(SideOutputLateEventHandler(refused))
        said = f"seed {seed}: {said}, seam {seam}, {given}"
        for part in [sent[seam : seam + 1], sent[seam + 1 :]] if stops else [sent[seam:]]:
            query = session.start([plan.to(results)], checkpoint=str(folder / "c"), bootstrap=given)
            for rows in part:
                sender.send(rows)
                query.process_all_available()
            query.stop()
        counts = query.progress.rows, query.progress.late
    tables = [table.to_pylist() if (table := sink.table()) is not None else [] for sink in (results, refused)]
    assert counted(tables[0]) == counted(expected), said
    assert counted(tables[1]) == counted(late), said
    assert counts == (driver.progress.rows, driver.progress.late), said
    return said


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_random_history_and_what_follows_are_one_run(seed: int, tmp_path: Path) -> None:
    trial(seed, tmp_path)


if __name__ == "__main__":
    try_all(trial)
