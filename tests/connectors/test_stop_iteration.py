"""Functions of a user that raise StopIteration: an error that names them, wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py.connectors import Source, TableSink
from krishiv_py.testing import Driver, micro_batches, stream_of

DDL = "k string, at bigint"


def stops(*_: Any, **__: Any) -> NoReturn:
    raise StopIteration("a bug")


class StoppingSink(TableSink):
    write_tables = stops


class StoppingHandler:
    wants = "rows"
    handle = stops


class StoppingSource(Source):
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    finite = True
    plan = stops
    read = stops


class Stopping:
    def __init__(self, at: str) -> None:
        setattr(self, at, stops)

    def create(self) -> int:
        return 0

    def add(self, state: int, value: Any) -> int:
        return state

    def merge(self, left: int, right: int) -> int:
        return left

    def finish(self, state: int) -> int:
        return state


def counted(**options: Any) -> Driver:
    return Driver(stream_of(DDL).watermark("at", 0).tumbling_window(5).agg(kv.count()), **options)


def aggregated(at: str) -> Driver:
    call = kv.udaf(Stopping(at), "at", pa.int64()).alias("u")
    return Driver(stream_of(DDL).watermark("at", 0).tumbling_window(5).agg(call))


def fed(driver: Driver) -> None:
    driver.send([{"k": "a", "at": 1}, {"k": "a", "at": 100}])
    driver.send([{"k": "a", "at": 1}])
    driver.close()


CALLS: dict[str, Callable[[], Any]] = {
    "a sink": lambda: fed(counted(sink=StoppingSink())),
    "map_batches": lambda: fed(Driver(stream_of(DDL).map_batches(stops, DDL))),
    "a source": lambda: list(micro_batches(StoppingSource())),
    **{name: lambda name=name: fed(aggregated(name)) for name in ("create", "add", "finish")},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_named(name: str) -> None:
    with pytest.raises(kv.KrishivError, match=r"StopIteration: a bug.*Hint: fix "):
        CALLS[name]()


def test_a_late_handler_too() -> None:
    timed = stream_of(DDL).watermark("at", 0).with_late_event_handler(StoppingHandler())
    with pytest.raises(kv.KrishivError, match="StopIteration: a bug"):
        fed(Driver(timed.tumbling_window(5).agg(kv.count())))
