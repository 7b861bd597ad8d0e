"""The modes as cases: a job, a long and a short input, and the unit in which their difference is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from benchmarks import data, flights
from benchmarks.data import KeySet, Spec
from benchmarks.jobs import BATCH_ROWS, JOBS, Job

MICRO_BATCHES = (110, 10)
OPEN_BATCHES = (31, 11)
OPEN_KEYS = (50_000, 500_000, 5_000_000)
BOUNDED_ROWS = (1_000, 2_000_000)


@frozen
class Case:
    """What one comparison runs."""

    mode: str
    job: Job
    data: str
    long: Path
    long_units: float
    unit: str
    short: Path | None = None
    short_units: float = 0.0
    closing: Path | None = None
    """The long input and what makes its windows fire where that is not to be timed: it goes on from the long run."""
    arguments: tuple[str, ...] = ()
    files_per_batch: int = 1


def sources_or_parts(job: Job, spec: Spec) -> Path:
    """Data of `job`: without late rows in four folders for J8; without late rows and with repeated ones for pipelines."""
    if job.pipeline:
        return data.make(Spec(spec.events, spec.keys, spec.parts, spec.seed, late=0.0, repeated=0.1))
    if job.sources == 1:
        return data.make(spec)
    return data.make_sources(Spec(spec.events, spec.keys, spec.parts, spec.seed, late=0.0))


def backlog(jobs: list[Job], sets: list[KeySet], events: int, seed: int, batch_rows: int | None = None) -> Iterator[Case]:
    """As fast as it goes: the whole input less its first file; micro-batches of about `batch_rows`, else a quarter of it."""
    for job in jobs:
        if job.flights:
            folder = flights.make()
            yield backlog_of(job, flights.NAME, folder, batch_rows or data.rows_of(folder) // 4)
            continue
        for keys in sets:
            folder = sources_or_parts(job, Spec(events, keys, seed=seed))
            yield backlog_of(job, f"{keys}-{events}", folder, batch_rows or max(events // 4, BATCH_ROWS))


def backlog_of(job: Job, name: str, folder: Path, batch_rows: int) -> Case:
    """The whole of a folder, so many files a batch as come near to `batch_rows`."""
    first = data.first_parts(folder, 1)
    rows = (data.rows_of(folder), data.rows_of(first))
    # Where a source falls silent its idle time-out has to pass before the input ends: many short batches.
    files = 1 if job.idle_timeout_ms else max(batch_rows // rows[1], 1)
    return Case("backlog", job, name, folder, rows[0], "event", first, rows[1], files_per_batch=files)


def whole(jobs: list[Job], sets: list[KeySet], events: int, seed: int, batch_rows: int | None = None) -> Iterator[Case]:
    """The backlog without its short run: a process from nothing to its end, starting included."""
    for case in backlog(jobs, sets, events, seed, batch_rows):
        yield evolve(case, mode="whole", short=None, short_units=0.0)


def micro(jobs: list[Job], seed: int) -> Iterator[Case]:
    """Batches of a single row: what a batch costs before it does any work."""
    for job in jobs:
        long, short = (data.one_row_parts(Spec(0, "A", seed=seed), count) for count in MICRO_BATCHES)
        yield Case("micro", job, "one-row", long, MICRO_BATCHES[0], "batch", short, MICRO_BATCHES[1])


def open_state(keys: list[int], seed: int) -> Iterator[Case]:
    """The same small batches while many keys are open; nothing fires until the times are taken."""
    for count in keys:
        folder = data.open_state(count, OPEN_BATCHES[0], seed)
        short = data.first_parts(folder, OPEN_BATCHES[1])
        name, (long, few) = f"open-{count}", OPEN_BATCHES
        yield Case("open_state", JOBS["O1"], name, folder, long, "batch", short, few, closing=data.closed(folder))


def bounded(jobs: list[Job], sets: list[KeySet], seed: int) -> Iterator[Case]:
    """``collect()`` over a finite input in a warm session."""
    for job in jobs:
        for keys in sets:
            for rows in BOUNDED_ROWS:
                folder = data.make(Spec(rows, keys, parts=1 if rows < 100_000 else 20, seed=seed))
                yield Case("bounded", job, f"{keys}-{rows}", folder, rows, "event", arguments=("--collect",))
