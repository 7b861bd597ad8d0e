"""After every batch the folded results are the same query over the contents of the inputs (SEMANTICS §16.3)."""

from __future__ import annotations

import builtins
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import duckdb
import pyarrow as pa
import pytest

from krishiv_py import PlanError, Session, avg, col, collect_list, count, count_distinct, max, min, stddev, sum, when
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Content, Row, Rows, counted, first_rows, folded, grouped, joined, text_of, total

DDL = "op string, pk bigint, k string, v double, w bigint, seq bigint"
COLUMNS = ("pk", "k", "v", "w", "seq")
VALUES = (0.1, 1e16, -1e16, 0.0, -0.0, 2.0**53, -3.5, math.nan, math.inf, -math.inf, 5e-324, 1e308, None)


@attrs.frozen
class Query:
    """A plan over one or two changing streams, and what it gives for their contents."""

    plan: Callable[..., Any]
    of: Callable[..., Rows]
    sides: int = 1


def _values(name: str) -> Callable[[Rows], list[Any]]:
    return lambda rows: [row[name] for row in rows if row[name] is not None]


def _some(function: Callable[[list[Any]], Any], name: str) -> Callable[[Rows], Any]:
    return lambda rows: function(_values(name)(rows)) if _values(name)(rows) else None


def _extreme(name: str, *, largest: bool) -> Callable[[Rows], Any]:
    def compute(rows: Rows) -> Any:
        values = _values(name)(rows)
        numbers = [v for v in values if not math.isnan(v)]
        if not values:
            return None
        if largest:
            return math.nan if len(numbers) < len(values) else sorted(numbers)[-1]
        return sorted(numbers)[0] if numbers else math.nan

    return compute


def _sums(stream: Any) -> Any:
    return stream.key_by("k").agg(n=count(), s=sum("v"), w=sum("w"), a=avg("w"), some=count("v"))


def _sums_of(rows: Rows) -> Rows:
    return grouped(
        rows,
        ("k",),
        {
            "n": len,
            "s": lambda group: total(_values("v")(group)),
            "w": _some(lambda values: builtins.sum(values), "w"),
            "a": _some(lambda values: builtins.sum(values) / len(values), "w"),
            "some": lambda group: len(_values("v")(group)),
        },
    )


def _extremes(stream: Any) -> Any:
    return stream.key_by("k").agg(low=min("v"), high=max("v"), kinds=count_distinct("w"), n=count())


def _extremes_of(rows: Rows) -> Rows:
    return grouped(
        rows,
        ("k",),
        {
            "low": _extreme("v", largest=False),
            "high": _extreme("v", largest=True),
            "kinds": lambda group: len(set(_values("w")(group))),
            "n": len,
        },
    )


def _chained(stream: Any) -> Any:
    groups = stream.filter("w > 1").key_by("k").agg(n=count(), s=sum("w"))
    return groups.with_column("odd", col("s") % 2).key_by("odd").agg(groups=count(), rows=sum("n"))


def _chained_of(rows: Rows) -> Rows:
    groups = grouped([r for r in rows if r["w"] is not None and r["w"] > 1], ("k",), {"n": len, "s": _total_w})
    groups = [group | {"odd": group["s"] % 2} for group in groups]
    return grouped(groups, ("odd",), {"groups": len, "rows": lambda members: builtins.sum(member["n"] for member in members)})


def _total_w(rows: Rows) -> int:
    return int(builtins.sum(_values("w")(rows)))


def _log_of_groups(stream: Any) -> Any:
    log = _sums(stream).to_changelog("kind").with_column("sign", when(col("kind").isin("+I", "+U"), 1).otherwise(-1))
    return log.key_by("k").agg(net=sum("sign")).filter("net > 0")


def _everything(stream: Any) -> Any:
    return stream.agg(n=count(), w=sum("w"))


def _everything_of(rows: Rows) -> Rows:
    return grouped(rows, (), {"n": len, "w": _some(lambda values: builtins.sum(values), "w")})


def _place(row: Row) -> Any:
    w = row["w"]
    ties = [(row[name] is None, 0 if row[name] is None else row[name]) for name in ("pk", "seq")]
    return (w is None, 0 if w is None else -w, *ties)


def _top(rank: str | None) -> Query:
    def plan(stream: Any) -> Any:
        return stream.select("pk", "k", "w", "seq").key_by("k").top_rows(2, by="w", rank=rank)

    def of(rows: Rows) -> Rows:
        picked = [{name: row[name] for name in ("pk", "k", "w", "seq")} for row in rows]
        return first_rows(picked, "k", 2, _place, rank)

    return Query(plan, of)


def _join(how: str) -> Query:
    def plan(left: Any, right: Any) -> Any:
        rights = right.select("k", rw=col("w"), rpk=col("pk"))
        return left.select("pk", "k", "w").join(rights, on="k", how=how)

    def of(left: Rows, right: Rows) -> Rows:
        rights = [{"k": row["k"], "rw": row["w"], "rpk": row["pk"]} for row in right]
        own = () if how in ("semi", "anti") else ("rw", "rpk")
        return joined(left, rights, "k", how, (("pk", "w"), own))

    return Query(plan, of, sides=2)


def _join_of_rows(how: str, *, left: bool, right: bool) -> Query:
    """Return a join of rows that nothing known tells apart, on one side or on both."""
    lefts, rights = ("pk", "w")[not left :], ("rw", "rpk")[: 1 + right]

    def plan(one: Any, other: Any) -> Any:
        return one.select("k", *lefts).join(other.select("k", rw=col("w"), rpk=col("pk")).select("k", *rights), on="k", how=how)

    def of(one: Rows, other: Rows) -> Rows:
        others = [{"k": row["k"], "rw": row["w"], "rpk": row["pk"]} for row in other]
        return joined(one, others, "k", how, (lefts, () if how in ("semi", "anti") else rights))

    return Query(plan, of, sides=2)


def _first_rows_joined(left: Any, right: Any) -> Any:
    return left.select("pk", "k", "w", "seq").key_by("k").top_rows(2, by="w").join(right.select("k", rpk=col("pk")), on="k")


def _first_rows_joined_of(left: Rows, right: Rows) -> Rows:
    rights = [{"k": row["k"], "rpk": row["pk"]} for row in right]
    return joined(_top(None).of(left), rights, "k", "inner", (("pk", "w", "seq"), ("rpk",)))


def _join_then_sum(left: Any, right: Any) -> Any:
    totals = right.key_by("k").agg(n=count())
    return left.select("pk", "k", "w").join(totals, on="k", how="left").key_by("n").agg(rows=count(), w=sum("w"))


def _join_then_sum_of(left: Rows, right: Rows) -> Rows:
    totals = grouped(right, ("k",), {"n": len})
    met = joined(left, totals, "k", "left", (("pk", "w"), ("n",)))
    return grouped(met, ("n",), {"rows": len, "w": _some(lambda values: builtins.sum(values), "w")})


QUERIES: dict[str, Query] = {
    "rows": Query(lambda stream: stream, lambda rows: rows),
    "sums": Query(_sums, _sums_of),
    "extremes": Query(_extremes, _extremes_of),
    "chained": Query(_chained, _chained_of),
    "parts of sums": Query(
        lambda stream: _sums(stream).select("k", much=col("n") > 2),
        lambda rows: [{"k": row["k"], "much": row["n"] > 2} for row in _sums_of(rows)],
    ),
    "a part of ranked rows": Query(
        lambda stream: _top("place").plan(stream).select("w"), lambda rows: [{"w": row["w"]} for row in _top("place").of(rows)]
    ),
    "a log of groups": Query(
        _log_of_groups, lambda rows: [{"k": group["k"], "net": 1} for group in grouped(rows, ("k",), {"n": len})]
    ),
    "distinct rows": Query(lambda stream: stream.select("k", "w").distinct(), lambda rows: grouped(rows, ("k", "w"), {})),
    "union": Query(
        lambda left, right: left.select("k", "w").union(right.select("k", "w")),
        lambda left, right: [{name: row[name] for name in ("k", "w")} for row in (*left, *right)],
        sides=2,
    ),
    "union by key": Query(
        lambda left, right: left.select("k", "pk", "w").union(right.select("k", "pk", "w")),
        lambda left, right: [{name: row[name] for name in ("pk", "k", "w")} for row in (*left, *right)],
        sides=2,
    ),
    "union, then a total": Query(
        lambda left, right: left.select("k").union(right.select("k")).key_by("k").agg(n=count()),
        lambda left, right: grouped([*left, *right], ("k",), {"n": len}),
        sides=2,
    ),
    "everything": Query(_everything, _everything_of),
    "first rows": _top(None),
    "ranked rows": _top("place"),
    "first rows, then a total": Query(
        lambda stream: _top(None).plan(stream).agg(n=count()), lambda rows: grouped(_top(None).of(rows), (), {"n": len})
    ),
    "join, then a total": Query(_join_then_sum, _join_then_sum_of, sides=2),
    "first rows, joined": Query(_first_rows_joined, _first_rows_joined_of, sides=2),
    **{f"{how} join of rows": _join_of_rows(how, left=False, right=False) for how in ("inner", "full", "semi", "anti")},
    "left join of rows with a table": _join_of_rows("left", left=False, right=True),
    "right join of rows with a table": _join_of_rows("right", left=False, right=True),
    "full join of a table with rows": _join_of_rows("full", left=True, right=False),
    **{f"{how} join": _join(how) for how in ("inner", "left", "right", "full", "semi", "anti")},
}


def changes(draw: random.Random, n: int, at: int) -> Rows:
    """Return changes of a few keys, some stale, some that come twice, some that change nothing."""
    rows = list[Row]()
    for number in range(n):
        if rows and draw.random() < 0.1:
            rows.append(dict(draw.choice(rows)))
            continue
        op = draw.choice(("+I", "+U", "+U", "-D", "-U"))
        seq = at + number - (draw.randrange(8) if draw.random() < 0.3 else 0)
        row = {"op": op, "pk": draw.randrange(6), "k": draw.choice(("x", "y", None)), "v": draw.choice(VALUES), "seq": seq}
        rows.append(row | {"w": draw.choice((None, 1, 2, 3, 2**60, -5))})
    return rows


def batches_of(draw: random.Random, sides: int) -> list[dict[str, Rows]]:
    """Return batches of changes, by side."""
    names = ("left", "right")[:sides]
    return [{name: changes(draw, draw.randrange(9), 20 * number) for name in names} for number in range(draw.randrange(1, 9))]


def unchanged(given: Rows) -> set[str]:
    """Return what a batch both withdraws and gives."""
    signs = ([repr({n: v for n, v in row.items() if n != "op"}) for row in given if row["op"][0] == sign] for sign in "-+")
    return set(next(signs)) & set(next(signs))


def plan_of(query: Query, sequence: str | None, each: bool, made: Callable[[], Any]) -> Any:
    """Return the plan of a query over changing streams."""
    how = "each" if each else "net"
    return query.plan(*(made().from_changelog("log", "pk", sequence=sequence, changes=how) for _ in range(query.sides)))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("seed", range(scaled(12)))
def test_folded_results_are_the_query_over_the_contents(name: str, seed: int, tmp_path: Path) -> None:
    draw, query = random.Random(f"{name} {seed}"), QUERIES[name]
    sequence, each = draw.choice((None, "seq")), draw.random() < 0.3
    driver = Driver(plan_of(query, sequence, each, lambda: stream_of(DDL)))
    contents = {side: Content("pk", sequence) for side in ("left", "right")[: query.sides]}
    given = list[Row]()
    for number, batch in enumerate(batches_of(draw, query.sides)):
        out = driver.send(batch if query.sides > 1 else batch["left"])
        given += (more := out.results.to_pylist())
        assert each or not unchanged(more), f"batch {number}"
        for side, rows in batch.items():
            for row in rows:
                contents[side].apply(row)
        wanted = counted(query.of(*(content.rows for content in contents.values())))
        assert folded(given) == wanted, f"batch {number}"
        if draw.random() < 0.2:
            path = driver.savepoint(str(tmp_path / str(number)))
            driver = Driver(plan_of(query, sequence, each, lambda: stream_of(DDL)), savepoint=path)


@pytest.mark.parametrize("seed", range(scaled(10)))
def test_counts_of_a_changelog(seed: int) -> None:
    draw = random.Random(seed)
    sequence = draw.choice((None, "seq"))
    driver, content = Driver(stream_of(DDL).from_changelog("log", "pk", sequence=sequence)), Content("pk", sequence)
    for batch in batches_of(draw, 1):
        rows = [row | ({"op": "?"} if draw.random() < 0.1 else {}) for row in batch["left"]]
        driver.send(rows)
        for row in rows:
            content.apply(row)
    names = ("unchanged", "unknown_delete", "stale")
    assert {n: driver.counters.get(n, 0) for n in names} == {n: content.counted[n] for n in names}


SQL = {
    "sums": "SELECT k, count(*) AS n, sum(w)::BIGINT AS w, count(v) AS some FROM left_rows GROUP BY k",
    "left join": """SELECT l.k, l.pk, l.w, r.w AS rw, r.pk AS rpk FROM left_rows l LEFT JOIN right_rows r ON l.k = r.k""",
    "full join": """SELECT coalesce(l.k, r.k) AS k, l.pk, l.w, r.w AS rw, r.pk AS rpk
                    FROM left_rows l FULL JOIN right_rows r ON l.k = r.k""",
    "anti join": "SELECT k, pk, w FROM left_rows l WHERE NOT EXISTS (SELECT 1 FROM right_rows r WHERE r.k = l.k)",
    "first rows": """SELECT pk, k, w, seq FROM left_rows
                     QUALIFY row_number() OVER (PARTITION BY k ORDER BY w DESC NULLS LAST, pk, seq) <= 2""",
}


@pytest.mark.parametrize("name", SQL)
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_folded_results_are_what_duckdb_gives_for_the_contents(name: str, seed: int) -> None:
    draw, query = random.Random(f"sql {name} {seed}"), QUERIES[name]
    stream = query.plan(*(stream_of(DDL).from_changelog("log", "pk") for _ in range(query.sides)))
    stream = stream.select("k", "n", "w", "some") if name == "sums" else stream
    driver, contents = Driver(stream), {side: Content("pk", None) for side in ("left", "right")}
    given = list[Row]()
    types = pa.schema([("pk", pa.int64()), ("k", pa.string()), ("v", pa.float64()), ("w", pa.int64()), ("seq", pa.int64())])
    for batch in batches_of(draw, query.sides):
        for row in (row for rows in batch.values() for row in rows):
            row["w"] = None if row["w"] is None else row["w"] % 7
        given += driver.send(batch if query.sides > 1 else batch["left"]).results.to_pylist()
        for side, rows in batch.items():
            for row in rows:
                contents[side].apply(row)
        database = duckdb.connect()
        for side, content in contents.items():
            database.register(f"{side}_rows", pa.Table.from_pylist([{n: r[n] for n in COLUMNS} for r in content.rows], types))
        assert folded(given) == counted(database.sql(SQL[name]).arrow().read_all().to_pylist())


def _ops(driver: Driver, rows: Sequence[Row] | dict[str, Rows]) -> list[tuple[Any, ...]]:
    return [(row["op"], *(v for n, v in row.items() if n != "op")) for row in driver.send(rows).results.to_pylist()]


def _changes(*rows: tuple[str, int, Any, Any]) -> Rows:
    return [dict(zip(("op", "pk", "k", "v"), row, strict=True)) for row in rows]


PLAIN = "op string, pk bigint, k string, v double"


def test_c1_insert_update_delete() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk"))
    assert _ops(driver, _changes(("+I", 1, "a", 5.0))) == [("+I", 1, "a", 5.0)]
    assert _ops(driver, _changes(("+U", 1, "a", 7.0))) == [("-U", 1, "a", 5.0), ("+U", 1, "a", 7.0)]
    assert _ops(driver, _changes(("-D", 1, None, None))) == [("-D", 1, "a", 7.0)]


def test_c2_and_c3_a_deletion_of_an_unknown_key_and_the_same_row_again_give_nothing() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk"))
    assert _ops(driver, _changes(("-D", 9, None, None))) == []
    driver.send(_changes(("+I", 1, "a", 5.0)))
    assert _ops(driver, _changes(("+U", 1, "a", 5.0))) == []
    assert (driver.counters["unknown_delete"], driver.counters["unchanged"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "rows", "left"),
    [
        ("c4", [("+I", 7.0, 20), ("+U", 5.0, 10)], 7.0),
        ("c5", [("+I", 5.0, 10), ("-D", None, 30), ("+I", 6.0, 20)], None),
        ("c6", [("+I", 5.0, 10), ("+U", 6.0, 10)], 5.0),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_c4_to_c6_changes_at_or_below_the_last_sequence_are_stale(name: str, rows: Any, left: Any, at_once: bool) -> None:
    driver = Driver(stream_of("op string, pk bigint, v double, seq bigint").from_changelog("log", "pk", sequence="seq"))
    sent = [{"op": op, "pk": 1, "v": v, "seq": seq} for op, v, seq in rows]
    given = [row for part in ([sent] if at_once else [[one] for one in sent]) for row in driver.send(part).results.to_pylist()]
    assert list(folded(given)) == [text_of({"pk": 1, "v": left, "seq": _sequence_of(rows, left)})][: left is not None], name
    assert driver.counters["stale"] == 1


def _sequence_of(rows: Any, left: Any) -> int:
    """Return the sequence that a value came with."""
    return next((seq for _, v, seq in rows if v == left), 0)


def test_c7_to_c9_a_batch_hands_on_the_net_change_of_a_key() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk"))
    assert _ops(driver, _changes(("+I", 1, "a", 5.0), ("+U", 1, "a", 6.0), ("-D", 1, None, None))) == []
    driver.send(_changes(("+I", 1, "a", 5.0)))
    assert _ops(driver, _changes(("+U", 1, "a", 6.0), ("+U", 1, "a", 5.0))) == []
    assert _ops(driver, _changes(("-D", 1, None, None), ("+I", 1, "b", 5.0))) == [("-U", 1, "a", 5.0), ("+U", 1, "b", 5.0)]


def test_c26_the_last_matches_of_both_sides_leave_in_one_batch() -> None:
    left, right = (stream_of(f"op string, {name} bigint, k string").from_changelog("log", name) for name in ("l", "r"))
    driver = Driver(left.join(right, on="k", how="full"))
    driver.send({"left": [{"op": "+I", "l": 1, "k": "x"}], "right": [{"op": "+I", "r": 2, "k": "x"}]})
    moved = {"left": [{"op": "+U", "l": 1, "k": "y"}], "right": [{"op": "+U", "r": 2, "k": "z"}]}
    given = _ops(driver, moved)
    assert sorted(map(str, given)) == sorted(map(str, [("-D", "x", 1, 2), ("+I", "y", 1, None), ("+I", "z", None, 2)]))


def test_c10_floats_are_taken_back_exactly() -> None:
    totals = stream_of(PLAIN).from_changelog("log", "pk").key_by("k").agg(n=count(), s=sum("v"), low=min("v"))
    driver = Driver(totals)
    driver.send(_changes(("+I", 1, "x", 0.1), ("+I", 2, "x", 1e16)))
    assert _ops(driver, _changes(("-D", 2, None, None))) == [("-U", "x", 2, 1e16, 0.1), ("+U", "x", 1, 0.1, 0.1)]


def test_c11_one_of_two_equal_minima_leaves() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk").key_by("k").agg(low=min("v")))
    driver.send(_changes(("+I", 1, "x", 5.0), ("+I", 2, "x", 3.0), ("+I", 3, "x", 3.0)))
    assert _ops(driver, _changes(("-D", 2, None, None))) == []


def test_c12_and_c13_a_row_leaves_its_group_and_changes_it() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk").key_by("k").agg(n=count()))
    driver.send(_changes(("+I", 1, "x", 5.0)))
    assert _ops(driver, _changes(("+U", 1, "y", 5.0))) == [("-D", "x", 1), ("+I", "y", 1)]
    assert _ops(driver, _changes(("-D", 1, None, None))) == [("-D", "y", 1)]


def test_c14_an_update_that_changes_no_aggregate_gives_nothing() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk").key_by("k").agg(n=count()))
    driver.send(_changes(("+I", 1, "x", 5.0)))
    assert _ops(driver, _changes(("+U", 1, "x", 6.0))) == []


def test_c15_a_group_of_nulls_only() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk").key_by("k").agg(n=count(), s=sum("v")))
    assert _ops(driver, _changes(("+I", 1, "x", None))) == [("+I", "x", 1, None)]


def test_c16_and_c17_the_row_of_nulls_goes_and_comes_back() -> None:
    right = stream_of("pk bigint, k string, w bigint").from_changelog("upsert", "pk").select("pk", "k", "w")
    driver = Driver(stream_of("id bigint, k string").join(right, on="k", how="left"))
    driver.send({"left": [{"id": 1, "k": "x"}]})
    assert _ops(driver, {"right": [{"pk": 7, "k": "x", "w": 1}]}) == [("-D", "x", 1, None, None), ("+I", "x", 1, 7, 1)]
    assert _ops(driver, {"right": [{"pk": 7}]}) == [("-D", "x", 1, 7, 1), ("+I", "x", 1, None, None)]


def test_c18_null_keys_do_not_meet() -> None:
    driver = Driver(stream_of("id bigint, k string").join(stream_of("k string, w bigint"), on="k", how="full"))
    out = _ops(driver, {"left": [{"id": 1, "k": None}], "right": [{"k": None, "w": 2}]})
    assert sorted(map(str, out)) == sorted(map(str, [("+I", None, 1, None), ("+I", None, None, 2)]))


def test_c19_and_c20_first_rows_come_back_and_ties_go_by_the_row() -> None:
    table = stream_of("pk bigint, k string, v bigint").from_changelog("upsert", "pk")
    driver = Driver(table.key_by("k").top_rows(2, by="v"))
    driver.send([{"pk": 1, "k": "x", "v": 5}, {"pk": 2, "k": "x", "v": 7}, {"pk": 3, "k": "x", "v": 6}])
    assert _ops(driver, [{"pk": 2}]) == [("-D", 2, "x", 7), ("+I", 1, "x", 5)]
    one = Driver(table.key_by("k").top_rows(1, by="v"))
    one.send([{"pk": 5, "k": "x", "v": 7}])
    assert _ops(one, [{"pk": 2, "k": "x", "v": 7}]) == [("-D", 5, "x", 7), ("+I", 2, "x", 7)]


def test_c21_a_key_that_changes_in_one_batch_and_in_three() -> None:
    ddl = "op string, before struct<id: bigint, name: string>, after struct<id: bigint, name: string>"
    there = [{"op": "c", "before": None, "after": {"id": 1, "name": "a"}}]
    moved = [
        {"op": "d", "before": {"id": 1, "name": "a"}, "after": None},
        {"op": None, "before": None, "after": None},
        {"op": "c", "before": None, "after": {"id": 2, "name": "a"}},
    ]
    tables = []
    for batches in ([moved], [[one] for one in moved]):
        driver = Driver(stream_of(ddl).from_changelog("debezium", "id"))
        given = driver.send(there).results.to_pylist()
        for batch in batches:
            given += driver.send(batch).results.to_pylist()
        tables.append(folded(given))
        assert driver.counters.get("refused_changes", 0) == 0
    assert tables[0] == tables[1] == counted([{"id": 2, "name": "a"}])


def test_c22_snapshot_rows_again_give_nothing() -> None:
    ddl = "payload struct<op: string, before: struct<id: bigint, n: bigint>, after: struct<id: bigint, n: bigint>>"
    driver = Driver(stream_of(ddl).from_changelog("debezium", "id"))
    rows = [{"payload": {"op": "r", "before": None, "after": {"id": 1, "n": 5}}}]
    assert _ops(driver, rows) == [("+I", 1, 5)]
    assert _ops(driver, rows) == []


def test_c31_values_of_withdrawals_match_as_keys_do() -> None:
    driver = Driver(stream_of(PLAIN).from_changelog("log", "pk").key_by("v").agg(n=count()))
    driver.send(_changes(("+I", 1, "x", math.nan), ("+I", 2, "x", -0.0), ("+I", 3, "x", 0.0)))
    out = _ops(driver, _changes(("-D", 1, None, None), ("-D", 2, None, None)))
    assert sorted((op, str(v), n) for op, v, n in out) == [("+U", "0.0", 1), ("-D", "nan", 1), ("-U", "0.0", 2)]


def test_nested_values_are_kept_and_taken_back() -> None:
    ddl = "op string, pk bigint, k string, tags array<string>, at struct<x: bigint, y: double>"
    table = stream_of(ddl).from_changelog("log", "pk")
    driver = Driver(
        table.key_by("k").agg(tags=collect_list("tags"), points=collect_list("at"), sd=stddev(col("at").field("x")))
    )
    rows = [{"op": "+I", "pk": pk, "k": "x", "tags": ["a", None], "at": {"x": pk, "y": 0.5}} for pk in (1, 2)]
    driver.send(rows)
    out = driver.send([{"op": "-D", "pk": 1}]).results.to_pylist()
    assert [row["tags"] for row in out] == [[["a", None], ["a", None]], [["a", None]]]
    assert out[1]["points"] == [{"x": 2, "y": 0.5}]
    assert driver.send(rows[1:]).results.num_rows == 0


@pytest.mark.parametrize("seed", range(scaled(4)))
def test_a_log_has_the_changes_of_the_table_as_rows(seed: int) -> None:
    draw = random.Random(seed)
    batches = batches_of(draw, 1)
    table = Driver(_sums(stream_of(DDL).from_changelog("log", "pk")))
    log = Driver(_sums(stream_of(DDL).from_changelog("log", "pk")).to_changelog("kind"))
    for batch in batches:
        given, rows = table.send(batch["left"]).results, log.send(batch["left"]).results
        assert repr(rows.rename_columns(given.column_names).to_pylist()) == repr(given.to_pylist())
    assert log.close().results.num_rows == 0


def test_changes_of_windows_are_rows_that_nothing_follows_by_time() -> None:
    windows = stream_of("k string, at bigint").watermark("at", 0).key_by("k").allowed_lateness(100).tumbling_window(10)
    log = windows.agg(n=count()).emit("retractions").to_changelog()
    driver = Driver(log.select("k", "n", "op"))
    sent = ([{"k": "a", "at": at}] for at in (5, 20, 6))
    given = [[tuple(row.values()) for row in driver.send(rows).results.to_pylist()] for rows in sent]
    assert given == [[], [("a", 1, "+I")], [("a", 1, "-U"), ("a", 2, "+U")]]
    with pytest.raises(PlanError, match="without event time"):
        log.key_by("k").tumbling_window(10).agg(count())


def test_the_bounded_run_of_a_log_has_all_changes() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, n bigint")
        for n in (1, 2):
            sender.send([{"user": "a", "n": n}])
        sender.close()
        log = stream.key_by("user").agg(total=sum("n")).to_changelog().collect().to_pylist()
    assert [(row["op"], row["total"]) for row in log] == [("+I", 1), ("-U", 1), ("+U", 3)]
