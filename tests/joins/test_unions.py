"""A union with one watermark is a side of a join as a stream with the same rows is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, ManualClock, stream_of, union_of
from krishiv_py.windows import tumbling

COLUMNS = "id bigint, at bigint"
SENDS = [
    {"web": [(1, 1), (2, 3)], "shop": [(1, 2)], "paid": [(1, 4)]},
    {"shop": [(3, 14), (2, 15)], "paid": [(2, 12), (3, 13)]},
    {"web": [(1, 1), (9, 26)], "paid": [(9, 25)]},
    {"web": [(2, 31)], "paid": [(2, 30), (9, 11)]},
]

Join = Callable[[Any, Any], kv.ResultStream]


def interval(how: Any) -> Join:
    return lambda one, two: one.interval_join(two, on="id", lower=-5, upper=10, how=how)


JOINS: dict[str, Join] = {
    **{f"interval {how}": interval(how) for how in ("inner", "left", "right", "full", "semi", "anti")},
    "window": lambda one, two: one.window_join(two, on="id", window=tumbling(10), how="full"),
    "as of": lambda one, two: one.asof_join(two, on="id", direction="nearest", tolerance=5),
}


def rows(pairs: list[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"id": id_, "at": time} for id_, time in pairs]


def united(streams: dict[str, kv.Stream]) -> kv.TimedStream:
    return union_of(streams).select("id", "at").watermark("at", 2)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_it_joins_as_one_stream(join: str, side: str) -> None:
    streams = {name: stream_of(COLUMNS) for name in ("web", "shop")}
    paid, whole = (stream_of(COLUMNS).watermark("at", 2) for _ in range(2))
    other = "right" if side == "left" else "left"
    both = [united(streams), paid] if side == "left" else [paid, united(streams)]
    one = [whole, paid] if side == "left" else [paid, whole]
    ours, theirs = Driver(JOINS[join](*both)), Driver(JOINS[join](*one))
    with pytest.raises(PlanError, match="rows of a join belong to one of its sides"):
        ours.send([{"id": 1, "at": 1}])
    for sent in SENDS:
        parts = [(f"{side}.{name}", rows(sent.get(name, []))) for name in ("web", "shop")]
        ours = ours.restarted()
        got = ours.send(dict([*parts, (other, rows(sent["paid"]))]))
        want = theirs.send({side: [row for _, some in parts for row in some], other: rows(sent["paid"])})
        assert got.results.to_pylist() == want.results.to_pylist()
        assert got.late.num_rows == want.late.num_rows and got.watermark_us == want.watermark_us
    assert ours.close().results.to_pylist() == theirs.close().results.to_pylist()
    assert theirs.counters == ours.counters


def test_of_results_and_a_union_with_an_idle_side_too() -> None:
    streams = {name: stream_of(COLUMNS) for name in ("web", "shop")}
    counted = stream_of(COLUMNS).watermark("at", 0).key_by("id").tumbling_window(10).agg(kv.count())
    given = []
    for left in (united(streams), stream_of(COLUMNS).watermark("at", 2)):
        driver = Driver(left.interval_join(counted, on="id", lower=-20, upper=20, idle_timeout="5 s"), clock=ManualClock())
        own = [name for name in driver._driver_input._streams if name.startswith("left")]
        parts = [rows([(1, 5)]), rows([(1, 7)])] if len(own) == 2 else [rows([(1, 5), (1, 7)])]
        out = [driver.send({**dict(zip(own, parts, strict=True)), "right": rows([(1, 1), (1, 11)])})]
        out.append(driver.send({"right": rows([(1, 35)])}))
        driver.clock.advance("6 s")
        out += [driver.tick(), driver.send({"right": rows([(1, 55)])}), driver.close()]
        given.append([(one.watermark_us, sorted(map(str, one.results.to_pylist()))) for one in out])
    assert given[0] == given[1] and any(results for _, results in given[0])


@pytest.mark.parametrize("workers", [1, 3])
def test_it_ends_with_the_last_of_its_streams(workers: int) -> None:
    with kv.Session.in_process(workers=workers) as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("web", "shop", "paid")}
        orders = session.union({name: made[name][0] for name in ("web", "shop")}).watermark("at", 2)
        joined = orders.interval_join(made["paid"][0].watermark("at", 2), on="id", lower=0, upper=10, how="left")
        query = joined.start(sink := kv.MemorySink())
        for sent in SENDS:
            for name, pairs in sent.items():
                made[name][1].send(rows(pairs))
                query.process_all_available()
        seen = []
        for name in ("web", "paid", "shop"):
            made[name][1].close()
            query.process_all_available()
            seen.append(query.progress.watermark_us)
        assert seen == [28_000, 29_000, END_OF_TIME]
        table = sink.table()
        assert table is not None and sorted(map(str, table.to_pylist())) == sorted(map(str, joined.collect().to_pylist()))


def test_a_union_of_unions_has_the_streams_of_all() -> None:
    inner = union_of({"web": stream_of(COLUMNS), "shop": stream_of(COLUMNS)}, source_column="place")
    whole = union_of({"old": inner, "new": inner.select("id", "at", place=kv.lit("new"))}, source_column="age").watermark(
        "at", 0
    )
    driver = Driver(whole.key_by("age", "place").tumbling_window(10).agg(kv.count()))
    driver.send({"old.web": rows([(1, 1)]), "old.shop": rows([(1, 2)]), "new.web": rows([(1, 3), (1, 4)])})
    given = driver.close().results.to_pylist()
    assert sorted((r["age"], r["place"], r["count"]) for r in given) == [
        ("new", "new", 2),
        ("old", "shop", 1),
        ("old", "web", 1),
    ]


def test_in_sql_a_registered_union_is_joined() -> None:
    context = SqlContext()
    context.register("orders", union_of({"web": stream_of(COLUMNS), "shop": stream_of(COLUMNS)}), event_time="at", lag=0)
    context.register("paid", stream_of(COLUMNS), event_time="at", lag=0)
    on = "o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL '10' MILLISECONDS"
    text = f"SELECT o.id, o.source, p.at AS paid FROM orders o JOIN paid p ON {on}"
    joined = context.sql(text)
    assert isinstance(joined, kv.ResultStream)
    driver = Driver(joined)
    streams = [name for name in driver._driver_input._streams if name.startswith("left.")]
    out = driver.send({**{name: rows([(n, 1)]) for n, name in enumerate(streams)}, "right": rows([(1, 3)])})
    assert out.results.to_pylist() == [{"id": 1, "source": "shop", "paid": 3}]


def test_a_side_with_a_watermark_for_each_source_says_what_to_write() -> None:
    spec = kv.MultiSourceWatermarkSpec.new()
    for name in ("web", "shop"):
        spec = spec.source(name, kv.WatermarkSpec.fixed_lag(5))
    by_source = union_of({name: stream_of(COLUMNS) for name in ("web", "shop")}).with_watermark(
        spec, "at", source_column="source"
    )
    with pytest.raises(
        PlanError, match=r"left side of a join has a watermark for each.*min over web.*\.watermark\('at', '5 ms'\)"
    ) as refused:
        JOINS["window"](by_source, stream_of(COLUMNS).watermark("at", 0))
    assert "WatermarkSpec(" not in str(refused.value)
