"""Rows that fail an expectation, or a function of a user: in the late output with a reason, counted by name."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import MemorySink, ResultStream, Session, SideOutputLateEventHandler, col, count, sum, udaf, udf
from krishiv_py.errors import ColumnError, ExpressionError, KrishivError, OperatorError, PlanError
from krishiv_py.testing import Driver, stream_of

ROWS: list[dict[str, Any]] = [
    {"amount": 5, "at": 1},
    {"amount": -5, "at": 100},
    {"amount": None, "at": 2},
    {"amount": 7, "at": 3},
]


def aside() -> SideOutputLateEventHandler:
    return SideOutputLateEventHandler(MemorySink())


def summed(rows: Any) -> ResultStream:
    actual: ResultStream = rows.watermark("at", 0).with_late_event_handler(aside()).tumbling_window(10).agg(sum("amount"))
    return actual


def test_a_row_that_fails_goes_to_the_late_output_and_moves_no_watermark() -> None:
    driver = Driver(summed(stream_of("amount bigint, at bigint").expect("amount > 0", "side_output", name="positive")))
    late = driver.send(ROWS).late.select(["amount", "at", "reason"]).to_pylist()
    assert late == [{"amount": -5, "at": 100, "reason": "positive"}, {"amount": None, "at": 2, "reason": "positive"}]
    assert driver.watermark_us == 3_000
    assert (driver.progress.late["positive"], driver.progress.rows, driver.lateness().rows) == (2, 4, 2)
    assert driver.close().results.to_pylist() == [{"window_start": 0, "window_end": 10, "sum_amount": 12}]


def test_dropped_rows_are_counted_by_name_and_the_name_is_the_condition() -> None:
    driver = Driver(summed(stream_of("amount bigint, at bigint").expect("amount > 0", "drop")))
    assert driver.send(ROWS).late.num_rows == 0
    assert driver.progress.late["amount > 0"] == 2
    assert driver.try_add({"amount": -1, "at": 5}) is not None


def test_fail_is_the_default_and_names_the_expectation() -> None:
    driver = Driver(summed(stream_of("amount bigint, at bigint").expect(col("amount") > 0, name="positive")))
    driver.send(ROWS[:1])
    with pytest.raises(OperatorError, match=r"the expectation 'positive' does not hold \(got: 2 of 4 rows\)"):
        driver.send(ROWS)
    assert driver.send(ROWS[:1]).late.num_rows == 0


@pytest.mark.parametrize("where", ["before", "after", "behind a filter"])
def test_expectations_stand_before_and_after_the_watermark(where: str) -> None:
    rows: Any = stream_of("amount bigint, at bigint")
    if where == "before":
        timed = rows.expect("amount > 0", "side_output").watermark("at", 0)
    elif where == "after":
        timed = rows.watermark("at", 0).expect("amount > 0", "side_output").with_column("double", "amount * 2")
    else:
        timed = rows.watermark("at", 0).filter("at <> 7").expect("amount > 0", "side_output")
    driver = Driver(timed.with_late_event_handler(aside()).tumbling_window(10).agg(sum("amount")))
    assert driver.send([*ROWS, {"amount": 1, "at": 7}]).late["reason"].to_pylist() == ["amount > 0"] * 2
    assert driver.watermark_us == 7_000


def test_later_steps_do_not_see_the_row_and_its_new_columns_are_null() -> None:
    rows = stream_of("amount bigint, at bigint").expect("amount <> 0", "side_output").with_column("share", "100 / amount")
    driver = Driver(summed(rows.expect("share > 10", "side_output", name="large")))
    actual = driver.send([{"amount": 0, "at": 1}, {"amount": 50, "at": 2}, {"amount": 5, "at": 3}]).late
    assert actual.select(["amount", "share", "reason"]).to_pylist() == [
        {"amount": 0, "share": None, "reason": "amount <> 0"},
        {"amount": 50, "share": 2.0, "reason": "large"},
    ]


def test_rows_without_windows_and_joins_have_them_too() -> None:
    rows = stream_of("amount bigint, at bigint").expect("amount > 0", "side_output").with_late_event_handler(aside())
    out = Driver(rows).send(ROWS)
    assert (out.results["amount"].to_pylist(), out.late["amount"].to_pylist()) == ([5, 7], [-5, None])
    left = stream_of("k bigint, at bigint").watermark("at", 0).filter("at > 0").expect("k > 0", "side_output")
    right = stream_of("k bigint, at bigint").watermark("at", 0)
    joined = left.interval_join(right, on="k", lower=-5, upper=5).with_late_event_handler(aside())
    driver = Driver(joined)
    sent = driver.send({"left": [{"k": -1, "at": 1}, {"k": 1, "at": 1}], "right": [{"k": 1, "at": 1}, {"k": -1, "at": 1}]})
    assert (sent.results.num_rows, sent.late["reason"].to_pylist()) == (1, ["k > 0"])


def strict(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(value is None or value < 0 for value in batch.column("amount").to_pylist()):
        raise ValueError("no amount")
    return batch


@given(amounts=st.lists(st.one_of(st.none(), st.integers(-3, 9)), max_size=20))
def test_the_bad_rows_of_a_function_are_found_among_the_others(amounts: list[int | None]) -> None:
    rows = stream_of("amount bigint, at bigint").map_batches(strict, on_error="side_output")
    driver = Driver(summed(rows))
    late = driver.send([{"amount": a, "at": n % 10} for n, a in enumerate(amounts)]).late
    bad = [a for a in amounts if a is None or a < 0]
    assert late["amount"].to_pylist() == bad
    assert set(late["reason"].to_pylist()) <= {"ValueError: no amount"}
    assert driver.progress.late.get("strict", 0) == len(bad)
    total = [row["sum_amount"] for row in driver.close().results.to_pylist()]
    good = [a for a in amounts if a is not None and a >= 0]
    assert total == ([functools.reduce(operator.add, good)] if good else [])


@udf("double", on_error="side_output")
def root(amount: Any) -> Any:
    if pc.any(pc.less(amount, 0)).as_py():
        raise ValueError("below zero")
    return pc.sqrt(amount.cast(pa.float64()))


@pytest.mark.parametrize("step", ["with_column", "select", "filter", "key_by", "map_batches twice"])
def test_functions_in_every_step(step: str) -> None:
    rows: Any = stream_of("amount bigint, at bigint")
    sent = [{"amount": a, "at": 1} for a in (4, -1, 9, None)]
    if step == "key_by":
        timed = rows.watermark("at", 0).with_late_event_handler(aside()).key_by(root("amount").alias("root"))
        driver = Driver(timed.tumbling_window(10).agg(count()))
    else:
        made = {
            "with_column": lambda: rows.with_column("root", root("amount")),
            "select": lambda: rows.select("amount", "at", root=root("amount")),
            "filter": lambda: rows.filter(root("amount") > 1).with_column("root", "1"),
            "map_batches twice": lambda: rows.map_batches(strict, on_error="side_output").with_column("root", root("amount")),
        }[step]()
        driver = Driver(summed(made))
    out = driver.send(sent)
    expected = [-1, None] if step == "map_batches twice" else [-1]
    assert sorted(out.late["amount"].to_pylist(), key=str) == expected
    assert driver.progress.late["root" if step != "map_batches twice" else "strict"] == len(expected)


def test_in_process_over_a_restart_and_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def put(name: str, rows: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    put("a.json", ROWS)
    with Session.in_process() as session:
        rows = session.read_json(folder, "amount bigint, at bigint").expect("amount > 0", "side_output", name="positive")
        done = summed(rows.with_column("root", root(col("amount") - 6))).run()
        assert sorted(done.late["reason"].to_pylist()) == ["ValueError: below zero", "positive", "positive"]
        assert (done.counters["rows"], done.table["sum_amount"].to_pylist()) == (4, [7])
        live = session.read_json(folder, "amount bigint, at bigint", streaming=True)
        plan = summed(live.expect("amount > 0", "side_output", name="positive"))
        for name in ("b.json", "c.json"):
            query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
            put(name, ROWS)
            query.process_all_available()
            late = query.progress.late
            query.stop()
        assert late["positive"] == 6


WRONG: list[tuple[Any, type[KrishivError]]] = [
    (lambda s: s.expect("nowhere > 0"), ColumnError),
    (lambda s: s.expect("amount +"), ExpressionError),
    (lambda s: s.expect("amount + 1"), ExpressionError),
    (lambda s: s.expect(5), KrishivError),
    (lambda s: s.expect("amount > 0", "ignore"), PlanError),
    (lambda s: s.expect("amount > 0", "drop", name=""), PlanError),
    (lambda s: s.map_batches(strict, on_error="drop"), PlanError),
    (lambda s: summed(s).expect("sum_amount > 0", "drop"), PlanError),
    (lambda s: udf(int), PlanError),
    (lambda s: udf("number"), ExpressionError),
    (lambda s: udf("double", over="spark"), PlanError),  # type: ignore[arg-type]
    (lambda s: udf("double")(5), PlanError),  # type: ignore[arg-type]
    (lambda s: root(), PlanError),
    (lambda s: udaf(Strict(), "amount", pa.int64(), on_error="drop"), PlanError),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", range(len(WRONG)))
def test_wrong_calls(call: int) -> None:
    wrong, kind = WRONG[call]
    with pytest.raises(kind):
        wrong(stream_of("amount bigint, at bigint"))


def test_an_expectation_of_results_fails() -> None:
    driver = Driver(summed(stream_of("amount bigint, at bigint")).expect("sum_amount > 0"))
    driver.send([{"amount": -1, "at": 1}])
    with pytest.raises(OperatorError, match="sum_amount > 0"):
        driver.close()


@pytest.mark.parametrize("over", ["arrow", "numpy", "pandas", "polars"])
def test_a_function_gets_columns_in_its_form(over: Any) -> None:
    if over in ("pandas", "polars"):
        pytest.importorskip(over)
    seen: list[str] = []

    @udf("double", over=over)
    def scaled(amount: Any, factor: Any) -> Any:
        seen.append(type(amount).__module__.split(".")[0])
        return pc.multiply(amount, factor) if over == "arrow" else amount * factor

    rows = stream_of("amount double, at bigint")
    out = Driver(rows.select(scaled("amount", 2.0).alias("x"), y=scaled(col("amount") + 1, "amount"))).send(
        [{"amount": 1.5, "at": 1}, {"amount": 2.0, "at": 2}]
    )
    assert out.results.to_pylist() == [{"x": 3.0, "y": 3.75}, {"x": 4.0, "y": 6.0}]
    assert set(seen) == {"pyarrow" if over == "arrow" else over}
    windows = rows.watermark("at", 0).tumbling_window(10).agg(sum(scaled("amount", "amount")).alias("squares"))
    driver = Driver(windows)
    driver.send([{"amount": 3.0, "at": 1}, {"amount": 4.0, "at": 2}])
    assert driver.close().results["squares"].to_pylist() == [25.0]


@pytest.mark.parametrize("bad", [lambda x: x.slice(1), lambda x: None, lambda x: 5, lambda x: ["a"] * len(x), lambda x: 1 / 0])
def test_a_function_that_returns_something_else(bad: Any) -> None:
    driver = Driver(stream_of("amount double").with_column("x", udf("double", name="bad")(bad)("amount")))
    with pytest.raises(OperatorError, match="bad"):
        driver.send([{"amount": 1.0}])


class Strict:
    """The sum of values; a negative one is refused, and so is an accumulator above 100."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        if value < 0:
            raise ValueError("below zero")
        return accumulator + value

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, accumulator: int) -> int:
        if accumulator > 100:
            raise OverflowError("too much")
        return accumulator


class AtOnce(Strict):
    def partial(self, values: pa.Array, groups: Any, n: int) -> list[int]:
        actual = [0] * n
        for value, group in zip(values.to_pylist(), groups.tolist(), strict=True):
            actual[group] = self.add(actual[group], value)
        return actual


def aggregated(rows: Any, *calls: Any) -> ResultStream:
    results: ResultStream = rows.watermark("at", 0).with_late_event_handler(aside()).tumbling_window(10).agg(*calls)
    return results


IN_AGGREGATES: dict[str, Any] = {
    "udf": sum(root("amount")).alias("n"),
    "udf in an expression": sum(root("amount") + 1).alias("n"),
    "udf in a filter": count().filter(root("amount") > 2).alias("n"),
    "udaf": udaf(Strict(), "amount", pa.int64(), on_error="side_output").alias("n"),
    "udaf with partial": udaf(AtOnce(), "amount", pa.int64(), on_error="side_output").alias("n"),
}
TOTALS = {"udf": 5.0, "udf in an expression": 7.0, "udf in a filter": 1, "udaf": 13, "udaf with partial": 13}
NAMES = {"udaf": "Strict", "udaf with partial": "AtOnce"}


@pytest.mark.parametrize("what", IN_AGGREGATES)
def test_functions_in_aggregates(what: str, tmp_path: Path) -> None:
    sent = [{"amount": a, "at": 1} for a in (4, -1, 9, None)] + [{"amount": -7, "at": 50}]
    call, name = IN_AGGREGATES[what], NAMES.get(what, "root")
    driver = Driver(aggregated(stream_of("amount bigint, at bigint"), call, count().alias("rows")))
    late = driver.send(sent).late.select(["amount", "reason"]).to_pylist()
    assert late == [{"amount": a, "reason": "ValueError: below zero"} for a in (-1, -7)]
    assert (driver.progress.late[name], driver.watermark_us) == (2, 1_000)
    wanted = [{"window_start": 0, "window_end": 10, "n": TOTALS[what], "rows": 3}]
    assert driver.close().results.to_pylist() == wanted
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in sent))
    with Session.in_process() as session:
        rows = session.read_json(tmp_path, "amount bigint, at bigint")
        done = aggregated(rows, call, count().alias("rows")).run()
        assert (done.table.to_pylist(), sorted(done.late["amount"].to_pylist())) == (wanted, [-7, -1])


def test_rows_that_no_aggregate_takes_are_not_tried() -> None:
    call = udaf(Strict(), "amount", pa.int64(), on_error="side_output")
    rows = stream_of("amount bigint, at bigint")
    driver = Driver(aggregated(rows, call.filter("amount >= 0").alias("n")))
    assert driver.send([{"amount": a, "at": 1} for a in (4, -1)]).late.num_rows == 0
    filtered = rows.watermark("at", 0).filter("amount >= 0").with_late_event_handler(aside()).tumbling_window(10)
    driver = Driver(filtered.agg(call.alias("n")))
    sent = driver.send([{"amount": 4, "at": 1}, {"amount": -1, "at": 8}])
    assert (sent.late.num_rows, driver.watermark_us) == (0, 8_000)
    assert driver.close().results["n"].to_pylist() == [4]


def test_what_a_row_alone_does_not_cause_stops_the_query() -> None:
    call = udaf(Strict(), "amount", pa.int64(), on_error="side_output")
    driver = Driver(aggregated(stream_of("amount bigint, at bigint"), call))
    driver.send([{"amount": 60, "at": 1}, {"amount": 70, "at": 1}])
    with pytest.raises(OperatorError, match="too much"):
        driver.close()
    driver = Driver(aggregated(stream_of("amount bigint, at bigint"), udaf(Strict(), "amount", pa.int64())))
    with pytest.raises(OperatorError, match="below zero"):
        driver.send([{"amount": -1, "at": 1}])


@given(amounts=st.lists(st.one_of(st.none(), st.integers(-3, 9)), max_size=20), cuts=st.integers(1, 5))
def test_the_rows_set_aside_do_not_depend_on_the_batches(amounts: list[int | None], cuts: int) -> None:
    call = udaf(Strict(), "amount", pa.int64(), on_error="side_output").alias("n")
    driver = Driver(aggregated(stream_of("amount bigint, at bigint"), call))
    rows, late = [{"amount": a, "at": 5} for a in amounts], []
    for i in range(0, len(rows), cuts):
        late += driver.send(rows[i : i + cuts]).late["amount"].to_pylist()
    assert late == [a for a in amounts if a is not None and a < 0]
    good = [a for a in amounts if a is None or a >= 0]
    total = functools.reduce(operator.add, [a or 0 for a in good], 0)
    results = [row["n"] for row in driver.close().results.to_pylist()]
    assert results == [total] * len(results) and len(results) == bool(good)
