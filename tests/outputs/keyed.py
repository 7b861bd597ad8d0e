"""Pipelines, steps and keys of the matrix of keyed sinks, and a sink that is a dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_py import (
    ResultStream,
    Session,
    SlidingWindows,
    Stream,
    Trigger,
    WindowAssigner,
    calendar_window,
    col,
    count,
    sum,
    top_k,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.connectors import OutputBatch, TransactionalSink, net_changes

DDL: Final = "user string, shop string, at bigint, amount bigint"
Row: TypeAlias = dict[str, Any]
Made: TypeAlias = Callable[[KeyedStream], ResultStream]
Steps: TypeAlias = Callable[[ResultStream], ResultStream]


class TableInMemory(TransactionalSink):
    """A table of one's own: the rows by key, as documented for such sinks."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = list(key)
        self.table: dict[tuple[Any, ...], Row] = {}
        self.log: list[Row] = []
        self._given: list[pa.Table] = []

    def last_committed(self, batch: OutputBatch) -> int | None:
        return None

    def begin(self, batch: OutputBatch) -> None:
        self._given = []

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        self._given.append(table)
        self.log += table.to_pylist()

    def commit(self, batch: OutputBatch) -> None:
        changed = net_changes(self._given, self.key, self.title)
        for row in changed.gone.to_pylist():
            self.table.pop(tuple(row.values()), None)
        for row in changed.put.to_pylist():
            self.table[tuple(row[name] for name in self.key)] = row

    @property
    def rows(self) -> list[str]:
        """The rows, in an order of their own."""
        return sorted(map(str, self.table.values()))


def folded(log: Sequence[Row]) -> list[str]:
    """What a change log comes to, line by line: the plain reference."""
    valid: list[str] = []
    for line in log:
        row = str({name: value for name, value in line.items() if name != "op"})
        if line["op"] in ("+I", "+U"):
            valid.append(row)
        else:
            valid.remove(row)
    return sorted(valid)


class TwoFromOneStart(WindowAssigner):
    """Two windows that begin together, of 10 and 20."""

    longest = 20

    def assign(self, times: Any) -> Any:
        starts = times - times % 20_000
        short = times - starts < 10_000
        rows = np.concatenate([np.arange(len(times)), np.flatnonzero(short)])
        return rows, starts[rows], starts[rows] + np.where(np.arange(len(rows)) < len(times), 20_000, 10_000)


AGGS: Final = (count().alias("n"), sum("amount").alias("total"), top_k(2, "amount").alias("top"))
WINDOWS: Final[dict[str, Made]] = {
    "tumbling": lambda s: s.tumbling_window(10).agg(*AGGS),
    "hopping": lambda s: s.hopping_window(20, 10).agg(*AGGS),
    "session": lambda s: s.session_window(5).agg(*AGGS),
    "capped session": lambda s: s.session_window(5, max_duration=15).agg(*AGGS),
    "cumulating": lambda s: s.cumulate_window(step=5, size=20).agg(*AGGS),
    "calendar": lambda s: s.window(calendar_window("day", "Europe/Berlin")).agg(*AGGS),
    "own": lambda s: s.window(TwoFromOneStart()).agg(*AGGS),
    "distinct sets": lambda s: s.windowed_by(SlidingWindows.of(10)).agg(*AGGS),
    "count": lambda s: s.count_window(3).agg(*AGGS),
}
MODES: Final[dict[str, Steps]] = {
    "final": lambda r: r.emit("final"),
    "updates": lambda r: r.emit("updates"),
    "retractions": lambda r: r.emit("retractions"),
    "early updates": lambda r: r.trigger(Trigger.on_every_element()).emit("updates"),
    "early retractions": lambda r: r.trigger(Trigger.on_every_element()).emit("retractions"),
}


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


_CITIES: Final = pa.table({"shop": ["x", "y"], "city": ["Pune", "Goa"]})
_TEXT: Final = "CAST(window_{} AS STRING)"
STEPS: Final[dict[str, Steps]] = {
    "none": lambda r: r,
    "having": lambda r: r.filter("total > 3"),
    "having of the key": lambda r: r.filter("user <> 'bob' AND window_start >= 10"),
    "one user": lambda r: r.filter("user = 'ann'"),
    "without the user": lambda r: r.select("shop", "window_start", "window_end", "total"),
    "without the bounds": lambda r: r.select("user", "shop", "total"),
    "with other names": lambda r: r.rename(user="who", window_start="begin").drop("top"),
    "named": lambda r: r.with_column(
        "id", "concat_ws('|', user, shop, CAST(window_start AS STRING), CAST(window_end AS STRING))"
    ),
    "computed": lambda r: r.with_column("mean", "total / n").filter("mean > 1.0"),
    "function": lambda r: r.map_batches(_doubled).filter("n > 1"),
    "lookup": lambda r: r.lookup_join(_CITIES, on="shop", how="inner"),
    "places": lambda r: r.unnest("top", rank="place"),
    "items": lambda r: r.unnest("top").drop("n"),
    "expected": lambda r: r.expect("n > 0").with_column("half", col("total") / 2),
}
KEYS: Final = (
    ["user", "shop", "window_start", "window_end"],
    ["user", "shop", "window_start"],
    ["user", "window_start"],
    ["shop", "window_end"],
    ["window_start"],
    ["user", "shop"],
    ["user", "shop", "window_start", "total"],
    ["who", "shop", "begin"],
    ["id"],
    ["user", "shop", "window_start", "window_end", "place"],
    ["user", "shop", "window_start", "window_end", "amount"],
)


def keyed(rows: Stream, lateness: int = 1_000) -> KeyedStream:
    """The rows by user and shop; late ones are taken for long."""
    return rows.watermark("at", 0).allowed_lateness(lateness).late_rule("event").key_by("user", "shop")


def sends(seed: int, n: int = 40) -> list[list[Row]]:
    """Batches of rows, some of them late, and of refunds."""
    random, newest = np.random.default_rng(seed), 0
    batches: list[list[Row]] = []
    while n > 0:
        size = int(random.integers(1, 5))
        newest += int(random.integers(0, 12))
        batches.append(
            [
                {
                    "user": ["ann", "bob"][random.integers(2)],
                    "shop": ["x", "y"][random.integers(2)],
                    "at": int(np.maximum(0, newest - random.integers(0, 30))),
                    "amount": int(random.integers(-6, 9)),
                }
                for _ in range(size)
            ]
        )
        n -= size
    return batches


def run_in_process(
    workers: int, made: Callable[[Stream], ResultStream], sink: TransactionalSink, batches: Sequence[Sequence[Row]]
) -> None:
    """Run a query of a session in process over some batches, to the end of its input."""
    with Session.in_process(workers=workers) as session:
        stream, sender = session.memory_stream(DDL)
        query = made(stream).start(sink)
        for batch in batches:
            sender.send(list(batch))
            query.process_all_available()
        sender.close()
        query.process_all_available()
        query.stop()
