"""A function that is to be awaited is refused wherever the library calls functions: nobody would await it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import (
    ExpressionError,
    ForeachBatchSink,
    KrishivError,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    TimeIntervalWindowOptions,
    Trigger,
    WindowAssigner,
    WindowTrigger,
    col,
    count,
    sum,
    udaf,
    udf,
)
from krishiv_py.cli.run import load
from krishiv_py.connectors import FileSink, Planned, Source, TableSink, TransactionalSink
from krishiv_py.connectors.kafka.client import connection
from krishiv_py.plan.windows.panes import PaneHandler
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, micro_batches, stream_of

Function = Callable[..., Any]
STREAM = stream_of("user string, at bigint")
TIMED = STREAM.watermark("at", 0)
PANES = TimeIntervalWindowOptions(interval_duration="1 min")
WINDOW = TIMED.key_by("user").tumbling_window("1 min")


async def awaited(*values: Any) -> Any:
    """Return the first of the `values`."""
    return values[0]


async def yielding(*values: Any) -> Any:
    """Yield the `values`."""
    for value in values:
        yield value


class Callee:
    """Calls are to be awaited."""

    async def __call__(self, *values: Any) -> Any:
        """Return the first of the `values`."""
        return values[0]

    async def method(self, *values: Any) -> Any:
        """Return the first of the `values`."""
        return values[0]

    @staticmethod
    async def alone(*values: Any) -> Any:
        """Return the first of the `values`."""
        return values[0]


FORMS: dict[str, Function] = {
    "async def": awaited,
    "async generator": yielding,
    "object": Callee(),
    "method": Callee().method,
    "static method": Callee.alone,
    "partial": functools.partial(awaited, 1),
    "partial of a partial of an object": functools.partial(functools.partial(Callee()), 1),
}

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "map_batches": lambda f: STREAM.map_batches(f),
    "map_batches of results": lambda f: WINDOW.agg(count()).map_batches(f),
    "reduce": lambda f: WINDOW.reduce("at", f),
    "udf": lambda f: udf("double")(f),
    "lookup_join": lambda f: STREAM.lookup_join(f, on="user"),
    "lookup_join that loads again": lambda f: STREAM.lookup_join(f, on="user", reload="1 min"),
    "table of SQL": lambda f: SqlContext().register("users", f),
    "foreach batch": ForeachBatchSink,
    "sink": lambda f: WINDOW.agg(count()).to(f),
    "late side output": lambda f: SideOutputLateEventHandler(f),
    "pane handler": lambda f: TIMED.window(PANES).on_events(window_trigger=f),
    "pane insertions": lambda f: TIMED.window(PANES).on_events(before_tuple_insertion=f),
}


@pytest.mark.parametrize("place", FUNCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_functions(place: str, form: str) -> None:
    with pytest.raises(PlanError) as caught:
        FUNCTIONS[place](FORMS[form])
    if place != "late side output":  # which takes no function at all
        assert "async" in str(caught.value) and "def" in str(caught.value)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_elements_of_lists() -> None:
    """A function of elements is called once, at the call that it is given to."""

    async def larger(x: Any) -> Any:
        return x + 1

    with pytest.raises(ExpressionError, match="coroutine"):
        col("l").transform(larger)


class Late:
    """A late handler."""

    wants: Literal["rows", "keys", "count"] = "rows"

    def handle(self, late: Any) -> None:
        """Nothing."""


class Table(TableSink):
    """A sink."""

    on_repeat = "at_least_once"

    def write_tables(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""


class Files(FileSink):
    """A sink."""

    suffix = ".bin"
    path = "out"

    def write_table(self, *args: Any) -> None:
        """Nothing."""


class Transactions(TransactionalSink):
    """A sink."""

    def last_committed(self, *args: Any) -> None:
        """Nothing."""

    def begin(self, *args: Any) -> None:
        """Nothing."""

    def write(self, *args: Any) -> None:
        """Nothing."""

    def commit(self, *args: Any) -> None:
        """Nothing."""


class Numbers(Source):
    """A source."""

    schema = pa.schema([("n", pa.int64())])
    finite = True

    def plan(self, last: Any) -> Planned | None:
        """One range."""
        return Planned(1, [0]) if last is None else None

    def read(self, planned: Any, columns: Any) -> Any:
        """One row."""
        yield pa.record_batch({"n": [1]})


class Largest:
    """An aggregator."""

    def create(self) -> list[int]:
        """Return nothing yet."""
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        """Return the larger."""
        return [max([*accumulator, value])]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        """Return the larger."""
        return [max(left + right)]

    def finish(self, accumulator: list[int]) -> int:
        """Return the largest."""
        return accumulator[0]


class Minutes(WindowAssigner):
    """An assigner."""

    longest = "1 min"

    def assign(self, times: Any) -> Any:
        """Return the minute of each."""
        starts = times // 60_000_000 * 60_000_000
        return starts, starts + 60_000_000


class First(WindowTrigger):
    """A trigger."""

    def fires(self, windows: Any) -> Any:
        """Return whether it has not fired."""
        return windows.firings == 0


class Panes(PaneHandler):
    """A handler."""


OBJECTS: list[tuple[type, Callable[[Any], Any], tuple[str, ...]]] = [
    (Late, TIMED.with_late_event_handler, ("handle",)),
    (Late, lambda h: TIMED.with_late_event_handler(h, on_error="side_output"), ("handle",)),
    (Table, WINDOW.agg(count()).to, ("write_tables", "last_committed", "check")),
    (Table, SideOutputLateEventHandler, ("write_tables",)),
    (Files, WINDOW.agg(count()).to, ("write_table",)),
    (Transactions, WINDOW.agg(count()).to, ("begin", "write", "commit", "abort", "last_committed")),
    (
        Numbers,
        lambda s: list(micro_batches(s)),
        ("plan", "read", "finished", "backlog", "partition_of", "until_now", "describe", "datasets"),
    ),
    (Largest, lambda a: udaf(a, "at", pa.int64()), ("create", "add", "merge", "finish", "partial")),
    (Minutes, TIMED.window, ("assign", "describe", "parameters")),
    (First, Trigger.when, ("fires", "describe", "parameters")),
    (Panes, lambda h: TIMED.window(PANES).on_events(h), ("window_trigger", "window_close", "before_tuple_insertion")),
]


@pytest.mark.parametrize(
    ("class_", "take", "method"), [(class_, take, method) for class_, take, methods in OBJECTS for method in methods]
)
def test_methods_of_objects(class_: type, take: Callable[[Any], Any], method: str) -> None:
    take(class_())  # with methods that are called it is taken
    forms = {
        "class": awaited,
        "generator": yielding,
        "static": staticmethod(awaited),
        "partial": functools.partialmethod(awaited),
    }
    for function in forms.values():
        with pytest.raises(PlanError, match=f"{method} is async"):
            take(type("Changed", (class_,), {method: function})())
    of_instance = class_()
    setattr(of_instance, method, awaited)
    with pytest.raises(PlanError, match=f"{method} is async"):
        take(of_instance)


def test_own_helpers_may_be_async() -> None:
    """Other methods of the class are its own matter."""

    class Sent(Table):
        """Sends rows through an event loop of its own."""

        def __init__(self) -> None:
            self.rows = 0

        async def send(self, tables: Any) -> None:
            """Count them."""
            self.rows += len(tables)

        def write_tables(self, batch: Any, tables: Any, **more: Any) -> None:
            """Wait until they are sent, as the hint says."""
            asyncio.run(self.send(tables))

    sink = Sent()
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.start(sink)
        sender.send([{"at": 1}])
        query.process_all_available()
    assert sink.rows == 1


async def _late(late: Any) -> None:
    raise AssertionError("nobody waits for it")


def test_what_is_found_out_only_when_it_is_called() -> None:
    """A plain function that returns a coroutine, as a lambda around an ``async def`` does, stops the query."""
    late, table, transactions = Late(), Table(), Transactions()
    setattr(late, "handle", lambda rows: _late(rows))  # noqa: B010  # of another type
    setattr(table, "write_tables", lambda *args, **kwargs: _late(args))  # noqa: B010
    setattr(transactions, "write", lambda *args: _late(args))  # noqa: B010
    driver = Driver(STREAM.with_late_event_handler(late).watermark("at", 0).tumbling_window(10).agg(sum("at")))
    driver.send([{"user": "a", "at": 100}])
    with pytest.raises(KrishivError, match="awaited"):
        driver.send([{"user": "a", "at": 1}])
    with pytest.raises(KrishivError, match="awaited"):
        ForeachBatchSink(lambda frame, number: _late(frame)).write_frame(_Batch(), None)  # type: ignore[arg-type]
    for sink in (table, transactions):
        with Session.in_process() as session:
            stream, sender = session.memory_stream("at bigint")
            query = stream.start(sink)
            sender.send([{"at": 1}])
            with pytest.raises(KrishivError, match="awaited"):
                query.process_all_available()
    reading = Numbers()
    reading.read = lambda planned, columns: _late(planned)  # type: ignore[method-assign]
    with pytest.raises(KrishivError, match="awaited"):
        list(micro_batches(reading))


class _Batch:
    batch_id = 1


def test_plain_functions_are_taken() -> None:
    """A plain function around an ``async def``, under its name, is plain."""

    @functools.wraps(awaited)
    def waiting(batch: pa.RecordBatch) -> Any:
        return asyncio.run(awaited(batch))

    assert inspect.iscoroutinefunction(awaited)
    rows = Driver(STREAM.map_batches(waiting)).send([{"user": "a", "at": 1}]).results.to_pylist()
    assert rows == [{"user": "a", "at": 1}]
    for function in (len, np.sum, functools.partial(max, 1), str, Late):
        STREAM.map_batches(function)  # type: ignore[arg-type]


def test_jobs_of_the_command_line(tmp_path: Any) -> None:
    job = tmp_path / "jobs.py"
    job.write_text("async def orders(session):\n    return []\n")
    with pytest.raises(PlanError, match="async"):
        load(f"{job}:orders")


def test_tokens_of_kafka() -> None:
    with pytest.raises(PlanError, match="async") as caught:
        connection("localhost:9092", {"oauth_cb": functools.partial(awaited, "secret")}, oauth=True)
    assert "secret" not in str(caught.value)
