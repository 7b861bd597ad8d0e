"""Streaming queries: results, late outputs, sinks, status."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    Batches,
    ConsoleSink,
    CountByKeyLateEventHandler,
    CountingLateEventHandler,
    ForeachBatchSink,
    JsonSink,
    LateRows,
    MemorySink,
    ParquetSink,
    Sender,
    Session,
    SideOutputLateEventHandler,
    Stream,
    TimeIntervalWindowOptions,
    collect_list,
    count,
    first,
    last,
)
from krishiv_py.errors import OperatorError, PlanError, SchemaError, SenderClosedError
from krishiv_py.plan.options.late import LateWanted
from krishiv_py.testing import Driver
from tests.spark.conftest import DDL, per_second, row, sorted_rows

Memory = Callable[[], tuple[Stream, Sender]]


def test_batches_are_classified_by_the_watermark_of_earlier_ones(memory: Memory) -> None:
    stream, sender = memory()
    late = MemorySink()
    query = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(late)).start(MemorySink())
    sender.send([row("a", 10), row("a", 1_500), row("b", 20)])
    query.process_all_available()
    assert sorted_rows(query.results()) == [("a", 0, 1000, 1, 1), ("b", 0, 1000, 1, 1)]
    sender.send([row("a", 999), row("a", 1_400), row("c", None), row(None, 1_450, None)])
    sender.close()
    query.process_all_available()
    assert sorted_rows(query.results()) == [
        ("a", 0, 1000, 1, 1),
        ("a", 1000, 2000, 2, 2),
        ("b", 0, 1000, 1, 1),
        (None, 1000, 2000, 1, None),
    ]
    refused = query.late_rows().to_pylist()
    assert [(r["user"], r["at"], r["reason"], r["lateness"]) for r in refused] == [
        ("a", 999, "late", 401),
        ("c", None, "null_time", None),
    ]
    progress = query.progress
    assert (progress.rows, progress.late["late"], progress.late["null_time"], progress.open_windows) == (7, 1, 1, 0)
    assert progress.watermark == "end of input"
    assert progress.state_bytes == 0
    query.stop()
    assert query.status == "stopped"


def test_a_bounded_run_has_the_same_results_and_late_rows(memory: Memory) -> None:
    stream, sender = memory()
    for batch in ([row("a", 10), row("a", 1_500)], [row("a", 999), row("b", 1_401), row("b", 9_000)], [], [row("b", 1)]):
        sender.send(batch)
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    bounded = plan.run()
    query = plan.start(MemorySink())
    sender.close()
    query.process_all_available()
    assert sorted_rows(bounded.table) == sorted_rows(query.results())
    assert sorted_rows(bounded.late) == sorted_rows(query.late_rows())
    assert bounded.counters["late"] == query.progress.counters["late"] == 2
    query.stop()


def test_look_back_results_are_distinguished_by_their_rows_on_every_engine(memory: Memory) -> None:
    stream, sender = memory()
    keyed = stream.watermark("at", 5).key_by("user")
    others = keyed.lookback_window(10, with_row=True, exclude_self=True)
    plan = others.agg(first("amount"), last("amount"), collect_list("amount"))
    driver = Driver(plan)
    given = []
    for batch in ([row("a", 5, 3), row("a", 5, 1), row("b", 5, 9)], [row("a", 5, 2), row("a", 7, 0), row("a", 5, 8)]):
        sender.send(batch)
        given += sorted_rows(driver.send(batch).results)
    given = sorted([*given, *sorted_rows(driver.close().results)], key=repr)
    assert [r for r in given if r[:2] == ("a", -5)] == [
        ("a", -5, 5, 1, 8, [1, 2, 8], 5, 3),
        ("a", -5, 5, 3, 2, [3, 1, 2], 5, 8),
        ("a", -5, 5, 3, 8, [3, 1, 8], 5, 2),
        ("a", -5, 5, 3, 8, [3, 2, 8], 5, 1),
    ]
    assert sorted_rows(plan.collect()) == given
    query = plan.start(MemorySink())
    sender.close()
    query.process_all_available()
    assert sorted_rows(query.results()) == given


def test_an_empty_stream_collects_to_an_empty_table(memory: Memory) -> None:
    stream, sender = memory()
    assert per_second(stream).collect().num_rows == 0
    sender.send([])
    assert per_second(stream).collect().schema == per_second(stream).schema


def test_late_rows_are_counted_and_counted_by_key(memory: Memory) -> None:
    stream, sender = memory()
    counting, by_key = CountingLateEventHandler(), CountByKeyLateEventHandler()
    sender.send([row("a", 5_000)])
    sender.send([row("a", 1), row("b", 2), row("b", 3)])
    per_second(stream).with_late_event_handler(counting).collect()
    query = per_second(stream).with_late_event_handler(by_key).start(MemorySink())
    query.process_all_available()
    query.stop()
    assert counting.total == 3
    assert by_key.by_key == {("a",): 1, ("b",): 2}


def test_an_own_handler_gets_whole_rows(memory: Memory) -> None:
    seen: list[LateRows] = []

    class Own:
        wants: LateWanted = "rows"

        def handle(self, late: LateRows) -> None:
            seen.append(late)

    stream, sender = memory()
    query = per_second(stream).with_late_event_handler(Own()).start(MemorySink())
    for batch in ([row("a", 5_000)], [row("a", 1, 7)]):
        sender.send(batch)
        query.process_all_available()
    query.stop()
    assert [late.table.to_pylist()[0]["amount"] for late in seen] == [7]
    assert seen[0].operator == "window-aggregate"


def test_files_of_both_outputs_are_published_together(memory: Memory, tmp_path: Path) -> None:
    stream, sender = memory()
    out, late = tmp_path / "out put", tmp_path / "late"
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(late))))
    query = plan.start(ParquetSink(str(out)), checkpoint=str(tmp_path / "checkpoint"))
    sender.send([row("a", 10), row("é", 1_500)])
    sender.send([row("a", 999)])
    sender.close()
    query.process_all_available()
    query.stop()
    assert sorted_rows(pq.read_table(out)) == [("a", 0, 1000, 1, 1), ("é", 1000, 2000, 1, 1)]
    assert pq.read_table(late)["at"].to_pylist() == [999]
    assert not list((out / "_krishiv_staging").iterdir())


def test_json_and_foreach_batch(memory: Memory, tmp_path: Path) -> None:
    stream, sender = memory()
    batches: list[list[Any]] = []
    first = per_second(stream).start(JsonSink(str(tmp_path / "json")))
    second = per_second(stream).start(ForeachBatchSink(lambda frame, batch: batches.append(frame.collect())))
    sender.send([row("a", 10)])
    sender.close()
    first.process_all_available()
    second.process_all_available()
    first.stop()
    second.stop()
    lines = [json.loads(line) for f in (tmp_path / "json").glob("part-*") for line in f.read_text().splitlines()]
    assert lines == [{"user": "a", "window_start": 0, "window_end": 1000, "count": 1, "sum_amount": 1}]
    assert [r.asDict() for batch in batches for r in batch] == lines


def test_the_console_shows_both_outputs_and_says_what_it_left_out(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    stream, sender = memory()
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ConsoleSink()))
    query = plan.start(ConsoleSink(max_rows=2), name="seen")
    sender.send([row("a", 10), row("b", 20), row("c", 30), row("a", 1_500)])
    query.process_all_available()
    sender.send([row("a", 999), row("a", 1_400)])
    sender.close()
    query.process_all_available()
    query.stop()
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("-- ")]
    shown = [line.strip() for line in lines if line.startswith("    ")]
    # the first batch fires three windows of which two are shown, the last one at the end of input; others fire none
    assert [h.split(", batch")[0] for h in heads] == ["-- seen", "-- seen: late", "-- seen"]
    assert [h.endswith(" (more rows not shown)") for h in heads] == [True, False, False]
    assert len(shown) == 2 + 1 + 1
    assert shown[-1] == "user=a, window_start=1000, window_end=2000, count=2, sum_amount=2"
    assert "user=a, at=999, amount=1, reason=late" in shown[2]


@pytest.mark.slow
def test_a_streaming_dataframe_goes_on_in_plain_spark(session: Session, memory: Memory) -> None:
    stream, sender = memory()
    frame = per_second(stream).to_dataframe()
    assert frame.isStreaming
    query = frame.filter("count > 1").writeStream.format("memory").queryName("onward").outputMode("append").start()
    sender.send([row("a", 10), row("a", 20), row("b", 30), row("b", 5_000)])
    query.processAllAvailable()
    sender.send([row("a", 40)])  # late: 40 < 4900
    sender.close()
    query.processAllAvailable()
    query.stop()
    assert [tuple(r) for r in session.spark.table("onward").collect()] == [("a", 0, 1000, 2, 2)]


def test_a_frame_of_ones_own(session: Session) -> None:
    frame = session.spark.createDataFrame(
        [("a", 10, 1), ("a", 20, 2), ("b", 1_500, 3)], "user string, at bigint, amount bigint"
    )
    assert sorted_rows(per_second(session.from_dataframe(frame)).collect()) == [("a", 0, 1000, 2, 3), ("b", 1000, 2000, 1, 3)]
    assert [tuple(r) for r in per_second(session.from_dataframe(frame)).to_dataframe().orderBy("user").collect()] == [
        ("a", 0, 1000, 2, 3),
        ("b", 1000, 2000, 1, 3),
    ]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("streaming", [False, True])
def test_files(session: Session, tmp_path: Path, kind: str, streaming: bool) -> None:
    folder = str(tmp_path / "in")
    frame = session.spark.createDataFrame(
        [("a", 10, 1), ("a", 20, 2), ("b", 1_500, 3)], "user string, at bigint, amount bigint"
    )
    getattr(frame.coalesce(1).write, kind)(folder)
    stream = getattr(session, f"read_{kind}")(folder, "user string, at bigint, amount bigint", streaming=streaming)
    expected = [("a", 0, 1000, 2, 3), ("b", 1000, 2000, 1, 3)]
    if not streaming:
        assert sorted_rows(per_second(stream).collect()) == expected
        return
    with pytest.raises(PlanError, match="never ends"):
        per_second(stream).collect()
    query = per_second(stream).start(MemorySink(), batches=Batches.available_now(flush=True))
    assert query.await_termination()
    assert sorted_rows(query.results()) == expected


def test_available_now_without_flush_keeps_windows_open(session: Session, memory: Memory) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("a", 1_500)])
    query = per_second(stream).start(MemorySink(), batches=Batches.available_now())
    query.await_termination()
    assert sorted_rows(query.results()) == [("a", 0, 1000, 1, 1)]
    assert query.progress.open_windows == 1


def test_tuples_that_a_handler_submits_are_the_results_on_every_engine(memory: Memory) -> None:
    stream, sender = memory()
    panes = stream.watermark("at", 0).key_by("user").time_interval_window(TimeIntervalWindowOptions("1 s"))
    plan = panes.on_events(
        window_trigger=lambda p: {"n": len(p.data or ()), "end": p.interval_end}, submits="n bigint, end bigint"
    )
    driver, batches = Driver(plan), [[row("a", 10), row("a", 20), row("b", 30)], [row("a", 1_500)]]
    expected = []
    for rows in batches:
        sender.send(rows)
        expected += sorted_rows(driver.send(rows).results)
    expected = sorted([*expected, *sorted_rows(driver.close().results)], key=repr)
    assert len(expected) == 3
    assert sorted_rows(plan.collect()) == expected
    query = plan.start(MemorySink())
    sender.close()
    query.process_all_available()
    assert sorted_rows(query.results()) == expected
    query.stop()


def test_a_snapshot_gives_what_is_open_and_the_next_run_goes_on_as_if_there_had_been_none(
    session: Session, memory: Memory, tmp_path: Path
) -> None:
    stream, sender = memory()
    plan = stream.watermark("at", 5).key_by("user").with_pane().tumbling_window(1_000).agg(count(), collect_list("amount"))
    sink, driver, given = MemorySink(), Driver(plan), []
    runs = [
        ([row("a", 10, 1), row("a", 1_500, 2), row("b", 1_600, 3)], Batches.available_now(snapshot=True)),
        ([row("a", 1_595, 4), row("b", 20, 5)], Batches.available_now(snapshot=True)),
        ([row("c", 2_600, 6)], Batches.available_now(flush=True)),
    ]
    for rows, until in runs:
        sender.send(rows)
        query = plan.start(sink, checkpoint=str(tmp_path / "checkpoint"), batches=until)
        assert query.await_termination()
        outs = [driver.send(rows), driver.close() if until.flush else driver.snapshot()]
        given += [r for out in outs for r in sorted_rows(out.results)]
        assert sorted_rows(query.results()) == sorted(given, key=repr)
        assert query.progress.counters == driver.progress.counters
        assert query.progress.watermark_us == driver.watermark_us
    early = [r for r in given if "early" in r]
    assert len(early) == 4
    assert [r[3] for r in early if r[0] == "a"] == [1, 2]


def test_rate(session: Session) -> None:
    query = session.rate(100).watermark("timestamp", 0).tumbling_window("1 s").agg(count()).start(MemorySink())
    while query.progress.rows < 100:
        assert query.exception() is None
    query.stop()
    assert query.progress.late["late"] == 0


def test_a_failure_names_the_operator_and_the_value(memory: Memory) -> None:
    stream, sender = memory()
    plan = stream.with_column("n", "cast(user as bigint)").watermark("at", 0).key_by("n").tumbling_window(1).agg(count())
    query = plan.start(MemorySink(), name="casting")
    sender.send([row("12", 1), row("thirteen", 2)])
    with pytest.raises(OperatorError, match=r"casting.*thirteen"):
        query.process_all_available()
    assert query.status == "failed"
    assert "thirteen" in str(query.exception())


def test_the_sender_says_what_is_wrong(memory: Memory) -> None:
    _, sender = memory()
    with pytest.raises(SchemaError, match=r"row 1, column 'at'"):
        sender.send([row("a", 1), {"user": "b", "at": "noon", "amount": 1}])
    with pytest.raises(SchemaError, match="when"):
        sender.send([{"user": "b", "when": 1}])
    sender.close()
    with pytest.raises(SenderClosedError, match="closed"):
        sender.send([row("a", 1)])


def test_a_session_in_another_thread_is_the_one_that_runs(session: Session) -> None:
    """Leaving it does not stop Spark for those who began it."""

    def use() -> bool:
        with Session.embedded() as other:
            return other.spark is session.spark

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(use).result(60)
    stream, sender = session.memory_stream(DDL)
    sender.close()
    assert stream.collect().num_rows == 0
