"""State as a table (SEMANTICS §6.5): what a copy of the stream would fire if its input ended now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import PlanError
from krishiv_py.kernels.prepare import RowPreparer
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import UNSET
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.kernels.fixed import test_panes as panes
from tests.kernels.ranged.per_row import Sleeper
from tests.kernels.session.session_streams import PLAIN, SCHEMA, Shape

FIXED, BY_ROWS = ("tumbling", "hopping", "ragged"), ("session", "capped", "count", "count hop")
KINDS = (*FIXED, *BY_ROWS, "gaps", "lookback", "two-sided", "distinct")
SOME = settings(max_examples=max((settings.default.max_examples if settings.default else 40) // 5, 2))
"""Every step of a stream is a case of its own."""
AGGS = (*PLAIN, kv.avg("v"), kv.collect_list("v"), kv.last("v"), kv.count().filter(kv.col("v") > 20).alias("big"))
Line = tuple[Any, ...]


def windowed(keyed: KeyedStream, kind: str, size: int) -> WindowedStream:
    hop = -(-size // 2)
    made: dict[str, Callable[[], WindowedStream]] = {
        "tumbling": lambda: keyed.tumbling_window(size),
        "hopping": lambda: keyed.hopping_window(2 * hop, hop),
        "ragged": lambda: keyed.hopping_window(size + hop, size, 1),
        "session": lambda: keyed.session_window(size),
        "gaps": lambda: keyed.session_window(kv.col("gap"), touch="merge"),
        "capped": lambda: keyed.session_window(size, max_duration=2 * size),
        "count": lambda: keyed.count_window(size % 5 + 2),
        "count hop": lambda: keyed.count_window(size % 5 + 2, 2),
        "lookback": lambda: keyed.lookback_window(size),
        "two-sided": lambda: keyed.lookback_window(size, two_sided=True),
        "distinct": lambda: keyed.windowed_by(kv.SlidingWindows.of(size)),
    }
    return made[kind]()


def moved(driver: Driver, step: ref.Step) -> pa.Table:
    """One step of a random stream."""
    if isinstance(step, ref.Batch):
        return driver.send([{"k": r.key, "t": r.t, "v": r.value, "gap": r.gap or 5} for r in step.rows]).results
    return driver.advance_watermark(step.to).results if isinstance(step, ref.Advance) else driver.close().results


def lines(table: pa.Table) -> Counter[Line]:
    """Rows without what only one of state and results has."""
    only_one = {"last_update", "op", "pane_timing", "pane_index"}
    kept = table.select([n for n in table.schema.names if n not in only_one])
    return Counter(tuple(tuple(v) if isinstance(v, list) else v for v in row.values()) for row in kept.to_pylist())


def check_every_step(plan: ResultStream, steps: list[ref.Step], *, sleeps: bool = False) -> int:
    """State after every step is what an end of input would fire, or was fired and may change; counts the first.

    Through restarts, or with an operator that `sleeps` while nothing is due.
    """
    driver, shown, stated = Driver(plan), 0, set[Line]()
    if sleeps:
        driver._stage.operator = Sleeper(driver._stage.operator)
    for number, step in enumerate(steps):
        if number % 4 == 3 and not sleeps:
            driver = driver.restarted()
        stated |= set(lines(moved(driver, step)))
        state = driver.state()
        assert state["window_end"].to_pylist() == sorted(state["window_end"].to_pylist())
        actual, ending = lines(state), driver.restarted().close().results
        if "op" in ending.schema.names:
            ending = ending.filter(pa.array([op in ("+I", "+U") for op in ending["op"].to_pylist()], pa.bool_()))
        coming = lines(ending)
        assert not coming - actual
        assert set(actual - coming) <= stated
        shown += coming.total()
    assert not driver.state().num_rows
    return shown


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(
    number=st.integers(0, 2**32 - 1),
    size=st.integers(3, 25),
    lag=st.sampled_from([0, 15]),
    late=st.sampled_from([0, 12]),
    rule=st.sampled_from(["event", "window"]),
    keys=st.sampled_from([("k",), (), ("k", "gap")]),
    emit=st.sampled_from(["final", "updates", "retractions"]),
    ttl=st.sampled_from([None, 8, 40]),
)
def test_state_is_what_the_end_of_input_would_fire(
    kind: str, number: int, size: int, lag: int, late: int, rule: Any, keys: tuple[str, ...], emit: Any, ttl: int | None
) -> None:
    stream = stream_of(SCHEMA).watermark("t", lag)
    keyed = stream.key_by(*keys).allowed_lateness(late).late_rule(rule)
    if ttl is not None:
        keyed = keyed.with_state_ttl(kv.StateTtlConfig(ttl, "event"))
    plan = windowed(keyed.emit(emit), kind, size).agg(AGGS)
    check_every_step(plan, Shape(number, keys=8, gaps=(2, 9)).steps(), sleeps=number % 2 == 1)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", KINDS)
def test_such_a_stream_has_windows_in_state(kind: str) -> None:
    """What the tests around it stand on."""
    keyed = stream_of(SCHEMA).watermark("t", 0).key_by("k")
    plan = windowed(keyed, kind, 12).agg(AGGS)
    shown = [check_every_step(plan, Shape(number, keys=8, gaps=(2, 9)).steps()) for number in range(10)]
    assert sum(shown) > 30


@pytest.mark.one_in(7)
@pytest.mark.parametrize("trigger", [kv.Trigger.on_every_element(), kv.Trigger.on_count(3)])
@pytest.mark.parametrize("kind", [*FIXED, *BY_ROWS])
@SOME
@given(number=st.integers(0, 2**32 - 1), size=st.integers(3, 25), emit=st.sampled_from(["updates", "retractions"]))
def test_with_triggers_state_holds_what_will_be_stated_or_was(
    kind: str, trigger: Any, number: int, size: int, emit: Any
) -> None:
    keyed = stream_of(SCHEMA).watermark("t", 5).key_by("k").allowed_lateness(12).trigger(trigger).emit(emit)
    check_every_step(windowed(keyed, kind, size).agg(AGGS), Shape(number, keys=8).steps(), sleeps=number % 2 == 1)


@SOME
@given(st.integers(0, 2**32 - 1), panes.configs)
def test_panes(number: int, config: ref.PaneConfig) -> None:
    period = None if config.period is None else f"{config.period} ms"
    options = kv.TimeIntervalWindowOptions(f"{config.duration} ms", period, config.discard_age, config.offset)
    keyed = stream_of(SCHEMA).watermark("t", 0).key_by("k")
    check_every_step(keyed.time_interval_window(options).agg(AGGS), Shape(number, keys=8).steps())


@SOME
@given(st.integers(0, 2**32 - 1), st.integers(3, 25))
def test_discarding_keeps_what_came_since_the_last_firing(number: int, size: int) -> None:
    keyed = stream_of(SCHEMA).watermark("t", 5).key_by("k").trigger(kv.Trigger.on_count(3)).accumulation("discarding")
    driver = Driver(keyed.tumbling_window(size).agg(AGGS))
    for step in Shape(number, keys=2, rows_per_key=20).steps():
        moved(driver, step)
        assert lines(driver.state()) == lines(driver.restarted().close().results)


def rows(*events: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"user": user, "at": moment} for user, moment in events]


def small(plan: str = "tumbling", **more: Any) -> Driver:
    keyed = stream_of("user string, at bigint").watermark("at", 1_000).key_by("user")
    return Driver(windowed(keyed, plan, 101).agg(kv.count()), **more)


def test_the_columns_are_those_of_results_and_the_last_update() -> None:
    stream = stream_of("last_update string, at timestamp, v double").watermark("at", 0).key_by("last_update")
    state = Driver(stream.tumbling_window(100).with_pane().emit("retractions").agg(kv.sum("v").alias("total"))).state()
    utc = pa.timestamp("us", "UTC")
    assert list(zip(state.schema.names, state.schema.types, strict=True)) == [
        ("last_update", pa.string()),
        ("window_start", utc),
        ("window_end", utc),
        ("total", pa.float64()),
        ("state_last_update", utc),
    ]


@pytest.mark.parametrize("kind", ["tumbling", "session", "capped", "count hop", "lookback", "distinct"])
def test_the_last_update_is_the_time_of_the_batch(kind: str) -> None:
    clock = ManualClock()
    driver = small(kind, clock=clock)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    driver.send(rows(("a", 10), ("b", 10)))
    clock.advance("1 minute")
    driver.send(rows(("b", 12)))
    last = driver.restarted().state().group_by("user").aggregate([("last_update", "max")])
    assert dict(zip(*last.to_pydict().values(), strict=True)) == {"a": epoch, "b": epoch + timedelta(minutes=1)}


@pytest.mark.parametrize("kind", ["tumbling", "count", "lookback"])
def test_the_last_update_is_null_where_it_was_not_noted(kind: str) -> None:
    spec = small(kind)._spec
    prepare, operator, bucket = RowPreparer(spec), operator_for(spec), Bucket(MemoryStore())
    for now in (None, 7):
        batch = pa.RecordBatch.from_pylist(rows(("ab"[now is None], 10)), spec.source_schema)
        held = attrs.evolve(bucket, now_ms=now)
        operator.step(held, [operator.combine(prepare(batch, UNSET).rows)], Moment(UNSET))
    updated = dict(zip(*operator.state(bucket).select(["user", "last_update"]).to_pydict().values(), strict=True))
    assert updated == {"b": None, "a": datetime(1970, 1, 1, 0, 0, 0, 7_000, timezone.utc)}


def test_state_is_read_without_changing_it() -> None:
    driver = small("hopping")
    driver.send(rows(("a", 10), ("b", 60)))
    before = driver.state()
    assert before == driver.state()
    assert driver.close().results.num_rows == before.num_rows


def test_late_windows_are_in_state_until_nothing_can_change_them() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").allowed_lateness(50)
    driver = Driver(keyed.tumbling_window(100).agg(kv.count()))
    driver.send(rows(("a", 10), ("a", 120)))
    assert driver.state()["window_end"].to_pylist() == [100, 200]
    driver.send(rows(("a", 150)))
    assert driver.state()["window_end"].to_pylist() == [200]


#   ms   0        10   12        19
#   a    x---------)                  fired, W = 12
#   a           x----------------)    joined by a late row: goes on, its result is yet to be withdrawn
def test_a_result_that_waits_to_be_withdrawn_is_no_session() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").allowed_lateness(50).emit("retractions")
    driver = Driver(keyed.session_window(10).agg(kv.count()))
    assert driver.send(rows(("a", 0), ("b", 12))).results.num_rows == 1
    driver.send(rows(("a", 9)))
    assert lines(driver.state()) == Counter([("a", 0, 19, 2), ("b", 12, 22, 1)])


#   ms   0   10                 60     100
#   a    x                       x      |   state dropped at 50: nothing of the window will be written
#   b    x         x    x        x      |
def test_a_window_that_lost_rows_is_not_shown() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").with_state_ttl(kv.StateTtlConfig(30, "event"))
    driver = Driver(keyed.tumbling_window(100).agg(kv.count()))
    for batch in (("a", 0), ("b", 0)), (("b", 25),), (("b", 50),), (("a", 60), ("b", 60)):
        driver.send(rows(*batch))
    assert lines(driver.state()) == lines(driver.restarted().close().results) == Counter([("b", 0, 100, 4)])


def test_what_has_no_aggregates_is_refused() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    with pytest.raises(PlanError, match="state has no aggregates to show"):
        Driver(keyed.lookback_window(10).matches()).state()


def test_sql_names_are_kept() -> None:
    context = SqlContext()
    context.register("t", stream_of("k string, at bigint"), event_time="at", lag=0)
    plan = context.sql(
        "SELECT tumble_end(at, INTERVAL '1' SECOND) AS till, k AS who, count(*) AS n FROM t "
        "GROUP BY tumble_end(at, INTERVAL '1' SECOND), k"
    )
    assert plan is not None
    driver = Driver(plan)
    driver.send([{"k": "a", "at": 5}])
    assert [{k: r[k] for k in ("who", "window_start", "till", "n")} for r in driver.state().to_pylist()] == [
        {"who": "a", "window_start": 0, "till": 1_000, "n": 1}
    ]
