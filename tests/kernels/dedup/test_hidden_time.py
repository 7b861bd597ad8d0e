"""The event time of a stage stays hidden behind drop_duplicates, unless its author named it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import count
from krishiv_py.testing import Driver, stream_of

PLAIN = ["id", "window_start", "window_end", "count"]


def counted() -> Any:
    return stream_of("id string, at bigint").watermark("at", 0).key_by("id").tumbling_window(10).agg(count())


CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "alone": (lambda: counted().drop_duplicates("id", within=50), PLAIN),
    "twice": (lambda: counted().drop_duplicates("id", within=50).drop_duplicates("id", within=50), PLAIN),
    "of a key": (lambda: counted().results().key_by("id").drop_duplicates(within=50), PLAIN),
    "filtered": (lambda: counted().drop_duplicates("id", within=50).filter("count > 0"), PLAIN),
    "as rows": (lambda: counted().drop_duplicates("id", within=50).results(), PLAIN),
    "mapped": (lambda: counted().drop_duplicates("id", within=50).results().map_batches(lambda rows: rows), PLAIN),
    "renamed": (lambda: counted().results().rename(count="n").drop_duplicates("id", within=50), [*PLAIN[:3], "n"]),
    "selected": (lambda: counted().results().select("id").drop_duplicates("id", within=50), ["id"]),
    "named before": (
        lambda: counted().results().select("id", "window_time").drop_duplicates("id", within=50),
        ["id", "window_time"],
    ),
    "named before a key": (
        lambda: counted().results().select("id", "window_time").key_by("id").drop_duplicates(within=50),
        ["id", "window_time"],
    ),
    "named behind": (
        lambda: counted().drop_duplicates("id", within=50).results().select("id", "window_time"),
        ["id", "window_time"],
    ),
    "read behind": (
        lambda: counted().drop_duplicates("id", within=50).results().with_column("t", "window_time"),
        [*PLAIN, "t"],
    ),
    "another stage": (lambda: counted().drop_duplicates("id", within=50).key_by("id").tumbling_window(100).agg(count()), PLAIN),
}


@pytest.mark.parametrize("case", CASES)
def test_the_time_of_a_stage_is_shown_only_where_it_was_named(case: str) -> None:
    made, names = CASES[case]
    stream = made()
    driver = Driver(stream)
    rows = pa.concat_tables([driver.send([{"id": "a", "at": 1}, {"id": "a", "at": 21}]).results, driver.close().results])
    assert stream.schema.names == rows.schema.names == names
    assert rows["id"].to_pylist() == ["a"]
    if "window_time" in names:
        assert rows["window_time"].to_pylist() == [9]


def test_a_join_has_no_hidden_time_either() -> None:
    other = stream_of("id string, t bigint").watermark("t", 0)
    joined = counted().drop_duplicates("id", within=50).interval_join(other, on="id", lower=-10, upper=10)
    assert joined.schema.names == ["id", "window_start", "window_end", "count", "t", "join_time"]
