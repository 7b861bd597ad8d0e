"""Several outputs on Spark, over a restart: those of the driver, published batch by batch."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Sink
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

DDL = "user string, at bigint, amount bigint"
BATCHES: list[list[dict[str, Any]]] = [
    [{"user": "abc"[n % 3], "at": 300 * n, "amount": 7 * n % 11} for n in range(20)] + [{"user": "a", "at": None, "amount": 1}],
    [{"user": "b", "at": 9_000, "amount": 9}, {"user": "z", "at": 1, "amount": 10}],
    [{"user": "c", "at": 5_000, "amount": 1}, {"user": "c", "at": 19_000, "amount": None}],
]


def outputs(stream: Stream, sinks: list[Sink], late: Sink) -> list[kv.Output]:
    """Parts with lags of their own, a chain, deduplication, and the rows as they come."""
    big, rest = stream.split("amount > 6")
    aside = kv.SideOutputLateEventHandler(late)
    bigs = big.watermark("at", 1_000).key_by("user").with_late_event_handler(aside).tumbling_window(1_000).agg(kv.count())
    small = rest.watermark("at", 2_000).key_by("user").session_window(500).agg(kv.count(), kv.sum("amount"))
    named: dict[str, Any] = {"bigs": bigs, "small": small, "small too": small}
    sums = small.tumbling_window(4_000).agg(kv.sum("count").alias("n"))
    wide = small.key_by("user").tumbling_window(8_000).agg(kv.max("sum_amount").alias("most"))
    once = stream.watermark("at", 1_000).drop_duplicates("user", within=1_000)
    named |= {"sums": sums, "wide": wide, "once": once, "raw": stream.select("user", "amount")}
    return [plan.to(sink, name=name) for (name, plan), sink in zip(named.items(), sinks, strict=True)]


def shown(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


def fed(session: kv.Session, query: Any, given: list[kv.Output], checkpoint: str, sender: Any, number: int, batch: Any) -> Any:
    """The query after one more batch, None for the end of the input; before the third it is stopped and started again."""
    if number == 2:
        query.stop()
        query = session.start(given, checkpoint=checkpoint)
    if batch is None:
        sender.close()
    else:
        sender.send(batch)
    query.process_all_available()
    return query


def test_streaming_gives_what_the_driver_gives(session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(outputs(stream_of(DDL), [kv.MemorySink() for _ in range(7)], kv.MemorySink()))
    wanted: dict[str, list[Any]] = {}
    for number, batch in enumerate((*BATCHES, None)):
        out = driver.close() if batch is None else driver.send(batch)
        if number == 0:
            held = driver.state("sums: stage 1")
        for name, table in (*out.by_output.items(), ("late", out.late)):
            wanted.setdefault(name, []).extend(table.to_pylist())
    assert all(wanted.values())
    stream, sender = session.memory_stream(DDL)
    files = {name: kv.ParquetSink(str(tmp_path / name)) for name in ("small", "small too", "once")}
    names = ("bigs", "small", "small too", "sums", "wide", "once", "raw")
    sinks: list[Sink] = [files.get(name) or kv.MemorySink() for name in names]
    given = outputs(stream, sinks, kv.MemorySink())
    query = session.start(given, checkpoint=str(tmp_path / "checkpoint"))
    try:
        for number, batch in enumerate((*BATCHES, None)):
            query = fed(session, query, given, str(tmp_path / "checkpoint"), sender, number, batch)
            if number == 0:
                stage = "sums: stage 1"
                actual = query.state(stage).drop(["last_update"]).to_pylist()
                assert actual and shown(actual) == shown(held.drop(["last_update"]).to_pylist())
        for name in ("bigs", "sums", "wide", "raw"):
            assert shown(query.results(name).to_pylist()) == shown(wanted[name]), name
        for name in files:
            assert shown(pq.read_table(tmp_path / name).to_pylist()) == shown(wanted[name]), name
        assert shown(query.late_rows().to_pylist()) == shown(wanted["late"])
        mine = {name: (p.rows, p.late["late"], p.firings) for name, p in query.progress.stages.items()}
        assert mine == {name: (p.rows, p.late["late"], p.firings) for name, p in driver.progress.stages.items()}
        assert "output 'wide': sums: stage 1 -> wide: stage 2" in query.explain()
        with pytest.raises(kv.PlanError, match="several outputs"):
            query.results()
        with pytest.raises(kv.PlanError, match="no such output"):
            query.results("other")
        held_last = query.state().drop(["last_update"])
    finally:
        query.stop()
    folder = str(tmp_path / "checkpoint")
    assert session.read_state(folder, iter(given)).drop(["last_update"]).equals(held_last)
    assert session.read_state(folder, given, "sums: stage 1").num_rows == 0  # the input has ended
    assert query.name.startswith("bigs + small + small too + 4 more-")
    for wrong, why in (("x", "not an aggregated stream"), (5, "not an aggregated stream"), ([], "0 outputs")):
        with pytest.raises(kv.PlanError, match=why):
            session.read_state(folder, wrong)  # type: ignore[arg-type]
    with pytest.raises(kv.PlanError, match="no such stage"):
        session.read_state(folder, given, "stage 1")
    with pytest.raises(kv.CheckpointError, match="outputs was"):
        session.start(given[:-1], checkpoint=str(tmp_path / "checkpoint"))


def steps_behind_one_stage(stream: Stream, sinks: list[Sink], late: Sink, *, once: bool = False) -> list[kv.Output]:
    """One stage, also followed by another, with steps over its results that each output has for itself."""
    keyed = stream.watermark("at", 1_000).key_by("user").with_late_event_handler(kv.SideOutputLateEventHandler(late))
    counts = keyed.tumbling_window(2_000).agg(kv.count().alias("n"), kv.sum("amount"))
    wide = counts.filter("n > 1").key_by("user").tumbling_window(8_000).agg(kv.sum("n").alias("total"))
    named: dict[str, Any] = {"many": counts.filter("n > 1"), "few": counts.filter("n <= 1").select("user", "window_time")}
    named |= {"plain": counts, "doubled": counts.select("user", twice="n * 2").filter("twice > 2")}
    named |= {} if once else {"wide": wide}
    return [plan.to(sink, name=name) for (name, plan), sink in zip(named.items(), sinks, strict=False)]


@pytest.mark.parametrize("once", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_stage_runs_once_whatever_steps_follow_it(session: kv.Session, tmp_path: Path, once: bool) -> None:
    driver = Driver(steps_behind_one_stage(stream_of(DDL), [kv.MemorySink() for _ in range(5)], kv.MemorySink(), once=once))
    wanted: dict[str, list[Any]] = {}
    for batch in (*BATCHES, None):
        out = driver.close() if batch is None else driver.send(batch)
        for name, table in (*out.by_output.items(), ("late", out.late)):
            wanted.setdefault(name, []).extend(table.to_pylist())
    assert all(wanted.values()) and len(driver._plan.stages) == (1 if once else 2)
    stream, sender = session.memory_stream(DDL)
    files = {name: kv.ParquetSink(str(tmp_path / name)) for name in ("many", "doubled")}
    sinks: list[Sink] = [files.get(name) or kv.MemorySink() for name in ("many", "few", "plain", "doubled", "wide")]
    given = steps_behind_one_stage(stream, sinks, kv.MemorySink(), once=once)
    query = session.start(given, checkpoint=str(tmp_path / "checkpoint"))
    try:
        for number, batch in enumerate((*BATCHES, None)):
            query = fed(session, query, given, str(tmp_path / "checkpoint"), sender, number, batch)
        for output in driver._plan.outputs:
            rows = pq.read_table(tmp_path / output.name) if output.name in files else query.results(output.name)
            assert shown(rows.to_pylist()) == shown(wanted[output.name]), output.name
            assert rows.schema.names == output.schema.names
        assert shown(query.late_rows().to_pylist()) == shown(wanted["late"])
        mine = {name: (p.rows, p.late["late"], p.firings) for name, p in query.progress.stages.items()}
        assert mine == {name: (p.rows, p.late["late"], p.firings) for name, p in driver.progress.stages.items()}
    finally:
        query.stop()
    tables = session.collect([one.stream for one in steps_behind_one_stage(stream, sinks, kv.MemorySink(), once=once)])
    for output, table in zip(driver._plan.outputs, tables, strict=True):
        assert table.schema.equals(output.schema)
        assert shown(table.to_pylist()) == shown(wanted[output.name]), output.name


def test_rows_alone_have_several_outputs(session: kv.Session) -> None:
    stream, sender = session.memory_stream(DDL)
    parts = stream.split("amount > 6", "user = 'a'")
    query = session.start([part.to(kv.MemorySink()) for part in parts])
    try:
        sender.send(BATCHES[0])
        query.process_all_available()
        actual = [query.results(f"output {n}").num_rows for n in (1, 2, 3)]
        assert actual == [part.collect().num_rows for part in parts]
        assert builtins.sum(actual) == len(BATCHES[0])
        assert [p.rows for p in query.progress.stages.values()] == actual
    finally:
        query.stop()
