"""Where columns come from: held against what really changes when a column of a source does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import ResultStream, Stream, col, count, windows
from krishiv_py.planner.lineage import Lineage, late_lineage, lineage, sources_of
from krishiv_py.testing import Driver, stream_of
from krishiv_py.testing.sends import run_by_driver

SCHEMA: Final = "user string, at bigint, amount bigint, n bigint, url string, tags array<bigint>, spare bigint"
SHOPS: Final = pa.table({"url": ["u0", "u1", "u2"], "city": ["Ulm", "Rom", "Bonn"], "tax": [1, 2, 3]})


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "amount", pa.array([2 * (x or 0) for x in batch["amount"].to_pylist()], pa.int64()))


class Total:
    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, accumulator: int) -> int:
        return accumulator


def timed(rows: Stream) -> Any:
    return rows.watermark("at", 5)


def by_user(rows: Stream) -> Any:
    return timed(rows).key_by("user").tumbling_window(20).agg(kv.sum("amount").alias("total"))


ONE: Final[dict[str, Callable[[Stream], Any]]] = {
    "tumbling": by_user,
    "filter before": lambda s: by_user(s.filter("n > 2")),
    "filter after the watermark": lambda s: timed(s).filter("n > 2").key_by("user").tumbling_window(20).agg(count()),
    "key by expression": lambda s: timed(s).key_by(who=col("user").lower()).tumbling_window(20).agg(kv.max("n")),
    "computed": lambda s: by_user(s.select("user", "at", amount=col("amount") * col("n"))),
    "renamed results": lambda s: by_user(s).select("user", "total", per=col("total") / 2, when=col("window_end")),
    "filtered results": lambda s: by_user(s).filter("total > 12").drop("window_start"),
    "conditional": lambda s: timed(s).tumbling_window(20).agg(kv.sum("amount").filter("n > 2").alias("big"), count()),
    "udaf": lambda s: timed(s).tumbling_window(20).agg(kv.udaf(Total(), "amount", pa.int64()).alias("total")),
    "aggregates computed": lambda s: timed(s).tumbling_window(20).agg(mean=kv.sum("amount") / kv.sum("n")),
    "first and last": lambda s: timed(s).tumbling_window(20).agg(kv.first("amount"), kv.last("url")),
    "top k": lambda s: timed(s).tumbling_window(20).agg(kv.top_k(2, "amount", "url").alias("top")).unnest("top", rank="place"),
    "hopping": lambda s: timed(s).hopping_window(20, 10).agg(kv.collect_list("n")),
    "session": lambda s: timed(s).key_by("user").session_window(8).agg(kv.sum("amount")),
    "count": lambda s: timed(s).key_by("user").count_window(3).agg(kv.sum("amount")),
    "lookback": lambda s: timed(s).key_by("user").lookback_window(15, with_row=True).agg(kv.sum("amount").alias("total")),
    "pairs": lambda s: timed(s).key_by("user").lookback_window(15).pairs("left_n < right_amount"),
    "matches": lambda s: timed(s).key_by("user").lookback_window(15).matches(),
    "dedup": lambda s: timed(s).drop_duplicates("user", "n", within=30),
    "rows": lambda s: s.filter("amount > 3").select("user", double=col("amount") * 2),
    "map_batches": lambda s: by_user(s.map_batches(twice)),
    "map_batches of results": lambda s: by_user(s).map_batches(lambda b: b),
    "unnest": lambda s: by_user(s.unnest("tags").with_column("amount", col("tags"))),
    "lookup": lambda s: timed(s.lookup_join(SHOPS, "url", how="inner")).key_by("city").tumbling_window(20).agg(kv.sum("tax")),
    "lookup of results": lambda s: (
        timed(s).key_by("url").tumbling_window(20).agg(kv.sum("n").alias("n")).lookup_join(SHOPS, "url")
    ),
    "two stages": lambda s: by_user(s).tumbling_window(40).agg(kv.max("total").alias("most"), count()),
    "three stages": lambda s: (
        by_user(s)
        .filter("total > 2")
        .tumbling_window(40)
        .agg(kv.max("total").alias("most"))
        .tumbling_window(80)
        .agg(kv.sum("most"))
    ),
}
TWO: Final[dict[str, Callable[[Stream, Stream], Any]]] = {
    "interval join": lambda a, b: timed(a).interval_join(timed(b), on="user", lower=-10, upper=10),
    "left join": lambda a, b: timed(a).interval_join(timed(b), on="user", lower=-10, upper=10, how="left"),
    "semi join": lambda a, b: timed(a).interval_join(timed(b), on="user", lower=-10, upper=10, how="semi"),
    "asof join": lambda a, b: timed(a).asof_join(timed(b), on="user", tolerance=10),
    "window join": lambda a, b: timed(a).window_join(timed(b), on="user", window=windows.tumbling(20)),
    "window after a join": lambda a, b: (
        timed(a)
        .interval_join(timed(b), on="user", lower=-10, upper=10)
        .key_by("user")
        .tumbling_window(40)
        .agg(kv.sum("n_right"))
    ),
    "join of results": lambda a, b: by_user(a).interval_join(by_user(b), on="user", lower=-40, upper=40),
}


def rows_of(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "user": chance.choice("AaBb"),
            "at": 3 * i + chance.randrange(4),
            "amount": chance.randrange(10),
            "n": chance.randrange(6),
            "url": f"u{chance.randrange(4)}",
            "tags": [chance.randrange(9) for _ in range(chance.randrange(3))],
            "spare": chance.randrange(10),
        }
        for i in range(40)
    ]


def other(rows: list[dict[str, Any]], column: str, seed: int) -> list[dict[str, Any]]:
    """The same rows with other values in a column."""
    new = rows_of(seed)
    return [{**row, column: new[i][column]} for i, row in enumerate(rows)]


def given(stream: Any, sent: list[list[dict[str, Any]]]) -> dict[str, list[str]]:
    """The results by column, as texts, in the order of all."""
    driver = Driver(stream)
    names = [part.name for part in driver._plan.stage.inputs if part.name is not None] if len(sent) > 1 else []
    if len(sent) > 1:
        names = [read.name or "" for read in driver._plan.reads]
    tables = [driver.send(dict(zip(names, sent, strict=True)) if names else sent[0]).results, driver.close().results]
    rows = sorted((row for table in tables for row in table.to_pylist()), key=repr)
    assert rows
    return {name: sorted(repr(row[name]) for row in rows) for name in tables[0].schema.names}


def where_from(stream: Any) -> tuple[Lineage, list[Any]]:
    plan, _ = run_by_driver(stream, None)
    return lineage(plan, plan.outputs[0]), list(sources_of(plan))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_what_changes_with_a_column_comes_from_it(name: str) -> None:
    streams = [stream_of(SCHEMA) for _ in range(1 if name in ONE else 2)]
    stream = ONE[name](*streams) if name in ONE else TWO[name](*streams)
    traced, sources = where_from(stream)
    sources, tables = sources[: len(streams)], sources[len(streams) :]
    assert len(tables) == name.startswith("lookup")
    sent = [rows_of(seed) for seed in range(len(streams))]
    before = given(stream, sent)
    assert set(before) == set(traced.columns)
    for side, source in enumerate(sources):
        for column in source.schema.names:
            decides = any((o.source, o.column) == (source, column) for o in traced.rows)
            changed = given(stream, [other(rows, column, 100 + side) if s == side else rows for s, rows in enumerate(sent)])
            for out in before:
                comes = any((o.source, o.column) == (source, column) for o in traced.columns[out])
                assert decides or comes or before[out] == changed[out], (out, column)
            assert column != "spare" or decides or not any(o.column == "spare" for o in traced.rows)


@pytest.mark.parametrize("name", ["lookup", "lookup of results"])
def test_what_changes_with_a_column_of_a_table_comes_from_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, (_, table) = where_from(ONE[name](stream_of(SCHEMA)))
    sent = [rows_of(0)]
    before = given(ONE[name](stream_of(SCHEMA)), sent)
    for number, column in enumerate(SHOPS.schema.names):
        values = SHOPS[column].to_pylist()
        monkeypatch.setitem(globals(), "SHOPS", SHOPS.set_column(number, column, pa.array([*values[1:], values[0]])))
        changed = given(ONE[name](stream_of(SCHEMA)), sent)
        monkeypatch.undo()
        decides = any((o.source, o.column) == (table, column) for o in traced.rows)
        for out in before:
            comes = any((o.source, o.column) == (table, column) for o in traced.columns[out])
            assert decides or comes or before[out] == changed[out], (out, column)


def shown(stream: Any, out: str) -> list[str]:
    traced, _ = where_from(stream)
    return sorted(f"{o.column} {o.how}" for o in traced.columns[out])


def test_a_column_comes_from_no_more_than_it_needs() -> None:
    rows = stream_of(SCHEMA)
    assert shown(by_user(rows), "total") == ["amount AGGREGATION"]
    assert shown(by_user(rows), "user") == ["user IDENTITY"]
    assert shown(by_user(rows), "window_start") == ["at TRANSFORMATION"]
    assert shown(ONE["computed"](rows), "total") == ["amount AGGREGATION", "n AGGREGATION"]
    assert shown(ONE["conditional"](rows), "big") == ["amount AGGREGATION", "n CONDITIONAL"]
    assert shown(ONE["conditional"](rows), "count") == []
    assert shown(ONE["aggregates computed"](rows), "mean") == ["amount AGGREGATION", "n AGGREGATION"]
    assert shown(ONE["renamed results"](rows), "per") == ["amount AGGREGATION"]
    assert shown(ONE["two stages"](rows), "most") == ["amount AGGREGATION"]
    assert shown(ONE["key by expression"](rows), "who") == ["user TRANSFORMATION"]
    assert shown(ONE["unnest"](rows), "total") == ["tags AGGREGATION"]
    assert shown(ONE["lookup of results"](rows), "n") == ["n AGGREGATION"]
    assert shown(ONE["lookup of results"](rows), "tax") == ["tax IDENTITY"]
    assert shown(ONE["pairs"](rows), "right_n") == ["n IDENTITY"]
    assert shown(ONE["dedup"](rows), "url") == ["url IDENTITY"]
    traced, _ = where_from(ONE["filter after the watermark"](rows))
    assert sorted(f"{o.column} {o.how}" for o in traced.rows) == ["at WINDOW", "n FILTER", "user GROUP_BY"]


def test_sides_of_a_join_are_kept_apart() -> None:
    traced, (left, right) = where_from(TWO["interval join"](stream_of(SCHEMA), stream_of(SCHEMA)))
    assert {(o.source, o.column) for o in traced.columns["n"]} == {(left, "n")}
    assert {(o.source, o.column) for o in traced.columns["n_right"]} == {(right, "n")}
    assert {(o.source, o.column, o.how) for o in traced.rows} >= {(left, "user", "JOIN"), (right, "user", "JOIN")}


def test_late_rows_come_from_their_own_columns() -> None:
    rows = stream_of(SCHEMA).with_column("amount", col("amount") + col("n"))
    plan, _ = run_by_driver(by_user(rows), None)
    traced = late_lineage(
        plan.stages[0].node, pa.schema([("user", pa.string()), ("amount", pa.int64()), ("reason", pa.string())])
    )
    shown = {name: sorted(o.column for o in of) for name, of in traced.columns.items()}
    assert shown == {"user": ["user"], "amount": ["amount", "n"], "reason": []}


def test_outputs_of_one_query_each_have_their_own() -> None:
    rows = stream_of(SCHEMA)
    totals: ResultStream = by_user(rows)
    plan, _ = run_by_driver(
        [totals.to(kv.MemorySink(), name="totals"), totals.filter("total > 3").drop("user").to(kv.MemorySink(), name="big")],
        None,
    )
    for output in plan.outputs:
        traced = lineage(plan, output)
        assert list(traced.columns) == output.schema.names
        assert any(o.how == "FILTER" for o in traced.rows) == (output.name == "big")
