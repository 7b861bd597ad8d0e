"""Frames and relations of pandas, Polars, DuckDB and Arrow's readers, wherever rows or tables are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from krishiv_py import count, sum
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
}


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
