"""Wrong values for every parameter of a session and its builder, without Spark: an error of ours with a hint."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import krishiv_py as kv
from krishiv_py.errors import KrishivError
from krishiv_py.session import Session, SessionBuilder
from krishiv_py.testing import stream_of
from tests.fuzz.catalogue import Call
from tests.fuzz.values import WRONG


@attrs.define
class NoSpark:
    """Stands where a session reaches Spark: whatever was let through would have got there."""

    root: Path
    queries: tuple[Any, ...] = ()
    clock: Any = lambda: 0
    profile: str = "dev-local"
    sends_in_segments: bool = False
    ended: bool = False
    engine: str | None = None
    save_for_spark: Any = None

    def trim(self, folder: str) -> int:
        """Nothing to trim."""
        return 0

    def check_open(self, what: str) -> None:
        """It never ends."""

    def check_source(self, *given: object) -> None:
        """Nothing reads."""

    def folder(self, name: str) -> str:
        """A folder below the test's."""
        (self.root / f"{name}-1").mkdir(exist_ok=True)
        return str(self.root / f"{name}-1")

    def table_stream(self, name: str, streaming: bool) -> None:
        """No table."""

    def rescale(self, checkpoint: str, tasks: int) -> None:
        """Nothing."""

    def _alive(self, what: str) -> None:
        """It never ends."""

    def check_reachable(self, paths: object) -> None:
        """Every store can be reached."""

    def as_own(self, what: str) -> AbstractContextManager[None]:
        """Nothing of others fails."""
        return nullcontext()

    def new_buckets(self) -> int:
        """Return a number."""
        return 4

    def why(self, *given: object) -> str:
        """Nothing."""
        return ""

    def start(self, *given: object) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing runs."""

    def read_state(self, stream: kv.ResultStream, checkpoint: str, stage: str | None) -> None:
        """Nothing."""


def calls(root: Path) -> dict[str, Call]:
    """What a session can be asked without Spark being there."""

    def session() -> Session:
        return Session(cast(Any, NoSpark(root)))

    stream = stream_of("at bigint")
    plan = stream.watermark("at", 0).tumbling_window(5).agg(kv.count())
    made = [
        Call("master", lambda: SessionBuilder().master, {"url": "local[2]"}),
        Call("app_name", lambda: SessionBuilder().app_name, {"name": "x"}),
        Call("config", lambda: SessionBuilder().config, {"key": "a", "value": 1}),
        Call("engine", lambda: SessionBuilder().engine, {"name": "in-process"}),
        Call("workers", lambda: SessionBuilder().workers, {"count": 2}),
        Call("lookup_results", lambda: SessionBuilder().lookup_results, {"count": 0}),
        Call("clock", lambda: SessionBuilder().clock, {"clock": "row"}),
        Call("retry_for", lambda: SessionBuilder().retry_for, {"limit": "1 min"}),
        Call("profile", lambda: SessionBuilder().profile, {"name": "dev-local"}),
        Call("storage_options", lambda: SessionBuilder().storage_options, {"options": {"AWS_REGION": "eu-central-1"}}),
        Call(
            "memory_stream",
            lambda: lambda schema, name: session().memory_stream(schema, name=name),
            {"schema": "at bigint", "name": "x"},
        ),
        Call("from_dataframe", lambda: session().from_dataframe, {"frame": None}),
        Call("table", lambda: session().table, {"name": "db.t", "streaming": True}),
        Call("union", lambda: session().union, {"streams": {"a": stream}}),
        Call("register", lambda: session().register, {"name": "x", "stream": stream, "event_time": "at", "lag": 0}),
        Call("sql", lambda: session().sql, {"text": "SET watermark.lag = INTERVAL '5' SECOND"}),
        Call("sql_outputs", lambda: session().sql_outputs, {"text": "INSERT INTO a SELECT * FROM b"}),
        Call("collect", lambda: session().collect, {"streams": []}),
        Call("register_sink", lambda: session().register_sink, {"name": "a", "sink": kv.MemorySink()}),
        Call("read_state", lambda: session().read_state, {"checkpoint": "x", "stream": plan}),
        Call("move", lambda: session().move, {"checkpoint": "x", "to": "spark", "into": "y", "buckets": 4}),
        Call("adopt", lambda: session().adopt, {"checkpoint": "x", "other": session(), "into": "y", "buckets": 4}),
        Call("savepoint", lambda: session().savepoint, {"checkpoint": "x", "path": "y"}),
        Call(
            "capture",
            lambda: session().capture,
            {"checkpoint": "x", "stream": plan, "path": "y", "last": 5, "savepoint": None, "leave_out": [], "hashes": []},
        ),
        Call("why", lambda: session().why, {"checkpoint": "x", "stream": plan, "key": "a", "time": 5, "stage": None}),
        Call("ui", lambda: lambda port, host: served(session(), port, host), {"port": 0, "host": "127.0.0.1"}),
        Call("rescale", lambda: session().rescale, {"checkpoint": "x", "tasks": 4}),
        Call("start", lambda: session().start, {"outputs": [], "checkpoint": "x", "batches": None, "name": "x"}),
        Call(
            "start, with a history",
            lambda: (
                lambda bootstrap, until, publish: session().start(
                    [stream.to(kv.MemorySink())], bootstrap=bootstrap, until=until, publish=publish
                )
            ),
            {"bootstrap": None, "until": None, "publish": True},
        ),
        Call("temporary_folder", lambda: session().temporary_folder, {}),
        Call("use_clock", lambda: session().use_clock, {"clock": lambda: 0}),
        Call("in_process", lambda: Session.in_process, {"profile": "dev-local"}),
        Call("from_spark", lambda: Session.from_spark, {"spark": None}),
    ]
    return {call.name: call for call in made}


def served(session: Session, port: Any, host: Any) -> None:
    """Serve a page and end it."""
    with session.ui(port, host=host):
        pass


STARTS_SPARK = {"connect", "rate", "builder", "embedded", "get_or_create", "stop", "replay"}
"""Without parameters, or too dear here; read_* have tests of their own."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", list(calls(Path())))
def test_a_wrong_value_is_refused_at_the_call_with_a_hint(name: str, tmp_path: Path) -> None:
    call = calls(tmp_path)[name]
    faults = {}
    for parameter in call.parameters:
        for label, make in WRONG.items():
            try:
                call.with_one(parameter, make())
            except KrishivError as error:
                if "Hint:" not in str(error):
                    faults[parameter, label] = f"no hint: {error}"
            except Exception as error:
                faults[parameter, label] = type(error).__name__
    assert faults == {}


def test_a_misspelt_profile_is_refused_by_the_builder() -> None:
    with pytest.raises(KrishivError, match=r"`profile` has no such setting .*single-node-durabel.*Hint: use one of"):
        Session.builder().profile("single-node-durabel")  # type: ignore[arg-type]  # misspelt


def test_no_call_is_left_out() -> None:
    public = {
        name
        for cls in (Session, SessionBuilder)
        for name, thing in inspect.getmembers(cls, inspect.isroutine)
        if not name.startswith(("_", "read_")) and inspect.signature(thing).parameters.keys() - {"self"}
    } | {"read_state"}
    assert public - STARTS_SPARK == {name.split(",")[0] for name in calls(Path())}
