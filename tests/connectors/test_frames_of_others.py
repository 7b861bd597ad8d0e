"""Frames and relations of pandas, Polars, DuckDB and Arrow's readers, wherever rows or tables are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from krishiv_py import LateRows, MemorySink, Session, count, sum
from krishiv_py.connectors import Planned, Source
from krishiv_py.connectors.frames import of_pandas
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, micro_batches, stream_of

ROWS = pa.table({"user": ["a", "b", "a"], "at": pa.array([1, 2, 3], pa.int64()), "n": pa.array([1, 2, None], pa.int64())})


def _pandas(table: pa.Table) -> Any:
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame.set_index(pd.Index(range(7, 7 + len(frame))))


FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": _pandas,
    "polars": pl.from_arrow,
    "duckdb": duckdb.from_arrow,
    "reader": lambda table: table.to_reader(),
    "batch": lambda table: table.to_batches()[0],
    "stream of another library": lambda table: Exported("stream", table),
    "array of another library": lambda table: Exported("array", table),
    "dataset": ds.dataset,
    "scanner": lambda table: ds.dataset(table).scanner(),
    "lazy frame": lambda table: pl.LazyFrame(pl.from_arrow(table)),
    "list of batches": lambda table: [table.slice(0, 1).to_batches()[0], *table.slice(1).to_batches()],
    "tuple of tables and frames": lambda table: (table.slice(0, 1), pl.from_arrow(table.slice(1))),
    "generator": lambda table: (table.slice(i, 1) for i in range(table.num_rows)),
    "struct array": lambda table: table.to_struct_array().combine_chunks(),
}


class Exported:
    """Rows of a library that has one of the methods of Arrow's PyCapsule interface."""

    def __init__(self, kind: str, table: pa.Table) -> None:
        exported = table if kind == "stream" else table.combine_chunks().to_batches()[0]
        setattr(self, f"__arrow_c_{kind}__", getattr(exported, f"__arrow_c_{kind}__"))


class Counted(Source):
    """Gives the rows once, as `made`."""

    schema = ROWS.schema

    def __init__(self, made: Callable[[pa.Table], Any]) -> None:
        self.made = made

    def plan(self, last: Any) -> Planned | None:
        """One range."""
        return Planned(1, [0]) if last is None else None

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[Any]:
        """All rows."""
        yield self.made(ROWS)


@pytest.mark.parametrize("made", FRAMES.values(), ids=FRAMES)
def test_rows_of_other_libraries(made: Callable[[pa.Table], Any]) -> None:
    stream = stream_of("user string, at bigint, n bigint")
    mapped = stream.map_batches(lambda batch: made(pa.Table.from_batches([batch]))).watermark("at", 0)
    counted = mapped.key_by("user").tumbling_window(10).agg(count(), sum("n"))
    driver = Driver(counted.map_batches(lambda batch: made(pa.Table.from_batches([batch]))))
    driver.send(made(ROWS))
    kept = [{"user": "a", "count": 2, "sum_n": 1}, {"user": "b", "count": 1, "sum_n": 2}]
    actual = driver.close().results
    assert actual.select(["user", "count", "sum_n"]).to_pylist() == kept
    assert pa.concat_tables(micro_batches(Counted(made))).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("made", FRAMES.values(), ids=FRAMES)
def test_tables_of_other_libraries(made: Callable[[pa.Table], Any]) -> None:
    stream = stream_of("user string, at bigint, n bigint")
    users = pa.table({"user": ["a"], "city": ["Pune"]})
    joined = stream.lookup_join(made(users), on="user", columns=["city"])
    assert Driver(joined).send(ROWS).results["city"].to_pylist() == ["Pune", None, "Pune"]
    loaded = stream.lookup_join(lambda: made(users), on="user", columns=["city"])
    assert Driver(loaded).send(ROWS).results["city"].to_pylist() == ["Pune", None, "Pune"]
    context = SqlContext()
    context.register("events", stream, event_time="at")
    context.register("users", made(users))
    actual = context.sql("SELECT n, city FROM events JOIN users ON events.user = users.user")
    assert actual is not None
    assert Driver(actual).send(ROWS).results.to_pylist() == [{"n": 1, "city": "Pune"}, {"n": None, "city": "Pune"}]


class Schema:
    """A schema of a library that has the interface."""

    def __arrow_c_schema__(self) -> object:
        """Return it."""
        return ROWS.schema.__arrow_c_schema__()


class Broken:
    """Rows that cannot be read."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Fail."""
        raise ConnectionError("the database went away")


async def _awaited() -> Any:
    yield {"user": "a", "at": 1, "n": 1}


def test_what_is_sent() -> None:
    """A sender takes all of them, also rows from a generator and records of NumPy, each call as one micro-batch."""
    with Session.in_process() as session:
        stream, sender = session.memory_stream(Schema())
        assert stream.schema == ROWS.schema
        records = np.array([("a", 1, 1)], dtype=[("user", "U8"), ("at", "i8"), ("n", "i8")])
        numbers = [sender.send(made(ROWS)) for made in FRAMES.values()]
        numbers += [sender.send(row for row in ROWS.to_pylist()), sender.send(records), sender.send(iter([])), sender.send([])]
        sender.close()
        assert numbers == list(range(len(FRAMES) + 4))
        assert stream.collect().num_rows == ROWS.num_rows * (len(FRAMES) + 1) + 1
    for wrong, text in {
        "ConnectionError: the database went away": Broken(),
        "async for row in rows": _awaited(),
        "not a batch": ROWS.column("at"),
    }.items():
        with Session.in_process() as session, pytest.raises(SchemaError) as caught:
            session.memory_stream(ROWS.schema)[1].send(text)
        assert wrong in str(caught.value) or wrong == "not a batch"
    with pytest.raises(SchemaError, match="row 1 is not"):
        Driver(stream_of(ROWS.schema)).send([ROWS.to_pylist()[0], ROWS])
    with pytest.raises(SchemaError, match="not a batch"):
        Driver(stream_of(ROWS.schema)).send([ROWS, ROWS.to_pylist()[0]])
    with pytest.raises(SchemaError, match="the Opposite is not a schema"):
        stream_of(type("Opposite", (), {"__arrow_c_schema__": lambda self: 5})())


def test_what_comes_out() -> None:
    """Every result is taken by other libraries as it is."""
    seen: list[Any] = []

    class Late:
        wants = "rows"

        def handle(self, late: LateRows) -> None:
            seen.append(pl.DataFrame(late))

    sink = MemorySink()
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, at bigint, n bigint")
        timed = stream.with_late_event_handler(Late()).watermark("at", 0).key_by("user")
        results = timed.tumbling_window(10).agg(count())
        query = results.start(sink)
        with pytest.raises(PlanError, match="the memory sink has no rows yet"):
            pa.table(sink)
        sender.send([{"user": "a", "at": 50, "n": 1}])
        query.process_all_available()
        sender.send([{"user": "b", "at": 1, "n": 1}])
        sender.close()
        query.process_all_available()
        bounded = results.run()
        rows = [{"user": "a", "window_start": 50, "window_end": 60, "count": 1}]
        for one in (sink, query.results(), bounded):
            assert pa.table(one).to_pylist() == rows
            assert pl.DataFrame(one).to_dicts() == rows
            assert duckdb.from_arrow(one).fetchall() == [("a", 50, 60, 1)]
            assert Driver(stream_of(pa.table(one).schema)).send(one).results.to_pylist() == rows  # and by ourselves
    assert seen[0]["user"].to_list() == ["b"]
    step = Driver(stream_of(ROWS.schema)).send(ROWS)
    assert pa.table(step).equals(ROWS)


def test_what_is_no_table() -> None:
    stream = stream_of("user string, at bigint, n bigint")
    with pytest.raises(SchemaError, match="the DataFrame cannot be read as Arrow data"):
        Driver(stream).send(pd.DataFrame({"user": ["a"], "at": [1], "n": [object()]}))
    with pytest.raises(SchemaError, match=r"column 'n' has the wrong type \(got: double"):
        Driver(stream).send(pl.DataFrame({"user": ["a"], "at": [1], "n": [1.5]}))
    with pytest.raises(SchemaError, match="missing: n; unknown: other"):
        Driver(stream).send(duckdb.sql("SELECT 'a' AS user, 1 AS at, 2 AS other"))
    with pytest.raises(PlanError, match="lookup_join takes a table"):
        stream.lookup_join(pl.Series([1]).to_list(), on="user")


@pytest.mark.parametrize("module", ["pandas", "pandas.core.frame"])
def test_frames_of_any_pandas_are_known_as_such(module: str) -> None:
    """Version 3 says that its frames are of ``pandas``."""
    frame = type("DataFrame", (), {"__module__": module, "to_dict": dict})()
    assert of_pandas(frame)
    assert not of_pandas(type("DataFrame", (), {"__module__": f"my{module}", "to_dict": dict})())
