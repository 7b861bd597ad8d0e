"""query.watch(): a query shown in a terminal, a notebook and a file."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from krishiv_py import Batches, DurationError, MemorySink, Session, count, logs
from krishiv_py.display.watch import QuerySample, watch
from krishiv_py.errors import MissingExtraError
from krishiv_py.plan.running import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(*progress: Progress, last: str = "stopped", problem: str | None = None) -> Any:
    left = [QuerySample("per minute", "running", one) for one in progress]
    left.append(QuerySample("per minute", last, progress[-1], problem))
    return lambda: left.pop(0)


def test_elsewhere_each_batch_is_a_line() -> None:
    out = io.StringIO()
    one, two = Progress(batch_id=0, rows=5), Progress(batch_id=1, rows=9, late={"late": 2})
    watch(watched(one, one, two), every_s=0, to=out)
    assert [line.partition(":")[0] for line in out.getvalue().splitlines()] == [
        "per minute, batch 0",
        "per minute, batch 1",
    ] * 1 + ["per minute, batch 1"]
    assert out.getvalue().rstrip().endswith("stopped")


def test_in_a_terminal_it_is_a_table() -> None:
    out = Terminal()
    progress = Progress(
        batch_id=3, rows=1_234, late={"late": 7}, doubts=("seconds?",), backlog={"events": 5}, idle_sources=("a",)
    )
    watch(watched(progress, last="failed", problem="it broke, password=hunter2"), every_s=0, to=out)
    assert all(
        text in out.getvalue() for text in ("per minute", "1,234", "7 late", "seconds?", "5 of events", "idle: a", "it broke")
    )
    assert "hunter2" not in out.getvalue()


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_in_a_terminal_of_any_width_no_number_is_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    mark = 1_706_702_400_000_000
    one = Progress(batch_id=3, rows=1_234_567, late={"late": 89}, watermark_us=mark, open_windows=321, state_bytes=65_432)
    progress = attrs.evolve(one, stages={"per user and minute": one, "total": one})
    out = Terminal()
    watch(lambda: QuerySample("counts", "stopped", progress, times=TIMES), every_s=0, to=out)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    for text in ("1,234,567", "89", "321", "65,432", "2024-01-31T12:00:00Z", "state", "results", "total"):
        assert text in plain, plain
    assert max(map(len, plain.splitlines())) <= width


def test_in_a_notebook_one_output_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, str]] = []
    output = SimpleNamespace(update=lambda data, raw: drawn.append(data))
    ipython = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()), display=SimpleNamespace(display=lambda *_, **__: output)
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    watch(watched(Progress(batch_id=0), Progress(batch_id=1)), every_s=0)
    assert len(drawn) == 3 and all("per minute" in data["text/html"] for data in drawn)


def test_ctrl_c_and_a_timeout_leave_the_query_running(capsys: pytest.CaptureFixture[str]) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(1_000).agg(count()).start(MemorySink(), name="q")
        sender.send([{"at": 100}])
        began = time.monotonic()
        query.watch(every="10 ms", timeout="200 ms")
        assert 0.2 <= time.monotonic() - began < 20 and query.status == "running"
        assert "q, " in capsys.readouterr().out

        def pressed() -> QuerySample:
            raise KeyboardInterrupt

        watch(pressed, every_s=0, to=io.StringIO())
        assert query.status == "running"
        for wrong in ("0 s", -1, "soon"):
            with pytest.raises(DurationError):
                query.watch(every=wrong)


def test_it_ends_with_the_query() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        sender.send([{"at": 100}])
        windows = stream.watermark("at", 0).tumbling_window(1_000).agg(count())
        query = windows.start(MemorySink(), batches=Batches.available_now())
        watching = threading.Thread(target=query.watch)
        watching.start()
        watching.join(30)
        assert not watching.is_alive()


TIMES = ({"read": 0.001, "step": 0.005, "commit": 0.002, "rest": 0.0},)


@pytest.mark.parametrize("place", ["terminal", "file", "notebook"])
def test_the_parts_of_the_last_batch_are_shown_with_numbers(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    output = SimpleNamespace(update=lambda data, raw: drawn.append(data["text/html"]))
    ipython = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()), display=SimpleNamespace(display=lambda *_, **__: output)
    )
    if place == "notebook":
        monkeypatch.setitem(sys.modules, "IPython", ipython)
    out = None if place == "notebook" else Terminal() if place == "terminal" else io.StringIO()
    watch(lambda: QuerySample("q", "stopped", Progress(batch_id=0), times=TIMES), every_s=0, to=out)
    text = drawn[0] if out is None else out.getvalue()
    for part, took in {"read": "1.0 ms", "step": "5.0 ms", "commit": "2.0 ms"}.items():
        assert part in text and took in text
    if place == "terminal":
        text = text[text.rindex("stopped") :]
        assert [text.count(sign) for sign in "█▓▒"] == [5 + 1, 25 + 1, 10 + 1], "40 cells, and the signs at the names"


def test_watching_notes_times_and_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(1_000).agg(count()).start(MemorySink(), name="q")
        watching = threading.Thread(target=query.watch, kwargs={"every": "10 ms"})
        watching.start()
        while not logs._WATCHES:
            time.sleep(0.01)
        sender.send([{"at": 100}])
        query.process_all_available()
        query.stop()
        watching.join(30)
        assert not watching.is_alive() and not logs._WATCHES
        assert re.search(r"pack [\d.]+ ms.*step [\d.]+ ms", capsys.readouterr().out)


def test_a_terminal_without_rich_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"progress"):
        watch(watched(Progress()), every_s=0, to=Terminal())
