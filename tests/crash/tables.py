"""Lookup joins of the job that is killed: tables as they are, one that is another whenever it is loaded (SEMANTICS §9.3)."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py import LateEventHandler, Output, ParquetSink, collect_list, count, sum
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import OutputBatch, TableSink

USERS, HALF = 300, 24_000
LoadTable = Callable[[], pa.Table]


def prices() -> pa.Table:
    """What the amount of a user counts for, in either half of the input; not every user is known."""
    known = range(0, USERS, 2)
    columns = {
        "code": [*known, *known],
        "since": [None] * len(known) + [HALF] * len(known),
        "until": [HALF] * len(known) + [None] * len(known),
        "tier": [n % 7 for n in known] + [n % 5 for n in known],
    }
    return pa.table(columns, pa.schema([(name, pa.int64()) for name in columns]))


def names() -> pa.Table:
    """The names of tiers: of one two, of one none."""
    return pa.table({"tier": pa.array([0, 1, 1, 2, 3, 4, 5], pa.int64()), "name": ["a", "b", "b2", "c", "d", "a", "b"]})


def looked_up(read: Callable[[], Stream], late: LateEventHandler) -> ResultStream:
    """A table that travels with the plan, by when its rows are valid; behind windows one that a function loads."""
    priced = read().lookup_join(prices(), {"user": "code"}, at="at", validity=("since", "until"))
    keyed = priced.watermark("at", 2_000).key_by("tier").with_late_event_handler(late)
    named = keyed.tumbling_window(1_000).agg(count(), sum("amount")).lookup_join(names, "tier")
    sums = named.key_by("name").session_window(1_500).agg(sum("count").alias("n"), collect_list("sum_amount").alias("amounts"))
    return sums.key_by("name").tumbling_window(5_000).agg(sum("n"), collect_list("amounts").alias("amounts"), count())


class Counted:
    """A table that has, whenever it is loaded, a higher version than ever before; it counts in a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self) -> pa.Table:
        """What `lookup_join` calls."""
        version = 1 + (int(self._path.read_text()) if self._path.exists() else 0)
        written = self._path.with_suffix(".tmp")
        written.write_text(str(version))
        os.replace(written, self._path)
        return versions(version)


def versions(version: int) -> pa.Table:
    """The table in one version: every user, in either half of the input."""
    both = [*range(USERS), *range(USERS)]
    since, until = [None] * USERS + [HALF] * USERS, [HALF] * USERS + [None] * USERS
    columns = {"code": both, "since": since, "until": until, "version": [version] * len(both)}
    return pa.table(columns, pa.schema([(name, pa.int64()) for name in columns]))


class Seen(TableSink):
    """Keeps what it gets of each batch, at every attempt; and takes its time, in which the job may be killed."""

    def __init__(self, folder: str, slow_s: float) -> None:
        self._folder, self._slow_s = Path(folder), slow_s

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """A file for each attempt that brought rows."""
        if tables:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{batch.batch_id:06d}-{uuid.uuid4().hex}.parquet"
            pq.write_table(pa.concat_tables(tables), self._folder / f".{name}")
            os.replace(self._folder / f".{name}", self._folder / name)
        time.sleep(self._slow_s)


def reloaded(
    read: Callable[[], Stream], late: LateEventHandler, work: str, load: LoadTable, then: LoadTable, slow_s: float = 0.0
) -> list[Output]:
    """Rows with the version of the table they met, windows by version, and behind them the version when they fired."""
    valid: dict[str, Any] = {"validity": ("since", "until"), "reload": "1 us"}
    rows = read().lookup_join(load, {"user": "code"}, at="at", **valid)
    keyed = rows.watermark("at", 2_000).key_by("user", "version").with_late_event_handler(late)
    fired = keyed.tumbling_window(5_000).agg(count(), sum("amount"))
    once = fired.lookup_join(then, {"user": "code"}, columns={"version": "fired"}, at="window_start", **valid)
    return [rows.to(Seen(f"{work}/seen", slow_s), name="seen"), once.to(ParquetSink(f"{work}/out"), name="out")]
