"""Every public callable, every parameter, every wrong value: an error of ours with a hint, or a pipeline that runs."""

from __future__ import annotations

import inspect
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import krishiv_py
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import KeyedUntimedStream, TimedStream
from krishiv_py.api.stages.windowed import LookBackStream, PaneStream, WindowedStream
from krishiv_py.errors import KrishivError, OperatorError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, ManualClock
from tests.fuzz.catalogue import CALLS, Call
from tests.fuzz.running import completed, run
from tests.fuzz.values import WRONG

STAGES = (
    Stream,
    KeyedUntimedStream,
    TimedStream,
    KeyedStream,
    WindowedStream,
    LookBackStream,
    PaneStream,
    krishiv_py.ResultStream,
)
MADE_BY_THE_LIBRARY = {
    "Events",
    "Row",
    "StateColumns",
    "Subscription",
    "LateRows",
    "Progress",
    "TableVersion",
    "Window",
    "Query",
    "Sender",
    "Session",
    "Case",
    "SessionBuilder",
    "LateEventHandler",
    "Aggregator",
    "WindowAssigner",
    "OpenWindows",
    "BoundedResult",
    "QueryStatus",
    "WindowTrigger",
}
"""Made, or called, by the library; changes hold any row. The session's own calls are in test_hostile_sessions.py."""
CALLED_BY_THE_LIBRARY = {
    "begin",
    "in_batch",
    "write",
    "commit",
    "abort",
    "check",
    "handle",
    "plan",
    "bound_type",
    "check_columns",
    "check_options",
    "result_fields",
    "settled",
    "following",
    "starting",
    "carried",
    "fires_plainly",
    "no_end",
    "assign",
    "fires",
    "write_frame",
    "write_table",
    "write_tables",
    "write_files",
    "last_committed",
    "hold_back_us",
    "row_time",
    "forgets_early",
    "check_over",
}


ALL = int(os.environ.get("KRISHIV_EXAMPLES", "30")) >= 1_000
"""Whether each value is tried at each parameter, as ``nox -s fuzz`` does; a run of all tests takes a third of these pairs."""


def drawn(name: str, parameter: str, label: str) -> bool:
    """Whether a value is tried at a parameter of a call; the same pairs in each run, and each value at many parameters."""
    return ALL or zlib.crc32(f"{name} {parameter} {label}".encode()) % 3 == 0


def fault_of(call: Call, parameter: str, make: Callable[[], Any]) -> str | None:
    """What is wrong with the answer to a wrong value; None if nothing is."""
    ran = False
    try:
        stream = completed(call.with_one(parameter, make()))
        if stream is not None:
            ran = True
            run(stream)
    except KrishivError as error:
        if ran and not ("cannot be computed" in str(error) and isinstance(error, OperatorError)):  # that hangs on the rows
            return f"accepted, but stops when it runs: {error}"
        return None if "Hint:" in str(error) else f"no hint: {error}"
    except Exception as error:
        return f"{type(error).__name__} {'at run time' if ran else 'at the call'}"
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_is_refused_at_the_call_with_a_hint(name: str) -> None:
    call = CALLS[name]
    pairs = [(p, label) for p in call.parameters for label in WRONG if drawn(name, p, label)]
    actual = {(p, label): fault_of(call, p, WRONG[label]) for p, label in pairs}
    assert {where: fault for where, fault in actual.items() if fault} == {}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_right_is_accepted(name: str) -> None:
    call = CALLS[name]
    parameter, value = next(iter(call.good.items()), (None, None))
    if parameter is None or name in NEEDS_A_SESSION or name.endswith(", 2"):
        return
    actual = completed(call.with_one(parameter, value))
    if actual is not None:
        run(actual)


NEEDS_A_SESSION = {n for n in CALLS if n.split(".")[-1] in ("run", "collect", "collect_with_aggs", "start", "to_dataframe")}


def public() -> Iterator[str]:
    """Names of public callables that take arguments."""
    named = {n: getattr(krishiv_py, n) for n in (*krishiv_py.__all__, "max", "min", "sum") if n not in MADE_BY_THE_LIBRARY}
    made = (*STAGES, AggCall)
    for name, thing in (named | {t.__name__: t for t in (*made, Driver, ManualClock)}).items():
        if inspect.isclass(thing) and issubclass(thing, KrishivError):
            continue  # raised by the library
        if thing not in made:
            yield name
        if inspect.isclass(thing):
            yield from methods(thing)


def methods(cls: type) -> Iterator[str]:
    """Its own methods with arguments; what says only what to call instead takes any."""
    for name, function in inspect.getmembers(cls, inspect.isroutine):
        own = (getattr(function, "__module__", None) or "").startswith("krishiv_py") and not name.startswith("_")
        if own and inspect.signature(function).parameters.keys() - {"self", "args", "kwargs"}:
            yield name


def test_no_public_callable_is_left_out() -> None:
    tried = {part for name in CALLS for part in (name, name.split(",")[0].split(".")[-1], name.split(".")[0])}
    assert set(public()) - tried - CALLED_BY_THE_LIBRARY == {"own_process"}  # without arguments, of the whole process
