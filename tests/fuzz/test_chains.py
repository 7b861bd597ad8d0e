"""Random pipelines of mostly right and some wrong steps, over random batches: errors of ours, or results."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import KrishivError, OperatorError, SchemaError
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.fuzz.catalogue import Grown
from tests.fuzz.running import SCHEMA
from tests.fuzz.values import WRONG

TRIED: Final = settings.default.max_examples if settings.default else 40
MANY: Final = settings(max_examples=TRIED * 10 if TRIED < 1_000 else TRIED)
Choose = random.Random
LENGTHS: Final[tuple[Any, ...]] = (0, 1, 5_000, "10 s", "1 min", "1 h", 3, "7 ms", "2 d")
COLUMNS: Final = ("user", "amount", "n", "at", "when", "tags", "flag", "nowhere")
TEXTS: Final = (
    "at > 3",
    "n % 2 = 0",
    "amount * 2 > n",
    "user = 'a'",
    "flag",
    "NOT flag",
    "lower(user) = 'a' AND n IS NULL",
    "n / 0 > 1",
    "tags",
    "user + 1",
    "n IN (1, 2, NULL)",
    "CAST(n AS string) = '1'",
    "",
)


def _value(draw: Choose, good: tuple[Any, ...]) -> Any:
    """Nearly always one that may fit."""
    return WRONG[draw.choice(list(WRONG))]() if draw.random() < 0.02 else draw.choice(good)


NUMBERS: Final = (kv.sum, kv.avg, kv.percentile, kv.variance, kv.stddev)
ANYTHING: Final = (
    kv.min,
    kv.max,
    kv.first,
    kv.last,
    kv.count_distinct,
    kv.collect_list,
    kv.collect_set,
    kv.count,
    kv.approx_count_distinct,
)


def _aggregate(draw: Choose) -> Any:
    make: Any = draw.choice((*NUMBERS, *ANYTHING))
    call = make(_value(draw, ("n", "at", "amount") if make in NUMBERS else ("user", "n", "at", "flag", "when")))
    return call.filter(_value(draw, TEXTS)) if draw.random() < 0.1 else call


ROW_STEPS: Final[tuple[Callable[[Any, Choose], Any], ...]] = (
    lambda s, d: s.filter(_value(d, TEXTS)),
    lambda s, d: s.with_column(_value(d, ("x", "n", "z z")), _value(d, ("n + 1", "amount", "at % 7", "user = 'a'"))),
    lambda s, d: s.select("user", "n", "at", "when", "amount", "flag", "tags"),
    lambda s, d: s.drop(_value(d, ("flag", "tags", "nowhere"))),
    lambda s, d: s.rename(amount=_value(d, ("price", "Amount", "n"))),
    lambda s, d: s.map_batches(lambda batch: batch),
)
OPTIONS: Final[tuple[Callable[[Any, Choose], Any], ...]] = (
    lambda s, d: s.allowed_lateness(_value(d, LENGTHS)),
    lambda s, d: s.late_rule(_value(d, ("event", "window"))),
    lambda s, d: s.null_keys(_value(d, ("group", "side_output"))),
    lambda s, d: s.emit(_value(d, ("final", "updates", "retractions"))),
    lambda s, d: s.trigger(
        _value(
            d,
            (
                kv.Trigger.on_every_element(),
                kv.Trigger.on_count(2),
                kv.Trigger.on_interval("5 s"),
                kv.Trigger.when(Grown()),
                kv.Trigger(early=2, on_time=False, late=None),
            ),
        )
    ),
    lambda s, d: s.accumulation(_value(d, ("accumulating", "discarding"))),
    lambda s, d: s.with_pane(),
    lambda s, d: s.future_tolerance(_value(d, LENGTHS), _value(d, ("warn", "drop", "side_output"))),
    lambda s, d: s.with_state_ttl(kv.StateTtlConfig(_value(d, LENGTHS), _value(d, ("event", "processing")))),
    lambda s, d: s.with_late_event_handler(kv.CountByKeyLateEventHandler()),
)
WINDOWS: Final[tuple[Callable[[Any, Choose], Any], ...]] = (
    lambda s, d: s.tumbling_window(_value(d, LENGTHS), _value(d, LENGTHS)),
    lambda s, d: s.hopping_window(_value(d, ("10 s", "1 min")), _value(d, ("5 s", "7 s", "1 h")), allow_gaps=d.random() < 0.5),
    lambda s, d: s.session_window(_value(d, ("5 s", "n", "nowhere", kv.col("at"))), max_duration=_value(d, (None, "1 min"))),
    lambda s, d: s.count_window(_value(d, (1, 2, 3)), _value(d, (None, 1, 2))),
    lambda s, d: s.lookback_window(_value(d, LENGTHS), two_sided=d.random() < 0.3, max_rows_per_key=_value(d, (None, 2))),
    lambda s, d: s.windowed_by(kv.SlidingWindows.of(_value(d, ("10 s", 0))).grace(_value(d, LENGTHS))),
    lambda s, d: s.time_interval_window(kv.TimeIntervalWindowOptions(10.0, discard_age=_value(d, (0, 5.0, "15 s")))),
)


def built(draw: Choose) -> Any:
    """A pipeline, or whatever it raises on the way."""
    stream: Any = stream_of(SCHEMA)
    for _ in range(draw.randrange(3)):
        stream = draw.choice(ROW_STEPS)(stream, draw)
    stream = stream.watermark(_value(draw, ("at", "when", "at", "user")), _value(draw, LENGTHS))
    if draw.random() < 0.8:
        stream = stream.key_by(*(_value(draw, names) for names in (("user", "n"), ("flag", "amount"))[: draw.randrange(1, 3)]))
    for _ in range(draw.randrange(3)):
        stream = draw.choice(OPTIONS)(stream, draw)
    stream = draw.choice(WINDOWS)(stream, draw)
    if draw.random() < 0.1:
        stream = getattr(stream, draw.choice(["matches", "pairs", "join", "filter"]))()
    else:
        stream = stream.agg(*(_aggregate(draw).alias(f"a{i}") for i in range(draw.randrange(1, 4))))
    for _ in range(draw.randrange(2)):
        stream = draw.choice(OPTIONS)(stream, draw)
    return stream


def rows(draw: Choose) -> list[dict[str, Any]]:
    """A batch that fits the schema, with nulls and odd values."""
    times = [draw.choice([None, draw.randrange(-5_000, 90_000), 30_000, 10**14]) for _ in range(draw.randrange(6))]
    return [
        {
            "user": draw.choice([None, "a", "b", "", "é"]),
            "amount": draw.choice([None, 0.0, -0.0, float("nan"), float("inf"), 1.5]),
            "n": draw.choice([None, 0, 1, -1, 2**31 - 1]),
            "at": t,
            "when": None if t is None else dt.datetime.fromtimestamp(t % 10**9 / 1_000, dt.timezone.utc),
            "tags": draw.choice([None, [], ["x", None]]),
            "flag": draw.choice([None, True, False]),
        }
        for t in times
    ]


@MANY
@given(st.integers(0, 2**63))
@example(1_782_678_243)  # key_by("user", an array)
def test_a_pipeline_is_refused_when_it_is_made_or_runs(seed: int) -> None:
    draw = random.Random(seed)
    try:
        plan = built(draw)
    except KrishivError as refused:
        assert "Hint:" in str(refused)
        event("refused")
        return
    assert isinstance(plan.explain(), str) and plan._repr_html_().startswith("<div")
    clock = ManualClock()
    driver = Driver(plan, clock=clock, idle_batches=draw.random() < 0.7)
    try:
        for _ in range(draw.randrange(1, 4)):
            step = driver.send(rows(draw))
            assert step.results.schema.equals(plan.schema)
            clock.advance(draw.choice([1, 5_000, 100_000]))
            if draw.random() < 0.3:
                driver.tick()
            if draw.random() < 0.2:
                driver = driver.restarted()
        driver.why_not_fired(draw.choice([0, 60_000, -1]))
        driver.close()
        event("ran")
    except OperatorError as stopped:  # values decide: division by zero, an overflow
        assert "cannot be computed" in str(stopped) or "overflow" in str(stopped) or "64" in str(stopped)
        event("stopped by a value")


ARRAYS: Final = (
    pa.array([1, None, 3]),
    pa.array([1.5, None, float("nan")]),
    pa.array(["a", None, "b"]),
    pa.array([True, None, False]),
    pa.nulls(3),
    pa.array([b"x", None, b""]),
    pa.array([[1], None, []]),
    pa.array([{"x": 1}, None, {"x": 2}]),
    pa.array(["a", "a", None]).dictionary_encode(),
    pa.array([2**63, 0, 1], pa.uint64()),
    *(pa.array([1, 2, 3], t) for t in (pa.timestamp("ns"), pa.timestamp("us", "Europe/Oslo"), pa.date32(), pa.duration("s"))),
    pa.array(["x", "y", None], pa.large_string()),
    pa.array([1, 2, 3], pa.decimal128(5, 1)),
)


def sent(draw: Choose) -> Any:
    """Something that may be sent."""
    kind = draw.randrange(4)
    if kind == 0:
        return WRONG[draw.choice(list(WRONG))]()
    names = [draw.choice(COLUMNS[:-1] if draw.random() < 0.95 else ("x", "", "AT")) for _ in range(draw.randrange(9))]
    if kind == 1 and draw.random() < 0.8:
        names = list(COLUMNS[:-1])
    if kind in (1, 2):
        batch = pa.RecordBatch.from_arrays([draw.choice(ARRAYS) for _ in names], names=names)
        return batch if kind == 1 else pa.Table.from_batches([batch, batch])
    return [{n: WRONG[draw.choice(list(WRONG))]() for n in set(names)} for _ in range(draw.randrange(3))]


@MANY
@given(st.integers(0, 2**63))
def test_a_batch_that_does_not_fit_is_refused_whole(seed: int) -> None:
    draw = random.Random(seed)
    windows = stream_of(SCHEMA).watermark("at", 0).key_by("user").tumbling_window("10 s")
    driver = Driver(windows.agg(kv.count(), kv.collect_list("tags")))
    before = driver.progress
    try:
        driver.send(sent(draw))
    except SchemaError as refused:
        assert "Hint:" in str(refused)
        assert driver.progress == before
    driver.close()
