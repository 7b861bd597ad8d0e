"""Chains of stages on Spark: the driver's answers, in a bounded run and in a query that is restarted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import (
    CheckpointError,
    MemorySink,
    ParquetSink,
    PlanError,
    ResultStream,
    Session,
    SideOutputLateEventHandler,
    Stream,
    collect_list,
    count,
    max,
    sum,
)
from krishiv_py.testing import Driver, stream_of

pytestmark = [pytest.mark.two_tasks, pytest.mark.spark, pytest.mark.xdist_group("spark")]
DDL = "user string, at bigint, amount bigint"
BATCHES = [
    [{"user": "abcd"[i % 4], "at": i * 37 - (5_000 if i == 450 else 0), "amount": i} for i in range(k * 100, k * 100 + 100)]
    for k in range(6)
]


def chain(stream: Stream, late: MemorySink | None = None) -> ResultStream:
    """Three stages: by user and second, by user in five seconds, all users in ten."""
    first = stream.watermark("at", 1_000).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))
    if late is not None:
        first = first.with_late_event_handler(SideOutputLateEventHandler(late))
    second = first.filter("count > 1").key_by("user").tumbling_window(5_000)
    sums = second.agg(sum("count").alias("n"), max("sum_amount").alias("most"), collect_list("count").alias("counts"))
    return sums.tumbling_window(10_000).agg(collect_list("user").alias("users"), sum("n").alias("n"), max("most").alias("most"))


def by_hand() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Results and late rows of the driver."""
    driver = Driver(chain(stream_of(DDL), MemorySink()))
    done = [*map(driver.send, BATCHES), driver.close()]
    return [r for d in done for r in d.results.to_pylist()], [r for d in done for r in d.late.to_pylist()]


def test_a_chain_gives_the_drivers_answer(session: Session, tmp_path: Path) -> None:
    wanted, late_rows = by_hand()
    assert len(wanted) == 3 and len(late_rows) == 1
    stream, sender = session.memory_stream(DDL)
    for batch in BATCHES:
        sender.send(batch)
    bounded = chain(stream, MemorySink()).run()
    assert bounded.table.to_pylist() == wanted
    assert [r["amount"] for r in bounded.late_by_stage["stage 1"].to_pylist()] == [450]

    stream, sender = session.memory_stream(DDL)
    late, out, checkpoint = MemorySink(), MemorySink(), str(tmp_path / "cp")
    for half in (BATCHES[:3], BATCHES[3:]):
        with chain(stream, late).start(out, checkpoint=checkpoint) as query:
            for batch in half:
                sender.send(batch)
                query.process_all_available()
            assert query.state().schema.names[:3] == ["window_start", "window_end", "users"] and "stage 2" in query.explain()
            early = query.results().num_rows
    assert early == 2  # what the watermark has passed, without any other batch
    with chain(stream, late).start(out, checkpoint=checkpoint) as query:
        sender.close()
        query.process_all_available()
        assert query.results().to_pylist() == wanted
        assert query.late_rows().to_pylist() == late_rows
        stages = query.progress.stages
        assert {name: (p.rows, p.firings) for name, p in stages.items()} == {
            "stage 1": (600, 92),
            "stage 2": (89, 20),
            "stage 3": (20, 3),
        }
        assert query.progress.rows == 600 and query.progress.late["late"] == 1


def test_a_chain_of_other_stages_does_not_go_on(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    sender.send(BATCHES[0])
    checkpoint = str(tmp_path / "cp")
    first = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    with first.tumbling_window(5_000).agg(sum("count")).start(MemorySink(), checkpoint=checkpoint) as query:
        query.process_all_available()
    for other in (
        first,
        first.tumbling_window(6_000).agg(sum("count")),
        first.watermark("window_time", 5).tumbling_window(5_000).agg(sum("count")),
        first.tumbling_window(5_000).agg(sum("count")).tumbling_window(5_000).agg(count()),
    ):
        with pytest.raises(CheckpointError, match=r"stage [23]"):
            other.start(MemorySink(), checkpoint=checkpoint)


def test_outputs_of_stages_lie_apart(session: Session, tmp_path: Path) -> None:
    stream, _ = session.memory_stream(DDL)
    for results, late in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "a", tmp_path / "a" / "b")):
        handler = SideOutputLateEventHandler(ParquetSink(late))
        first = stream.watermark("at", 0).tumbling_window(5).with_late_event_handler(handler).agg(count())
        with pytest.raises(PlanError, match="results and late rows have"):
            first.tumbling_window(10).agg(count()).start(ParquetSink(results))
    with pytest.raises(PlanError, match="has one stage"):
        streaming, _ = session.memory_stream(DDL)
        chain(streaming).to_dataframe()


@pytest.mark.slow
def test_results_that_name_their_event_time_have_it(session: Session, tmp_path: Path) -> None:
    def counted(stream: Stream) -> ResultStream:
        counts = stream.watermark("at", 1_000).key_by("user").tumbling_window(1_000).agg(count())
        return counts.filter("window_time > 1500").select("user", "window_time", code="user || 'x' <=> 'ax'")

    def rows_of(actual: list[dict[str, Any]]) -> list[str]:
        return sorted(map(repr, actual))

    driver = Driver(counted(stream_of(DDL)))
    wanted = [r for d in [*map(driver.send, BATCHES), driver.close()] for r in d.results.to_pylist()]
    assert wanted[0] == {"user": "a", "window_time": 1_999, "code": True}
    stream, sender = session.memory_stream(DDL)
    for batch in BATCHES:
        sender.send(batch)
    bounded = counted(stream).collect()
    assert bounded.schema.equals(counted(stream).schema) and rows_of(bounded.to_pylist()) == rows_of(wanted)
    with counted(stream).start(MemorySink(), checkpoint=str(tmp_path / "cp")) as query:
        sender.close()
        query.process_all_available()
        assert rows_of(query.results().to_pylist()) == rows_of(wanted)
