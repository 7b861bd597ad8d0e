"""Hints that can be followed as they are written."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

from krishiv_py import KrishivError, MemorySink, col, count
from krishiv_py import sum as sum_
from krishiv_py.errors import CallError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of, union_of

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
    found = []
    for stage in stages():
        for name in sorted(n for n in dir(type(stage)) if not n.startswith("_")):
            if callable(getattr(type(stage), name)):
                found.append((stage, name))
    return found


@pytest.mark.parametrize(("stage", "name"), calls(), ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_wrong_arguments_are_an_error_of_the_library(stage: Any, name: str) -> None:
    """Missing, unknown and far too many arguments, of every public step of every stage."""
    method = getattr(stage, name)
    with pytest.raises(KrishivError):
        method(no_such_argument=1) if "kwargs" not in str(inspect.signature(method)) else method(*[object()] * 40)
    with pytest.raises(KrishivError):
        method(*[object()] * 40)
    needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty and p.kind not in (2, 4)]
    if needed:
        with pytest.raises(KrishivError):
            method()


def test_a_wrong_call_says_what_to_write() -> None:
    windows = stream_of("user string, amount double, at bigint").watermark("at", 0).tumbling_window("1 min")
    with pytest.raises(CallError, match=r"unexpected keyword argument 'total'.*Hint: .*\.alias"):
        windows.agg(total=sum_("amount"))  # type: ignore[call-arg]
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
    told = driver.why_not_fired()
    assert told.startswith("the window that ends at 1970-01-01T00:00:10Z fires")
    assert driver.why_not_fired("1970-01-01T00:00:10Z") == told == driver.why_not_fired(10_000)
    for text in ("", "soon", "10", "5 seconds"):
        with pytest.raises(KrishivError, match="is no point in time"):
            driver.why_not_fired(text)
