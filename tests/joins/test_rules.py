"""Rules as a stream (SEMANTICS §16.10, designs/rules.md R1 to R14), against nested loops."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ColumnError, MemorySink, PlanError, Session, SideOutputLateEventHandler, count
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

Row = dict[str, Any]
EVENTS = "id bigint, who string, n bigint, at bigint"
RULES = "op string, rule_id bigint, condition string, who string, most bigint, since bigint"
TEXTS = ("n > 5", "who = 'a'", "n > rule.most", "who = rule.who and n < 7", "rule.who = who", "n > 'x' +", "n", None, "n > 5")
HOLDS: dict[str, Any] = {
    "n > 5": lambda row, rule: row["n"] is not None and row["n"] > 5,
    "who = 'a'": lambda row, rule: row["who"] == "a",
    "n > rule.most": lambda row, rule: None not in (row["n"], rule["most"]) and row["n"] > rule["most"],
    "who = rule.who and n < 7": lambda row, rule: (
        None not in (row["who"], row["n"]) and row["who"] == rule["who"] and row["n"] < 7
    ),
    "rule.who = who": lambda row, rule: row["who"] is not None and row["who"] == rule["who"],
}


def _plan(events: Any, rules: Any, *, how: Any = "inner", lag: int = 0) -> Any:
    table = rules.watermark("since", 0).from_changelog("log", key="rule_id")
    joined = events.watermark("at", lag).with_rules(table, how=how, columns=["most"])
    return joined.with_late_event_handler(SideOutputLateEventHandler(MemorySink()))


def _driver(**options: Any) -> Driver:
    return Driver(_plan(stream_of(EVENTS), stream_of(RULES), **options))


def _rule(rule_id: int, condition: str | None, since: int, op: str = "+I", **more: Any) -> Row:
    return {"op": op, "rule_id": rule_id, "condition": condition, "since": since, **more}


def _event(number: int, at: int, n: int | None = 9, who: str | None = "a") -> Row:
    return {"id": number, "who": who, "n": n, "at": at}


def _met(*outs: Any) -> list[tuple[int, int | None]]:
    return sorted(((r["id"], r["rule_id"]) for out in outs for r in out.results.to_pylist()), key=str)


class NestedLoops:
    """The versions of rules as they came, and the rows that wait."""

    def __init__(self, how: str, lag: int) -> None:
        self.how, self.lag = how, lag
        self.changes: list[Row] = []
        self.waiting: list[Row] = []
        self.mark: int | None = None

    def send(self, left: list[Row], right: list[Row], *, end: bool = False) -> tuple[list[str], int]:
        """Return results, and how many rows and rules are put aside."""
        aside = 0
        for change in right:
            bad = change["op"] == "+I" and change["condition"] is not None and change["condition"] not in HOLDS
            late = self.mark is not None and change["since"] < self.mark
            aside += bad + late
            if not bad:
                self.changes.append(change)
        times = [row["at"] for row in left]
        for row in left:
            if self.mark is not None and row["at"] < self.mark:
                aside += 1
            else:
                self.waiting.append(row)
        if times:
            self.mark = max([max(times) - self.lag, *([] if self.mark is None else [self.mark])])
        due = [row for row in self.waiting if end or (self.mark is not None and row["at"] < self.mark)]
        self.waiting = [row for row in self.waiting if row not in due]
        return sorted(line for row in due for line in self._of(row)), aside

    def _of(self, row: Row) -> list[str]:
        valid: dict[int, Row] = {}
        for change in sorted(self.changes, key=lambda change: change["since"]):
            if change["since"] <= row["at"]:
                valid[change["rule_id"]] = change
        met = [
            rule for rule in valid.values() if rule["op"] == "+I" and rule["condition"] and HOLDS[rule["condition"]](row, rule)
        ]
        lines = [repr((row["id"], rule["rule_id"], rule["most"])) for rule in met]
        return lines or ([repr((row["id"], None, None))] if self.how == "left" else [])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(scaled(40)))
def test_rows_meet_the_rules_of_nested_loops(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    how, lag = draw.choice(("inner", "left")), draw.choice((0, 4))
    driver, loops, now, number = _driver(how=how, lag=lag), NestedLoops(how, lag), 10, 0
    for batch in range(8):
        now += draw.choice((0, 2, 6))
        left, right = [], []
        for _ in range(draw.randrange(7)):
            number += 1
            left.append(
                _event(number, now - draw.choice((0, 1, 5)), draw.choice((1, 6, 9, None)), draw.choice(("a", "b", None)))
            )
        for _ in range(draw.randrange(4)):
            op, since = draw.choice(("+I", "+I", "-D")), now + draw.choice((-9, -2, 0, 1, 5))
            right.append(
                _rule(draw.randrange(4), draw.choice(TEXTS), since, op, who=draw.choice("ab"), most=draw.choice((0, 7, None)))
            )
        out = driver.send({"left": left, "right": right})
        wanted, aside = loops.send(left, right)
        assert sorted(repr((r["id"], r["rule_id"], r["most"])) for r in out.results.to_pylist()) == wanted, batch
        assert out.late.num_rows == aside, batch
        if draw.random() < 0.3:
            path = driver.savepoint(str(tmp_path / str(batch)))
            driver = Driver(_plan(stream_of(EVENTS), stream_of(RULES), how=how, lag=lag), savepoint=path)
    out, (wanted, _) = driver.close(), loops.send([], [], end=True)
    assert sorted(repr((r["id"], r["rule_id"], r["most"])) for r in out.results.to_pylist()) == wanted
    assert not driver._store.tables, "nothing is left behind"


def test_r1_a_rule_is_valid_from_exactly_its_time() -> None:
    driver = _driver()
    out = driver.send({"right": [_rule(1, "n > 5", 10)], "left": [_event(1, 9), _event(2, 10)]})
    assert _met(out, driver.close()) == [(2, 1)]


def test_r2_rule_and_row_in_one_batch_or_in_two() -> None:
    for sends in ([("left", "right")], [("left",), ("right",)], [("right",), ("left",)]):
        driver, rows = _driver(), {"right": [_rule(1, "n > 5", 10)], "left": [_event(2, 10)]}
        outs = [driver.send({side: rows[side] for side in sides}) for sides in sends]
        assert _met(*outs, driver.close()) == [(2, 1)]


def test_r3_both_versions_of_a_batch_apply_to_their_times() -> None:
    driver = _driver()
    rules = [_rule(1, "n > 5", 10), _rule(1, "n < 5", 20)]
    out = driver.send({"right": rules, "left": [_event(1, 15, 9), _event(2, 15, 1), _event(3, 25, 9), _event(4, 25, 1)]})
    assert _met(out, driver.close()) == [(1, 1), (4, 1)]


def test_r4_a_bad_condition_goes_aside_and_the_version_before_it_stays() -> None:
    driver = _driver()
    out = driver.send({"right": [_rule(1, "n > 5", 10), _rule(1, "m > 5", 11), _rule(1, "n +", 12), _rule(2, "n", 12)]})
    assert [(row["rule_id"], row["reason"]) for row in out.late.to_pylist()] == [
        (1, "bad_rule"),
        (1, "bad_rule"),
        (2, "bad_rule"),
    ]
    assert _met(driver.send({"left": [_event(1, 20)]}), driver.close()) == [(1, 1)]


def test_r5_a_rule_over_a_column_that_rows_have_no_more_is_named(tmp_path: Path) -> None:
    driver = _driver()
    driver.send({"right": [_rule(7, "n > 5", 10)]})
    path = driver.savepoint(str(tmp_path / "s"))
    later = Driver(_plan(stream_of("id bigint, who string, at bigint"), stream_of(RULES)), savepoint=path)
    with pytest.raises(Exception, match=r"does not fit the rows any more.*'n > 5'.*7"):
        later.send({"left": [{"id": 1, "at": 20}]})
        later.close()


def test_r6_an_id_is_deleted_and_made_again() -> None:
    driver = _driver()
    rules = [_rule(1, "n > 5", 10), _rule(1, None, 20, "-D"), _rule(1, "n > 5", 30)]
    out = driver.send({"right": rules, "left": [_event(at, at) for at in (15, 25, 35)]})
    assert _met(out, driver.close()) == [(15, 1), (35, 1)]


def test_r7_without_a_rule_inner_gives_nothing_and_left_a_row_of_nulls() -> None:
    for how, wanted in (("inner", []), ("left", [(1, None)])):
        driver = _driver(how=how)
        assert _met(driver.send({"left": [_event(1, 5)]}), driver.close()) == wanted
    assert driver.counters.get("unmatched", 0) == 0


def test_r8_a_condition_that_is_null_does_not_hold() -> None:
    driver = _driver()
    out = driver.send({"right": [_rule(1, "n > 5", 0), _rule(2, None, 0)], "left": [_event(1, 5, None)]})
    assert _met(out, driver.close()) == []
    assert driver.counters["unmatched"] == 1


def test_r9_a_late_rule_is_told_and_applies_afterwards() -> None:
    driver = _driver()
    driver.send({"left": [_event(1, 50)]})
    out = driver.send({"right": [_rule(1, "n > 5", 40)]})
    assert [(row["side"], row["rule_id"], row["reason"]) for row in out.late.to_pylist()] == [("right", 1, "late")]
    assert _met(driver.send({"left": [_event(2, 60)]}), driver.close()) == [(1, 1), (2, 1)]  # the first was not decided yet


def test_r10_many_rules_of_one_shape_cost_a_join() -> None:
    driver = _driver()
    driver.send({"right": [_rule(i, "who = rule.who and n > rule.most", 0, who=str(i), most=3) for i in range(3_000)]})
    out = driver.send({"left": [_event(i, 5, i % 7, str(i % 4_000)) for i in range(20_000)]})
    met = [(i, i % 4_000) for i in range(20_000) if i % 4_000 < 3_000 and i % 7 > 3]
    assert _met(out, driver.close()) == sorted(met, key=str)


def test_r12_and_r13_in_process_over_a_restart_and_bounded(tmp_path: Path) -> None:
    rules = [_rule(1, "n > 5", 10), _rule(2, "who = rule.who", 12, who="b")]
    rows = [_event(1, 11), _event(2, 13, 1, "b"), _event(3, 14, 9, "b"), _event(4, 90)]
    wanted = [(1, 1), (2, 2), (3, 1), (3, 2)]
    with Session.in_process(workers=2) as session:
        (events, send), (changes, tell) = session.memory_stream(EVENTS), session.memory_stream(RULES)
        sink, plan = MemorySink(), _plan(events, changes)
        query = plan.start(sink, checkpoint=tmp_path / "c")
        tell.send(rules)
        query.process_all_available()
        query.stop()
        query = plan.start(sink, checkpoint=tmp_path / "c")
        send.send(rows)
        query.process_all_available()
        query.stop()
        assert sorted((row["id"], row["rule_id"]) for row in content(sink).to_pylist()) == wanted
        send.close()
        tell.close()
        assert sorted((row["id"], row["rule_id"]) for row in plan.collect().to_pylist()) == [*wanted, (4, 1)]


@pytest.mark.spark
def test_rules_on_spark(session: Session, tmp_path: Path) -> None:
    (events, send), (changes, tell) = session.memory_stream(EVENTS), session.memory_stream(RULES)
    plan = _plan(events, changes)
    tell.send([_rule(1, "n > 5", 10), _rule(2, "who = rule.who", 12, who="b")])
    send.send([_event(1, 11), _event(2, 13, 1, "b"), _event(4, 90)])
    send.close()
    tell.close()
    query = plan.start(MemorySink(), checkpoint=tmp_path / "c")
    query.process_all_available()
    given = sorted((row["id"], row["rule_id"]) for row in query.results().to_pylist())
    query.stop()
    assert given == [(1, 1), (2, 2), (4, 1)]
    assert sorted((row["id"], row["rule_id"]) for row in plan.collect().to_pylist()) == given


def test_r14_a_stream_of_rules_for_two_outputs_is_read_once(tmp_path: Path) -> None:
    with Session.in_process() as session:
        (events, send), (changes, tell) = session.memory_stream(EVENTS), session.memory_stream(RULES)
        joined = _plan(events, changes)
        sinks = MemorySink(), MemorySink()
        per_rule = joined.key_by("rule_id").tumbling_window(10).agg(n=count())
        query = session.start([joined.to(sinks[0]), per_rule.to(sinks[1])], checkpoint=tmp_path / "c")
        tell.send([_rule(1, "n > 5", 10)])
        send.send([_event(1, 11), _event(2, 12), _event(3, 90)])
        query.process_all_available()
        assert query.progress.rows == 4
        query.stop()
    assert content(sinks[0]).num_rows == 2
    assert content(sinks[1])["n"].to_pylist() == [2]


def content(sink: MemorySink) -> pa.Table:
    """Its rows."""
    table = sink.table()
    assert table is not None
    return table


def test_wrong_calls() -> None:
    events, rules = (
        stream_of(EVENTS).watermark("at", 0),
        stream_of(RULES).watermark("since", 0).from_changelog("log", "rule_id"),
    )
    with pytest.raises(ColumnError, match="conditions of rules are texts"):
        events.with_rules(rules, "most")
    with pytest.raises(ColumnError):
        events.with_rules(rules, "text")
    with pytest.raises(PlanError, match="are called rule"):
        events.with_column("rule", "n").with_rules(rules)
    with pytest.raises(PlanError):
        events.with_rules(rules, how="full")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="not a table of changes"):
        events.with_rules(stream_of(RULES))  # type: ignore[arg-type]
