"""A plan that was changed takes the state of a savepoint: every change, on every operator, against a plain recomputation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import CheckpointError, MemorySink, PlanError, Session, SlidingWindows, avg, collect_list, count, max, min, sum
from krishiv_py.cli.main import main
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, at bigint, amount bigint"
LAG = 20_000
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(60_000),
    "hopping": lambda s: s.hopping_window(90_000, 30_000),
    "cumulate": lambda s: s.cumulate_window(30_000, 90_000),
    "session": lambda s: s.session_window(25_000),
    "capped session": lambda s: s.session_window(25_000, max_duration=90_000),
    "count": lambda s: s.count_window(3),
    "lookback": lambda s: s.lookback_window(45_000),
    "distinct": lambda s: s.windowed_by(SlidingWindows.of(45_000)),
}
Rows = list[dict[str, Any]]


def keyed(schema: str = SCHEMA, late: int = 0) -> Any:
    """Rows by user."""
    stream = stream_of(schema).watermark("at", LAG)
    return (stream.allowed_lateness(late).emit("final") if late else stream).key_by("user")


def batches(seed: int, n: int = 6) -> list[Rows]:
    """Rows a little out of order; each amount is the number of the row, so that a sum says which rows are in it."""
    chance, i, actual = random.Random(seed), 0, []
    for batch in range(n):
        rows: Rows = []
        for _ in range(12):
            i += chance.randrange(0, 8_000)
            time = i - chance.randrange(0, 45_000)
            rows.append({"user": chance.choice("abcd"), "at": time, "amount": 1 << (len(rows) % 12 + 12 * (batch % 4))})
        actual.append(rows)
    return actual


def run(driver: Driver, sent: list[Rows], *, end: bool = False) -> tuple[Rows, Rows]:
    """The results, and the late rows, of some batches."""
    outs = [driver.send(rows) for rows in sent] + ([driver.close()] if end else [])
    return [r for o in outs for r in o.results.to_pylist()], [r for o in outs for r in o.late.to_pylist()]


def plainly(rows: Rows, *names: str) -> list[tuple[Any, ...]]:
    """Some columns, in an order of their own."""
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def _through(old: Any, new: Any, tmp_path: Path, sent: list[Rows], cut: int, **named: Any) -> tuple[Rows, Rows, Rows, Rows]:
    """Results and late rows before and after a savepoint behind `cut` batches; a restart and another savepoint come after."""
    first = Driver(old)
    before, late_before = run(first, sent[:cut])
    driver = Driver(new, savepoint=first.savepoint(str(tmp_path / "one")), **named).restarted()
    after, late_after = run(driver, sent[cut : cut + 1])
    driver = Driver(new, savepoint=driver.savepoint(str(tmp_path / "two")))
    rest, late_rest = run(driver, sent[cut + 1 :], end=True)
    return before, late_before, after + rest, late_after + late_rest


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("kind", OPERATORS)
def test_aggregates_are_added_removed_renamed_and_moved(kind: str, at: int, tmp_path: Path) -> None:
    """Reference: one run of the new plan, null where a row of the window came before the savepoint."""
    numbers, schema = itertools.count(), f"{SCHEMA}, id bigint"
    sent = [[{**row, "id": next(numbers)} for row in rows] for rows in batches(at)]
    windows = OPERATORS[kind](keyed(schema))
    aggs = min("amount").alias("low"), max("amount").alias("highest"), count().alias("n"), avg("at").alias("mean")
    old = windows.agg(count(), sum("amount").alias("gone"), max("amount").alias("top"))
    new, whole = windows.agg(*aggs, completeness=True), windows.agg(*aggs, ids=collect_list("id"))
    before, _, actual, _ = _through(old, new, tmp_path, sent, at)
    expected, _ = run(Driver(whole), sent, end=True)
    for row in expected:
        row["complete"] = builtin_min(row.pop("ids")) >= 12 * at
        if not row["complete"]:
            row["low"] = row["mean"] = None
    names = ("user", "window_start", "window_end", "n", "highest", "low", "mean", "complete")
    assert plainly(actual, *names) == plainly(expected[len(before) :], *names)
    assert {row["complete"] for row in actual} == {True, False}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "lookback"])
@pytest.mark.parametrize(("was", "now"), [(0, 60_000), (60_000, 0), (30_000, 90_000), (90_000, 10_000)])
def test_allowed_lateness_becomes_another(kind: str, was: int, now: int, tmp_path: Path) -> None:
    """No window comes twice, none with a row is left out, and each row is in a result or late (SEMANTICS §12.3)."""

    def totals(late: int) -> Any:
        return OPERATORS[kind](keyed(late=late)).agg(count(), sum("amount").alias("total"))

    for moment in (2, 4):
        sent = batches(7 + moment, 8)
        before, late_before, actual, late = _through(totals(was), totals(now), tmp_path / str(moment), sent, moment)
        windows = [(row["user"], row["window_start"], row["window_end"]) for row in before + actual]
        if kind != "lookback":  # rows of equal time have equal windows
            assert len(windows) == len(set(windows))
        rows = [row for batch in sent for row in batch]
        if kind in ("tumbling", "session"):  # each row that is not late is in one window
            assert builtin_sum(row["count"] for row in before + actual) == len(rows) - len(late_before) - len(late)
        assert {row["reason"] for row in late} <= {"late"}
        expected, expected_late = _replayed(kind, was, now, sent, moment)
        assert plainly(late_before + late, "user", "at", "amount") == plainly(expected_late, "user", "at", "amount")
        if kind == "tumbling":
            assert plainly(before + actual, "user", "window_start", "count", "total") == expected


def _replayed(kind: str, was: int, now: int, sent: list[Rows], at: int) -> tuple[list[tuple[Any, ...]], Rows]:
    """Judge rows one by one: by the lateness of their batch, and never into a window that had left."""
    watermark: float = float("-inf")
    left: float = float("-inf")
    newest, late, windows = float("-inf"), [], dict[tuple[Any, int], list[int]]()
    for number, rows in enumerate([*sent]):
        lateness = was if number < at else now
        if number == at and was != now:
            left = watermark - was
        for row in rows:
            time = row["at"]
            reach = {"tumbling": time // 60_000 * 60_000 + 60_000, "hopping": time // 30_000 * 30_000 + 90_000}.get(kind)
            if kind == "session":
                reach = time + 25_000
            gone = time < left if reach is None else reach <= left
            if time < watermark - lateness or gone:
                late.append(row)
            else:
                windows.setdefault((row["user"], time // 60_000 * 60_000), []).append(row["amount"])
        newest = builtin_max([newest, *(row["at"] for row in rows)])
        watermark = builtin_max([watermark, newest - LAG])
    return sorted(((user, start, len(a), builtin_sum(a)) for (user, start), a in windows.items()), key=repr), late


def builtin_sum(values: Any) -> Any:
    """Python's own."""
    return list(itertools.accumulate(values, initial=0))[-1]


def builtin_min(values: Any) -> Any:
    """Python's own."""
    return sorted(values)[0]


def builtin_max(values: Any) -> Any:
    """Python's own."""
    return sorted(values)[-1]


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "cumulate"])
@pytest.mark.parametrize(
    ("was", "now"), [("updates", "final"), ("final", "updates"), ("updates", "retractions"), ("retractions", "final")]
)
def test_emission_becomes_another(kind: str, was: str, now: str, tmp_path: Path) -> None:
    """Folded, the log gives what one run gives; with ``final`` each window that is still in state comes once."""

    def totals(mode: Any) -> Any:
        stream = stream_of(SCHEMA).watermark("at", LAG).allowed_lateness(40_000).emit(mode).key_by("user")
        return OPERATORS[kind](stream).agg(count(), sum("amount").alias("total"))

    sent = batches(3)
    before, _, actual, _ = _through(totals(was), totals(now), tmp_path, sent, 3)
    expected, _ = run(Driver(totals("final")), sent, end=True)
    in_force: dict[tuple[Any, ...], Any] = {}
    for row in before + actual:
        if row.get("op", "+I") in ("+I", "+U"):
            in_force[row["user"], row["window_start"], row["window_end"]] = row["total"]
    assert in_force == {(row["user"], row["window_start"], row["window_end"]): row["total"] for row in expected}
    if now == "final":
        assert len(actual) == len({(row["user"], row["window_start"], row["window_end"]) for row in actual})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("wider", ["int", "float"])
def test_types_become_wider(kind: str, wider: str, tmp_path: Path) -> None:
    narrow, wide = ("int", "bigint") if wider == "int" else ("float", "double")
    operator, sent = OPERATORS[kind], [[{**row, "amount": row["at"] % 97} for row in rows] for rows in batches(5)]

    def totals(type_: str) -> Any:
        aggs = sum("amount").alias("total"), avg("amount").alias("mean"), max("amount").alias("top")
        return operator(keyed(f"user string, at bigint, amount {type_}")).agg(*aggs)

    before, _, actual, _ = _through(totals(narrow), totals(wide), tmp_path, sent, 3)
    expected, _ = run(Driver(totals(wide)), sent, end=True)
    names = ("user", "window_start", "window_end", "total", "mean", "top")
    assert plainly(before + actual, *names) == plainly(expected, *names)


def test_whole_numbers_become_decimals(tmp_path: Path) -> None:
    def totals(type_: str) -> Any:
        return (
            keyed(f"user string, at bigint, amount {type_}")
            .tumbling_window(60_000)
            .agg(sum("amount").alias("total"), avg("amount").alias("mean"), min("amount").alias("low"))
        )

    sent = batches(9)
    first = Driver(totals("bigint"))
    run(first, sent[:3])
    driver = Driver(totals("decimal(20,2)"), savepoint=first.savepoint(str(tmp_path / "one")))
    actual = driver.state().to_pylist()
    expected = first.state().to_pylist()
    assert [(r["total"], r["low"]) for r in actual] == [(r["total"], r["low"]) for r in expected]


def test_a_stage_is_added_reset_and_dropped(tmp_path: Path) -> None:
    def minutes(size: int) -> Any:
        return keyed().tumbling_window(size).agg(count(), completeness=True).named("per_minute")

    sent = batches(2)
    first = Driver(minutes(60_000))
    run(first, sent[:3])
    path = first.savepoint(str(tmp_path / "one"))
    with pytest.raises(CheckpointError, match=r"per_minute: window size was 1 min .*on_change=\{'per_minute': 'reset'\}"):
        Driver(minutes(30_000), savepoint=path)
    with pytest.raises(CheckpointError, match=r"names a stage that is not there .*'per_minute'"):
        Driver(minutes(30_000), savepoint=path, on_change={"per_hour": "reset"})
    driver = Driver(minutes(30_000), savepoint=path, on_change={"per_minute": "reset"})
    actual, _ = run(driver, sent[3:], end=True)
    newest = sorted(row["at"] for rows in sent[:3] for row in rows)[-1]
    whole, _ = run(Driver(minutes(30_000)), sent, end=True)
    expected = [row for row in whole if row["window_start"] >= newest]
    assert [row for row in actual if row["complete"]] == expected
    assert all(row["count"] is None and row["window_start"] < newest for row in actual if not row["complete"])
    chained = minutes(60_000).tumbling_window(600_000).agg(sum("count").alias("n")).named("per_hour")
    driver = Driver(chained, savepoint=path)
    run(driver, sent[3:])
    again = driver.savepoint(str(tmp_path / "two"))
    with pytest.raises(CheckpointError, match=r"per_hour: the plan has no stage .*'per_hour': 'drop'"):
        Driver(minutes(60_000), savepoint=again)
    actual, _ = run(Driver(minutes(60_000), savepoint=again, on_change={"per_hour": "drop"}), [], end=True)
    assert actual == run(Driver(minutes(60_000)), sent, end=True)[0][-len(actual) :]


def test_unnamed_stages_keep_their_names_when_others_come(tmp_path: Path) -> None:
    sent = batches(4)
    minutes = keyed().tumbling_window(60_000).agg(count())
    first = Driver(minutes)
    run(first, sent[:3])
    path = first.savepoint(str(tmp_path / "one"))
    chained = minutes.tumbling_window(600_000).agg(sum("count").alias("n"))
    actual, _ = run(Driver(chained, savepoint=path), sent[3:], end=True)
    assert actual


def test_a_column_of_the_source_is_added_to_deduplication(tmp_path: Path) -> None:
    wide = SCHEMA + ", note string"
    makes: list[Callable[[Any], Any]] = [
        lambda s: s.drop_duplicates("user", within="1 minute"),
        lambda s: s.lookback_window(45_000).agg(count()),
    ]
    for number, make in enumerate(makes):
        sent = batches(6)
        before, _, actual, _ = _through(make(keyed()), make(keyed(wide)), tmp_path / str(number), sent, 3)
        expected, _ = run(Driver(make(keyed())), sent, end=True)
        assert plainly(before + actual, "user") == plainly(expected, "user")


def test_the_difference_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "orders_of_evolution.py"
    text = """
from krishiv_py import MemorySink, count, sum
def orders(session):
    stream, _ = session.memory_stream("user string, at bigint, amount bigint")
    return stream.watermark("at", 0).key_by("user").tumbling_window({size}).agg({aggs}).named("per_minute").to(MemorySink())
"""
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        minutes = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count()).named("per_minute")
        query = minutes.start(MemorySink(), checkpoint=str(tmp_path / "c"))
        sender.send(batches(1)[0])
        query.process_all_available()
        query.stop()
        assert minutes.explain(against=str(tmp_path / "c")) == "per_minute: kept"
        more = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count(), sum("amount")).named("per_minute")
        path = session.savepoint(str(tmp_path / "c"), str(tmp_path / "s"))
        assert more.explain(against=path) == ("per_minute: migrated (sum_amount added: null in windows with rows from before)")
        whole = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count(), completeness=True)
        assert "complete added: false in windows with rows from before" in whole.named("per_minute").explain(against=path)
        with pytest.raises(CheckpointError, match=r"got: aggregate 2 was .none. and is sum\(amount\)\)"):
            more.start(MemorySink(), checkpoint=str(tmp_path / "c"))
        query = more.start(MemorySink(), checkpoint=str(tmp_path / "d"), savepoint=path)
        query.stop()
        query = more.start(MemorySink(), checkpoint=str(tmp_path / "d"))  # what it carries along is in the checkpoint
        sender.send([{"user": "z", "at": 10_000_000, "amount": 1}])
        query.process_all_available()
        assert {row["sum_amount"] for row in query.results().to_pylist()} == {None}
        assert session.read_state(str(tmp_path / "d"), more).num_rows == 1
        query.stop()
    for size, aggs, code, said in (
        (60_000, "count()", 0, "per_minute: kept"),
        (60_000, 'sum("amount")', 0, "count removed"),
        (30_000, "count()", 1, "per_minute: refused (window size was 1 min and is 30 s"),
    ):
        job.write_text(text.format(size=size, aggs=aggs))
        assert main(["diff", str(tmp_path / "c"), f"{job}:orders"]) == code
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("name", ["complete", "__whole_0", "__whole_1"])
def test_an_aggregate_with_the_name_of_a_mark_is_an_aggregate(name: str, tmp_path: Path) -> None:
    """What says that a window is whole is known by what it computes, so a user's name for an aggregate changes nothing."""
    windows = keyed().tumbling_window(60_000)
    before, added = count().alias(name), sum("amount").alias("total")

    def after(driver: Driver, plan: Any, rows: Rows) -> Driver:
        driver.send(rows)
        driver.savepoint(str(folder := tmp_path / str(len(list(tmp_path.iterdir())))))
        return Driver(plan.named("w"), savepoint=str(folder))

    rows: Rows = [{"user": "a", "at": 1, "amount": 5}]
    more: Rows = [{"user": "a", "at": 2, "amount": 7}, {"user": "b", "at": 3, "amount": 1}]
    kept = after(Driver(windows.agg(before).named("w")), windows.agg(before, added), rows)
    again = after(kept, windows.agg(before, added, least=min("amount")), more)
    assert plainly(again.close().results.to_pylist(), "user", name, "total", "least") == [
        ("a", 2, None, None),
        ("b", 1, 1, None),
    ]
    new = after(Driver(windows.agg(added).named("w")), windows.agg(added, before), rows)
    new.send(more)
    assert plainly(new.close().results.to_pylist(), "user", "total", name) == [("a", 12, None), ("b", 1, 1)]


def test_names_of_the_library_are_refused() -> None:
    with pytest.raises(PlanError, match=r"reserved \(got: __krishiv_whole_1\)"):
        Driver(keyed().tumbling_window(60_000).agg(count().alias("__krishiv_whole_1")))
