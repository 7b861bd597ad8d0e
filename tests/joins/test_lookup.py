"""Lookup joins against a dictionary (SEMANTICS §9.3)."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.errors import ColumnError, PlanError, SchemaError, SourceError
from krishiv_py.testing import Driver, ManualClock, stream_of

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 20)), max_size=10)
TABLE = st.lists(
    st.tuples(st.sampled_from(["a", "b", "d", None]), st.none() | st.integers(0, 20), st.none() | st.integers(0, 20)),
    max_size=8,
)


def seen(stream: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they come out of the step, in order."""
    keyed = stream.watermark("at", 10**6).lookback_window(0, with_row=True, emit="arrival").agg(kv.count().alias("_"))
    driver = Driver(keyed)
    out = driver.send(rows).results.to_pylist() if rows else []
    return [{k: v for k, v in r.items() if k not in ("_", "window_start", "window_end")} for r in out]


@given(ROWS, TABLE, st.booleans(), st.booleans())
def test_rows_find_what_a_loop_finds(rows: Any, table: Any, inner: bool, timed: bool) -> None:
    actual = pa.table(
        {
            "code": pa.array([k for k, _, _ in table], pa.string()),
            "from": pa.array([f for _, f, _ in table], pa.int64()),
            "to": pa.array([t for _, _, t in table], pa.int64()),
            "n": pa.array(range(len(table)), pa.int64()),
        }
    )
    time: dict[str, Any] = {"validity": ("from", "to"), "at": "at"} if timed else {}
    stream = stream_of("key string, at bigint").lookup_join(
        actual, {"key": "code"}, columns=["n"], how="inner" if inner else "left", **time
    )
    wanted: list[dict[str, Any]] = []
    for key, moment in rows:
        partners: list[int | None] = [
            n
            for n, (k, f, t) in enumerate(table)
            if k is not None and k == key and (not timed or ((f is None or f <= moment) and (t is None or moment < t)))
        ]
        wanted += [{"key": key, "at": moment, "n": n} for n in (partners or ([] if inner else [None]))]
    found_rows = seen(stream, [{"key": k, "at": t} for k, t in rows])
    assert sorted(map(repr, found_rows)) == sorted(map(repr, wanted))


@given(ROWS, TABLE, st.booleans(), st.booleans(), st.integers(1, 10))
def test_results_find_what_a_loop_finds(rows: Any, table: Any, inner: bool, timed: bool, cut: int) -> None:
    actual = pa.table(
        {
            "code": pa.array([k for k, _, _ in table], pa.string()),
            "from": pa.array([f for _, f, _ in table], pa.int64()),
            "to": pa.array([t for _, _, t in table], pa.int64()),
            "n": pa.array(range(len(table)), pa.int64()),
        }
    )
    time: dict[str, Any] = {"validity": ("from", "to"), "at": "window_time"} if timed else {}
    counted = stream_of("key string, at bigint").watermark("at", 5).key_by("key").tumbling_window(5).agg(kv.count())
    looked = counted.lookup_join(actual, {"key": "code"}, columns=["n"], how="inner" if inner else "left", **time)
    windows = looked.key_by("n").tumbling_window(10).agg(kv.sum("count"), kv.count().alias("keys"))
    plain: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    for plan, results in ((counted, plain), (windows, late)):
        driver = Driver(plan)
        for first in range(0, len(rows), cut):
            batch = [{"key": key, "at": moment} for key, moment in rows[first : first + cut]]
            results += driver.send(batch).results.to_pylist()
        results += driver.close().results.to_pylist()
    wanted: dict[tuple[int | None, int], tuple[int, int]] = {}
    for row in plain:
        moment = row["window_end"] - 1
        partners: list[int | None] = [
            n
            for n, (k, f, t) in enumerate(table)
            if k is not None and k == row["key"] and (not timed or ((f is None or f <= moment) and (t is None or moment < t)))
        ]
        for n in partners or ([] if inner else [None]):
            total, keys = wanted.get((n, moment // 10 * 10), (0, 0))
            wanted[n, moment // 10 * 10] = total + row["count"], keys + 1
    assert {(r["n"], r["window_start"]): (r["sum_count"], r["keys"]) for r in late} == wanted
    assert len(late) == len(wanted)


MOMENTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [None, -(2**63), -(10**17), -5, 0, 5, 10**17, 2**63 - 1]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [None, *(dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) for year in (1, 1700, 1969, 1970, 2024, 2200, 9999))],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [None, *(dt.datetime(year, 1, 1) for year in (1, 1700, 1969, 1970, 2024, 2200, 9999))],
    ),
}


def valid_at(kind: str) -> tuple[Any, list[dict[str, Any]], list[list[int]]]:
    """A stream that looks up every pair of bounds, its rows, and what each of them finds."""
    type_, bounds = MOMENTS[kind]
    table = [(since, until) for since in bounds for until in bounds]
    columns = [pa.array([row[moment] for row in table], type_) for moment in (0, 1)]
    actual = pa.table({"key": ["a"] * len(table), "since": columns[0], "until": columns[1], "n": range(len(table))})
    moment = [bound for bound in bounds if bound in (None, -5, 0, 5) or getattr(bound, "year", 0) in (1969, 1970, 2024)]
    wanted = [
        [n for n, (f, t) in enumerate(table) if m is not None and (f is None or f <= m) and (t is None or m < t)]
        for m in moment
    ]
    stream = stream_of(f"key string, id bigint, at {kind}")
    looked = stream.lookup_join(actual, "key", columns=["n"], at="at", validity=("since", "until"))
    return looked.select("id", "n"), [{"key": "a", "id": n, "at": m} for n, m in enumerate(moment)], wanted


@pytest.mark.parametrize("kind", MOMENTS)
def test_null_is_no_bound_and_one_beyond_all_event_times_neither(kind: str) -> None:
    looked, rows, wanted = valid_at(kind)
    out = Driver(looked).send(rows).results.to_pylist()
    assert [sorted(r["n"] for r in out if r["id"] == n and r["n"] is not None) for n in range(len(rows))] == wanted


def test_null_is_no_bound_on_spark(session: kv.Session) -> None:
    sold = pa.table({"key": ["a"] * 4, "at": [-(10**9), 0, 5, 10**14]})
    table = pa.table(
        {
            "key": ["a"] * 4,
            "since": [None, None, 0, 5],
            "until": [None, 5, None, 2**63 - 1],
            "n": ["always", "old", "new", "on"],
        }
    )
    stream, sender = session.memory_stream("key string, at bigint")
    sender.send(sold)
    sender.close()
    looked = stream.lookup_join(table, "key", columns=["n"], at="at", validity=("since", "until"))
    counted = looked.watermark("at", 0).key_by("n").tumbling_window(1).agg(kv.count()).collect().to_pylist()
    actual = {moment: sorted(row["n"] for row in counted if row["window_start"] == moment) for moment in sold["at"].to_pylist()}
    assert actual == {
        -(10**9): ["always", "old"],
        0: ["always", "new", "old"],
        5: ["always", "new", "on"],
        10**14: ["always", "new", "on"],
    }


def test_results_are_looked_up_as_they_leave() -> None:
    cities = pa.table({"key": ["a", "b"], "city": ["Ulm", "Rom"]})
    counted = stream_of("key string, at bigint").watermark("at", 0).key_by("key").tumbling_window(5).agg(kv.count())
    driver = Driver(counted.emit("retractions").allowed_lateness(5).lookup_join(cities, "key", how="inner"))
    first = driver.send([{"key": k, "at": t} for k, t in (("a", 1), ("c", 2), ("b", 8))]).results
    assert first.drop_columns(["window_start", "window_end"]).to_pylist() == [
        {"key": "a", "count": 1, "op": "+I", "city": "Ulm"}
    ]
    second = driver.send([{"key": "a", "at": 4}]).results.to_pylist()
    assert [(r["op"], r["count"], r["city"]) for r in second] == [("-U", 1, "Ulm"), ("+U", 2, "Ulm")]
    valid = pa.table({"key": ["a"], "from": [0], "to": [9], "n": [1]})
    actual = Driver(counted.lookup_join(valid, "key", at="window_time", validity=("from", "to")).select("window_end", "n"))
    actual.send([{"key": "a", "at": t} for t in (1, 6, 11)])
    assert [(r["window_end"], r["n"]) for r in actual.close().results.to_pylist()] == [(15, None)]
    with pytest.raises(PlanError, match=r"withdrawn cannot be looked up .*Hint: leave `reload` out"):
        counted.emit("retractions").lookup_join(lambda: cities, "key", reload="1 s")
    with pytest.raises(SchemaError, match="already"):
        counted.lookup_join(cities, "key", columns={"city": "window_time"})


def test_a_function_is_called_again_when_its_table_is_old() -> None:
    calls: list[int] = []

    def load() -> pa.Table:
        calls.append(1)
        return pa.table({"key": ["a"], "n": pa.array([len(calls)], pa.int64())})

    stream = stream_of("key string, at bigint").lookup_join(load, "key", reload="1 us")
    assert seen(stream, [{"key": "a", "at": 1}])[0]["n"] >= 2
    once = stream_of("key string, at bigint").lookup_join(load, "key")
    before = len(calls)
    assert len({seen(once, [{"key": "a", "at": t}])[0]["n"] for t in range(3)}) == 1
    assert len(calls) <= before + 1


def test_a_table_grows_old_by_the_clock_of_the_driver() -> None:
    calls: list[int] = []

    def load() -> pa.Table:
        calls.append(1)
        return pa.table({"key": ["a"], "n": pa.array([len(calls)], pa.int64())})

    clock = ManualClock()
    stream = stream_of("key string, at bigint").lookup_join(load, "key", reload="10 s")
    driver = Driver(stream, clock=clock)
    actual = []
    for seconds in (0, 9, 1, 9, 1):
        clock.advance(f"{seconds} s") if seconds else None
        actual += driver.send([{"key": "a", "at": 1}]).results["n"].to_pylist()
    assert [n - actual[0] for n in actual] == [0, 0, 1, 1, 2]
    other = Driver(stream, clock=ManualClock())
    assert other.send([{"key": "a", "at": 1}]).results["n"].to_pylist() == [actual[-1] + 1]


def test_progress_has_the_version_a_batch_has_seen() -> None:
    held = ["one"]

    def cities() -> pa.Table:
        return pa.table({"key": ["a"], "city": held})

    clock = ManualClock()
    stream = stream_of("key string, at bigint").lookup_join(cities, "key", reload="10 s")
    again = stream.lookup_join(cities, "key", columns={"city": "again"})
    driver = Driver(again, clock=clock)
    assert driver.progress.tables == {}
    versions = []
    for city in ("one", "two", "two"):
        held[0] = city
        clock.advance("10 s")
        assert driver.send([{"key": "a", "at": 1}]).results["city"].to_pylist() == [city]
        versions.append({name: (t.version, t.loaded_us, t.rows) for name, t in driver.progress.tables.items()})
    assert list(versions[0]) == ["cities", "cities 2"]
    assert [v["cities"] for v in versions] == [(1, 10_000_000, 1), (2, 20_000_000, 1), (3, 30_000_000, 1)]
    assert [v["cities 2"][0] for v in versions] == [1, 1, 1]
    assert "table cities: version 3" in str(driver.progress)


PEOPLE = pa.table({"code": ["A", "b", None], "n": [1, 2, 3], "part": [{"key": "a"}, {"key": "b"}, None]})


@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        ([(col("key").upper(), "code")], [1, None, None]),
        ((col("key").upper(), col("code")), [1, None, None]),
        ((col("key"), col("code").lower()), [1, 2, None]),
        ([(col("key").lower(), col("code").lower()), (col("at") * 0 + 1, "n")], [1, None, None]),
        ([("key", col("part").field("key"))], [1, 2, None]),
        ({"key": "code"}, [None, 2, None]),
        ([("key", "code")], [None, 2, None]),
    ],
    ids=str,
)
def test_keys_may_be_computed(on: Any, wanted: list[int | None]) -> None:
    rows = [{"key": k, "at": t} for t, k in enumerate(["a", "b", None])]
    actual = stream_of("key string, at bigint").lookup_join(PEOPLE, on, columns={"n": "found"})
    assert Driver(actual).send(rows).results["found"].to_pylist() == wanted
    plain = actual.watermark("at", 0).lookback_window(0, with_row=True, emit="arrival").agg(kv.count())
    assert Driver(plain).send(rows).results["found"].to_pylist() == wanted


def test_keys_of_results_may_be_computed() -> None:
    counted = stream_of("key string, at bigint").watermark("at", 0).key_by("key").tumbling_window(5).agg(kv.count())
    actual = counted.lookup_join(PEOPLE, [(col("key").upper(), "code")], columns=["n"])
    driver = Driver(actual)
    driver.send([{"key": "a", "at": 1}, {"key": "b", "at": 2}])
    assert {(r["key"], r["n"]) for r in driver.close().results.to_pylist()} == {("a", 1), ("b", None)}
    once = Driver(stream_of("key string, at bigint").lookup_join(PEOPLE, [(col("key").upper(), "code")]))
    assert once._plan.stage.layout.result_schema.names == ["key", "at", "n", "part"]


def test_a_function_that_fails_at_the_call_is_named() -> None:
    def load() -> pa.Table:
        raise RuntimeError("no database, password=hunter2")

    with pytest.raises(SourceError, match=r"cannot be loaded .*no database.*Hint: ") as caught:
        stream_of("key string, at bigint").lookup_join(load, "key")
    assert "hunter2" not in str(caught.value)


SMALL = pa.table({"key": ["a"], "at": [1], "from": [1]})


@pytest.mark.parametrize("later", [RuntimeError("no database"), 5, pa.table({"x": [1]})], ids=["raises", "no table", "columns"])
def test_a_function_that_fails_later_says_what_to_do(later: Any) -> None:
    loaded = iter([SMALL])

    def load() -> Any:
        actual = next(loaded, later)
        if isinstance(actual, Exception):
            raise actual
        return actual

    driver = Driver(stream_of("key string, at bigint").lookup_join(load, "key", columns={"from": "since"}))
    with pytest.raises(
        SourceError, match=r"batch 0: the table of a lookup_join cannot be loaded.*return a pyarrow.Table"
    ) as caught:
        driver.send([{"key": "a", "at": 1}])
    assert str(caught.value).count("Hint: ") == 1 and "map_batches" not in str(caught.value)


def test_a_step_travels_with_its_table() -> None:
    stream = stream_of("key string, at bigint").lookup_join(pa.table({"key": ["a"], "n": [7]}), "key")
    step = pickle.loads(pickle.dumps(stream._node.function))  # type: ignore[attr-defined]
    batch = pa.record_batch({"key": ["a", "z"], "at": [1, 2]})
    assert step(batch).to_pylist() == [{"key": "a", "at": 1, "n": 7}, {"key": "z", "at": 2, "n": None}]


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (PlanError, "takes a table", {"table": 5, "on": "key"}),
    (SchemaError, "already", {"table": SMALL, "on": "key"}),
    (ColumnError, "other types", {"table": pa.table({"key": [1]}), "on": "key"}),
    (ColumnError, "kei", {"table": SMALL, "on": "kei"}),
    (PlanError, "no key", {"table": SMALL, "on": []}),
    (PlanError, "names no columns", {"table": SMALL, "on": 5}),
    (PlanError, "names no columns", {"table": SMALL, "on": [("key", "at", "from")]}),
    (PlanError, "constant is not a key", {"table": SMALL, "on": [("key", kv.lit("a"))]}),
    (ColumnError, "kei", {"table": SMALL, "on": col("kei").lower()}),
    (ColumnError, "other types", {"table": SMALL, "on": [(col("key").length(), "key")]}),
    (ColumnError, "cannot be a key", {"table": SMALL, "on": col("key").split("a")}),
    (ColumnError, "cannot be a key", {"table": pa.table({"key": [["a"]]}), "on": "key"}),
    (PlanError, "needs the time", {"table": SMALL, "on": "key", "columns": [], "validity": ("from", "at")}),
    (PlanError, "function that loads", {"table": SMALL, "on": "key", "columns": [], "reload": 5}),
    (PlanError, "how", {"table": SMALL, "on": "key", "columns": [], "how": "full"}),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG, ids=[w[1] for w in WRONG])
def test_what_is_wrong_is_refused_at_the_call(kind: type[Exception], message: str, call: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"(?s){message}.*Hint: "):
        stream_of("key string, at bigint").lookup_join(**call)


def test_a_frame_and_an_arrow_table_on_spark(session: kv.Session) -> None:
    session.spark.createDataFrame([("c", 4)], "key string, at bigint").createOrReplaceTempView("more_rows")
    stored = session.table("more_rows")
    once = stored.lookup_join(lambda: session.spark.table("more_rows"), "key", columns={"at": "again"})
    assert once.collect().to_pylist() == [{"key": "c", "at": 4, "again": 4}]
    again = stored.lookup_join(lambda: session.spark.table("more_rows"), "key", reload="1 s", columns={"at": "again"})
    assert again.collect().to_pylist() == [{"key": "c", "at": 4, "again": 4}]
    for name, streaming, stated in (("no_rows", False, ""), ("more_rows", True, " as a stream"), ("a b", False, "")):
        with pytest.raises(SourceError, match=rf"the table '{name}' cannot be read{stated} .*Hint: correct the name"):
            session.table(name, streaming=streaming)
    stream, sender = session.memory_stream("key string, at bigint")
    cities = session.spark.createDataFrame([("a", "Ulm"), ("b", "Rom")], "key string, city string")
    actual = stream.lookup_join(cities, "key").lookup_join(pa.table({"city": ["Rom"], "land": ["IT"]}), "city")
    plan = actual.watermark("at", 0).key_by("city", "land").tumbling_window(10).agg(kv.count())
    plan = plan.lookup_join(cities.selectExpr("city AS town", "key AS code"), {"city": "town"})._as_plan()
    sender.send([{"key": "a", "at": 1}, {"key": "b", "at": 2}, {"key": None, "at": 3}])
    sender.close()
    wanted = {("Ulm", None, 1, "a"), ("Rom", "IT", 1, "b"), (None, None, 1, None)}
    assert {(r["city"], r["land"], r["count"], r["code"]) for r in plan.collect().to_pylist()} == wanted
    query = plan.start(kv.MemorySink())
    try:
        query.process_all_available()
        assert {(r["city"], r["land"], r["count"], r["code"]) for r in query.results().to_pylist()} == wanted
    finally:
        query.stop()
