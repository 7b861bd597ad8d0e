"""Patterns: the named cases of their design, and every step against a plain reference."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import (
    KrishivError,
    OperatorError,
    absent,
    avg,
    coalesce,
    col,
    collect_list,
    count,
    first,
    last,
    lit,
    max,
    prev,
    step,
    sum,
    to_first,
    to_last,
)
from krishiv_py.kernels.patterns import operator, values
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.patterns.reference import Reference, Spec, random_spec

DDL = "k string, at bigint, c string, v bigint"
KEYS = ["a", "b", None]


def _rows_of(draw: random.Random, lag: int, letters: str = "aabcx") -> list[list[dict[str, Any]]]:
    """Return rows in batches, none of which is late."""
    rows, now = list[dict[str, Any]](), 0
    for _ in range(draw.randint(0, 40)):
        now += draw.choice([0, 0, 1, 2, 5])
        rows.append({"k": draw.choice(KEYS), "at": now, "c": draw.choice(letters), "v": draw.randint(0, 9)})
    rows.sort(key=lambda row: row["at"] + draw.randint(0, lag))
    batches, place = list[list[dict[str, Any]]](), 0
    while place < len(rows):
        size = draw.randint(1, 9)
        batches.append(rows[place : place + size])
        place += size
    return batches


def _plan(spec: Spec, lag: int, lateness: int, **options: Any) -> Any:
    stream = stream_of(DDL).watermark("at", lag).allowed_lateness(lateness).key_by("k")
    measures = [collect_list("at").alias("ats"), collect_list("v").alias("vs")]
    return stream.match(
        spec.pattern(), measures=measures, within=spec.within, skip=spec.skip, max_rows_per_key=spec.most, **options
    )


def _order(row: tuple[Any, ...]) -> Any:
    return (row[0], row[1] is not None, row[1] or "")


def _steps(spec: Spec, batches: list[list[dict[str, Any]]], lag: int, lateness: int) -> list[list[Any]]:
    """Return what the reference gives in each step: (decided, key, kind, times, values, start, end)."""
    keys, steps = {key: Reference(spec) for key in KEYS}, list[list[Any]]()
    newest: int | None = None
    for batch in [*batches, None]:
        newest = builtins.max([*([] if newest is None else [newest]), *(row["at"] for row in batch or [])], default=newest)
        settled = -1 if newest is None else newest - lag - lateness
        given = []
        for key, reference in keys.items():
            rows = [row for row in batch or [] if row["k"] == key]
            for what, taken, decided, end in reference.feed(rows, settled, None if batch is not None else newest or 0):
                picked = [reference.rows[place] for _, place in taken]
                times, values = [row["at"] for row in picked], [row["v"] for row in picked]
                given.append((decided, key, what, times, values, times[0], end))
        steps.append(sorted(given, key=_order))
    return steps


def _said(table: Any) -> list[Any]:
    return [(r["matched_at"], r["k"], "match", r["ats"], r["vs"], r["match_start"], r["match_end"]) for r in table.to_pylist()]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("seed", range(scaled(150)))
def test_m29_every_step_is_that_of_the_reference(seed: int, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_WORTH", seed % 3)
    monkeypatch.setattr(operator, "_KEYS_AT_ONCE", 1 + seed % 2)
    draw = random.Random(f"{seed} {asked}")
    spec, lag, lateness = random_spec(draw, asked=asked), draw.choice([0, 4]), draw.choice([0, 3])
    batches = _rows_of(draw, lag)
    driver, before = Driver(_plan(spec, lag, lateness)), None
    steps = _steps(spec, batches, lag, lateness)
    for number, (batch, wanted) in enumerate(zip([*batches, None], steps, strict=True)):
        out = driver.close() if batch is None else driver.send(batch)
        matches = [each for each in wanted if each[2] == "match"]
        assert _said(out.results) == matches, spec.pattern()
        assert out.late.num_rows == 0
        assert all(before is None or each[0] >= before for each in matches)  # none is late in the next stage
        if batch is not None:
            before = builtins.max([row["at"] for rows in batches[: number + 1] for row in rows]) - lag - lateness
            if draw.random() < 0.3:
                driver = driver.restarted()


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_starts_that_are_given_up_or_time_out_are_those_of_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_KEYS_AT_ONCE", 1 + seed % 2)
    draw = random.Random(f"limit {seed}")
    spec = random_spec(draw, asked=draw.random() < 0.3, most=draw.choice([2, 3, 4, 6, 8]))
    batches = _rows_of(draw, 0, draw.choice(["aabcx", "aab", "ab"]))  # of two letters, many starts are given up in turn
    timeouts = {} if spec.within is None else {"timeouts": "side_output"}
    driver = Driver(_plan(spec, 0, 0, **timeouts))
    for batch, wanted in zip([*batches, None], _steps(spec, batches, 0, 0), strict=True):
        out = driver.close() if batch is None else driver.send(batch)
        assert _said(out.results) == [each for each in wanted if each[2] == "match"], spec.pattern()
        late = sorted((r["reason"], r["at"], r["v"]) for r in out.late.to_pylist())
        reasons = {"limit": "pattern_limit", "timeout": "no_match"}
        assert late == sorted(
            (reasons[what], at, v)
            for _, _, what, times, values, _, _ in wanted
            if what != "match"
            for at, v in zip(times, values, strict=True)
        )


@pytest.mark.parametrize("most", [50, 400])
def test_a_start_goes_on_where_the_one_before_was_given_up(most: int) -> None:
    """The cost of a pattern that never ends follows its rows, however many of them a start may look at."""
    a, b = step("A", col("v") >= 0), step("B", col("v") > 0)
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    for pattern in (
        a.one_or_more().then(C),
        a.then(b.one_or_more().reluctant()).then(C),
        a.then((a | b).one_or_more()).then(C),
    ):
        driver = Driver(stream.match(pattern, measures=[collect_list("at").alias("ats")], max_rows_per_key=most))
        looked = _Counted(_program_of(driver).code)
        object.__setattr__(_program_of(driver), "code", looked)
        rows = [{"k": "a", "at": at, "c": "a", "v": 1} for at in range(1_000)]
        given_up = driver.send(rows).late.num_rows
        assert given_up == 999 - most  # the last row is not settled
        assert looked.times < 25 * 1_000, pattern


class _Counted(tuple[Any, ...]):
    times = 0

    def __getitem__(self, place: Any) -> Any:
        self.times += 1
        return super().__getitem__(place)


def _program_of(driver: Driver) -> Any:
    return driver._core.stages[0].buckets[0].stage.operator.program  # type: ignore[attr-defined]


def _letter(name: str) -> Any:
    return step(name.upper(), col("c") == name)


A, B, C, X = (_letter(name) for name in "abcx")


def _once(pattern: Any, rows: Any, cut: int, **options: Any) -> list[Any]:
    """Return the times of the rows of each match, with the time at which it ends where that is a deadline."""
    named = [(i * 10, c) for i, c in enumerate(rows)] if isinstance(rows, str) else rows
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    driver = Driver(stream.match(pattern, measures=collect_list("at").alias("ats"), **options))
    sent = [{"k": "k", "at": at, "c": str(c), "v": c if isinstance(c, int) else None} for at, c in named]
    tables = [driver.send(sent[i : i + cut]).results for i in range(0, len(sent), cut)] + [driver.close().results]
    matches = [row for table in tables for row in table.to_pylist()]
    return [[*row["ats"], *([] if row["match_end"] == row["ats"][-1] else [f"@{row['match_end']}"])] for row in matches]


@pytest.mark.parametrize("cut", [1, 3, 99])
def test_the_cases_of_the_design(cut: int) -> None:
    def once(pattern: Any, rows: Any, **options: Any) -> list[Any]:
        return _once(pattern, rows, cut, **options)

    either, d = step("E", col("c").isin("a", "b")), {"within": 30}
    falling = step("D", col("v") < coalesce(last("D.v", 1), last("T.v"))).times(2, 99)
    assert once(A.then(B), "axbab") == [[30, 40]]  # M1
    assert once(A.followed_by(B), "axbab") == [[0, 20], [30, 40]]  # M2
    assert once(A.then(B.one_or_more()), "abbb") == [[0, 10, 20, 30]]  # M3
    assert once(A.then(B.one_or_more().reluctant()), "abbb") == [[0, 10]]  # M4
    assert once(either.one_or_more().then(B), "aab") == [[0, 10, 20]]  # M5
    assert once(A.times(2), "aaa") == [[0, 10]]  # M6
    assert once(A.times(2), "aaa", skip="next_row") == [[0, 10], [10, 20]]
    assert once(A.then(B), [(0, "a"), (30, "b")], **d) == []  # M7
    assert once(A.then(B), [(0, "a"), (29, "b")], **d) == [[0, 29]]
    assert once(A.without(B, **d), [(0, "a"), (30, "b")]) == [[0, "@30"]]  # M8
    assert once(A.without(B, **d), [(0, "a"), (29, "b")]) == []  # M9
    assert once(A.without(X).followed_by(B), "axbayb") == [[30, 50]]  # M10
    assert once(A.without(B, **d), [(0, "a"), (0, "b")]) == []  # M11
    assert once(A.without(B, **d), [(0, "b"), (0, "a")]) == [[0, "@30"]]  # M12
    assert once(step("T").then(falling).then(step("U", col("v") > last("D.v"))), [(0, 9), (1, 7), (2, 5), (3, 8)]) == [
        [0, 1, 2, 3]
    ]  # M16
    assert once(A.then(X.optional()).then(B), "abaxb") == [[0, 10], [20, 30, 40]]  # M17
    assert once(step("N", col("v") > 0), "a1a") == []  # M21: null is false
    assert once(A.then(B).one_or_more(), "ababa") == [[0, 10, 20, 30]]  # M23
    assert once(A.zero_or_more(), "xx") == []  # M24


def _driver(pattern: Any, **options: Any) -> Driver:
    return Driver(stream_of(DDL).watermark("at", 0).key_by("k").match(pattern, **options))


def _send(driver: Driver, *rows: tuple[int, str], key: str = "k") -> list[Any]:
    results = driver.send([{"k": key, "at": at, "c": c, "v": at} for at, c in rows]).results
    return [(row["match_start"], row["match_end"], row["matched_at"]) for row in results.to_pylist()]


def test_m13_absence_is_given_when_the_watermark_reaches_its_deadline() -> None:
    driver = _driver(A.without(B, within=30))
    assert _send(driver, (0, "a")) == []
    assert _send(driver, (29, "x"), key="other") == []
    assert _send(driver, (30, "x"), key="other") == [(0, 30, 30)]


def test_m14_and_m15_a_greedy_end_waits_for_a_row_or_for_its_time() -> None:
    driver = _driver(A.then(B.one_or_more()))
    assert _send(driver, (0, "a"), (10, "b"), (11, "b")) == []
    assert _send(driver, (20, "x"), (21, "x")) == [(0, 11, 20)]
    driver = _driver(A.then(B.one_or_more()), within=30)
    assert _send(driver, (0, "a"), (10, "b"), (29, "x")) == []
    assert _send(driver, (30, "x"), key="other") == [(0, 10, 29)]
    driver = _driver(A.then(B.one_or_more()), within=30)
    assert _send(driver, (0, "a"), (10, "b")) == []
    assert _send(driver, (30, "x"), key="other") == [(0, 10, 30)]


def test_m18_a_late_row_changes_nothing_that_was_decided() -> None:
    driver = _driver(A.without(B, within=30))
    _send(driver, (0, "a"))
    assert _send(driver, (50, "x"), key="other") == [(0, 30, 30)]
    out = driver.send([{"k": "k", "at": 10, "c": "b", "v": 0}])
    assert out.late.num_rows == 1 and out.results.num_rows == 0


def test_m19_rows_go_by_time_and_not_by_arrival() -> None:
    stream = stream_of(DDL).watermark("at", 20).key_by("k")
    driver = Driver(stream.match(A.then(B)))
    driver.send([{"k": "k", "at": at, "c": c, "v": 0} for at, c in ((10, "a"), (5, "b"))])
    assert driver.close().results.num_rows == 0


def test_m26_a_start_that_is_undecided_outlives_restarts() -> None:
    driver = _driver(A.followed_by(B).followed_by(C), within=100)
    for at, c in ((0, "a"), (10, "x"), (20, "b"), (30, "x")):
        assert _send(driver, (at, c)) == []
        driver = driver.restarted()
    assert _send(driver, (40, "c"), (41, "x")) == [(0, 40, 40)]


def test_each_row_of_a_match_can_be_a_result() -> None:
    driver = _driver(A.then(B.one_or_more()), rows="all", measures=[count("B").alias("n"), first("A.at").alias("began")])
    sent = driver.send([{"k": k, "at": at, "c": c, "v": at} for at, c in enumerate("abbxabx") for k in ("p", "q")])
    rows = [*sent.results.to_pylist(), *driver.close().results.to_pylist()]
    assert [row for row in rows if row["k"] == "q"] == [
        {"k": "q", "at": at, "c": c, "v": at, "step": c.upper(), "match_number": n, "matched_at": m, "n": b, "began": began}
        for at, c, n, m, b, began in (
            *((at, c, 1, 3, 2, 0) for at, c in ((0, "a"), (1, "b"), (2, "b"))),
            *((at, c, 2, 6, 1, 4) for at, c in ((4, "a"), (5, "b"))),
        )
    ]


def test_the_search_goes_on_where_skip_says() -> None:
    up = step("U", col("v") > prev("v")).one_or_more()
    down = step("D", col("v") < prev("v")).one_or_more()
    rows = [(i, v) for i, v in enumerate([5, 3, 4, 2, 6, 1])]
    assert _once(step("S").then(down).then(up), rows, 2) == [[0, 1, 2]]
    assert _once(step("S").then(down).then(up), rows, 2, skip=to_last("U")) == [[0, 1, 2], [2, 3, 4]]
    with pytest.raises(OperatorError, match="cannot go on at the first row of S for key k='k'"):
        _once(step("S").then(down), rows, 2, skip=to_first("S"))
    with pytest.raises(OperatorError, match="the step has no row in the match"):
        _once(A.then(B.optional()), "aa", 2, skip=to_last("B"))


def test_measures_are_computed_of_the_rows_of_a_step() -> None:
    measures = [
        first("S.v").alias("first"),
        last("U.v", 1).alias("one before"),
        (max("U.v") - first("S.v")).alias("rise"),
        count("U").alias("n"),
        avg("U.v").filter("v > 2").alias("high"),
        col("v").alias("last"),
        count().alias("rows"),
        prev("v").alias("before"),
    ]
    driver = _driver(step("S").then(step("U", col("v") > prev("v")).one_or_more()), measures=measures)
    driver.send([{"k": "k", "at": i, "c": "", "v": v} for i, v in enumerate([1, 2, 4, 8, 3])])
    [row] = driver.close().results.drop_columns(["k", "match_start", "match_end", "matched_at"]).to_pylist()
    assert row == {"first": 1, "one before": 4, "rise": 7, "n": 3, "high": 6.0, "last": 8, "rows": 4, "before": 4}


@pytest.mark.parametrize("type_", ["bigint", "timestamp", "timestamp_ntz"])
def test_times_have_the_type_of_the_time_column(type_: str) -> None:
    plan = stream_of(f"k string, at {type_}").watermark("at", 0).key_by("k").match(step("S"), measures=count("S").alias("n"))
    time = {"bigint": "int64", "timestamp": "timestamp[us, tz=UTC]", "timestamp_ntz": "timestamp[us]"}[type_]
    wanted = {"k": "string", "match_start": time, "match_end": time, "matched_at": time, "n": "int64"}
    assert {f.name: str(f.type) for f in plan.schema} == wanted


def test_matches_go_into_windows_and_other_patterns() -> None:
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    pairs = stream.match(A.then(B), measures=last("B.v").alias("v"))
    twice = pairs.key_by("k").match(step("P", col("v") > 0).then(step("Q")), within=100)
    driver = Driver(twice.tumbling_window(100).agg(count()))
    driver.send([{"k": "k", "at": i, "c": c, "v": i} for i, c in enumerate("abxabxab")])
    out = driver.send([{"k": "other", "at": 300, "c": "x", "v": 0}])
    assert out.results.to_pylist() == [{"window_start": 0, "window_end": 100, "count": 1}]


def test_state_says_what_is_undecided() -> None:
    driver = _driver(A.followed_by(B), within=100)
    _send(driver, (5, "a"), (6, "x"), (7, "x"))
    [row] = driver.state().to_pylist()
    assert (row["k"], row["start"], row["due"], row["rows"], row["held_rows"]) == ("k", 5, 105, 2, 1)


def test_a_stage_that_waits_says_so() -> None:
    driver = _driver(A.followed_by(B), within=100)
    assert driver.why_not_fired().startswith("nothing waits: no row that a match could begin with is undecided")
    _send(driver, (5, "a"), (6, "x"), (7, "x"))
    assert driver.why_not_fired().startswith("starts of matches wait for more rows, or for the watermark; ")
    assert "is not decided; it is decided at 1970-01-01T00:00:00.105000Z at the latest; 1 row waits" in driver.why("k")


@pytest.mark.parametrize(
    ("pattern", "endless"),
    [
        (A.then(B), False),
        (step("S", col("v") + 1 > 2).then(B).times(2), False),
        (A.without(col("v") * 2 > 1).then(B), False),
        (A.followed_by(B), True),
        (A.then(B.then(C.zero_or_more())), True),
        (A.then(B.followed_by(C)), True),
        (A | B.at_least(2), True),
    ],
)
def test_a_pattern_without_an_end_is_warned_of(pattern: Any, endless: bool) -> None:
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    assert ("the pattern has no end" in str(stream.match(pattern).explain())) == endless
    assert "the pattern has no end" not in str(stream.match(pattern, within=5).explain())


def test_sql_text_names_steps() -> None:
    driver = _driver(step("P").then(step("Q", "v > P.v AND Q.v < 9")), measures=last("Q.v").alias("v"))
    out = driver.send([{"k": "k", "at": at, "c": "", "v": v} for at, v in enumerate([5, 3, 9, 4, 8, 7])])
    assert [row["v"] for row in out.results.to_pylist()] == [8]


def test_rows_that_cannot_begin_a_match_leave_no_state() -> None:
    driver = _driver(A.then(B))
    driver.send([{"k": str(i), "at": i, "c": "x", "v": 0} for i in range(100)])
    driver.send([{"k": "a", "at": 200, "c": "x", "v": 0}])
    assert driver.state().num_rows == 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda s: s.match("a"), "match takes a pattern"),
        (lambda s: s.match(absent("c = 'x'", within=5)), "a pattern begins with a row"),
        (lambda s: s.match(A.without(B)), "absence at the end of a pattern needs a length of time"),
        (lambda s: s.match(A.then(B.without(X, within=5)).then(C)), "after an absence with a length of time"),
        (lambda s: s.match(A.then(step("A", col("c") == "b"))), "two steps of one name have several conditions"),
        (lambda s: s.match(step("c")), "a step is called like a column"),
        (lambda s: s.match(step("S", col("nope") > 1)), "there is no column 'nope'"),
        (lambda s: s.match(step("S", col("v"))), "the condition of S is none"),
        (lambda s: s.match(step("S", col("v") > last("Z.v"))), "no step 'Z'"),
        (lambda s: s.match(A, measures=first("A.nope")), "there is no column 'nope'"),
        (lambda s: s.match(A, measures=sum("v") + lit("x")), r"last|sum\(v\)"),
        (lambda s: s.match(A, measures=[first("A.v").alias("k")]), "two columns of the result have one name"),
        (lambda s: s.match(A, measures=[(first("A.v") + last("B.v")).alias("x")]), "no step 'B'"),
        (lambda s: s.match(A, skip="past"), "`skip` says where the search goes on"),
        (lambda s: s.match(A, skip=to_last("Z")), "no step 'Z'"),
        (lambda s: s.match(A, within=-1), "within"),
        (lambda s: s.match(A, rows="some"), "rows"),
        (lambda s: s.match(A, timeouts="side_output"), "without a length of time no start times out"),
        (lambda s: s.match(A, max_rows_per_key=0), "max_rows_per_key"),
        (lambda s: s.match(A, order_by="nope"), "there is no column 'nope'"),
        (lambda s: s.match(A).emit("updates"), "knows neither triggers nor emit modes"),
        (lambda s: s.match(A and B), "a pattern has no truth value"),
        (lambda s: s.match(A.then(absent("c = 'x'", within=5))), r"absent\(...\) stands at the start"),
        (lambda s: s.match(A.reluctant()), "only what is repeated can be reluctant"),
        (lambda s: s.match(A.one_or_more().optional()), "cannot be repeated again"),
        (lambda s: s.match(A.times(3, 2)), "`most` is below `least`"),
        (lambda s: s.match(step("a b")), "a step is named by one word"),
        (lambda s: s.tumbling_window(5).agg(last("v", 1)), "offset"),
        (lambda s: s.match(A).filter(prev("v") > 1), "prev and next are values of other rows"),
        (lambda s: s.match(step("S", prev(prev("v")) > 1)), "prev takes columns of one row"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(wrong: Any, text: str) -> None:
    with pytest.raises(KrishivError, match=text):
        wrong(stream_of(DDL).watermark("at", 0).key_by("k"))


def test_keys_are_searched_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million keys with one deadline would have a million searches, of a kilobyte each, at once."""
    made, plain = list[int](), operator._Searches.run

    def counted(searches: Any) -> None:
        made.append(len(searches.searches))
        plain(searches)

    monkeypatch.setattr(operator, "_KEYS_AT_ONCE", 7)
    monkeypatch.setattr(operator._Searches, "run", counted)
    for rows in ("one", "all"):
        stream = stream_of("k bigint, at bigint, c string").watermark("at", 0).key_by("k")
        driver = Driver(stream.match(A.times(2).without(B, within="1 s"), rows=rows))
        driver.send([{"k": n % 30, "at": n // 30, "c": "a"} for n in range(60)])
        made.clear()
        tables = [driver.send([{"k": 99, "at": 5_000, "c": "x"}]).results for _ in range(2)]
        results = [row for table in tables for row in table.to_pylist()]
        assert [row["k"] for row in results] == [k for k in range(30) for _ in range(1 if rows == "one" else 2)]
        assert builtins.max(made) <= 7 and builtins.sum(made) >= 30


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (step("A", col("c") == "a").then(step("B", col("c") == "b").one_or_more()), 3_001),
        (step("A", col("c") == "a").followed_by(step("B", col("c") == "b").one_or_more()), 3_001),
        (step("A", col("c") == "a").then(step("B", col("c") == "b").at_least(5)).then(step("C", col("c") == "c")), 3_002),
    ],
)
def test_a_repetition_that_waits_reads_what_a_batch_brings(pattern: Any, matched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    rows_of = operator._Searches.__init__

    def counted(self: Any, parent: Any, rows: pa.Table, *more: Any) -> None:
        read.append(rows.num_rows)
        rows_of(self, parent, rows, *more)

    monkeypatch.setattr(operator._Searches, "__init__", counted)
    driver = Driver(stream_of(DDL).watermark("at", 0).key_by("k").match(pattern, within=10_000, measures=count().alias("n")))
    driver.send([{"k": "k", "at": 0, "c": "a", "v": 0}])
    for batch in range(300):
        sent = [{"k": "k", "at": 1 + 10 * batch + n, "c": "b", "v": n} for n in range(10)]
        assert driver.send(sent).results.num_rows == 0
        if batch % 100 == 50:
            driver = driver.restarted()
    assert builtins.sum(read) < 2_000
    given = driver.send([{"k": "k", "at": 3_001, "c": "c", "v": 0}, {"k": "k", "at": 20_000, "c": "z", "v": 0}]).results
    assert given["n"].to_pylist() == [matched]
    assert builtins.sum(read) < 12_000
