"""What fails while it runs comes out with its heart: type, text, operator, step and micro-batch, wherever one asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import (
    ForeachBatchSink,
    LateRows,
    MemorySink,
    ResultStream,
    Sender,
    Session,
    SideOutputLateEventHandler,
    Stream,
    TimeIntervalWindowOptions,
    count,
    sum,
    udaf,
)
from krishiv_py.compat import Pane, PaneHandler
from krishiv_py.connectors import Sink
from krishiv_py.errors import AggregateOverflowError, KrishivError, OperatorError, PlanError, SessionClosedError
from krishiv_py.plan.options.late import LateWanted
from tests.spark.conftest import per_second, row

Memory = Callable[[], tuple[Stream, Sender]]
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ZeroDivisionError("first line\nsecond line")


class BrokenLate:
    """A late handler with a fault."""

    wants: LateWanted = "rows"

    def handle(self, late: LateRows) -> None:
        raise RuntimeError("no room for late rows")


class BrokenPanes(PaneHandler):
    """A pane handler with a fault."""

    def window_trigger(self, pane: Pane) -> None:
        raise ValueError("cannot take the pane")


class BrokenSum:
    """An aggregate with a fault."""

    def create(self) -> int:
        raise KeyError("no start")

    def add(self, state: int, value: int) -> int:
        return state

    def merge(self, left: int, right: int) -> int:
        return left

    def finish(self, state: int) -> int:
        return state


def leaves(frame: object, batch: int) -> None:
    raise SystemExit(3)


def interrupts(frame: object, batch: int) -> None:
    raise KeyboardInterrupt


def windows(stream: Stream) -> Any:
    return stream.watermark("at", 100).key_by("user")


PLANS: list[tuple[Callable[[Stream], ResultStream], Sink | None, type[KrishivError], list[str]]] = [
    (
        lambda s: per_second(s.map_batches(broken, SCHEMA)),
        None,
        OperatorError,
        ["map_batches(broken)", "user, at, amount", "ZeroDivisionError: first line\nsecond line", "in broken", "batch 0"],
    ),
    (
        lambda s: windows(s).tumbling_window(1_000).agg(count()).with_late_event_handler(BrokenLate()),
        None,
        OperatorError,
        ["BrokenLate", "RuntimeError: no room", "batch 1", "in handle"],
    ),
    (
        lambda s: windows(s).time_interval_window(TimeIntervalWindowOptions(1.0)).on_events(BrokenPanes()),
        None,
        OperatorError,
        ["BrokenPanes.window_trigger", "ValueError: cannot take", "0 to 1000", "window step of bucket"],
    ),
    (
        lambda s: windows(s).tumbling_window(1_000).agg(udaf(BrokenSum(), "amount", pa.int64())),
        None,
        OperatorError,
        ["`create`", "KeyError: 'no start'", "prepare, batch 0"],
    ),
    (lambda s: windows(s).tumbling_window(1_000).agg(sum("amount")), None, AggregateOverflowError, ["64", "operator"]),
    (per_second, ForeachBatchSink(leaves), OperatorError, ["leaves", "SystemExit: 3", "batch 0"]),
    (per_second, ForeachBatchSink(interrupts), OperatorError, ["interrupts", "KeyboardInterrupt", "batch 0"]),
]


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("plan", "sink", "kind", "said"), PLANS)
def test_the_heart_comes_out_everywhere(
    memory: Memory, plan: Callable[[Stream], ResultStream], sink: Sink | None, kind: type[KrishivError], said: list[str]
) -> None:
    stream, sender = memory()
    sender.send([row("a", 10, 2**62), row("a", 20, 2**62), row("a", 30, 2**62), row("a", 5_000)])
    sender.send([row("a", 1), row("b", 9_000)])
    query = plan(stream).start(sink or MemorySink(), name="fails")
    for wait in (query.process_all_available, query.await_termination):
        with pytest.raises(kind) as caught:
            wait()
        actual = str(caught.value)
        assert actual.startswith("query 'fails' failed: ") and all(part in actual for part in said), actual
        assert "\tat " not in actual and "org.apache" not in actual
    assert type(query.exception()) is kind and str(query.exception()) == actual
    assert query.status == "failed"
    query.stop()
    query.stop()
    assert query.status == "failed"
    assert "fails: failed" in repr(query) and said[0] in query._repr_html_()  # type: ignore[attr-defined]
    if sink is None and kind is OperatorError:
        with pytest.raises(OperatorError) as run:
            plan(stream).collect()
        assert said[0] in str(run.value) and "\tat " not in str(run.value)


def test_a_query_is_stopped_from_anywhere(memory: Memory) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("a", 5_000)])
    stopped = threading.Event()

    def stops_itself(frame: object, batch: int) -> None:
        query.stop()
        stopped.set()

    query = per_second(stream).start(ForeachBatchSink(stops_itself))
    assert query.await_termination("60 s")
    assert stopped.is_set() and query.status == "stopped" and query.exception() is None
    again = per_second(stream).start(MemorySink())
    again.process_all_available()
    threads = [threading.Thread(target=again.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert again.status == "stopped" and again.await_termination()
    again.process_all_available()
    with pytest.raises(ZeroDivisionError), per_second(stream).start(MemorySink()) as inside:
        _ = 1 // 0
    assert inside.status == "stopped"


def test_a_cell_that_runs_again(memory: Memory) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("a", 5_000)])
    query = per_second(stream).start(MemorySink(), name="cell")
    with pytest.raises(PlanError, match=r"'cell' runs already.*stop\(\) it first"):
        per_second(stream).start(MemorySink(), name="cell")
    query.process_all_available()
    query.stop()
    again = per_second(stream).start(MemorySink(), name="cell")
    again.process_all_available()
    assert again.results().equals(query.results()) and again.results().num_rows == 1
    again.stop()


def test_a_session_that_is_over(session: Session) -> None:
    other = Session.from_spark(session.spark)
    stream, sender = other.memory_stream("user string, at bigint, amount bigint")
    sender.send([row("a", 10)])
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    query = plan.start(MemorySink())
    other.stop()
    other.stop()
    assert query.status == "stopped" and query.exception() is None
    for call in (plan.collect, lambda: plan.start(MemorySink())):
        with pytest.raises(SessionClosedError, match=r"session that is over.*make a new session"):
            call()
    query.stop()
    assert session.spark.range(3).count() == 3  # Spark belongs to whoever started it


def test_what_runs_is_explained(memory: Memory) -> None:
    stream, _ = memory()
    query = per_second(stream).start(MemorySink())
    assert "one Spark batch job" not in query.explain() and "transformWithState" in query.explain()
    query.stop()
