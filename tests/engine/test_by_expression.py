"""Keys, session gaps, identities and sides of joins that are expressions: what a plain count in Python gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import ColumnError, KrishivError, PlanError, col, count, lit, max_by
from krishiv_py.planner.fingerprint import differences
from krishiv_py.testing import Driver, stream_of
from krishiv_py.windows import session, tumbling

SCHEMA = "url string, gap int, v bigint, at bigint"
URLS = st.sampled_from(["a/x", "a/y", "A/x", "b", "/", "", None])
ROWS = st.lists(
    st.builds(
        lambda url, gap, v, at: {"url": url, "gap": gap, "v": v, "at": at},
        URLS,
        st.integers(1, 5),
        st.none() | st.integers(-9, 9),
        st.integers(0, 60),
    ),
    max_size=14,
)
SITE = col("url").split("/")[0].upper()


def timed(schema: str = SCHEMA) -> kv.TimedStream:
    return stream_of(schema).watermark("at", 100)


def results(plan: Any, rows: list[dict[str, Any]], cuts: list[int]) -> list[dict[str, Any]]:
    """All results, the rows sent in batches."""
    driver, start = Driver(plan), 0
    actual: list[dict[str, Any]] = []
    for cut in [*sorted({c for c in cuts if c < len(rows)}), len(rows)]:
        actual += driver.send(rows[start:cut]).results.to_pylist()
        start = cut
    actual += driver.close().results.to_pylist()
    return actual


def site(url: str | None) -> str | None:
    return None if url is None else url.split("/")[0].upper()


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@given(ROWS, st.lists(st.integers(0, 14), max_size=3))
def test_windows_by_an_expression(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    aggs = [
        kv.sum(col("v") * 2).alias("twice"),
        count().filter(col("v") % 2 == 0).alias("even"),
        max_by(col("url").length(), -col("v")).alias("long"),
    ]
    plan = timed().key_by(SITE.alias("site"), "gap").tumbling_window(20).agg(*aggs)
    wanted = []
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((site(row["url"]), row["gap"], row["at"] // 20 * 20), []).append(row)
    for (name, gap, start), members in groups.items():
        known = [m for m in members if m["v"] is not None]
        best = min(known, key=lambda m: (m["v"], m["at"])) if known else None
        wanted.append(
            {
                "site": name,
                "gap": gap,
                "window_start": start,
                "window_end": start + 20,
                "twice": sum(2 * m["v"] for m in known) if known else None,
                "even": len([m for m in known if m["v"] % 2 == 0]),
                "long": None if best is None or best["url"] is None else len(best["url"]),
            }
        )
    assert ordered(results(plan, rows, cuts)) == ordered(wanted)


@given(ROWS, st.lists(st.integers(0, 14), max_size=3))
def test_sessions_with_a_gap_by_an_expression(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    plan = timed().key_by(site="upper(split(url, '/')[0])").session_window(col("gap") * 2).agg(count())
    spans: list[list[Any]] = []
    for row in sorted(rows, key=lambda r: (repr(site(r["url"])), r["at"])):
        name, start, end = site(row["url"]), row["at"], row["at"] + 2 * row["gap"]
        if spans and spans[-1][0] == name and start < spans[-1][2]:
            spans[-1][2] = max(end, spans[-1][2])
            spans[-1][3] += 1
        else:
            spans.append([name, start, end, 1])
    wanted = [dict(zip(("site", "window_start", "window_end", "count"), s, strict=True)) for s in spans]
    assert ordered(results(plan, rows, cuts)) == ordered(wanted)


@given(ROWS, st.lists(st.integers(0, 14), max_size=3))
def test_duplicates_by_an_expression_pass_with_the_columns_they_came_with(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    passed: list[dict[str, Any]] = []
    for row in rows:
        if not any(site(p["url"]) == site(row["url"]) and abs(p["at"] - row["at"]) < 15 for p in passed):
            passed.append(row)
    for plan in (timed().drop_duplicates(SITE, within=15), timed().key_by(SITE).drop_duplicates(within=15)):
        assert ordered(results(plan, rows, cuts)) == ordered(passed)


@given(ROWS, ROWS)
def test_sides_meet_by_an_expression_each(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    ours = [{"url": r["url"], "v": r["v"], "at": r["at"]} for r in left]
    theirs = [{"name": site(r["url"]), "seen": r["at"]} for r in right]
    other = stream_of("name string, seen bigint").watermark("seen", 100)
    on = (SITE.alias("site"), col("name").lower().upper())
    driver = Driver(timed("url string, v bigint, at bigint").interval_join(other, on, lower=-5, upper=5))
    actual = driver.send({"left": ours, "right": theirs}).results.to_pylist()
    wanted = [
        {"site": site(a["url"]), **a, **b, "join_time": max(a["at"], b["seen"])}
        for a in ours
        for b in theirs
        if a["url"] is not None and site(a["url"]) == b["name"] and abs(a["at"] - b["seen"]) <= 5
    ]
    assert ordered(actual) == ordered(wanted)


@given(ROWS, ROWS)
def test_sides_of_a_window_join_meet_by_an_expression_each(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    ours = [{"url": r["url"], "v": r["v"], "at": r["at"]} for r in left]
    theirs = [{"name": site(r["url"]), "seen": r["at"]} for r in right]
    other = stream_of("name string, seen bigint").watermark("seen", 100)
    on = (SITE.alias("site"), col("name").lower().upper())
    driver = Driver(timed("url string, v bigint, at bigint").window_join(other, on, window=tumbling(20)))
    actual = [*driver.send({"left": ours, "right": theirs}).results.to_pylist(), *driver.close().results.to_pylist()]
    wanted = [
        {"site": site(a["url"]), **a, **b, "window_start": a["at"] // 20 * 20, "window_end": a["at"] // 20 * 20 + 20}
        for a in ours
        for b in theirs
        if a["url"] is not None and site(a["url"]) == b["name"] and a["at"] // 20 == b["seen"] // 20
    ]
    names = list(actual[0]) if actual else []
    assert ordered(actual) == ordered([{n: row[n] for n in names} for row in wanted])


@given(ROWS, ROWS, st.sampled_from(["backward", "forward", "nearest"]))
def test_the_nearest_row_is_of_the_key_that_expressions_give(
    left: list[dict[str, Any]], right: list[dict[str, Any]], direction: Any
) -> None:
    ours = [{"url": r["url"], "v": r["v"], "at": r["at"]} for r in left]
    theirs = [{"name": site(r["url"]), "seen": r["at"], "nr": nr} for nr, r in enumerate(right)]
    other = stream_of("name string, seen bigint, nr bigint").watermark("seen", 100)
    plan = timed("url string, v bigint, at bigint").asof_join(
        other, (SITE.alias("site"), col("name").lower().upper()), direction=direction, tolerance=30
    )
    driver = Driver(plan)
    actual = [*driver.send({"left": ours, "right": theirs}).results.to_pylist(), *driver.close().results.to_pylist()]
    wanted = []
    for a in ours:
        near = [b for b in theirs if a["url"] is not None and b["name"] == site(a["url"]) and abs(b["seen"] - a["at"]) <= 30]
        if direction != "nearest":
            near = [b for b in near if (b["seen"] <= a["at"] if direction == "backward" else b["seen"] >= a["at"])]
        best = min(near, key=lambda b: (abs(b["seen"] - a["at"]), b["seen"], -b["nr"]), default=None)
        wanted.append((site(a["url"]), a["url"], a["v"], a["at"], None if best is None else best["nr"]))
    assert sorted(map(repr, wanted)) == sorted(repr(tuple(row[n] for n in ("site", "url", "v", "at", "nr"))) for row in actual)


def test_keys_of_a_second_stage_and_of_a_stream_without_watermark_yet() -> None:
    first = stream_of(SCHEMA).key_by(SITE.alias("site"), "gap").watermark("at", 0).tumbling_window(10).agg(kv.sum("v"))
    plan = first.key_by(col("site").length()).session_window(col("sum_v") * 10).agg(kv.sum("sum_v").alias("s"))
    rows = [{"url": "a/x", "gap": 1, "v": 1, "at": 1}, {"url": "b", "gap": 2, "v": 2, "at": 12}, {"url": "cc", "v": 3, "at": 3}]
    actual = results(plan, rows, [1])
    assert [row["s"] for row in actual] == [1, 3, 2]  # both long ones end at 39, in the order of their starts
    assert list(actual[0]) == ["length(site)", "window_start", "window_end", "s"]


@pytest.mark.parametrize(
    "on", [[("a", "b")], {"a": "b"}, [(col("a").lower(), "b")], [("a", col("b").upper())], [("a", "b"), ("v", "w")]]
)
def test_sides_meet_by_pairs_of_names_and_expressions(on: Any) -> None:
    """In each join, as in a join with a table."""
    left, right = timed("a string, v bigint, at bigint"), stream_of("b string, w bigint, rat bigint").watermark("rat", 0)
    joins = [
        left.interval_join(right, on, lower=0, upper=5),
        left.asof_join(right, on, direction="forward", tolerance=5),
        left.window_join(right, on, window=tumbling(5)),
    ]
    for join in joins:
        driver = Driver(join)
        sent = driver.send({"left": [{"a": "5", "v": 1, "at": 1}], "right": [{"b": "5", "w": 1, "rat": 2}]})
        assert sent.results.num_rows + driver.close().results.num_rows == 1
    rows = stream_of("a string, v bigint, at bigint").lookup_join(pa.table({"b": ["5"], "w": [1]}), on)
    Driver(rows.watermark("at", 0).tumbling_window(5).agg(count())).close()


def test_one_expression_for_both_sides_next_to_a_column() -> None:
    other = stream_of("shop int, name string, seen bigint").watermark("seen", 0)
    one = stream_of("shop int, name string, at bigint").watermark("at", 0)
    driver = Driver(one.interval_join(other, ["shop", col("name").lower()], lower=0, upper=5, suffixes=("", "_right")))
    driver.send({"left": [{"shop": 1, "name": "Ann", "at": 1}, {"shop": 2, "name": "Ann", "at": 1}]})
    actual = driver.send({"right": [{"shop": 1, "name": "ANN", "seen": 3}]}).results.to_pylist()
    assert actual == [{"shop": 1, "lower(name)": "ann", "name": "Ann", "at": 1, "name_right": "ANN", "seen": 3, "join_time": 3}]


Change = Callable[[kv.TimedStream], Any]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda s: s.key_by(SITE, SITE), PlanError, "named twice"),
        (lambda s: s.key_by(SITE.alias("a"), col("v").alias("A")), PlanError, "named twice"),
        (lambda s: s.key_by(SITE.alias("v")), ColumnError, "name of a column"),
        (lambda s: s.key_by(SITE.alias("V")), ColumnError, "name of a column"),
        (lambda s: s.key_by(V="gap + 1"), ColumnError, "name of a column"),
        (lambda s: s.key_by(lit(1)), PlanError, "constant"),
        (lambda s: s.key_by(col("*").is_null()), PlanError, "takes no col"),
        (lambda s: s.key_by(col("url").split("/")), ColumnError, "cannot be a key"),
        (lambda s: s.key_by(col("nope").lower()), ColumnError, "nope"),
        (lambda s: s.key_by(x="url +"), KrishivError, "SQL"),
        (lambda s: s.key_by(x="url * 2"), KrishivError, "do not fit"),
        (lambda s: s.key_by(SITE.alias("window_end")).tumbling_window(5).agg(count()), PlanError, "window column"),
        (lambda s: s.key_by(SITE.alias("__krishiv_x")), KrishivError, "reserved"),
        (lambda s: s.key_by(SITE).key_by(SITE), KrishivError, "keyed already"),
        (lambda s: s.session_window(col("url").lower()), ColumnError, "cannot be a session gap"),
        (lambda s: s.session_window(col("gap") / 2), ColumnError, "cannot be a session gap"),
        (lambda s: s.session_window(lit(5) + 1), PlanError, "reads no column"),
        (lambda s: s.session_window(col("nope") + 1), ColumnError, "nope"),
        (lambda s: s.drop_duplicates(col("url").split("/"), within=5), ColumnError, "cannot be a key"),
        (lambda s: s.drop_duplicates(5, within=5), PlanError, "keys are"),
        (lambda s: s.interval_join(s, (SITE, col("v") + 1), lower=0, upper=1, suffixes=("", "_r")), ColumnError, "other types"),
        (lambda s: s.interval_join(s, (SITE, 5), lower=0, upper=1), PlanError, "names no columns"),
        (lambda s: s.key_by("url").interval_join(s, SITE, lower=0, upper=1), PlanError, "keyed by other columns"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(change: Change, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        change(timed())


def test_a_checkpoint_knows_what_a_key_is_computed_by() -> None:
    def noted(key: Any, gap: Any = 5) -> dict[str, str]:
        plan: kv.ResultStream = timed().key_by(key).session_window(gap).agg(count())
        return plan._plan().fingerprint

    one, other = noted(SITE.alias("site")), noted(col("url").lower().alias("site"))
    assert differences(one, noted(SITE.alias("site"))) == []
    assert differences(one, other) == ["expression of site was upper(item(split(url, '/'), 0)) and is lower(url)"]
    assert differences(noted("url", col("gap") * 2), noted("url", col("gap") * 3)) == [
        "expression of __krishiv_session_gap was (gap * 2) and is (gap * 3)"
    ]
    assert session(col("gap") * 2) == session(col("gap") * 2) != session(col("gap") * 3)
    joined = timed().interval_join(timed(), (SITE.alias("s"), col("url").lower()), lower=0, upper=1, suffixes=("", "_r"))
    assert [v for k, v in joined._plan().fingerprint.items() if k.startswith("expression of")] == [
        "upper(item(split(url, '/'), 0))",
        "lower(url)",
    ]
