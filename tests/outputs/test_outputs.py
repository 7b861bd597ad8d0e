"""Several outputs of one query on the driver: each gives what it gives as a query of its own, in any batches, over restarts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import (
    ColumnError,
    CountingLateEventHandler,
    ExpressionError,
    MemorySink,
    OperatorError,
    Output,
    PlanError,
    SideOutputLateEventHandler,
    WatermarkSpec,
    col,
    count,
    sum,
    udf,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.session import Session
from krishiv_py.testing import Driver, stream_of

DDL = "user string, at bigint, amount bigint"
WINDOWS = "windows: window-aggregate"
Rows = list[dict[str, Any]]
rows = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["a", "b", None]),
        "at": st.one_of(st.integers(-20, 60), st.none()),
        "amount": st.one_of(st.integers(0, 9), st.none()),
    }
)


def pipelines(stream: Stream) -> dict[str, ResultStream | Stream]:
    """Windows, a chain of which two share the first stage, deduplication, and rows as they are; all follow every row."""
    timed = stream.watermark("at", 5)
    inner = timed.key_by("user").tumbling_window(5).agg(count(), sum("amount"))
    late = stream.watermark("at", 9).key_by("user").allowed_lateness(3).session_window(4).agg(count())
    return {
        "windows": timed.key_by("user").hopping_window(10, 5).agg(sum("amount")),
        "inner": inner,
        "wide": inner.key_by("user").tumbling_window(10).agg(sum("count").alias("n")),
        "wider": inner.tumbling_window(20).agg(sum("sum_amount").alias("total")),
        "behind": late,
        "once": timed.drop_duplicates("user", within=7),
        "raw": stream.filter("amount > 3"),
    }


def outputs(stream: Stream) -> list[Output]:
    return [plan.to(MemorySink(), name=name) for name, plan in pipelines(stream).items()]


def shown(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@given(st.lists(st.lists(rows, max_size=8), max_size=6), st.sets(st.integers(0, 6), max_size=2), st.booleans())
def test_an_output_gives_what_it_gives_alone(batches: list[Rows], restarts: set[int], waits: bool) -> None:
    together = Driver(outputs(stream_of(DDL)), idle_batches=waits)
    alone = {name: Driver(plan, idle_batches=waits) for name, plan in pipelines(stream_of(DDL)).items()}
    for number, batch in enumerate([*batches, None]):
        if number in restarts:
            together = together.restarted()
        out = together.close() if batch is None else together.send(batch)
        for name, driver in alone.items():
            wanted = driver.close() if batch is None else driver.send(batch)
            assert shown(out.by_output[name]) == shown(wanted.results), name
            late = [part for stage, part in out.late_by_stage.items() if stage.startswith(f"{name}: ")]
            if name not in ("inner", "wider"):  # whose first stage is that of "wide"
                assert [shown(part) for part in late] == [shown(part) for part in wanted.late_by_stage.values()]
    assert together.progress.open_rows == 0


def test_stages_in_common_run_once() -> None:
    names = [stage.spec.name for stage in Driver(outputs(stream_of(DDL)))._plan.stages]
    assert [name for name in names if name[0] in "wi"] == ["wide: stage 1", "wide: stage 2", "wider: stage 2", WINDOWS]


def test_results_that_are_an_output_and_go_on_are_made_once() -> None:
    inner = stream_of(DDL).watermark("at", 5).key_by("user").tumbling_window(5).agg(count())
    outer = inner.tumbling_window(10).agg(sum("count").alias("n"))
    driver = Driver([plan.to(MemorySink()) for plan in (inner, outer, inner)])
    assert [output.stage for output in driver._plan.outputs] == [0, 1, 0]
    driver.send([{"user": "a", "at": 1, "amount": 1}])
    first, _, third = driver.close().by_output.values()
    assert first.to_pylist() == third.to_pylist() == [{"user": "a", "window_start": 0, "window_end": 5, "count": 1}]


def test_state_and_reasons_name_a_stage() -> None:
    driver = Driver(outputs(stream_of(DDL)))
    driver.send([{"user": "a", "at": 1, "amount": 1}, {"user": "a", "at": 12, "amount": 5}])
    assert driver.state("wide: stage 1").select(["window_start", "count"]).to_pylist() == [{"window_start": 10, "count": 1}]
    assert driver.state("wide: stage 2").select(["window_start", "n"]).to_pylist() == [{"window_start": 0, "n": 1}]
    assert "fires when the watermark reaches" in driver.why_not_fired(15, "wide: stage 1")
    assert "it is over" in driver.why_not_fired(5, "wide: stage 1") or "fired" in driver.why_not_fired(5, "wide: stage 1")
    for name in ("other", "raw: rows"):
        with pytest.raises(PlanError, match="no such stage with windows"):
            driver.state(name)


def test_stages_that_differ_run_each() -> None:
    timed = stream_of(DDL).watermark("at", 5).key_by("user")
    inner = timed.allowed_lateness(2).tumbling_window(5).agg(count())
    for other in (
        inner,
        inner.emit("updates"),
        inner.emit("updates").filter("count > 1"),
        timed.tumbling_window(5).agg(count()),
    ):
        driver = Driver([inner.tumbling_window(10).agg(count()).to(MemorySink()), other.to(MemorySink())])
        assert [output.stage for output in driver._plan.outputs] == [1, 2]


def steps_behind(stage: ResultStream) -> dict[str, Any]:
    """The results of one stage as they are, and behind steps of several kinds."""
    return {
        "plain": stage,
        "many": stage.filter("n > 1"),
        "few": stage.filter("n <= 1").select("user"),
        "timed": stage.select("n", "at" if "at" in stage.schema.names else "window_time"),
        "doubled": stage.with_column("twice", "n * 2").rename(n="once"),
        "mapped": stage.results().drop("user").map_batches(lambda batch: batch),
        "again": stage.results(),
    }


def staged(stream: Stream, kind: str) -> ResultStream:
    keyed = stream.watermark("at", 5).key_by("user")
    if kind == "deduplicated":
        return stream.select("user", "at", n="amount").watermark("at", 5).drop_duplicates("user", within=7).allowed_lateness(3)
    if kind == "sessions":
        return keyed.allowed_lateness(3).session_window(4).agg(count().alias("n"))
    started = stream.watermark("at", 5).preset("ripple").key_by("user").allowed_lateness(3)  # the watermark begins at 0
    return {
        "final": keyed.allowed_lateness(3).emit("final").tumbling_window(5).agg(count().alias("n")),
        "updates": keyed.allowed_lateness(3).tumbling_window(5).agg(count().alias("n")).with_pane(),
        "retractions": started.tumbling_window(5).agg(count().alias("n")).emit("retractions"),
    }[kind]


KINDS = ("final", "updates", "retractions", "sessions", "deduplicated")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.lists(rows, max_size=8), max_size=4), st.booleans())
def test_steps_over_results_are_an_outputs_own(kind: str, batches: list[Rows], again: bool) -> None:
    def plans() -> dict[str, Any]:
        return steps_behind(staged(stream_of(DDL), kind))

    together = Driver([plan.to(MemorySink(), name=name) for name, plan in plans().items()])
    assert [stage.spec.name for stage in together._plan.stages] == [f"plain: {Driver(plans()['plain'])._plan.title}"]
    alone = {name: Driver(plan) for name, plan in plans().items()}
    for batch in [*batches, None]:
        out = together.close() if batch is None else together.send(batch)
        for name, driver in alone.items():
            wanted = driver.close() if batch is None else driver.send(batch)
            assert shown(out.by_output[name]) == shown(wanted.results), name
            assert out.by_output[name].schema == wanted.results.schema
            assert shown(out.late) == shown(wanted.late)
        one, other = together.progress, alone["plain"].progress
        assert (one.rows, one.late, one.counters, one.open_rows) == (other.rows, other.late, other.counters, other.open_rows)
        if again:
            together = together.restarted()


def test_a_late_row_is_late_once_however_many_outputs_follow_its_stage() -> None:
    late = MemorySink()
    aside = SideOutputLateEventHandler(late)
    keyed = stream_of(DDL).watermark("at", 0).with_late_event_handler(aside).key_by("user")
    counts = keyed.tumbling_window(5).agg(count().alias("n"))
    wide = counts.filter("n > 1").tumbling_window(10).agg(sum("n").alias("m"))
    many, few = counts.filter("n > 1"), counts.filter("n = 1").select("user")
    groups: list[list[Any]] = [[many, few], [counts, many], [wide, many, few], [few, wide], [few, counts, wide]]
    for outputs in groups:
        late.tables.clear()
        driver = Driver([plan.to(MemorySink()) for plan in outputs])
        for moment in (1, 9, 2):
            driver.send([{"user": "a", "at": moment, "amount": moment}])
        assert [row["at"] for table in late.tables.values() for part in table for row in part.to_pylist()] == [2]
        assert len(driver._plan.stages) == (2 if wide in outputs else 1)


def test_a_stage_is_one_whichever_output_comes_first() -> None:
    counts = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(5).agg(count().alias("n"))
    slow = stream_of("user string, seen bigint").watermark("seen", 9)
    joined = slow.interval_join(counts, "user", lower=-99, upper=99)  # begins with a lag, and so comes after the counts
    driver = Driver([counts.filter("n > 0").to(MemorySink(), name="counts"), joined.to(MemorySink(), name="joined")])
    names = [read.name for read in driver._plan.reads]
    assert [len(driver._plan.stages), len(names), [o.stage for o in driver._plan.outputs]] == [2, 2, [0, 1]]
    left = next(n for n, read in zip(names, driver._plan.reads, strict=True) if "seen" in read.source.schema.names)
    for name in names:
        driver.send({name: [{"user": "a", "seen": 3} if name == left else {"user": "a", "at": 1, "amount": 1}]})
    out = driver.close().by_output
    assert [out["counts"]["n"].to_pylist(), out["joined"]["n"].to_pylist()] == [[1], [1]]


def test_errors_of_an_outputs_steps_name_the_stage() -> None:
    counts = stream_of(DDL).watermark("at", 0).tumbling_window(5).agg(count().alias("n"))
    driver = Driver([counts.to(MemorySink(), name="all"), counts.select(m="1 / (n - 1)").to(MemorySink(), name="some")])
    with pytest.raises(OperatorError, match="all: window-aggregate"):
        driver.send([{"user": "a", "at": 1, "amount": 1}, {"user": "a", "at": 9, "amount": 1}])


def test_every_row_is_in_exactly_one_part() -> None:
    sent = [{"user": "a", "at": i, "amount": amount} for i, amount in enumerate([None, 1, 5, 9, 5, None, 0])]
    parts = stream_of(DDL).split("amount > 6", col("amount") > 3)
    out = Driver([part.to(MemorySink()) for part in parts]).send(sent)
    assert [part["at"].to_pylist() for part in out.by_output.values()] == [[3], [2, 4], [0, 1, 5, 6]]
    assert list(out.by_output) == ["output 1", "output 2", "output 3"]


def test_the_clock_follows_the_rows_of_all_outputs() -> None:
    big, rest = stream_of(DDL).split("amount > 6")
    first, second = (s.watermark("at", lag).tumbling_window(10).agg(count()) for s, lag in ((big, 5), (rest, 0)))
    driver = Driver([first.to(MemorySink(), name="big"), second.to(MemorySink(), name="rest")])
    driver.send([{"user": "a", "at": 1, "amount": 9}, {"user": "a", "at": 2, "amount": 1}])
    out = driver.send([{"user": "a", "at": 12, "amount": 1}])  # the rest is at 12, the big ones 5 behind
    assert [t.num_rows for t in out.by_output.values()] == [0, 1]
    out = driver.send([{"user": "a", "at": 15, "amount": 1}, {"user": "a", "at": 11, "amount": 1}])
    assert [t.num_rows for t in out.by_output.values()] == [1, 0]
    assert {name: t.num_rows for name, t in out.late_by_stage.items()} == {
        "rest: window-aggregate": 1,
        "big: window-aggregate": 0,
    }
    assert {name: p.watermark_us for name, p in driver.progress.stages.items()} == {
        "rest: window-aggregate": 15_000,
        "big: window-aggregate": 10_000,
    }


def counted(stream: Stream, **options: Any) -> ResultStream:
    return stream.watermark("at", 5).tumbling_window(10, **options).agg(count())


def refused(*given: Any) -> str:
    with pytest.raises(PlanError) as problem:
        Driver(list(given))
    return str(problem.value)


def moving(by: int) -> Any:
    """A function that looks the same for every number."""
    return lambda times: times + by


def test_what_cannot_be_one_query_says_so() -> None:
    stream, other = stream_of(DDL), stream_of(DDL)
    sink = MemorySink()
    assert "read one source" in refused(counted(stream).to(sink), counted(other).to(MemorySink()))
    renamed = stream.rename(at="seen").watermark("seen", 5).tumbling_window(10).agg(count())
    assert "their time columns differ" in refused(counted(stream).to(sink), renamed.to(MemorySink()))
    moved = stream.with_column("at", col("at") + 1)
    assert "their time columns differ" in refused(counted(stream).to(sink), counted(moved).to(MemorySink()))
    early, late_by = (stream.with_column("at", udf("bigint", name="moved")(moving(n))(col("at"))) for n in (0, 7))
    assert "their time columns differ" in refused(counted(early).to(sink), counted(late_by).to(MemorySink()))
    begun = stream.with_watermark(WatermarkSpec.fixed_lag(5, initial=0), "at").tumbling_window(10).agg(count())
    assert "their watermarks differ" in refused(counted(stream).to(sink), begun.to(MemorySink()))
    assert "two outputs go to one sink" in refused(counted(stream).to(sink), counted(stream).to(sink))
    assert "two outputs have one name" in refused(counted(stream).to(sink, name="x"), stream.to(MemorySink(), name="x"))
    assert "0 outputs" in refused()
    assert "takes a list of outputs" in refused(counted(stream))
    with pytest.raises(PlanError, match="have sinks of their own"):
        Driver([counted(stream).to(sink)], sink=MemorySink())
    late = SideOutputLateEventHandler(MemorySink())
    aside = stream.watermark("at", 5).with_late_event_handler(late)
    assert "late rows of two stages go to one sink" in refused(
        aside.tumbling_window(10).agg(count()).to(sink), aside.tumbling_window(5).agg(count()).to(MemorySink())
    )


@pytest.mark.parametrize("given", [5, "x", None, [5], [], {"a": 1}])
def test_start_takes_outputs(given: Any) -> None:
    with pytest.raises(PlanError, match=r"session\.start"):
        Session(None).start(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("call", "hint"), [(lambda s: s.split(), "0 conditions"), (lambda s: s.to(5), "results")])
def test_wrong_calls_are_refused(call: Any, hint: str) -> None:
    with pytest.raises(PlanError, match=hint):
        call(stream_of(DDL))


def test_split_names_what_was_written() -> None:
    stream = stream_of(DDL)
    for wrong, stated in (("amount", "amount of type bigint"), (col("user").lower(), "lower(user) of type string")):
        with pytest.raises(ExpressionError, match=r"split\(\) takes conditions") as problem:
            stream.split("amount > 3", wrong)
        assert stated in str(problem.value) and "coalesce" not in str(problem.value)
    with pytest.raises(ColumnError, match=r"^split: "):
        stream.split(col("amonut") > 3)


def test_outputs_are_any_iterable_once() -> None:
    stream = stream_of(DDL)
    driver = Driver(counted(stream, offset=offset).to(MemorySink()) for offset in (0, 5))
    driver.send([{"user": "a", "at": 7, "amount": 1}])
    actual = driver.restarted().close().by_output
    assert [t["window_start"].to_pylist() for t in actual.values()] == [[0], [5]]


@pytest.mark.parametrize(
    ("names", "title"), [(["x"], "x"), (["x", None], "x + output 2"), (["a", "b", "c", "d", "e"], "a + b + c + 2 more")]
)
def test_several_outputs_are_titled_after_their_names(names: list[str | None], title: str) -> None:
    stream = stream_of(DDL)
    assert Driver(counted(stream).to(MemorySink(), name=name) for name in names)._plan.title == title
    assert Driver(counted(stream))._plan.title == "window-aggregate"


def test_a_key_is_closed_in_every_output() -> None:
    timed = stream_of(DDL).watermark("at", 0)
    keyed = timed.key_by("user")
    outs = [
        keyed.session_window(4).agg(count()).to(MemorySink(), name="sessions"),
        keyed.lookback_window(5).agg(sum("amount")).to(MemorySink(), name="look"),
    ]
    driver = Driver(outs)
    rows = [{"user": user, "at": 1, "amount": 1} for user in "abb"]
    driver.send(rows)
    assert driver.close_key("b") == 3  # a session, and two rows of the look-back
    left = driver.close().by_output
    assert {name: t["user"].to_pylist() for name, t in left.items()} == {"sessions": ["a"], "look": ["a"]}


def test_a_key_is_closed_where_it_is_known_what_it_is() -> None:
    timed = stream_of(DDL).watermark("at", 0)
    by_user = timed.key_by("user").session_window(4).agg(count()).to(MemorySink(), name="user")
    by_amount = timed.key_by("amount").session_window(4).agg(count()).to(MemorySink(), name="amount")
    fixed = timed.key_by("user").tumbling_window(4).agg(count()).to(MemorySink(), name="fixed")
    row = {"user": "a", "at": 1, "amount": 1}
    driver = Driver([by_user, by_amount, timed.to(MemorySink(), name="raw")])
    driver.send([row])
    with pytest.raises(PlanError, match="the outputs have different keys"):
        driver.close_key("a")
    assert driver.close_key(1, stage="amount: window-aggregate") == 1
    assert {n: t.num_rows for n, t in driver.close().by_output.items()} == {"user": 1, "amount": 0, "raw": 0}
    driver = Driver([by_user, fixed])
    driver.send([row])
    with pytest.raises(PlanError, match="fixed: window-aggregate: tumbling"):
        driver.close_key("a")
    assert driver.state("user: window-aggregate").num_rows == 1  # nothing was forgotten
    assert driver.close_key("a", stage="user: window-aggregate") == 1


def test_outputs_share_a_stage_that_was_made_by_the_same_steps_and_options() -> None:
    """Which stages are one is decided where they are made, by their node; the planner compares nothing else."""
    counts = stream_of(DDL).watermark("at", 0).tumbling_window(10).agg(count())
    late = CountingLateEventHandler()
    ways: list[tuple[ResultStream, ResultStream, int]] = [
        (counts, counts.filter("count > 1"), 1),
        (counts, counts.emit("final"), 1),
        (counts.allowed_lateness(5), counts.allowed_lateness(5).select("count"), 1),
        (counts, counts.tumbling_window(20).agg(count()), 2),
        (counts.emit("final").filter("count > 1"), counts.tumbling_window(20).agg(count()), 2),
        (counts.emit("updates"), counts, 2),
        (counts.allowed_lateness(5), counts.tumbling_window(20).agg(count()), 3),
        (counts.with_late_event_handler(late), counts, 2),
        (counts.with_late_event_handler(late), counts.with_late_event_handler(late).select("count"), 1),
    ]
    for one, other, stages in ways:
        driver = Driver([one.to(MemorySink()), other.to(MemorySink())])
        assert len(driver._plan.stages) == stages, (one, other)
