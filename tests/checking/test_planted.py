"""A check finds each planted fault, and shrinks it to the size that its design names (T1 to T12, T14, T15)."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import count, udaf
from krishiv_py.errors import PlanError
from krishiv_py.testing import CheckFailedError, check, stream_of, union_of
from krishiv_py.testing.checking.plans import CheckedPlan
from krishiv_py.testing.checking.streams import arrivals_of, drawn
from tests.checking import planted
from tests.checking.planted import SCHEMA, keyed

FOUND: dict[str, tuple[Callable[[], Any], tuple[str, ...], int]] = {
    "T1 an aggregate with a global counter": (planted.global_counter, ("code",), 1),
    "T1 a process function with a global counter": (planted.numbered_calls, ("code",), 1),
    "T2 rows of a batch are numbered": (planted.rows_numbered, ("cut",), 2),
    "T3 the last row of a batch is dropped": (planted.last_dropped, ("cut",), 2),
    "T4 chance in a function": (planted.random_values, ("code",), 1),
    "T4 the clock in a function": (planted.clock_values, ("code",), 1),
    "T5 a row for each call": (planted.rows_a_call, ("cut",), 2),
    "T7 windows by the first row of a batch": (planted.by_batch, ("cut", "arrival"), 2),
    "T8 a merge that is not associative": (planted.not_associative, ("cut", "spread"), 3),
    "T9 a sum of floats as they come": (planted.float_sum, ("cut", "arrival"), 3),
    "T11 a function that raises on null": (planted.raises_on_null, ("conservation",), 1),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found_and_small(fault: str, seed: int) -> None:
    plan, laws, most = FOUND[fault]
    with pytest.raises(CheckFailedError) as failure:
        check(plan, cases=400, seconds=600, seed=seed, keep=None)
    assert failure.value.law in laws
    assert len(failure.value.rows) <= most
    assert "def test_" in str(failure.value)


def test_t4_the_law_of_code_names_the_function_and_its_arguments() -> None:
    with pytest.raises(CheckFailedError, match=r"by_chance gives two values for \(\[.*\],?\)"):
        check(planted.random_values, seed=1, keep=None)


def test_t6_ties_go_by_arrival_and_pass() -> None:
    rows = keyed().tumbling_window(60_000).agg(kv.collect_list("v"), kv.first("v"))
    report = check(rows, cases=40, seconds=600, seed=1, laws=["arrival"], keep=None)
    assert report.laws["arrival"] > 5


def of_edge(rows: pa.Table) -> list[dict[str, Any]]:
    """Count with the end of a window in it."""
    counted: dict[tuple[Any, int], int] = {}
    for row in rows.to_pylist():
        start = -(-row["at"] // 60_000) * 60_000 - 60_000
        counted[row["user"], start] = counted.get((row["user"], start), 0) + 1
    return [{"user": user, "window_start": start, "count": n} for (user, start), n in counted.items()]


def test_t10_an_oracle_that_is_off_at_the_edge() -> None:
    with pytest.raises(CheckFailedError) as failure:
        check(planted.per_minute, oracle=of_edge, seed=1, keep=None)
    (row,) = failure.value.rows
    assert (failure.value.law, row["at"] % 60_000) == ("oracle", 0)


@pytest.mark.parametrize("kind", ["duckdb", "polars", "pandas"])
def test_an_oracle_of_another_library_agrees(kind: str) -> None:
    library = importlib.import_module(kind)

    def oracle(rows: pa.Table) -> Any:
        if kind == "duckdb":
            start = 'cast(floor("at" / 60000.0) as bigint) * 60000'
            text = f'select "user", {start} window_start, count(*) count from rows group by all'
            return library.sql(text).arrow()
        frame = library.DataFrame(rows.to_pylist(), schema=["user", "at", "v"]) if kind == "polars" else rows.to_pandas()
        if kind == "polars":
            keys = [library.col("user"), (library.col("at") // 60_000 * 60_000).alias("window_start")]
            return frame.group_by(keys).agg(library.len().alias("count")) if len(frame) else []
        frame["window_start"] = frame["at"].astype("int64") // 60_000 * 60_000
        return frame.groupby(["user", "window_start"], dropna=False).size().reset_index(name="count")

    report = check(planted.per_minute, oracle=oracle, laws=["oracle"], cases=30, seconds=600, seed=2, keep=None)
    assert report.laws["oracle"] > 5


def test_t12_the_order_of_a_set_differs_by_process() -> None:
    with pytest.raises(CheckFailedError, match=r"OrderOfSet\.finish gives another value in another process"):
        check(planted.order_of_set, cases=24, seconds=600, seed=3, laws=["code"], keep=None)


def test_t14_a_seed_draws_the_same_streams_in_every_process() -> None:
    program = (
        "import random\n"
        "from krishiv_py.testing.checking.plans import CheckedPlan\n"
        "from krishiv_py.testing.checking.streams import drawn\n"
        "from tests.checking.planted import float_sum\n"
        "print([drawn(CheckedPlan.of(float_sum()), random.Random(f'krishiv 7 {n}'), orderly=n % 2) for n in range(20)])"
    )
    root = Path(__file__).parents[2]
    done = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, env=environment, check=True)
        for environment in ({"PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}, {"PYTHONHASHSEED": "2", "PYTHONPATH": str(root)})
    ]
    assert done[0].stdout == done[1].stdout
    first = drawn(CheckedPlan.of(planted.float_sum()), random.Random("krishiv 7 0"), orderly=False)
    assert done[0].stdout.startswith(f"[{first!r}"[:-1])


def test_t14_the_same_seed_gives_the_same_failure() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(CheckFailedError) as failure:
            check(planted.by_batch, seed=5, seconds=600, keep=None)
        texts.append(str(failure.value))
    assert texts[0] == texts[1]


def test_t15_after_the_time_the_report_says_what_was_tried() -> None:
    report = check(planted.per_minute, cases=1_000_000, seconds=0.5, seed=1, keep=None)
    assert 0 < report.cases < 1_000_000
    assert "the time was over" in str(report)


# ---- laws that are asked for


def test_a_change_of_plan_is_held_to_the_plan_before() -> None:
    before = keyed().tumbling_window(60_000).agg(count().alias("n"))
    after = keyed().tumbling_window(60_000).agg(count().alias("n"), kv.sum("v").alias("total"))
    assert check(after, against=before, laws=["upgrade"], cases=12, seconds=600, seed=1, keep=None).laws["upgrade"] == 6


class Products:
    """Multiplies, where the plan before it added."""

    def create(self) -> list[int]:
        return [1]

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [accumulator[0] * value]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return [left[0] * right[0]]

    def finish(self, accumulator: list[int]) -> int:
        return accumulator[0]


class Sums(Products):
    """Adds, under the same name in state."""

    def create(self) -> list[int]:
        return [0]

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [accumulator[0] + value]

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return [left[0] + right[0]]


Sums.__qualname__ = Products.__qualname__
Sums.__name__ = Products.__name__


def test_an_aggregate_that_changes_its_meaning_is_found() -> None:
    before, after = (keyed().tumbling_window(60_000).agg(udaf(one, "v", pa.int64()).alias("x")) for one in (Sums(), Products()))
    with pytest.raises(CheckFailedError) as failure:
        check(after, against=before, laws=["upgrade"], seed=1, keep=None)
    assert failure.value.law == "upgrade"


# ---- rows, kept streams, reports


def test_rows_of_a_function_and_of_a_strategy() -> None:
    def some_rows(chance: random.Random) -> list[dict[str, Any]]:
        return [{"user": "a", "at": chance.randrange(10**6), "v": n} for n in range(5)]

    strategy = st.lists(st.fixed_dictionaries({"user": st.sampled_from("ab"), "at": st.integers(0, 10**6)}), max_size=8)
    for rows in (some_rows, strategy):
        report = check(planted.per_minute, rows=rows, cases=30, seconds=600, seed=1, keep=None)
        assert report.cases == 30
        assert report.never == ("rows without a time",)
        assert "rows without a time. Hint: give `rows=` that have them" in str(report)


def test_rows_of_several_streams_are_pairs() -> None:
    both = union_of({"web": stream_of("at bigint"), "app": stream_of("at bigint")})
    plan = both.watermark("at", 0).key_by("source").tumbling_window(10).agg(count())
    check(plan, rows=lambda chance: [("web", {"at": 1}), ("app", {"at": 2})], cases=10, seed=1, keep=None)
    with pytest.raises(PlanError, match="not a row of a stream of the plan"):
        check(plan, rows=lambda chance: [{"at": 1}], cases=10, seed=1, keep=None)


def test_a_failing_stream_is_kept_tried_first_and_replayed(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError) as first:
        check(planted.rows_numbered, seed=1, keep=tmp_path)
    (file,) = tmp_path.iterdir()
    assert str(file) in str(first.value)
    for replay in (None, file):
        with pytest.raises(CheckFailedError) as again:
            check(planted.rows_numbered, seed=2, keep=tmp_path, replay=replay)
        assert (again.value.report.cases, again.value.rows) == (0, first.value.rows)
    fixed = stream_of(SCHEMA).map_batches(lambda batch: batch, SCHEMA)
    check(fixed, replay=file, keep=None, seed=1)
    file.write_text("{}")
    with pytest.raises(PlanError, match="not a stream that was kept"):
        check(planted.rows_numbered, replay=file)


@pytest.mark.parametrize("plan", [planted.rows_numbered, planted.by_batch, planted.not_associative])
def test_the_test_that_is_printed_fails_as_the_check_did(plan: Callable[[], Any]) -> None:
    with pytest.raises(CheckFailedError) as failure:
        check(plan, seed=1, keep=None)
    _, _, text = str(failure.value).partition("As a test:\n")
    printed: dict[str, Any] = {}
    exec(text, printed)
    with pytest.raises(AssertionError):
        next(value for name, value in printed.items() if name.startswith("test_"))()


def test_what_a_plan_does_not_claim_is_left_out() -> None:
    plan = stream_of(SCHEMA).watermark("at", 0).drop_duplicates("user", within=10)
    report = check(plan, cases=5, seed=1, keep=None)
    assert report.left_out["arrival"] == "deduplication goes by the order of arrival"
    assert "arrival" not in report.laws


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"cases": 0}, "`cases`"),
        ({"seconds": 0}, "`seconds`"),
        ({"laws": ["cuts"]}, "no such law"),
        ({"engines": ("flink",)}, "no such engine"),
        ({"rows": 5}, "`rows` draws no rows"),
    ],
)
def test_a_wrong_call_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        check(planted.per_minute, **{"keep": None, **arguments})


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="check takes a plan"):
        check(5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="rows of a check are a list"):
        arrivals_of(CheckedPlan.of(planted.per_minute()), "rows")
