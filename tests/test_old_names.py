"""Old public names work for one minor version, and warn: at the line that uses one, with the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

import krishiv_py
from krishiv_py import Batches, BoundedResult, MemorySink, Session, StateTtlConfig, Trigger, WatermarkSpec, compat, count
from krishiv_py.compat import QueryTrigger
from krishiv_py.engine.stage import Report
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, stream_of


def warned(use: Callable[[], object], old: str, new: str) -> Any:
    """What the use of an old name gives; it has to warn once, at the line of the use."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = use()
    assert [(w.category, w.filename) for w in caught] == [(DeprecationWarning, __file__)]
    assert str(caught[0].message).startswith(f"{old} is now called {new};")
    return given


def test_streams_of_a_session_are_its_queries() -> None:
    runs, ended = SimpleNamespace(status="running"), SimpleNamespace(status="stopped")
    session = Session(cast(Any, SimpleNamespace(queries=[runs, ended])))
    assert session.queries == [runs]
    assert warned(lambda: session.streams, "Session.streams", "Session.queries") == [runs]


def test_a_counter_is_called_like_the_reason_of_its_rows() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count()))
    late = driver.send([{"at": 2**62}, {"at": 3}]).late
    assert late["reason"].to_pylist() == ["time_out_of_range"]
    result = BoundedResult(late, late, dict(driver.counters))
    for counters in (driver.counters, driver.progress.counters, driver.progress.late, result.counters):
        assert counters["time_out_of_range"] == 1
        assert "out_of_range" not in counters
        for use in (lambda c: c["out_of_range"], lambda c: c.get("out_of_range"), lambda c: c.get("out_of_range", 7)):
            assert warned(partial(use, counters), "the counter 'out_of_range'", "'time_out_of_range'") == 1
        assert counters.get("no such counter", 7) == 7
        with pytest.raises(KeyError, match="no such counter"):
            counters["no such counter"]


def test_counters_that_an_earlier_version_stored_get_their_new_names() -> None:
    stored = {"rows": 9, "out_of_range": 2, "time_out_of_range": 1}
    report = Report.restored({"counters": stored, "open_windows": 0, "open_rows": 0, "state_bytes": 0})
    assert report.counters == {"rows": 9, "time_out_of_range": 3}


@pytest.mark.parametrize(
    ("make", "new"),
    [
        (lambda: QueryTrigger.as_fast_as_possible(), Batches.as_fast_as_possible()),
        (lambda: QueryTrigger.every("10 s"), Batches.every("10 s")),
        (lambda: QueryTrigger.available_now(), Batches.available_now()),
        (lambda: QueryTrigger.available_now(flush=True), Batches.available_now(flush=True)),
        (lambda: QueryTrigger.available_now(snapshot=True), Batches.available_now(snapshot=True)),
    ],
)
def test_batches_are_planned_by_batches(make: Callable[[], QueryTrigger], new: Batches) -> None:
    """`trigger` says when windows fire; start() took one of another kind under the same word."""
    old = warned(make, "QueryTrigger", "Batches")
    assert isinstance(old, QueryTrigger) and isinstance(old, Batches)
    assert (old.kind, old.interval_us, old.flush, old.snapshot) == (new.kind, new.interval_us, new.flush, new.snapshot)
    windows = stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())

    def started(**options: Any) -> str:
        for plan in (windows, windows.filter("count > 1")):
            with pytest.raises(PlanError) as caught:  # such a stream has no session: nothing else may be wrong with the call
                plan.start(MemorySink(), **options)
        return str(caught.value)

    assert started(batches=new) == started(batches=old) == started()
    with pytest.warns(DeprecationWarning, match=r"^start\(trigger=...\) is now called start\(batches=...\);") as seen:
        assert started(trigger=new) == started(trigger=old) == started()
    assert {w.filename for w in seen} == {__file__}
    assert "the old name of `batches`" in started(batches=new, trigger=old)
    for wrong in ("every", Trigger.on_count(3), 5):
        assert started(batches=wrong) == started(trigger=wrong)
        assert "`batches` is not a Batches" in started(batches=wrong)


@pytest.mark.parametrize("name", sorted({*compat.__all__} - {"fixed_lag_ms", "sliding_window", "try_add"}))
def test_names_of_the_five_texts_are_the_same_objects_in_compat(name: str) -> None:
    """`import` looks for a name before it asks for it: the line of the user warns, and once."""
    assert warned(lambda: getattr(krishiv_py, name), f"krishiv_py.{name}", f"krishiv_py.compat.{name}") is getattr(compat, name)
    taken: dict[str, Any] = {}
    with pytest.warns(DeprecationWarning, match=rf"krishiv_py\.compat\.{name}") as seen:
        exec(f"from krishiv_py import {name}", taken)
    assert len(seen) == 1 and taken[name] is getattr(compat, name)
    assert name not in krishiv_py.__all__ and name not in dir(krishiv_py)


def test_methods_of_the_five_texts_name_the_one_spelling() -> None:
    timed = stream_of("at bigint").watermark("at", 0)
    hopping = timed.hopping_window(10, 5).agg(count()).explain()
    with warnings.catch_warnings():  # names of the text that the library is named after
        warnings.simplefilter("error")
        sliding = timed.sliding_window(10, 5)
        assert sliding.agg(count()).explain() == compat.sliding_window(timed, 10, 5).agg(count()).explain() == hopping
        assert WatermarkSpec.fixed_lag_ms(5) == compat.fixed_lag_ms(5) == WatermarkSpec.fixed_lag(5)
        assert StateTtlConfig(ttl_ms=5) == StateTtlConfig(5) and hash(StateTtlConfig(ttl_ms=5)) == hash(StateTtlConfig("5 ms"))
        assert StateTtlConfig(ttl_ms=5).ttl_ms == StateTtlConfig("5 ms").ttl_ms == 5
    driver = Driver(timed.tumbling_window(5).agg(count()))
    assert warned(lambda: driver.try_add({"at": 9}), "Driver.try_add", "krishiv_py.compat.try_add") is None
    assert compat.try_add(driver, {"at": 1}) == {"at": 1}


def test_a_name_that_never_was_is_missing_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'krishiv_py' has no attribute 'emit'"):
        krishiv_py.emit  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'emit'"):
        exec("from krishiv_py import emit")


@pytest.mark.parametrize("old", ["AggregatedStream", "JoinedStream", "RowStream", "OptionMethods"])
def test_streams_under_the_names_of_their_former_classes(old: str) -> None:
    new = "TimedStream" if old == "OptionMethods" else "ResultStream"
    used = warned(lambda: getattr(krishiv_py, old), f"krishiv_py.{old}", f"krishiv_py.{new}")
    results = stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())
    assert isinstance(results, used)
    assert old not in krishiv_py.__all__
