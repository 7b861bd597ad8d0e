"""Rows a CPU second of tables that change, in process: ``python -m benchmarks.tables [name ...]``.

Two million rows come in sends of 200 000, of 500 000 keys, with a checkpoint, into Parquet; the first send is not counted.
Rounds of all plans take turns, and the median counts. CPU seconds are those of the whole process, from the second send to the
last result. Of ``two changelogs, joined`` half of the rows change each side. ``one change`` is the time of a send of a single
change to tables of many and of few keys.

``python -m benchmarks.tables soak 600`` sends changes of keys that come and go for so many seconds, under a time to live, and
prints rows and bytes of state, and the memory of the process: what was forgotten must not add up.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from krishiv_py import ParquetSink, Session, StateTtlConfig, count
from krishiv_py import sum as sum_of

SEND, SENDS, KEYS, ROUNDS = 200_000, 10, 500_000, 3
_DRAW: Final = np.random.default_rng(1)


def added(keys: int = KEYS, rows: int = SEND) -> pa.RecordBatch:
    """Return rows that are added."""
    return pa.record_batch({"user": _DRAW.integers(0, keys, rows), "amount": _DRAW.integers(0, 1_000, rows).astype(float)})


def changed(keys: int = KEYS, rows: int = SEND) -> pa.RecordBatch:
    """Return changes of a table: one in ten is a deletion."""
    ops = np.where(_DRAW.random(rows) < 0.1, "-D", "+U")
    values = {"id": _DRAW.integers(0, keys, rows), "k": _DRAW.integers(0, keys // 10, rows), "v": _DRAW.random(rows)}
    return pa.record_batch({"op": ops, **values})


def of_two(keys: int = KEYS, rows: int = SEND) -> pa.RecordBatch:
    """Return changes of two tables of so many keys: the rows of the left one name a key of the right one."""
    ops = np.where(_DRAW.random(rows) < 0.1, "-D", "+U")
    values = {name: _DRAW.integers(0, keys, rows) for name in ("id", "k")}
    return pa.record_batch({"op": ops, **values, "v": _DRAW.random(rows), "left": _DRAW.random(rows) < 0.5})


def _two_joined(stream: Any) -> Any:
    left = stream.filter("left").select("op", "id", "k", "v").from_changelog("log", "id")
    return left.join(stream.filter("not left").select("op", k="id", w="v").from_changelog("log", "k"), on="k")


PLANS: Final[dict[str, tuple[Callable[[Any], Any], Callable[..., pa.RecordBatch]]]] = {
    "count and sum": (lambda s: s.key_by("user").agg(count(), sum_of("amount")), added),
    "changelog": (lambda s: s.from_changelog("log", "id"), changed),
    "changelog, then count and sum": (lambda s: s.from_changelog("log", "id").key_by("k").agg(count(), sum_of("v")), changed),
    "changelog, joined with totals of it": (
        lambda s: s.from_changelog("log", "id").join(s.from_changelog("log", "id").key_by("k").agg(count()), on="k"),
        changed,
    ),
    "two changelogs, joined": (_two_joined, of_two),
    "newest": (lambda s: s.latest("user", by="amount"), added),
    "first three rows": (lambda s: s.key_by("user").top_rows(3, by="amount"), added),
}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rate(name: str) -> float:
    """Return millions of rows a CPU second."""
    plan, made = PLANS[name]
    batches = [made() for _ in range(SENDS + 1)]
    with Session.in_process() as session:
        stream, sender = session.memory_stream(batches[0].schema)
        query = plan(stream).start(ParquetSink(tempfile.mkdtemp()), checkpoint=tempfile.mkdtemp())
        sender.send(batches[0])
        query.process_all_available()
        begin = _cpu()
        for batch in batches[1:]:
            sender.send(batch)
            query.process_all_available()
        spent = _cpu() - begin
        query.stop()
    return SEND * SENDS / spent / 1e6


def one_change(keys: int) -> float:
    """Return the milliseconds of a batch of one row, with so many keys in state."""
    with Session.in_process() as session:
        stream, sender = session.memory_stream(added(1, 1).schema)
        plan = stream.key_by("user").agg(count(), sum_of("amount"))
        query = plan.start(ParquetSink(tempfile.mkdtemp()), checkpoint=tempfile.mkdtemp())
        for begin in range(0, keys, 1_000_000):
            users = np.arange(begin, min(begin + 1_000_000, keys))
            sender.send(pa.record_batch({"user": users, "amount": np.ones(len(users))}))
            query.process_all_available()
        times = []
        for _ in range(200):
            sent = added(keys, 1)
            begin_s = time.perf_counter()
            sender.send(sent)
            query.process_all_available()
            times.append(time.perf_counter() - begin_s)
        query.stop()
    return statistics.median(times) * 1e3


def soak(seconds: float) -> None:
    """Print the state of a total and a join of keys that come and go."""
    lives = StateTtlConfig(ttl="20 s", clock="processing")
    with Session.in_process() as session:
        stream, sender = session.memory_stream(added(1, 1).schema)
        totals = stream.key_by("user").agg(count(), sum_of("amount")).with_state_ttl(lives)
        joined = totals.join(stream.select("user", other="amount"), on="user").with_state_ttl(lives)
        query = joined.start(ParquetSink(tempfile.mkdtemp()), checkpoint=tempfile.mkdtemp())
        begin, sent, due = time.monotonic(), 0, 0.0
        while (now := time.monotonic() - begin) < seconds:
            users = sent // 2 + _DRAW.integers(0, 5_000, 2_000)  # each is there for a while, and never again
            sender.send(pa.record_batch({"user": users, "amount": _DRAW.random(2_000)}))
            query.process_all_available()
            sent += 2_000
            if now >= due:
                progress = query.progress
                rss_mb = int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 // 1_000_000
                print(
                    f"{now:6.0f} s {sent:>10,} rows {progress.open_rows:>8,} in state {progress.state_bytes / 1e6:6.1f} MB "
                    f"{rss_mb:>5} MB of memory",
                    flush=True,
                )
                due += 30
            time.sleep(0.2)
        query.stop()


def main(names: list[str]) -> None:
    """Print a line for each plan."""
    if names[:1] == ["soak"]:
        soak(float(names[1]))
        return
    wanted = [name for name in PLANS if not names or name in names]
    rates: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(ROUNDS):
        for name in wanted:
            rates[name].append(rate(name))
    for name in wanted:
        print(f"{name:38} {statistics.median(rates[name]):5.2f} million rows a CPU second", flush=True)
    if not names or "one change" in names:
        for keys in (10_000, 10_000_000):
            print(f"one change to {keys:>10,} keys {one_change(keys):13.2f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
