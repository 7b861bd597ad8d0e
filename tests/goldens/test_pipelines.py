"""Deduplication, window joins, chains of stages and SQL worked out by hand (SEMANTICS §7 to §9), on the three engines.

A row is ``[id, key, time]``, with a value behind it for stages. A result begins with the number of its step, ``"end"`` after
the end of input; of deduplication its id follows, of a window join the window's start and the ids of both rows, of stages and
queries the values of its columns. The ordinary run takes some of the cases on real queries; ``nox -s goldens`` takes all.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import windows
from krishiv_py.plan.expressions.parse import parse_schema
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("pipelines.jsonl").read_text().splitlines()
]
SOME = CASES if os.environ.get("KRISHIV_GOLDENS") == "all" else CASES[4::10]
LEFT, RIGHT = "lid bigint, key string, at bigint", "rid bigint, key string, seen bigint"
ROWS, VALUED = "id bigint, key string, at bigint", "id bigint, key string, at bigint, v bigint"
WINDOWS: dict[str, Callable[..., Any]] = {
    "tumbling": windows.tumbling,
    "session": windows.session,
    "lookback": windows.lookback,
    "lookback both ways": lambda size: windows.lookback(size, two_sided=True),
    "panes": lambda size, age: kv.TimeIntervalWindowOptions(f"{size} ms", discard_age=f"{age} ms"),
}
Rows = list[dict[str, Any]]
cases = pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
some = pytest.mark.parametrize("case", SOME, ids=lambda c: c["name"])


def sides(case: dict[str, Any]) -> dict[str, str]:
    """The streams of a case, and their columns."""
    if case["op"] == "window_join":
        return {"left": LEFT, "right": RIGHT}
    return {"rows": case["schema"] if case["op"] == "sql" else VALUED if case["op"] == "stages" else ROWS}


def plan(case: dict[str, Any], opened: dict[str, kv.Stream], late: kv.MemorySink) -> Any:
    """The case as its user would write it."""
    handler = kv.SideOutputLateEventHandler(late)
    if case["op"] == "window_join":
        left, right = opened["left"].watermark("at", case["lag"][0]), opened["right"].watermark("seen", case["lag"][1])
        window = windows.hopping(case["size"], case["slide"])
        met = left.window_join(right, "key", window=window, how=case["how"]).late_rule(case["late_rule"])
        return met.with_late_event_handler(handler)
    timed = opened["rows"].watermark("at", case["lag"]).allowed_lateness(case["lateness"]).with_late_event_handler(handler)
    if case["op"] == "sql":
        context = SqlContext()
        context.register("t", timed)
        return context.sql(case["query"])
    if case["op"] == "dedup":
        return timed.drop_duplicates("key", within=case["within"], duplicates="side_output")
    moment: Any = timed
    for number, stage in enumerate(case["stages"]):
        if "lag" in stage:
            moment = moment.watermark("window_time", stage["lag"])
        if "filter" in stage:
            moment = moment.filter(stage["filter"])
        if "dedup" in stage:
            moment = moment.drop_duplicates(*stage["dedup"], within=stage["within"])
        else:
            moment = windowed(moment, stage)
        assert moment is not timed or not number
    return moment


def windowed(at: Any, stage: dict[str, Any]) -> Any:
    """A stage of a chain."""
    name, *lengths = stage["window"]
    aggs = [getattr(kv, f)(*([c] if c else [])).alias(to) for f, c, to in stage["aggs"]]
    return at.key_by(*stage["keys"]).window(WINDOWS[name](*lengths)).agg(*aggs)


def sent(case: dict[str, Any], step: dict[str, Any]) -> dict[str, Rows]:
    """The rows of a step, by stream."""
    names = {side: parse_schema(ddl).names for side, ddl in sides(case).items()}
    return {side: [dict(zip(names[side], row, strict=True)) for row in step.get(side, [])] for side in names}


@attrs.define
class Seen:
    """What an engine gave."""

    results: list[tuple[Any, ...]] = attrs.field(factory=list)
    refused: dict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))

    def take(self, case: dict[str, Any], step: int | str, results: Rows, late: Rows) -> None:
        """The results and refused rows of a step."""
        for row in results:
            if case["op"] == "dedup":
                self.results.append((step, row["id"]))
            elif case["op"] == "window_join":
                self.results.append((step, row["window_start"], row["lid"], row.get("rid")))
            else:
                self.results.append((step, *row.values()))
        for row in late:
            number = row["id"] if "id" in row else row["lid"] if row["lid"] is not None else row["rid"]
            self.refused["late" if row["reason"] != "duplicate" else "duplicate"].append(number)

    def check(self, case: dict[str, Any], counters: dict[str, int], *, by_step: bool = True) -> None:
        """Compare with what was worked out."""
        actual, wanted = self.results, [tuple(row) for row in case["results"]]
        if not by_step:
            actual, wanted = [row[1:] for row in actual], [row[1:] for row in wanted]
        assert sorted(map(repr, actual)) == sorted(map(repr, wanted))
        assert {name: sorted(ids) for name, ids in self.refused.items()} == {
            name: case[name] for name in ("late", "duplicate") if case.get(name)
        }
        if "unmatched" in case:
            assert counters["unmatched"] == case["unmatched"]
        if "duplicate" in case:
            assert counters["duplicates"] == len(case["duplicate"])


@cases
def test_on_the_driver(case: dict[str, Any]) -> None:
    driver = Driver(plan(case, {side: stream_of(ddl) for side, ddl in sides(case).items()}, kv.MemorySink()))
    seen, only = Seen(), "rows" if "rows" in sides(case) else None
    for number, step in enumerate(case["steps"]):
        rows = sent(case, step)
        out = driver.send(rows[only] if only else rows)
        seen.take(case, number, out.results.to_pylist(), out.late.to_pylist())
    out = driver.close()
    seen.take(case, "end", out.results.to_pylist(), out.late.to_pylist())
    seen.check(case, driver.counters)


def opened(session: kv.Session, case: dict[str, Any]) -> tuple[dict[str, kv.Stream], dict[str, kv.Sender]]:
    """Memory streams of a case."""
    streams = {side: session.memory_stream(ddl) for side, ddl in sides(case).items()}
    return {side: s for side, (s, _) in streams.items()}, {side: sender for side, (_, sender) in streams.items()}


def fresh(sink: kv.MemorySink) -> Iterator[Rows]:
    """What came since it was last asked."""
    known: set[int] = set()
    while True:
        batches = sorted(set(sink.tables) - known)
        known.update(batches)
        yield [row for b in batches for t in sink.tables[b] for row in pa.table(t).to_pylist()]


@some
def test_streaming(session: kv.Session, case: dict[str, Any], tmp_path: Path) -> None:
    streams, senders = opened(session, case)
    out, late = kv.MemorySink(), kv.MemorySink()
    whole = plan(case, streams, late)
    query = whole.start(out, checkpoint=str(tmp_path / "checkpoint"))
    seen, results, refused = Seen(), fresh(out), fresh(late)
    try:
        for number, step in enumerate([*case["steps"], None]):
            if number == 1:
                query.stop()
                query = whole.start(out, checkpoint=str(tmp_path / "checkpoint"))
            for side, sender in senders.items():
                if step is None:
                    sender.close()
                elif rows := sent(case, step)[side]:
                    sender.send(rows)
            query.process_all_available()
            seen.take(case, "end" if step is None else number, next(results), next(refused))
        seen.check(case, dict(query.progress.counters))
    finally:
        query.stop()


@some
def test_bounded(session: kv.Session, case: dict[str, Any]) -> None:
    streams, senders = opened(session, case)
    for step in case["steps"]:
        for side, rows in sent(case, step).items():
            if rows:
                senders[side].send(rows)
    run = plan(case, streams, kv.MemorySink()).run()
    seen = Seen()
    seen.take(case, "end", run.table.to_pylist(), run.late.to_pylist())
    seen.check(case, run.counters, by_step=False)
