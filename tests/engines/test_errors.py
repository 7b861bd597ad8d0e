"""What cannot be computed is the same error of ours on all engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, col, count, max, sum
from krishiv_py.errors import AggregateOverflowError, KrishivError, OperatorError, SchemaError
from krishiv_py.session import Session
from krishiv_py.testing import Driver, stream_of

SCHEMA = "at bigint, code string, big bigint"
ROWS = [{"at": 1, "code": "7", "big": 2**62}, {"at": 2, "code": "seven", "big": 2**62}]


def misdeclared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A mapping function that does not return what it declares."""
    return batch.set_column(2, "big", pa.array(["x"] * batch.num_rows))


def windowed(stream: Any, *keys: str) -> Any:
    """Event time, keys and windows of ten milliseconds."""
    return stream.watermark("at", 0).key_by(*keys).tumbling_window(10)


FAILING: dict[str, tuple[type[KrishivError], Callable[[Any], Any]]] = {
    "a sum beyond 64 bits": (AggregateOverflowError, lambda s: windowed(s).agg(sum("big"))),
    "a key that is not a number": (
        OperatorError,
        lambda s: windowed(s.with_column("k", col("code").cast("int")), "k").agg(count()),
    ),
    "a filter that is not a number": (OperatorError, lambda s: windowed(s.filter(col("code").cast("int") > 0)).agg(max("big"))),
    "a function that returns something else": (SchemaError, lambda s: windowed(s.map_batches(misdeclared)).agg(max("big"))),
}


def gist(problem: BaseException) -> str:
    """What was wrong and what was got, without the place an engine may add."""
    actual = re.search(r"[^\n]*\(got: [^\n]*Hint: [^\n]*", str(problem))
    assert actual is not None, str(problem)
    return actual[0].partition("(got:")[0].rpartition(": ")[2].strip()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("what", FAILING)
def test_it_is_the_same_error_on_all_engines(session: Session, what: str) -> None:
    kind, pipeline = FAILING[what]
    driver = Driver(pipeline(stream_of(SCHEMA)))
    with pytest.raises(kind) as on_driver:
        driver.send(ROWS)
        driver.close()
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(ROWS)
    sender.close()
    plan = pipeline(stream)
    with pytest.raises(kind) as bounded:
        plan.collect()
    query = plan.start(MemorySink())
    with pytest.raises(kind) as streamed:
        query.process_all_available()
    query.stop()
    assert gist(on_driver.value) == gist(bounded.value) == gist(streamed.value)


def test_a_column_that_is_not_used_stops_no_engine(session: Session) -> None:
    def pipeline(stream: Any) -> Any:
        return windowed(stream.with_column("k", col("code").cast("int"))).agg(count())

    driver = Driver(pipeline(stream_of(SCHEMA)))
    driver.send(ROWS)
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(ROWS)
    sender.close()
    plan = pipeline(stream)
    query = plan.start(MemorySink())
    query.process_all_available()
    query.stop()
    assert plan.collect().to_pylist() == query.results().to_pylist() == driver.close().results.to_pylist()
