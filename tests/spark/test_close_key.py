"""`query.close_key` on Spark: what the driver does for the same order of calls, over restarts and repeated batches."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.api.stages.stream import Stream
from krishiv_py.engine.closing import keys_to_close
from krishiv_py.runtime.closings import Closings, request
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

DDL = "user string, part decimal(6,2), at bigint, amount bigint"
Outs = list[kv.Output]


def by_key(stream: Stream, names: str = "gone after, triggered, look-back, once") -> Outs:
    """Windows that are kept by key, with several columns as the key."""
    keyed = stream.watermark("at", 10).key_by("user", "part")
    plans: dict[str, Any] = {
        "session": keyed.session_window(40).agg(kv.count(), kv.sum("amount")),
        "capped": keyed.session_window(40, max_duration=100).agg(kv.count()),
        "triggered": keyed.trigger(kv.Trigger.on_count(3)).session_window(40).agg(kv.sum("amount")),
        "gone after": keyed.with_state_ttl(kv.StateTtlConfig(5_000)).session_window(40).agg(kv.count()),
        "look-back": keyed.lookback_window(50).agg(kv.sum("amount")),
        "distinct": keyed.window(kv.SlidingWindows.of(30).grace(5)).agg(kv.count()),
        "counted": keyed.count_window(3).agg(kv.sum("amount")),
        "once": stream.watermark("at", 10).drop_duplicates("user", "part", within=1_000),
    }
    return [plan.to(kv.MemorySink(), name=name) for name, plan in plans.items() if name in names.split(", ")]


def more(stream: Stream) -> Outs:
    """The others."""
    return by_key(stream, "session, capped, distinct, counted")


def joined(stream: Stream) -> Outs:
    """Rows with later ones of their key."""
    left, right = stream.watermark("at", 10), stream.rename(at="later", amount="other").watermark("later", 10)
    return [left.interval_join(right, on=["user", "part"], lower=1, upper=40, how="left").to(kv.MemorySink())]


def chained(stream: Stream) -> Outs:
    """A stage after another: it forgets a key only where it is named."""
    keyed = stream.watermark("at", 10).key_by("user", "part")
    sums = keyed.tumbling_window(20).agg(kv.sum("amount").alias("n"))
    return [sums.key_by("user", "part").session_window(100).agg(kv.sum("n").alias("total")).to(kv.MemorySink())]


def row(user: str | None, part: Decimal | None, at: int) -> dict[str, Any]:
    return {"user": user, "part": part, "at": at, "amount": at % 7}


SMALL, LARGE = Decimal("1.50"), Decimal("2.00")
KEYS = [("a", SMALL), ("b", LARGE), (None, SMALL), ("a", None)]
STEPS: list[Any] = [
    [row(user, part, moment) for moment in (0, 5, 30) for user, part in KEYS],
    ("a", SMALL),
    [row(user, part, moment) for moment in (35, 60) for user, part in KEYS],
    (None, SMALL),
    ("a", None),
    ("nobody", LARGE),
    [row("b", LARGE, 62)],  # the buckets of the closed keys get no rows
    [row(user, part, 130) for user, part in KEYS],
]


def dropped(progress: kv.Progress) -> dict[str, int]:
    """What was dropped with keys, by stage."""
    return {name: one.counters.get("close_key_dropped", 0) for name, one in (progress.stages or {"": progress}).items()}


def sorted_texts(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "stage"),
    [
        pytest.param(by_key, None, marks=SLOW),
        (chained, "output 1: stage 2"),
        pytest.param(more, None, marks=SLOW),
        pytest.param(joined, None, marks=SLOW),
    ],
)
def test_keys_are_closed_as_in_the_driver(
    session: kv.Session, tmp_path: Path, outputs: Callable[[Stream], Outs], stage: str | None
) -> None:
    driver = Driver(outputs(stream_of(DDL)))
    wanted: dict[str, list[Any]] = {}
    stream, sender = session.memory_stream(DDL)
    given, checkpoint = outputs(stream), str(tmp_path / "checkpoint")
    query = session.start(given, checkpoint=checkpoint)
    try:
        for i, step in enumerate([*STEPS, None]):
            if i == 4:  # between the call and the batch that closes the key
                query.stop()
                query = session.start(given, checkpoint=checkpoint)
            if isinstance(step, tuple):
                driver.close_key(step, stage)
                query.close_key(step, stage)
                continue
            sent = {"left": step, "right": step} if outputs is joined else step
            done = driver.close() if step is None else driver.send(sent)
            for name, table in done.by_output.items():
                wanted.setdefault(name, []).extend(table.to_pylist())
            sender.close() if step is None else sender.send(step)
            query.process_all_available()
        for name, rows in wanted.items():
            actual = query.results(name) if len(given) > 1 else query.results()
            assert sorted_texts(actual.to_pylist()) == sorted_texts(rows), name
        missing = dropped(driver.progress)
        assert any(missing.values()) and dropped(query.progress) == missing
        assert not list((tmp_path / "checkpoint/krishiv/closing").iterdir()), "requests that are done are removed"
    finally:
        query.stop()


class BrokenError(RuntimeError):
    """Stands for the end of the process."""


@pytest.mark.parametrize("where", [pytest.param("before the results are out", marks=SLOW), "before Spark notes the batch"])
def test_a_repeated_batch_closes_the_keys_it_closed_before(
    session: kv.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """And none that were closed since; those come with the next one."""
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").session_window(10).agg(kv.count())
    checkpoint, sink = str(tmp_path), kv.MemorySink()
    published, failing = Closings.published, [True]

    def breaks(self: Closings, batch: int, kinds: set[str]) -> None:
        if batch == 2 and failing and where == "before the results are out":
            raise BrokenError
        published(self, batch, kinds)
        if batch == 2 and failing:
            raise BrokenError

    monkeypatch.setattr(Closings, "published", breaks)
    query = plan.start(sink, checkpoint=checkpoint)
    sender.send([{"user": user, "at": 0} for user in "abc"])
    query.process_all_available()  # batch 0, and batch 1 where the watermark has moved
    query.close_key("a")
    sender.send([{"user": user, "at": 5} for user in "abc"])
    with pytest.raises(kv.KrishivError):
        query.process_all_available()
    failing.clear()
    request(checkpoint, keys_to_close(Driver(plan)._plan, "b", None), durable=False)
    query = plan.start(sink, checkpoint=checkpoint)
    try:
        query.process_all_available()
        sender.send([{"user": "c", "at": 6}])
        query.process_all_available()
        sender.close()
        query.process_all_available()
        assert sorted_texts(r["user"] + str(r["count"]) for r in query.results().to_pylist()) == sorted_texts(["a1", "c3"])
        assert query.progress.counters["close_key_dropped"] == 2
    finally:
        query.stop()


def test_wrong_calls(session: kv.Session, tmp_path: Path) -> None:
    stream, _ = session.memory_stream("user string, at bigint")
    keyed = stream.watermark("at", 0).key_by("user")
    fixed, sessions = keyed.tumbling_window(10).agg(kv.count()), keyed.session_window(10).agg(kv.count())
    query = fixed.start(kv.MemorySink(), checkpoint=str(tmp_path / "fixed"))
    with pytest.raises(kv.PlanError, match="a key cannot be closed here"):
        query.close_key("a")
    query.stop()
    query = sessions.start(kv.MemorySink(), checkpoint=str(tmp_path / "sessions"))
    for wrong in (("a", 1), 5, ()):
        with pytest.raises(kv.PlanError, match="not a key of this query"):
            query.close_key(wrong)
    with pytest.raises(kv.PlanError, match="no such stage"):
        query.close_key("a", stage="other")
    query.stop()
    with pytest.raises(kv.OperatorError, match="the query does not run"):
        query.close_key("a")
    assert not (tmp_path / "sessions/krishiv/closing").exists()
