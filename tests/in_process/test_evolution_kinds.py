"""A plan is changed over a savepoint: key types, values that are kept, late rule, emission of sessions, time to live.

The reference is a plain recomputation, or one run of the new plan where state can tell all (SEMANTICS §12.2, §12.3).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import CheckpointError, StateTtlConfig, Trigger, count, max, sum, windows
from krishiv_py.runtime.beginning import changes_against
from krishiv_py.testing import Driver, stream_of
from tests.in_process.test_evolution import LAG, OPERATORS, Rows, batches, plainly, run

Make = Callable[[str, str], Any]
"""A plan, of the types of its key and of its values."""


def _side(key: str, value: str, at: str = "at", name: str = "amount") -> Any:
    return stream_of(f"user {key}, {at} bigint, {name} {value}").watermark(at, LAG)


def _windows(kind: str) -> Make:
    def made(key: str, value: str) -> Any:
        aggs = count(), sum("amount").alias("total"), max("amount").alias("top")
        return OPERATORS[kind](_side(key, value).key_by("user")).agg(*aggs)

    return made


def _two_stages(key: str, value: str) -> Any:
    minutes = _side(key, value).key_by("user").tumbling_window(60_000).agg(sum("amount").alias("total"))
    return minutes.key_by("user").tumbling_window(180_000).agg(max("total").alias("most"))


def _first_of_each(key: str, value: str) -> Any:
    return _side(key, value).drop_duplicates("user", within="1 minute")


def _joined(how: Any) -> Make:
    def made(key: str, value: str) -> Any:
        left, right = _side(key, value).key_by("user"), _side(key, value, "seen", "price").key_by("user")
        if how == "as-of":
            return left.asof_join(right)
        if how == "window":
            return left.window_join(right, window=windows.tumbling("1 minute"))
        return left.interval_join(right, lower="-20 seconds", upper="20 seconds", how=how)

    return made


PLANS: dict[str, Make] = {
    **{kind: _windows(kind) for kind in OPERATORS},
    "two stages": _two_stages,
    "deduplication": _first_of_each,
    **{f"{how} join": _joined(how) for how in ("as-of", "window", "inner", "full", "semi", "anti")},
}


def _numbered(seed: int, kind: str) -> list[Any]:
    """Batches whose keys are numbers; of joins both sides."""
    sent = [[{**row, "user": ord(row["user"]), "amount": row["at"] % 97} for row in rows] for rows in batches(seed, 8)]
    if "join" not in kind:
        return sent
    other = [[{"user": r["user"], "seen": r["at"], "price": r["amount"]} for r in rows[::-1]] for rows in sent]
    return [{"left": left, "right": right[::2]} for left, right in zip(sent, other, strict=True)]


def _sums(rows: Rows) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, numbers of all types alike."""
    alike = [{k: float(v) if isinstance(v, int | Decimal) else v for k, v in row.items()} for row in rows]
    return plainly(alike, *sorted(set(rows[0]))) if rows else []


@pytest.mark.one_in(11)
@pytest.mark.parametrize(
    ("was", "now"),
    [
        (("int", "bigint"), ("bigint", "bigint")),
        (("int", "int"), ("bigint", "bigint")),
        (("bigint", "float"), ("bigint", "double")),
        (("smallint", "float"), ("decimal(12,2)", "double")),
        (("decimal(10,2)", "decimal(10,2)"), ("decimal(20,4)", "decimal(20,4)")),
    ],
)
@pytest.mark.parametrize("kind", PLANS)
def test_keys_and_values_become_wider(kind: str, was: tuple[str, str], now: tuple[str, str], tmp_path: Path) -> None:
    sent, make = _numbered(4, kind), PLANS[kind]
    first = Driver(make(*was))
    before, _ = run(first, sent[:3])
    driver = Driver(make(*now), savepoint=first.savepoint(str(tmp_path / "one"))).restarted()
    after, _ = run(driver, sent[3:5])
    driver = Driver(make(*now), savepoint=driver.savepoint(str(tmp_path / "two")))
    rest, _ = run(driver, sent[5:], end=True)
    expected, _ = run(Driver(make(*now)), sent, end=True)
    assert _sums(before + after + rest) == _sums(expected)


@pytest.mark.parametrize("kind", ["tumbling", "session", "lookback", "inner join", "deduplication"])
@pytest.mark.parametrize(("was", "now"), [("bigint", "int"), ("decimal(20,4)", "decimal(20,2)"), ("double", "float")])
def test_narrower_types_are_refused(kind: str, was: str, now: str, tmp_path: Path) -> None:
    make = PLANS[kind]
    first = Driver(make("int", was))
    run(first, _numbered(4, kind)[:3])
    path = first.savepoint(str(tmp_path / "one"))
    with pytest.raises(CheckpointError, match="on_change="):
        Driver(make("int", now), savepoint=path)


@pytest.mark.parametrize(("was", "now"), [("event", "window"), ("window", "event")])
@pytest.mark.parametrize("late", [0, 15_000])
@pytest.mark.parametrize("seed", range(6))
def test_the_late_rule_of_sessions_becomes_another(was: str, now: str, late: int, seed: int, tmp_path: Path) -> None:
    def totals(rule: Any) -> Any:
        stream = _side("string", "bigint").allowed_lateness(late).late_rule(rule).emit("final").key_by("user")
        return stream.session_window(25_000).agg(count())

    sent = batches(seed, 8)
    first = Driver(totals(was))
    before, late_before = run(first, sent[:4])
    after, late_after = run(Driver(totals(now), savepoint=first.savepoint(str(tmp_path / "one"))), sent[4:], end=True)
    expected, expected_late = _sessions(sent, [was] * 4 + [now] * 4, late)
    assert plainly(late_before + late_after, "user", "at", "amount") == plainly(expected_late, "user", "at", "amount")
    assert plainly(before + after, "user", "window_start", "window_end", "count") == expected


def _sessions(sent: list[Rows], rules: list[str], late: int) -> tuple[list[tuple[Any, ...]], Rows]:
    """Sessions with a gap of 25 s, put together from lists."""
    held: dict[Any, list[list[int]]] = {}
    watermark: float = float("-inf")
    newest, given, refused = float("-inf"), [], Rows()
    for rows, rule in zip(sent, rules, strict=True):
        for row in rows:
            newest = row["at"] if row["at"] > newest else newest
        taken = [row for row in rows if rule == "window" or row["at"] >= watermark - late]
        refused += [row for row in rows if row not in taken]
        for user in sorted({row["user"] for row in taken}):
            mine = [row for row in taken if row["user"] == user]
            known = held.setdefault(user, [])
            pieces = sorted(known + [[row["at"], row["at"] + 25_000, 1] for row in mine])
            sessions: list[list[int]] = []
            for start, end, n in pieces:
                if sessions and start < sessions[-1][1]:
                    last = sessions[-1]
                    last[1], last[2] = sorted((last[1], end))[1], last[2] + n
                else:
                    sessions.append([start, end, n])
            if rule == "window":
                over = [s for s in sessions if s[1] + late <= watermark]
                refused += [row for row in mine if any(s[0] <= row["at"] < s[1] for s in over)]
                sessions = [s for s in sessions if s not in over]
            held[user] = sessions
        watermark = watermark if newest - LAG < watermark else newest - LAG
        for user, sessions in held.items():
            given += [(user, *s) for s in sessions if s[1] + late <= watermark]
            held[user] = [s for s in sessions if s[1] + late > watermark]
    given += [(user, *s) for user, sessions in held.items() for s in sessions]
    return sorted(given, key=repr), refused


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["session", "lookback", "distinct", "count"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("was", "now"), [("updates", "final"), ("final", "updates"), ("retractions", "updates")])
def test_emission_becomes_another(kind: str, seed: int, was: Any, now: Any, tmp_path: Path) -> None:
    """Of each start the last result is that of one run; with ``final`` none comes twice after the change."""

    def totals(mode: Any) -> Any:
        stream = _side("string", "bigint").emit(mode)
        return OPERATORS[kind](stream.allowed_lateness(0 if kind == "count" else 40_000).key_by("user")).agg(
            count(), sum("amount").alias("total")
        )

    sent = batches(seed, 8)
    first = Driver(totals(was))
    before, _ = run(first, sent[:4])
    after, _ = run(Driver(totals(now), savepoint=first.savepoint(str(tmp_path / "one"))), sent[4:], end=True)
    in_force: dict[tuple[Any, ...], Any] = {}
    for row in before + after:
        key = row["user"], row["window_end"] if kind != "session" else row["window_start"]
        if row.get("op", "+I") in ("+I", "+U"):
            in_force[key] = row["total"]
    expected, _ = run(Driver(totals("final")), sent, end=True)
    wanted = {(r["user"], r["window_end"] if kind != "session" else r["window_start"]): r["total"] for r in expected}
    assert {key: total for key, total in in_force.items() if key in wanted} == wanted
    if now == "final" and kind != "lookback":
        assert len(after) == len({(row["user"], row["window_start"], row["window_end"]) for row in after})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "lookback", "distinct", "session", "capped session"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))])
def test_after_rows_in_order_a_changed_plan_gives_what_it_alone_gives(kind: str, seed: int, tmp_path: Path) -> None:
    """Rows in order are late by no rule, so lateness, late rule and emission from before the change make no difference."""
    chance = random.Random(f"{kind} {seed}")

    def plan(late: int, rule: Any, emit: Any) -> Any:
        stream = _side("string", "bigint").allowed_lateness(late).late_rule(rule).emit(emit).key_by("user")
        return OPERATORS[kind](stream).agg(count(), sum("amount").alias("total"))

    old, new = (
        (
            chance.choice([0, 15_000, 40_000]),
            chance.choice(["event", "window"]),
            chance.choice(["final", "updates", "retractions"]),
        )
        for _ in range(2)
    )
    sent = batches(seed, 8)
    times = iter(sorted(row["at"] for rows in sent[:4] for row in rows))
    ordered = [[{**row, "at": next(times)} for row in rows] for rows in sent[:4]]
    left = ordered[-1][-1]["at"] - LAG - old[0]
    rest = [[{**row, "at": left + 1 + (row["at"] - left) % 90_000} for row in rows] for rows in sent[4:]]
    first = Driver(plan(*old))
    before, none = run(first, ordered)
    changed = Driver(plan(*new), savepoint=first.savepoint(str(tmp_path / "one")))
    after, late = run(changed.restarted(), rest, end=True)
    whole, refused = run(Driver(plan(*new)), [*ordered, *rest], end=True)
    given, wanted = _folded(before + after), _folded(whole)
    if "session" in kind:
        given, wanted = _grown(given), _grown(wanted)
    assert none == [] and given == wanted, (old, new)
    assert plainly(late, "user", "at") == plainly(refused, "user", "at"), (old, new)


def _folded(rows: Rows) -> dict[tuple[Any, ...], Any]:
    """Return the results that are in force at the end, by key and window."""
    in_force: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        key = row["user"], row["window_start"], row["window_end"]
        if row.get("op", "+I") in ("+I", "+U"):
            in_force[key] = row["count"], row["total"]
        elif in_force.get(key) == (row["count"], row["total"]):
            del in_force[key]
    return in_force


def _grown(results: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
    """Return results without those of sessions that have grown since, which only retractions withdraw."""

    def within(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return one[0] == other[0] and one != other and other[1] <= one[1] and one[2] <= other[2]

    return {window: result for window, result in results.items() if not any(within(window, other) for other in results)}


@pytest.mark.parametrize("kind", [k for k in PLANS if "join" not in k])
def test_a_time_to_live_begins_with_the_next_batch(kind: str, tmp_path: Path) -> None:
    """Keys of before the change expire one length after it; with a long one nothing changes."""

    def made(ttl: StateTtlConfig | None) -> Any:
        stream = _side("string", "bigint")
        stream = stream if ttl is None else stream.with_state_ttl(ttl)
        if kind == "deduplication":
            return stream.drop_duplicates("user", within="1 day")
        keyed = stream.key_by("user")
        if kind == "two stages":
            minutes = keyed.tumbling_window(60_000).agg(sum("amount").alias("total"))
            return minutes.key_by("user").tumbling_window(180_000).agg(max("total").alias("most"))
        return OPERATORS[kind](keyed).agg(count())

    sent = batches(1, 8)
    first = Driver(made(None))
    before, _ = run(first, sent[:4])
    path = first.savepoint(str(tmp_path / "one"))
    long = Driver(made(StateTtlConfig("1 day", clock="event")), savepoint=path)
    after, _ = run(long, sent[4:], end=True)
    expected, _ = run(Driver(made(None)), sent, end=True)
    assert _sums(before + after) == _sums(expected)


def _with_notes(sent: list[Any], note: str | None) -> list[Any]:
    """Both sides of some batches, each with its new column."""
    columns = {"left": "note", "right": "tag"}
    return [{side: [{**row, columns[side]: note} for row in rows] for side, rows in batch.items()} for batch in sent]


@pytest.mark.parametrize("kind", [kind for kind in PLANS if "join" in kind])
def test_a_column_is_added_to_a_side_of_a_join(kind: str, tmp_path: Path) -> None:
    """Rows from before the change show it as null; an aggregate of a stage that follows does too."""

    def made(*more: str) -> Any:
        left = stream_of(", ".join(["user bigint, at bigint", *more[:1], "amount bigint"])).watermark("at", LAG)
        right = stream_of(", ".join(["user bigint, seen bigint", *more[1:], "price bigint"])).watermark("seen", LAG)
        pair = left.key_by("user"), right.key_by("user")
        if kind == "as-of join":
            return pair[0].asof_join(pair[1])
        if kind == "window join":
            return pair[0].window_join(pair[1], window=windows.tumbling("1 minute"))
        how: Any = kind.split()[0]
        return pair[0].interval_join(pair[1], lower="-20 seconds", upper="20 seconds", how=how)

    sent = _numbered(6, kind)
    first = Driver(made())
    before, _ = run(first, sent[:4])
    wide = made("note string", "tag string")
    driver = Driver(wide, savepoint=first.savepoint(str(tmp_path / "one"))).restarted()
    named, bare = _with_notes(sent, "x"), _with_notes(sent, None)
    after, _ = run(driver, named[4:], end=True)
    expected, _ = run(Driver(wide), bare[:4] + named[4:], end=True)
    known = sorted(set(expected[0]))
    assert plainly(after, *known) == plainly(expected[len(before) :], *known)


def test_values_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    first = Driver(PLANS["lookback"]("int", "bigint"))
    first.send([{"user": 1, "at": 0, "amount": 10**17}])
    path = first.savepoint(str(tmp_path / "one"))
    with pytest.raises(CheckpointError, match=r"does not fit its new type|cannot go on over values of another type"):
        Driver(PLANS["lookback"]("int", "decimal(10,2)"), savepoint=path)


def test_another_count_of_a_trigger_of_count_windows(tmp_path: Path) -> None:
    """Rows are counted on, and each third one of a window gives a result from then on; results that are withdrawn refuse it."""

    def counted(every: int, emit: Any = "updates", mode: Any = "accumulating") -> Any:
        stream = _side("string", "bigint").emit(emit).trigger(Trigger.on_count(every)).accumulation(mode)
        return stream.key_by("user").count_window(8).agg(count(), total=sum("amount"))

    sent = [[{"user": "a", "at": 1_000 * n, "amount": 1 << n}] for n in range(17)]
    first = Driver(counted(2))
    before, _ = run(first, sent[:5])
    driver = Driver(counted(3), savepoint=first.savepoint(str(tmp_path / "one")))
    after, _ = run(driver, sent[5:], end=True)
    assert [row["count"] for row in before] == [2, 4]
    assert [row["count"] for row in after] == [6, 8, 3, 6, 8, 1]
    assert [row["total"] for row in after[:3]] == [(1 << 6) - 1, (1 << 8) - 1, ((1 << 3) - 1) << 8]
    for refused in (counted(3, "retractions"), counted(3, mode="discarding")):
        with pytest.raises(CheckpointError, match="on_change="):
            Driver(refused, savepoint=str(tmp_path / "one"))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "cumulate"])
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("late", [0, 40_000])
def test_a_count_trigger_that_is_added_knows_how_many_rows_windows_hold(
    kind: str, every: int, late: int, tmp_path: Path
) -> None:
    """From the change on each batch gives what the new plan gives that ran from the beginning (SEMANTICS §12.2).

    But for windows that would have fired with the last row before the change: nobody has seen that result, and it comes with
    the next row.
    """

    def totals(trigger: Trigger | None) -> Any:
        stream = _side("string", "bigint").allowed_lateness(late).emit("updates")
        stream = stream if trigger is None else stream.trigger(trigger)
        return OPERATORS[kind](stream.key_by("user")).agg(sum("amount").alias("total"), count())

    sent = batches(every, 8)
    for cut in (3, 5):
        old, new = Driver(totals(None)), Driver(totals(Trigger.on_count(every)))
        run(old, sent[:cut])
        run(new, sent[:cut])
        changed = Driver(totals(Trigger.on_count(every)), savepoint=old.savepoint(str(tmp_path / str(cut))))
        unseen = {_window(row) for row in run(old, [], end=True)[0] if every > 1 and row["count"] % every == 0}
        for rows in sent[cut:]:
            assert _ordered(run(changed, [rows]), unseen) == _ordered(run(new, [rows]), unseen)
        last = _ordered(run(changed, [], end=True), unseen)
        assert last == _ordered(run(new, [], end=True), unseen) and last[0]


def _window(row: Any) -> tuple[Any, ...]:
    return row["user"], row["window_start"], row["window_end"]


def _ordered(given: tuple[Rows, Rows], unseen: set[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Results, but for some windows, and late rows in an order of their own."""
    of_others = [row for row in given[0] if _window(row) not in unseen]
    return [plainly(rows, *rows[0]) if rows else [] for rows in (of_others, given[1])]


@pytest.mark.parametrize("counted", [None, count().filter("amount > 0"), count("amount")])
def test_rows_that_nobody_counted_are_one_for_a_trigger(counted: Any, tmp_path: Path) -> None:
    def totals(emit: Any, *more: Any) -> Any:
        stream = _side("string", "bigint").emit(emit)
        stream = stream.trigger(Trigger.on_count(3)) if emit == "updates" else stream
        return stream.key_by("user").tumbling_window(60_000).agg(sum("amount").alias("total"), *more)

    more = [] if counted is None else [counted.alias("n")]
    rows = [{"user": "a", "at": 1_000 * n, "amount": 1 << n} for n in range(9)]
    old = Driver(totals("final", *more))
    run(old, [rows[:5]])
    path = old.savepoint(str(tmp_path / "one"))
    after, _ = run(Driver(totals("updates", *more), savepoint=path), [[row] for row in rows[5:]])
    assert [row["total"] for row in after] == [(1 << 7) - 1]
    added, _ = run(Driver(totals("updates", *more, count().alias("rows")), savepoint=path), [[row] for row in rows[5:]])
    assert [(row["total"], row["rows"]) for row in added] == [((1 << 7) - 1, None)]


@pytest.mark.parametrize("kind", ["tumbling", "cumulate"])
@pytest.mark.parametrize("again", [None, 1])
def test_early_results_that_state_no_longer_holds_are_not_withdrawn(kind: str, again: int | None, tmp_path: Path) -> None:
    """Retractions wait until the windows have ended that a removed trigger may have shown early."""

    def totals(emit: Any, every: int | None) -> Any:
        stream = _side("string", "bigint").allowed_lateness(90_000).emit(emit)
        stream = stream if every is None else stream.trigger(Trigger.on_count(every))
        return OPERATORS[kind](stream.key_by("user")).agg(sum("amount").alias("total"), count())

    def row_of(time: int) -> Rows:
        return [{"user": "a", "at": time, "amount": 1}]

    first = Driver(totals("retractions", 1))
    assert run(first, [row_of(35_000)])[0][0]["total"] == 1
    plain = Driver(totals("updates", None), savepoint=first.savepoint(str(tmp_path / "one"))).restarted()
    assert run(plain, [row_of(36_000)]) == ([], [])
    triggered = Driver(totals("updates", again), savepoint=plain.savepoint(str(tmp_path / "two")))
    end = "00:01:00" if kind == "tumbling" else "00:01:30"
    for number, driver in enumerate((plain, triggered)):
        path = driver.savepoint(str(tmp_path / f"early {number}"))
        with pytest.raises(CheckpointError, match=f"cannot be withdrawn yet .*has passed 1970-01-01T{end}Z"):
            Driver(totals("retractions", again), savepoint=path)
        said = " ".join(map(str, changes_against(path, totals("retractions", again)._plan("streaming"))))
        assert f"retractions, refused until the watermark has passed 1970-01-01T{end}Z" in said
        assert Driver(totals("final", None), savepoint=path) is not None
    shown, _ = run(plain, [row_of(130_000), []])
    assert [row["total"] for row in shown] == [2] * (1 if kind == "tumbling" else 2)
    ended = Driver(totals("retractions", again), savepoint=plain.savepoint(str(tmp_path / "ended")))
    withdrawn, _ = run(ended, [row_of(37_000)])
    assert sorted((row["op"], row["total"]) for row in withdrawn) == [("+U", 3)] * len(shown) + [("-U", 2)] * len(shown)
