"""Streams that share a watermark end together on Spark, too, and names that no clock has fail the query."""

from __future__ import annotations

from pathlib import Path

import pytest

import krishiv_py as kv
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.plan.durations import END_OF_TIME
from tests.in_process.test_times_of_streams import COLUMNS, SHAPES, Model, act, in_order, in_sink, script


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape_name", ["union", "union by a column", "window join"])
def test_streams_speak_of_time_and_end_as_in_process(session: kv.Session, shape_name: str, tmp_path: Path) -> None:
    shape, names = SHAPES[shape_name], ("north", "south")
    made = {name: session.memory_stream(COLUMNS, name=name) for name in names}
    streams, senders = {name: s for name, (s, _) in made.items()}, {name: s for name, (_, s) in made.items()}
    results = shape.make(streams, lambda some, column: session.union(some, source_column=column))
    model, actions = Model(shape.sources, names), script(1, names)
    query = results.start(sink := kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    for number, action in enumerate(actions):
        if number == len(actions) - 1:  # the one that ended first ended in an earlier run
            query.stop()
            query = results.start(sink, checkpoint=str(tmp_path / "checkpoint"))
        act(senders, action)
        query.process_all_available()
        assert query.progress.watermark_us == model.take(action), (number, action)
    assert model.current == END_OF_TIME and query.progress.open_windows == 0
    collected = results.run()
    assert in_order(collected.table.to_pylist()) == in_sink(sink)
    assert collected.counters["late"] == query.progress.late["late"]
    query.stop()


def test_a_union_of_closed_streams_ends_when_all_there_is_is_read(session: kv.Session) -> None:
    made = {name: session.memory_stream(COLUMNS, name=name) for name in ("north", "south")}
    results = SHAPES["union"].make(
        {name: stream for name, (stream, _) in made.items()}, lambda some, column: session.union(some, source_column=column)
    )
    for _, sender in made.values():
        sender.send([{"k": 1, "at": 1, "site": "a"}])
        sender.close()
    query = results.start(kv.MemorySink(), batches=kv.Batches.available_now())
    query.await_termination()
    assert query.results()["count"].to_pylist() == [2]


def test_a_name_that_no_clock_has_fails(session: kv.Session) -> None:
    stream, sender = session.memory_stream(COLUMNS)
    results = SHAPES["single"].make({"north": stream}, lambda some, column: session.union(some, source_column=column))
    sender.send([{"k": 1, "at": 1, "site": "a"}])
    query = results.start(kv.MemorySink())
    with pytest.raises(PlanError, match=r"no such source.*elsewhere"):
        sender.advance_watermark(5, source="elsewhere")
    query.stop()
    sender.advance_watermark(5, source="elsewhere")
    query = results.start(kv.MemorySink())
    with pytest.raises(KrishivError, match=r"no such source.*elsewhere"):
        query.process_all_available()
