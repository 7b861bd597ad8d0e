"""Several joins of the same streams, and pipelines over a finite input: each gives what it gives alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import MemorySink, PlanError, WatermarkSpec, count
from krishiv_py.session import Session
from krishiv_py.testing import Driver, collect, stream_of

KEYS = st.sampled_from(["a", "b", None])
LEFT = st.fixed_dictionaries({"user": KEYS, "at": st.integers(0, 60), "n": st.integers(0, 3)})
RIGHT = st.fixed_dictionaries({"user": KEYS, "seen": st.integers(0, 60), "m": st.integers(0, 3)})
BATCHES = st.lists(st.tuples(st.lists(LEFT, max_size=5), st.lists(RIGHT, max_size=5)), max_size=5)


def joins(left: Any, right: Any, lag: int = 5) -> dict[str, Any]:
    one, other = left.watermark("at", lag), right.watermark("seen", lag + 4)
    joined = one.interval_join(other, "user", lower=-4, upper=6)
    return {
        "inner": joined,
        "full": one.interval_join(other, "user", lower=0, upper=10, how="full"),
        "as of": one.asof_join(other, "user", tolerance=8),
        "later": left.watermark("at", lag + 7).interval_join(other, ["user"], lower=-4, upper=6, how="left"),
        "counted": joined.results().key_by("user").tumbling_window(10).agg(count()),
        "one side": one.tumbling_window(10).agg(count()),
        "rows": right.select("m"),
    }


def sources() -> tuple[Any, Any]:
    return stream_of("user string, at bigint, n bigint"), stream_of("user string, seen bigint, m bigint")


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@given(BATCHES, st.sets(st.integers(0, 4), max_size=2))
def test_joins_of_the_same_streams_give_what_each_gives_alone(batches: list[Any], restarts: set[int]) -> None:
    together = Driver([plan.to(MemorySink(), name=name) for name, plan in joins(*sources()).items()])
    alone = {name: Driver(plan) for name, plan in joins(*sources()).items()}
    only = {"one side": "left", "rows": "right"}
    for number, batch in enumerate([*batches, None]):
        if number in restarts:
            together = together.restarted()
        sent = None if batch is None else {"left": batch[0], "right": batch[1]}
        out = together.close() if sent is None else together.send(sent)
        for name, driver in alone.items():
            own = sent if sent is None or name not in only else sent[only[name]]
            wanted = driver.close() if own is None else driver.send(own)
            assert shown(out.by_output[name].to_pylist()) == shown(wanted.results.to_pylist()), name
    assert together.progress.open_rows == 0


@pytest.mark.slow
def test_joins_run_on_spark_over_a_restart(session: Session, tmp_path: Any) -> None:
    ours = [{"user": "ab"[n % 2], "at": 5 * n % 31, "n": n} for n in range(12)]
    theirs = [{"user": "ab"[n % 2], "seen": 4 * n % 29, "m": n} for n in range(12)]
    names = ("as of", "counted")
    plans = joins(*sources(), lag=1_000)  # nothing is late, so it makes no difference how rows of both sides come together
    wanted = collect([plans[name] for name in names], {"left": ours, "right": theirs})
    assert all(table.num_rows for table in wanted)
    left, to_left = session.memory_stream("user string, at bigint, n bigint", name="left")
    right, to_right = session.memory_stream("user string, seen bigint, m bigint", name="right")
    made = joins(left, right, lag=1_000)
    outputs = [made[name].to(MemorySink(), name=name) for name in names]
    checkpoint = str(tmp_path / "checkpoint")
    query = session.start(outputs, checkpoint=checkpoint)
    try:
        to_left.send(ours[:7])
        to_right.send(theirs[:5])
        query.process_all_available()
        query.stop()
        query = session.start(outputs, checkpoint=checkpoint)
        to_left.send(ours[7:])
        to_right.send(theirs[5:])
        to_left.close()
        to_right.close()
        query.process_all_available()
        for name, table in zip(names, wanted, strict=True):
            assert shown(query.results(name).to_pylist()) == shown(table.to_pylist()), name
    finally:
        query.stop()


def test_pipelines_over_a_finite_input_are_collected_together(session: Session) -> None:
    stream, sender = session.memory_stream("user string, at bigint, n bigint")
    timed = stream.watermark("at", 5).key_by("user")
    plans: list[Any] = [
        timed.tumbling_window(10).agg(count()),
        stream.filter("n > 2"),
        timed.session_window(7).agg(kv.sum("n")).tumbling_window(100).agg(count()),
    ]
    rows = [{"user": "abc"[n % 3], "at": 3 * n, "n": n % 5} for n in range(40)]
    for i in range(0, 40, 10):
        sender.send(rows[i : i + 10])
    sender.send([{"user": "a", "at": 1, "n": 9}])
    together = session.collect(iter(plans))
    assert [shown(t.to_pylist()) for t in together] == [shown(p.collect().to_pylist()) for p in plans]
    local = [stream_of("user string, at bigint, n bigint")]
    timed = local[0].watermark("at", 5).key_by("user")
    driven = collect(
        [timed.tumbling_window(10).agg(count()), local[0].filter("n > 2")],
        *(rows[i : i + 10] for i in range(0, 40, 10)),
        [{"user": "a", "at": 1, "n": 9}],
    )
    assert [shown(t.to_pylist()) for t in driven] == [shown(t.to_pylist()) for t in together[:2]]


@pytest.mark.parametrize("given", [5, "x", None, [5], [], {"a": 1}, stream_of("at bigint")])
def test_what_is_no_list_of_pipelines_is_refused(given: Any) -> None:
    with pytest.raises(PlanError, match=r"session\.collect"):
        Session(None).collect(given)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="collect"):
        collect(given)


def test_a_join_of_one_streams_results_next_to_these_results() -> None:
    counts = stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(4).agg(count().alias("n"))
    first = counts.results().drop_duplicates("k", within=100)
    joined = counts.interval_join(first, "k", lower=0, upper=9, suffixes=("", "_first"))
    for outputs in ([joined, counts], [counts, joined]):
        driver = Driver([o.to(MemorySink(), name="joined" if o is joined else "counts") for o in outputs])
        out = driver.send([{"k": "x", "at": 1}, {"k": "x", "at": 5}]).by_output
        assert [out["joined"]["n_first"].to_pylist(), out["counts"]["n"].to_pylist()] == [[1], [1]]


def test_a_join_is_one_stage_wherever_it_is_in_the_outputs() -> None:
    one, other = (stream_of(f"k string, {moment} bigint").watermark(moment, 0) for moment in ("at", "seen"))
    hits = one.key_by("k").tumbling_window(4).agg(count().alias("n"))
    joined = hits.interval_join(other, "k", lower=-9, upper=9)
    counted = joined.results().key_by("k").tumbling_window(10).agg(count().alias("met"))
    nearest = joined.results().asof_join(counted, "k", direction="forward", tolerance=10, suffixes=("", "_met"))
    outputs = [counted.select("met").to(MemorySink(), name="counted"), nearest.to(MemorySink(), name="nearest")]
    driver = Driver(outputs)
    names = [read.name for read in driver._plan.reads]
    driver.send({n: [{"k": "x", "at" if n == names[0] else "seen": 1}] for n in names})
    out = driver.close().by_output
    assert [out["counted"]["met"].to_pylist(), out["nearest"]["met"].to_pylist()] == [[1], [1]]


def test_each_output_keeps_its_own_lag_whichever_stage_comes_first_on_a_clock() -> None:
    """The clock of a source is that of the least lag; the stage that came first had a larger one."""

    def counted(rows: Any, time: str, lag: int) -> Any:
        return rows.watermark(time, lag).key_by("k").tumbling_window(10).agg(count().alias(f"n_{time}"))

    one, other = stream_of("k string, at bigint"), stream_of("k string, seen bigint")
    both = counted(one, "at", 0).interval_join(counted(other, "seen", 5), "k", lower=-99, upper=99, suffixes=("", "_r"))
    plans = {"both": both, "alone": counted(other, "seen", 2)}
    driver = Driver([plan.to(MemorySink(), name=name) for name, plan in plans.items()])
    given: dict[str, list[int]] = {name: [] for name in plans}
    for t in range(30):
        out = driver.send({"left": [{"k": "x", "at": t}], "right": [{"k": "x", "seen": t}]}).by_output
        for name, table in out.items():
            given[name] += [t] * table.num_rows
    assert given["alone"] == [12, 22]
    assert given["both"] == [15, 20, 25, 25], "windows of the left side come at 10 and 20, of the right one at 15 and 25"


def test_lags_differ_only_where_no_watermark_starts_at_a_given_time() -> None:
    """A stage behind the clock by a larger lag would start behind the given time, and take late rows in."""

    def counted(rows: Any, lag: int) -> Any:
        return rows.with_watermark(WatermarkSpec.fixed_lag(lag, initial=0), "at").tumbling_window(10).agg(count())

    rows = stream_of("at bigint")
    with pytest.raises(PlanError, match="lags may differ where no `initial` is set"):
        Driver(counted(rows, lag).to(MemorySink()) for lag in (0, 5))
    driver = Driver([counted(rows, 5).to(MemorySink(), name="one"), counted(rows, 5).to(MemorySink(), name="other")])
    assert [late.num_rows for late in driver.send([{"at": -3}]).late_by_stage.values()] == [1, 1]
