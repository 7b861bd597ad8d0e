"""Hints that can be followed as they are written."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import inspect
import itertools
from typing import Any, TypedDict

import attrs
import pyarrow as pa
import pytest

from krishiv_py import KrishivError, MemorySink, col, count, func
from krishiv_py import max as max_
from krishiv_py import sum as sum_
from krishiv_py.errors import SchemaError
from krishiv_py.plan.schema import as_schema
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of, union_of
from krishiv_py.types import conversion

TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10,2)",
    "decimal(12,3)",
    "decimal(38,0)",
]
TYPES += ["string", "date", "timestamp", "timestamp_ntz"]


def hint_of(problem: BaseException) -> str:
    return str(problem).split("Hint: ")[1].rstrip(".")


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(TYPES, 2)))
def test_the_cast_of_a_join_key_can_be_followed(one: str, other: str) -> None:
    sides = {"left": stream_of(f"k {one}, at bigint"), "right": stream_of(f"k {other}, rt bigint")}

    def joined() -> None:
        sides["left"].watermark("at", 0).interval_join(sides["right"].watermark("rt", 0), on="k", lower=0, upper=10)

    with pytest.raises(KrishivError) as caught:
        joined()
    hint = hint_of(caught.value)
    if ".with_column(" not in hint:
        assert "one type" in hint
        return
    step = ".with_column(" + hint.split(".with_column(")[1].split(", right ")[0]
    for side in sides:
        if f"the {side} side" in hint or "both" in hint:
            written = hint.split(f"{side} .")[1].split(", right ")[0] if f"{side} ." in hint else step[1:]
            sides[side] = eval(f"stream.{written}", {"stream": sides[side], "col": col})  # the hint, as it is written
    joined()


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(TYPES, 2)))
def test_the_cast_of_a_union_can_be_followed(one: str, other: str) -> None:
    streams = {"a": stream_of(f"v {one}, at bigint"), "b": stream_of(f"v {other}, at bigint")}
    with pytest.raises(KrishivError, match="'v' is ") as caught:
        union_of(streams)
    hint = hint_of(caught.value)
    if ".with_column(" not in hint:
        assert "one type" in hint
        return
    for part in hint.split("write ")[1:]:
        step, name = part.removesuffix("; ").rsplit(" on ", 1)
        name = name.strip("'; ")
        streams[name] = eval(f"stream{step}", {"stream": streams[name], "col": col})  # the hint, as it is written
    union_of(streams)


@pytest.mark.parametrize(("one", "other"), [("int", "bigint"), ("bigint", "int"), ("date", "timestamp"), ("int", "string")])
def test_the_cast_of_a_join_in_sql_can_be_followed(one: str, other: str) -> None:
    context = SqlContext()
    context.register("a", stream_of(f"k {one}, at bigint"), event_time="at", lag=0)
    context.register("b", stream_of(f"k {other}, rt bigint"), event_time="rt", lag=0)
    query = "SELECT a.at FROM a JOIN b ON {} AND b.rt BETWEEN a.at AND a.at + 5"
    with pytest.raises(KrishivError, match=r"CAST\(") as caught:
        context.sql(query.format("a.k = b.k"))
    assert context.sql(query.format(hint_of(caught.value).removeprefix("write "))) is not None


def stages() -> list[Any]:
    rows = stream_of("user string, amount double, at timestamp")
    timed = rows.watermark("at", "1 min")
    windows = timed.key_by("user").tumbling_window("1 min")
    return [
        rows,
        rows.key_by("user"),
        timed,
        timed.key_by("user"),
        windows,
        windows.agg(count()),
        windows.agg(count()).results(),
    ]


def calls() -> list[tuple[Any, str]]:
    actual = []
    for stage in stages():
        for name in sorted(n for n in dir(type(stage)) if not n.startswith("_")):
            if callable(getattr(type(stage), name)):
                actual.append((stage, name))
    return actual


@pytest.mark.parametrize(("stage", "name"), calls(), ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_wrong_arguments_are_an_error_of_the_call(stage: Any, name: str) -> None:
    """Missing, unknown and far too many arguments, of every public step of every stage."""
    method = getattr(stage, name)
    with pytest.raises((TypeError, KrishivError)):
        method(no_such_argument=1) if "kwargs" not in str(inspect.signature(method)) else method(*[object()] * 40)
    with pytest.raises((TypeError, KrishivError)):
        method(*[object()] * 40)
    needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty and p.kind not in (2, 4)]
    if needed:
        with pytest.raises((TypeError, KrishivError)):
            method()


def test_a_wrong_call_says_what_to_write() -> None:
    windows = stream_of("user string, amount double, at bigint").watermark("at", 0).tumbling_window("1 min")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'total'"):
        windows.count(total=sum_("amount"))  # type: ignore[call-arg]
    with pytest.raises(KrishivError, match=r"SideOutputLateEventHandler\(MemorySink\(\)\)"):
        windows.agg(count()).with_late_event_handler(MemorySink())  # type: ignore[arg-type]


def test_an_error_inside_of_a_step_is_not_taken_for_a_wrong_call() -> None:
    def broken(batch: Any) -> Any:
        return batch.num_rows + "x"

    rows = stream_of("at bigint").map_batches(broken, "at bigint")
    with pytest.raises(KrishivError, match="map_batches"):
        Driver(rows).send([{"at": 1}])


def test_why_not_fired_names_the_oldest_window_and_reads_what_it_prints() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
    assert "no window waits" in driver.why_not_fired()
    driver.send([{"at": 1_000}, {"at": 12_000}])
    given = driver.why_not_fired()
    assert given.startswith("the window that ends at 1970-01-01T00:00:10Z fires")
    assert driver.why_not_fired("1970-01-01T00:00:10Z") == given == driver.why_not_fired(10_000)
    for text in ("", "soon", "10", "5 seconds"):
        with pytest.raises(KrishivError, match="is not a point in time"):
            driver.why_not_fired(text)


def test_the_hint_for_a_condition_of_a_left_join_gives_the_answer_that_was_wanted() -> None:
    table = pa.table({"u": ["p", "q"], "city": ["Y", "Z"]})
    wanted = [("p", None), ("q", "Z"), ("r", None)]  # LEFT JOIN t ON a.u = t.u AND ...

    def context(of: pa.Table) -> SqlContext:
        made = SqlContext()
        made.register("a", stream_of("u string, x bigint, at bigint"), event_time="at", lag=0)
        made.register("t", of)
        return made

    def rows(made: SqlContext, text: str) -> list[tuple[str, str | None]]:
        plan = made.sql(text)
        assert plan is not None
        driver = Driver(plan)
        sent = driver.send([{"u": u, "x": x, "at": 1} for u, x in (("p", 1), ("q", 9), ("r", 9))])
        return sorted((row["u"], row["city"]) for row in sent.results.to_pylist())

    query = "SELECT a.u, {city} FROM a LEFT JOIN t ON a.u = t.u{more}"
    with pytest.raises(KrishivError, match="Hint: leave it out, and register t without the rows"):
        rows(context(table), query.format(city="city", more=" AND t.city = 'Z'"))
    assert rows(context(table.slice(1)), query.format(city="city", more="")) == wanted
    with pytest.raises(KrishivError) as caught:
        rows(context(table), query.format(city="city", more=" AND a.x > 5"))
    choice = hint_of(caught.value).split("select ")[1].split(", and")[0]
    assert rows(context(table), query.format(city=f"{choice} AS city", more="")) == wanted


def test_a_condition_over_both_sides_of_a_left_join_is_not_sent_to_where() -> None:
    made = SqlContext()
    for name in ("a", "b"):
        made.register(name, stream_of(f"u string, {name}x bigint, {name}t bigint"), event_time=f"{name}t", lag=0)
    bounds = "b.bt BETWEEN a.at - INTERVAL 5 SECOND AND a.at"
    with pytest.raises(KrishivError, match="write JOIN, which takes it"):
        made.sql(f"SELECT a.u FROM a LEFT JOIN b ON a.u = b.u AND {bounds} AND a.ax > b.bx")
    made.sql(f"SELECT a.u FROM a JOIN b ON a.u = b.u AND {bounds} AND a.ax > b.bx")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("user strng, at timestamp", "user string"),
        ("user string, at datetime", "at timestamp"),
        ("at datetime64[ns]", "at timestamp"),
        ("n uint64", "n decimal(20, 0)"),
        ("xs array<strng>", "string"),
        ("m map<string, flot>", "float"),
        ("s struct<a: intt, b: string>", "int"),
        ("q json, at bigint", "q string"),
    ],
)
def test_the_nearest_type_of_a_schema_text_is_named(wrong: str, meant: str) -> None:
    with pytest.raises(SchemaError, match=r"is not a type") as caught:
        stream_of(wrong)
    assert hint_of(caught.value) == f"write {meant}"


@dataclasses.dataclass
class Event:
    user: str
    n: int
    at: dt.datetime
    tags: list[str]
    place: Place
    spent: float | None = None


class Place(TypedDict):
    lat: float


@attrs.define
class Other:
    a: bytes
    b: dict[str, bool]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Event, "user string, n bigint, at timestamp, tags array<string>, place struct<lat: double>, spent double"),
        (Place, "lat double"),
        (Other, "a binary, b map<string, boolean>"),
    ],
)
def test_a_class_is_the_schema_that_is_written_as_text(schema: Any, text: str) -> None:
    given, written = as_schema(schema), as_schema(text)
    assert [(f.name, f.type) for f in given] == [(f.name, f.type) for f in written]


@pytest.mark.parametrize(("schema", "text"), [({"a": int, "b": "int64", "c": pa.int32()}, "a bigint, b bigint, c int")])
def test_a_dict_as_schema_is_written_as_text(schema: Any, text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        stream_of(schema)
    assert hint_of(caught.value) == f'write "{text}"'
    stream_of(text)


def test_top_rows_without_columns_have_all_columns_of_the_row() -> None:
    rows = stream_of("page string, n bigint, s struct<a: int>, at bigint").filter("n > 0").watermark("at", 0)
    for stream, names in (
        (rows.tumbling_window(10), ["window_start", "window_end", "n", "page", "s", "at", "rank"]),
        (rows.key_by("page").tumbling_window(10), ["page", "window_start", "window_end", "n", "s", "at", "rank"]),
    ):
        best = stream.top_rows(1, "n")
        assert [name for name in best.schema.names if name != "window_time"] == names
    views = rows.key_by("page").tumbling_window(10).agg(count().alias("views"))
    driver = Driver(views.tumbling_window(100).top_rows(2, "views"))
    driver.send([{"page": page, "n": 1, "s": None, "at": i} for i, page in enumerate("aab")])
    actual = driver.close().results.to_pylist()
    assert [(row["page"], row["views"], row["rank"]) for row in actual] == [("a", 2, 1), ("b", 1, 2)]


@pytest.mark.parametrize(
    ("wrong", "type_"),
    [
        (lambda s: s.watermark("d", 0), "date"),
        (lambda s: s.watermark("t", 0), "string"),
        (lambda s: s.watermark("at", 0).key_by("xs"), "array<bigint>"),
        (lambda s: s.watermark("at", 0).tumbling_window(5).agg(sum_("t")), "string"),
        (lambda s: s.watermark("at", 0).tumbling_window(5).agg(max_("xs")), "array<bigint>"),
        (lambda s: s.select(col("st").field("b")), "struct<a: int>"),
    ],
)
def test_types_are_shown_as_schema_texts_spell_them(wrong: Any, type_: str) -> None:
    stream = stream_of("t string, d date, xs array<bigint>, st struct<a: int>, at bigint")
    with pytest.raises(KrishivError) as caught:
        wrong(stream)
    assert type_ in str(caught.value).split("(got: ")[1]


LOOKED_UP: dict[str, list[Any]] = {
    "bigint": [2**53 + 1, 2**53],
    "int": [7, 8],
    "double": [float(2**53), 7.0],
    "float": [7.0, 8.0],
    "decimal(38,0)": [2**53, 7],
    "string": ["7", "x"],
    "smallint": [7, 8],
}


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(LOOKED_UP, 2)))
def test_the_cast_of_a_key_of_a_table_can_be_followed_and_loses_nothing(one: str, other: str) -> None:
    """Python's own equality says which rows meet: it is exact between whole numbers and doubles."""
    rows = [{"id": value, "at": n} for n, value in enumerate(LOOKED_UP[one])]
    schema = as_schema(f"code {other}, name int")
    codes = [decimal.Decimal(v) if other.startswith("decimal") else v for v in LOOKED_UP[other]]
    table = pa.Table.from_pylist([{"code": v, "name": n} for n, v in enumerate(codes)], schema)
    orders = stream_of(f"id {one}, at bigint")
    with pytest.raises(KrishivError) as caught:
        orders.lookup_join(table, on={"id": "code"})
    hint = hint_of(caught.value)
    assert hint.startswith("write on=")
    on = eval(hint.removeprefix("write on="), {"col": col})  # the hint, as it is written
    results = Driver(orders.lookup_join(table, on=on)).send(rows).results.to_pylist()

    def equal(ours: Any, theirs: Any) -> bool:
        return str(ours) == str(theirs) if "string" in (one, other) and "double" not in (one, other) else ours == theirs

    if "string" in (one, other):
        return  # the texts of numbers are compared
    wanted = [next((n for n, v in enumerate(codes) if equal(row["id"], v)), None) for row in rows]
    assert [row["name"] for row in results] == wanted
    made = SqlContext()
    made.register("orders", orders.watermark("at", 0))
    made.register("names", table)
    with pytest.raises(KrishivError) as caught:
        made.sql("SELECT id, name FROM orders LEFT JOIN names ON orders.id = names.code")
    condition = hint_of(caught.value).removeprefix("write ")
    query = made.sql(f"SELECT id, name FROM orders LEFT JOIN names ON {condition}")
    assert query is not None
    assert [row["name"] for row in Driver(query).send(rows).results.to_pylist()] == wanted


MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
MOMENTS: dict[str, Any] = {
    "bigint": 1_767_225_600_000,
    "timestamp": MOMENT,
    "timestamp_ntz": MOMENT.replace(tzinfo=None),
    "date": MOMENT.date(),
    "string": "2026-01-01",
}


@pytest.mark.parametrize(("source", "wanted"), list(itertools.permutations([t for t in MOMENTS if t != "string"], 2)))
def test_the_conversion_of_times_can_be_followed_and_keeps_the_moment(source: str, wanted: str) -> None:
    types = [as_schema(f"at {name}").field("at").type for name in (source, wanted)]
    made = stream_of(f"at {source}").with_column("at", eval(conversion("at", *types), {"col": col, "func": func}))
    assert made.schema.field("at").type == types[1]
    (row,) = Driver(made).send([{"at": MOMENTS[source]}]).results.to_pylist()
    assert row["at"] == MOMENTS[wanted]


@pytest.mark.parametrize("source", ["timestamp", "timestamp_ntz", "date"])
def test_a_cast_of_a_time_to_a_number_says_how_milliseconds_are_had(source: str) -> None:
    stream = stream_of(f"at {source}")
    if source != "timestamp":  # whose seconds are those of Spark
        with pytest.raises(KrishivError, match=r"unix_millis\(CAST\(x AS timestamp\)\)"):
            stream.with_column("ms", col("at").cast("bigint"))
    made = stream.with_column("ms", "unix_millis(CAST(at AS timestamp))")
    assert Driver(made).send([{"at": MOMENTS[source]}]).results.to_pylist()[0]["ms"] == MOMENTS["bigint"]


@pytest.mark.parametrize(
    ("wrong", "says", "right", "value"),
    [
        ("ms > TIMESTAMP '2024-01-01'", "timestamp_millis(ms)", "timestamp_millis(ms) > TIMESTAMP '2024-01-01'", True),
        ("ms + INTERVAL 60 SECONDS", "ms + 60000", "ms + 60000", 1_767_225_660_000),
        ("ms - INTERVAL 60 SECONDS", "ms - 60000", "ms - 60000", 1_767_225_540_000),
        (
            "ms + INTERVAL 60 SECONDS",
            "timestamp_millis(ms) +",
            "timestamp_millis(ms) + INTERVAL 60 SECONDS",
            MOMENT + dt.timedelta(0, 60),
        ),
        ("at - 1", "at - INTERVAL '1' SECOND", "at - INTERVAL '1' SECOND", MOMENT - dt.timedelta(0, 1)),
        ("n + s", "||", "CAST(n AS string) || s", "5x"),
        ("s + s", "||", "s || s", "xx"),
        ("n < s", "CAST(s AS bigint)", "n < CAST('7' AS bigint)", True),
    ],
)
def test_the_way_out_of_types_that_do_not_fit_can_be_followed(wrong: str, says: str, right: str, value: object) -> None:
    stream = stream_of("ms bigint, at timestamp, n bigint, s string")
    with pytest.raises(KrishivError) as caught:
        stream.with_column("x", wrong)
    assert says in hint_of(caught.value) and "timedelta" not in str(caught.value).split("Hint:")[0]
    rows = [{"ms": MOMENTS["bigint"], "at": MOMENT, "n": 5, "s": "x"}]
    assert Driver(stream.with_column("x", right)).send(rows).results.to_pylist()[0]["x"] == value
