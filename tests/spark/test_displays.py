"""Displays of what runs on Spark: the query in a notebook, progress lines of both kinds of run."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, Sender, SideOutputLateEventHandler, Stream
from krishiv_py.display import plots
from krishiv_py.spark.query import StreamQuery
from tests.spark.conftest import per_second, row, sorted_rows

Memory = Callable[[], tuple[Stream, Sender]]
FIRST = [row("a", 10), row("a", 1_500)]
SECOND = [row("a", 999), row("b", 9_000)]  # the first row is late: the watermark is at 1.4 s


def send_all(sender: Sender) -> None:
    for batch in (FIRST, SECOND):
        sender.send(batch)


def test_a_query_in_a_notebook(memory: Memory) -> None:
    stream, sender = memory()
    query = per_second(stream).start(MemorySink(), name="per second")
    assert isinstance(query, StreamQuery)
    send_all(sender)
    query.process_all_available()
    html = query._repr_html_()
    values = dict(
        zip(*(["".join(e.itertext()) for e in ElementTree.fromstring(html).iter(t)] for t in ("dt", "dd")), strict=True)
    )
    assert (values["rows"], values["late rows"], values["watermark"]) == ("4", "1 late", "1970-01-01T00:00:08.900000Z")
    assert "running" in html
    query.stop()
    assert "stopped" in query._repr_html_()


def test_progress_while_a_query_catches_up(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    stream, sender = memory()
    query = per_second(stream).start(MemorySink(), name="per second")
    send_all(sender)
    query.process_all_available(progress=True)
    line = capsys.readouterr().err.rstrip("\n").split("\r")[-1]
    assert "per second, batch " in line
    assert " 4 rows " in line
    assert "late 1" in line
    sender.send([row("b", 10_000)])
    query.process_all_available()
    assert "batch" not in capsys.readouterr().err
    query.stop()


def test_progress_of_a_bounded_run(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    stream, sender = memory()
    send_all(sender)
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    context = stream._runner.spark.sparkContext  # type: ignore[attr-defined]
    context.setLocalProperty("spark.jobGroup.id", "mine")
    quiet = plan.run()
    assert "tasks" not in capsys.readouterr().err
    shown = plan.run(progress=True)
    line = capsys.readouterr().err.rstrip("\n").split("\r")[-1]
    assert "bounded run: 100%" in line
    assert "4 rows, late 1" in line
    assert (sorted_rows(shown.table), sorted_rows(shown.late)) == (sorted_rows(quiet.table), sorted_rows(quiet.late))
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    context.setLocalProperty("spark.jobGroup.id", None)


def test_a_timeline_of_a_bounded_run(memory: Memory) -> None:
    stream, sender = memory()
    send_all(sender)
    result = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink())).run()
    batches = [pa.Table.from_pylist(b) for b in (FIRST, SECOND)]
    figure = plots.timeline(batches, time="at", lag=100, results=result.table, late=result.late, key="user", label="count")
    assert [c.get_label() for c in figure.axes[0].collections] == ["row", "refused: late"]
