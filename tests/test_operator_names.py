"""Stages, queries and steps are called what they are: in errors, titles, counters of late rows and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import krishiv_py as kv
from krishiv_py import count, windows
from krishiv_py.testing import Driver, stream_of


def _fails(batch: Any) -> Any:
    raise ValueError("broken")


def _left(broken: bool = True) -> Any:
    rows = stream_of("u string, n bigint, at bigint")
    return (rows.map_batches(_fails) if broken else rows).watermark("at", 0)


def _right() -> Any:
    return stream_of("u string, m bigint, at bigint").watermark("at", 0)


KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "rows": lambda s: s,
    "deduplication": lambda s: s.drop_duplicates("u", within="1 h"),
    "interval-join": lambda s: s.interval_join(_right(), on="u", lower=0, upper=5),
    "as-of-join": lambda s: s.asof_join(_right(), on="u"),
    "window-join": lambda s: s.window_join(_right(), on="u", window=windows.tumbling(5)),
    "window-aggregate": lambda s: s.key_by("u").tumbling_window(5).agg(count()),
}


def _send(plan: Any, kind: str) -> Driver:
    driver, rows = Driver(plan), [{"u": "a", "n": 1, "at": 1}]
    driver.send({"left": rows, "right": [{"u": "a", "m": 1, "at": 1}]} if "join" in kind else rows)
    return driver


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fails_names_what_the_stage_is(kind: str) -> None:
    with pytest.raises(kv.OperatorError, match=f"^operator {kind}, prepare, batch 0: map_batches"):
        _send(KINDS[kind](_left()), kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("rows", "as-of-join")])
def test_a_step_over_results_names_the_step(kind: str) -> None:
    step = "window step" if kind == "window-aggregate" else f"{kind.replace('-', ' ').replace('as of', 'as-of')} step"
    with pytest.raises(kv.OperatorError, match=f"^operator {kind}, {step}, batch [01]: map_batches"):
        _send(KINDS[kind](_left(broken=False)).map_batches(_fails), kind).close()


@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_late_rows_have_the_name(kind: str) -> None:
    driver = _send(KINDS[kind](_left(broken=False)), kind)
    assert driver.operator == kind
    with kv.Session.in_process() as session:
        rows, _ = session.memory_stream("u string, n bigint, at bigint")
        other, _ = session.memory_stream("u string, m bigint, at bigint")
        plan = rows.watermark("at", 0)
        if "join" in kind:
            right = other.watermark("at", 0)
            plan = {
                "interval-join": lambda: plan.interval_join(right, on="u", lower=0, upper=5),
                "as-of-join": lambda: plan.asof_join(right, on="u"),
                "window-join": lambda: plan.window_join(right, on="u", window=windows.tumbling(5)),
            }[kind]()
        else:
            plan = KINDS[kind](plan)
        query = plan.start(kv.MemorySink())
        assert query.operator == kind and query.name.startswith(f"{kind}-")


def test_a_stage_of_several_says_its_number_and_what_it_is() -> None:
    two = _left().drop_duplicates("u", within="1 h").key_by("u").tumbling_window(5).agg(count())
    with pytest.raises(kv.OperatorError, match=r"^operator stage 1 \(deduplication\), prepare, batch 0: map_batches"):
        _send(two, "two")
    named = _left().named("once").drop_duplicates("u", within="1 h")
    with pytest.raises(kv.OperatorError, match=r"^operator once, prepare, batch 0: map_batches"):
        _send(named, "once")


def test_duplicates_are_in_the_line_of_progress() -> None:
    driver = Driver(_left(broken=False).drop_duplicates("u", within="1 h"))
    driver.send([{"u": "a", "n": 1, "at": 1}, {"u": "a", "n": 1, "at": 2}])
    assert "late: none, duplicates 1," in str(driver.progress)


def test_a_csv_file_with_a_header_that_nobody_announced_names_the_option(tmp_path: Any) -> None:
    (tmp_path / "a.csv").write_text("user,clicks\nann,3\n")
    with kv.Session.in_process() as session:
        with pytest.raises(
            kv.SourceError, match=r'line 1: no record of .*; if it names the columns, read the file with header="true"'
        ):
            session.read_csv(tmp_path, "user string, clicks bigint").collect()
        assert session.read_csv(tmp_path, "user string, clicks bigint", header="true").collect().num_rows == 1
        (tmp_path / "a.csv").write_text("ann,3\nuser,clicks\n")
        with pytest.raises(kv.SourceError, match="line 2") as caught:
            session.read_csv(tmp_path, "user string, clicks bigint").collect()
        assert "names the columns" not in str(caught.value)


@pytest.mark.parametrize("type_", ["int", "float", "bigint", "double", "smallint", "array<int>", "string", "boolean"])
def test_no_error_says_that_a_float_is_not_a_float(type_: str) -> None:
    driver = Driver(stream_of(f"x {type_}, at bigint").watermark("at", 0))
    for value in (1e300, 1.5, 1 << 90, "a", b"a", [1e300], [1.5], {"a": 1}, True):
        try:
            driver.send([{"x": value, "at": 1}])
        except kv.KrishivError as problem:
            own = type(value).__name__
            assert (
                f"{own} is not a {own}" not in str(problem) and " a int" not in str(problem) and " a array" not in str(problem)
            )
