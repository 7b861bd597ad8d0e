"""One sink for two queries: a folder takes both, a sink in memory is refused while the first one runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py import JsonSink, MemorySink, ParquetSink, Sender, SideOutputLateEventHandler, Stream
from krishiv_py.errors import PlanError
from tests.spark.conftest import per_second, row

Memory = Callable[[], tuple[Stream, Sender]]


@pytest.mark.slow
def test_a_sink_in_memory_has_one_writer(memory: Memory, tmp_path: Path) -> None:
    (one, to_one), (two, to_two) = memory(), memory()
    late, sink, checkpoint = MemorySink(), MemorySink(), str(tmp_path / "checkpoint")
    plans = [per_second(s).with_late_event_handler(SideOutputLateEventHandler(late)) for s in (one, two)]
    for moment in (10, 5_000, 20):
        to_one.send([row("a", moment)])
        to_two.send([row("b", moment)])
    first = plans[0].start(sink, checkpoint=checkpoint, name="first")
    first.process_all_available()
    for refused in (
        lambda: per_second(two).start(sink),
        lambda: plans[1].start(MemorySink()),
        lambda: per_second(two).with_late_event_handler(SideOutputLateEventHandler(sink)).start(MemorySink()),
        plans[1].collect,
    ):
        with pytest.raises(PlanError, match=r"taken by a running query \(got: query 'first'\).*new MemorySink"):
            refused()
    assert first.results()["user"].to_pylist() == ["a"] and first.late_rows()["user"].to_pylist() == ["a"]
    first.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        again = plans[0].start(sink, checkpoint=checkpoint)
        to_one.send([row("a", 10_000)])
        again.process_all_available()
        again.stop()
    assert again.results().num_rows == 2
    with pytest.warns(RuntimeWarning, match="holds rows of query .*which has ended"):
        plans[1].start(MemorySink(), name="second").stop()
    late.tables.clear()
    assert plans[1].run().late.num_rows == 1  # a query that has ended holds nothing back


@pytest.mark.slow
def test_folders_take_the_rows_of_two_queries_at_once(memory: Memory, tmp_path: Path) -> None:
    for kind in (ParquetSink, JsonSink):
        sink, streams = kind(str(tmp_path / kind.__name__)), [memory(), memory()]
        queries = [per_second(stream).start(sink) for stream, _ in streams]
        for moment in (0, 1_000, 10_000):
            for n, (_, sender) in enumerate(streams):
                sender.send([row("ab"[n], moment), row("ab"[n], moment + 1)])
        for query in queries:
            query.process_all_available()
            query.stop()
        files = [f for f in Path(sink.path).iterdir() if f.is_file() and not f.name.startswith((".", "_"))]
        rows = [
            (r["user"], r["count"])
            for f in files
            for r in (pq.read_table(f).to_pylist() if kind is ParquetSink else map(json.loads, f.read_text().splitlines()))
        ]
        assert sorted(rows) == [("a", 2), ("a", 2), ("b", 2), ("b", 2)]
