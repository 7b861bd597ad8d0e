"""Where a type does not fit, the hint has an expression; following it runs, loses nothing, and ends in no other refusal."""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from krishiv_py import (
    DeltaSink,
    Expr,
    JsonSink,
    KafkaSink,
    KrishivError,
    ParquetSink,
    PostgresSink,
    Stream,
    TimedStream,
    avg,
    bit_and,
    bool_and,
    col,
    concat,
    count,
    count_distinct,
    count_if,
    func,
    histogram,
    lit,
    median,
    mode,
    top_k,
)
from krishiv_py import max as max_
from krishiv_py import sum as sum_
from krishiv_py.connectors.tables.postgres import check_types
from krishiv_py.testing import Driver, stream_of
from tests.plan.test_hints import hint_of

LENGTH: Final = "interval day to second"
VALUES: Final[dict[str, Any]] = {
    "boolean": True,
    "tinyint": 7,
    "int": 1_700_000_000,
    "bigint": 1_700_000_000_123,
    "float": 2.5,
    "double": 1_700_000_000.5,
    "decimal(20,3)": decimal.Decimal("1700000000.125"),
    "string": "12",
    "binary": b"12",
    "date": dt.date(2024, 1, 31),
    "timestamp": dt.datetime(2024, 1, 31, 12, 0, 0, 5, tzinfo=dt.timezone.utc),
    "timestamp_ntz": dt.datetime(2024, 1, 31, 12, 0, 0, 5),
    LENGTH: dt.timedelta(seconds=90, microseconds=500_001),
    "array<int>": [3, 4],
    "map<string,int>": {"key": 3},
    "struct<a: int>": {"a": 3},
}
NAMES: Final = {"col": col, "func": func, "lit": lit, "concat": concat, "timedelta": dt.timedelta}
CODE: Final = re.compile(r"(?:\(?(?:col|func|lit|concat)\(|\.with_column\(|\.drop\()")


def codes(hint: str) -> list[str]:
    """Return the expressions and steps of a hint, as they are written, each as long as it is one."""
    made, end = list[str](), 0
    for begin in (match.start() for match in CODE.finditer(hint)):
        if begin >= end:
            stops = [stop for stop in range(begin + 1, len(hint) + 1) if _is_one(hint[begin:stop], hint[stop : stop + 1])]
            end = max(stops, default=begin)
            made.append(hint[begin:end].strip())
    return made


def _is_one(text: str, following: str) -> bool:
    try:
        tree = ast.parse(f"s{text}" if text.startswith(".") else text, mode="eval")
    except SyntaxError:
        return False
    return not following.isalnum() and isinstance(tree.body, (ast.Call, ast.BinOp, ast.Compare))


def followed(stream: Stream, code: str) -> Any:
    """Return what the code of a hint makes of a stream, or its expression."""
    return eval(f"stream{code}" if code.startswith(".") else code, {"stream": stream, **NAMES})


def rows(type_: str) -> Stream:
    return stream_of(f"x {type_}, k string, at bigint")


def value_of(type_: str, made: Expr) -> Any:
    """Return what an expression gives for the value of a type."""
    (row,) = Driver(rows(type_).with_column("y", made)).send([{"x": VALUES[type_], "k": "a", "at": 1}]).results.to_pylist()
    return row["y"]


AGGREGATES: Final[dict[str, Callable[[Any], Any]]] = {
    "sum": sum_,
    "avg": avg,
    "median": median,
    "bit_and": bit_and,
    "count_if": count_if,
    "bool_and": bool_and,
    "max": max_,
    "mode": mode,
    "top_k": lambda x: top_k(2, x),
    "count_distinct": count_distinct,
    "histogram": lambda x: histogram(x, [0, 10]),
}
MILLIS: Final = 1_706_659_200_000
NUMBERS: Final[dict[str, Any]] = {
    "boolean": 1,
    "string": 12,
    "date": MILLIS,
    "timestamp": MILLIS + 12 * 3_600_000,
    "timestamp_ntz": MILLIS + 12 * 3_600_000,
    LENGTH: 90_500_001,
    "array<int>": 3,
    "map<string,int>": 3,
    "struct<a: int>": 3,
    "float": 3,  # of 2.5, half away from zero
    "double": 1_700_000_001,
    "decimal(20,3)": 1_700_000_000,
}


@pytest.mark.parametrize(("name", "type_"), list(itertools.product(AGGREGATES, VALUES)))
def test_the_argument_of_an_aggregate(name: str, type_: str) -> None:
    windows = rows(type_).watermark("at", 0).tumbling_window(10)
    try:
        windows.agg(AGGREGATES[name](col("x")))
    except KrishivError as refused:
        hint = hint_of(refused)
        made = [followed(rows(type_), code) for code in codes(hint)]
        if not made:
            assert type_ == "binary" or "collect_list" in hint or "rank by" in hint, hint
            return
        for each in made:
            windows.agg(AGGREGATES[name](each))
            if not name.startswith(("count_if", "bool_and")):
                assert value_of(type_, each) == NUMBERS[type_], hint


PLACES: Final[dict[str, Callable[[TimedStream], object]]] = {
    "filter": lambda s: s.filter(col("x")),
    "key_by": lambda s: s.key_by("x"),
    "drop_duplicates": lambda s: s.drop_duplicates("x", within=10),
    "session": lambda s: s.key_by("k").session_window(col("x")),
}
EXPRESSIONS: Final[dict[str, Callable[[TimedStream, Expr], object]]] = {
    "filter": lambda s, x: s.filter(x),
    "key_by": lambda s, x: s.key_by(x.alias("part")),
    "drop_duplicates": lambda s, x: s.drop_duplicates(x.alias("part"), within=10),
    "session": lambda s, x: s.key_by("k").session_window(x).agg(count()),
}


@pytest.mark.parametrize(("place", "type_"), list(itertools.product(PLACES, VALUES)))
def test_a_condition_a_key_or_a_gap(place: str, type_: str) -> None:
    timed = rows(type_).watermark("at", 0)
    try:
        PLACES[place](timed)
    except KrishivError as refused:
        made = codes(hint_of(refused))
        assert made or place == "session", hint_of(refused)
        for code in made:
            EXPRESSIONS[place](timed, followed(rows(type_), code))


SECONDS: Final = {
    "tinyint": 7_000,
    "int": 1_700_000_000_000,
    "float": 2_500,
    "double": 1_700_000_000_500,
    "decimal(20,3)": 1_700_000_000_125,
}


@pytest.mark.parametrize("type_", VALUES)
def test_event_time(type_: str) -> None:
    """A number is of seconds or of milliseconds: the hint has both, and each is right for what it says."""
    try:
        rows(type_).watermark("x", 0)
    except KrishivError as refused:
        hint = hint_of(refused)
        made = codes(hint)
        if not made:
            assert type_ not in (*SECONDS, "string", "date")
            return
        streams = [followed(rows(type_), code if code.startswith(".") else f'.with_column("x", {code})') for code in made]
        for each in streams:
            each.watermark("x", 0)
        if type_ in SECONDS:
            (row,) = Driver(streams[0]).send([{"x": VALUES[type_], "k": "a", "at": 1}]).results.to_pylist()
            assert round(row["x"].timestamp() * 1000) == SECONDS[type_]
            assert "counts seconds" in hint and "milliseconds" in hint


def sinks(folder: Path) -> dict[str, Callable[[], Any]]:
    servers = "localhost:1"
    return {
        "json": lambda: JsonSink(folder / "json"),
        "folders": lambda: ParquetSink(folder / "parquet", partition_by=["x"]),
        "kafka json": lambda: KafkaSink("t", bootstrap_servers=servers),
        "kafka avro": lambda: KafkaSink("t", bootstrap_servers=servers, format="avro", schema_registry="http://localhost:1"),
        "kafka bytes": lambda: KafkaSink("t", bootstrap_servers=servers, format="bytes", value="x"),
        "kafka key": lambda: KafkaSink("t", bootstrap_servers=servers, key="x"),
        "delta": lambda: DeltaSink(folder / "delta"),
        "delta folders": lambda: DeltaSink(folder / "delta", partition_by=["x"]),
        "postgres": lambda: PostgresSink("host=localhost port=1 dbname=x", "t"),
    }


@pytest.mark.parametrize(("sink", "type_"), list(itertools.product(sinks(Path()), VALUES)))
def test_a_column_that_a_sink_does_not_take(sink: str, type_: str, tmp_path: Path) -> None:
    def checked(stream: Stream) -> None:
        made = sinks(tmp_path)[sink]()
        if isinstance(made, KafkaSink):
            made._check(stream.schema)  # check() looks for the topic, too
        elif isinstance(made, PostgresSink):
            check_types(stream.schema)
        else:
            made.check("results", stream.schema)

    try:
        checked(rows(type_))
    except KrishivError as refused:
        if refused.transient:
            return
        for code in codes(hint_of(refused)):
            try:
                checked(followed(rows(type_), code))
            except KrishivError as again:
                assert again.transient or (".drop(" in code and "folders" in sink) or "bytes" in sink, again


def pairs() -> Iterator[tuple[str, str]]:
    yield from itertools.product(VALUES, VALUES)


OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "=": lambda a, b: a == b,
    "AND": lambda a, b: a & b,
    "||": concat,
}
NO_WAY: Final = "use values of one type"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_between_types_that_do_not_fit(operator: str) -> None:
    """Each hint is followed as text and in Python: both run and have one type."""
    faults = []
    for one, other in pairs():
        stream = stream_of(f"a {one}, b {other}, at bigint")
        try:
            stream.with_column("y", f"a {operator} b")
        except KrishivError as refused:
            hint = hint_of(refused)
            if NO_WAY in hint:
                continue
            for part in hint.split("; "):
                text, _, python = part.partition(" in text, ")
                if not python:
                    continue
                text = re.split(r": |write |between two is ", text)[-1]
                python = python.split(" in Python")[0]
                try:
                    as_text = stream.with_column("y", text).schema.field("y").type
                    as_python = stream.with_column("y", eval(python, NAMES)).schema.field("y").type
                except (KrishivError, SyntaxError) as again:
                    faults.append(f"{one} {operator} {other}: {part}: {str(again)[:120]}")
                else:
                    if as_text != as_python:
                        faults.append(f"{one} {operator} {other}: {part}: {as_text} is not {as_python}")
    assert faults == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_way_out_is_missing_for_few_types_only(operator: str) -> None:
    for one, other in pairs():
        try:
            stream_of(f"a {one}, b {other}, at bigint").with_column("y", f"a {operator} b")
        except KrishivError as refused:
            if NO_WAY in hint_of(refused):
                kinds = {one, other}
                alone = kinds & {"binary"} or (kinds & {LENGTH, "date", "timestamp", "timestamp_ntz"} and operator in "<=||")
                nested = any("<" in kind for kind in kinds)
                assert alone or nested or kinds <= {"boolean", "string"}, (one, operator, other)


@pytest.mark.parametrize(
    ("schema", "wrong", "value"),
    [
        ("a bigint, b string", "a + b", ["512", 17]),
        ("a bigint, b string", "a < b", [True]),
        ("a bigint, flag boolean", "a * flag", [5]),
        ("a bigint, d interval day to second", "a + d", [dt.datetime(1970, 1, 1, 0, 1, 30, 5_000, tzinfo=dt.timezone.utc)]),
        ("d interval day to second, a bigint", "d * a", [450_000_000]),
        ("at timestamp, a bigint", "at + a", [dt.datetime(2024, 1, 31, 0, 0, 5, tzinfo=dt.timezone.utc)]),
        ("at timestamp, a bigint", "at > a", [True]),
        ("day date, t string", "day = t", [True]),
        ("flag boolean, a bigint", "flag AND a", [True]),
        ("a bigint, b string", "a || b", ["512"]),
    ],
)
def test_the_value_of_what_a_hint_writes(schema: str, wrong: str, value: list[Any]) -> None:
    row = {
        "a": 5,
        "b": "12",
        "d": dt.timedelta(seconds=90),
        "at": dt.datetime(2024, 1, 31, tzinfo=dt.timezone.utc),
        "day": dt.date(2024, 1, 31),
        "t": "2024-01-31",
        "flag": True,
    }
    stream = stream_of(schema)
    with pytest.raises(KrishivError) as caught:
        stream.with_column("y", wrong)
    hint = hint_of(caught.value)
    given = []
    for part in hint.split("; "):
        text = re.split(r": |write ", part.partition(" in text, ")[0])[-1]
        if "timestamp_seconds is of" in text:
            continue
        sent = {name: row[name] for name in stream.schema.names}
        given += [each["y"] for each in Driver(stream.with_column("y", text)).send([sent]).results.to_pylist()]
    assert given == value
