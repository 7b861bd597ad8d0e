"""Functions of lists, maps and calendars; what Spark gives for them is held in tests/spark."""

from __future__ import annotations

import datetime as dt
import math
import operator
import pickle
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ColumnError, Expr, ExpressionError, OperatorError, col, func, lit
from krishiv_py.kernels.columns.evaluate import evaluate, expr_type
from krishiv_py.plan.expressions.expr import columns_of
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.testing import Driver, stream_of

UTC = dt.timezone.utc
ROWS = pa.table(
    {
        "xs": pa.array([[3, 1, None, 1], [], None, [2, 5]], pa.list_(pa.int64())),
        "ys": pa.array([[1], [None], [2], []], pa.list_(pa.int64())),
        "fs": [[0.0, -0.0, math.nan, math.nan, None], [-0.0], [], None],
        "ss": [["b", None, "a"], ["x"], [], None],
        "ls": pa.array([[[1], [2, 3]], [[4], None], [], None], pa.list_(pa.list_(pa.int64()))),
        "ps": [[{"a": 1, "b": "x"}, None], [], None, [{"a": None, "b": "y"}]],
        "m": pa.array([[("a", 1), ("b", None)], [], None, [("c", 3)]], pa.map_(pa.string(), pa.int64())),
        "a": [10, 20, 30, None],
        "k": ["a", "b", "c", "c"],
        "i": pa.array([1, -1, 7, None], pa.int32()),
        "d": [dt.date(2024, 1, 31), dt.date(2024, 2, 29), dt.date(1969, 12, 31), None],
    }
)
X, Y, F, S, M, A, K, N, D = map(col, ("xs", "ys", "fs", "ss", "m", "a", "k", "i", "d"))
CASES: list[tuple[Expr | None, str, list[Any]]] = [
    (X.transform(lambda x: x + A), "transform(xs, x -> x + a)", [[13, 11, None, 11], [], None, [None, None]]),
    (X.transform(lambda x, at: x * at), "transform(xs, (x, at) -> x * at)", [[0, 1, None, 3], [], None, [0, 5]]),
    (X.transform(lambda x: 1), "transform(xs, x -> 1)", [[1, 1, 1, 1], [], None, [1, 1]]),
    (X.filter(lambda x: x > 1), "filter(xs, x -> x > 1)", [[3], [], None, [2, 5]]),
    (X.filter(lambda x, at: at > 1), "filter(xs, (x, at) -> at > 1)", [[None, 1], [], None, []]),
    (X.exists(lambda x: x > 4), "exists(xs, x -> x > 4)", [None, False, None, True]),
    (X.exists(lambda x: A / (x - 1) > 3), "exists(xs, x -> a / (x - 1) > 3)", [True, False, None, None]),
    (X.forall(lambda x: x > 0), "forall(xs, x -> x > 0)", [None, True, None, True]),
    (X.aggregate(0, lambda a, x: a + x), "aggregate(xs, 0, (a, x) -> a + x)", [None, 0, None, 7]),
    (X.aggregate(1, lambda a, x: a + x, lambda a: a * A), "reduce(xs, 1, (s, x) -> s + x, s -> s * a)", [None, 20, None, None]),
    (X.zip_with(Y, lambda x, y: x + y), "zip_with(xs, ys, (x, y) -> x + y)", [[4, None, None, None], [None], None, [None] * 2]),
    (F.array_distinct(), "array_distinct(fs)", [[0.0, math.nan, None], [0.0], [], None]),
    (X.array_position(1), "array_position(xs, 1)", [2, 0, None, 0]),
    (F.array_max(), "array_max(fs)", [math.nan, -0.0, None, None]),
    (F.array_min(), "array_min(fs)", [0.0, -0.0, None, None]),
    (X.sort_array(), "sort_array(xs)", [[None, 1, 1, 3], [], None, [2, 5]]),
    (X.sort_array(False), "sort_array(xs, false)", [[3, 1, 1, None], [], None, [5, 2]]),
    (X.array_sort(), "array_sort(xs)", [[1, 1, 3, None], [], None, [2, 5]]),
    (
        X.array_sort(lambda a, b: func("coalesce", b, 0) - func("coalesce", a, 0)),
        "array_sort(xs, (a, b) -> coalesce(b, 0) - coalesce(a, 0))",
        [[3, 1, 1, None], [], None, [5, 2]],
    ),
    (S.array_join("-"), "array_join(ss, '-')", ["b-a", "x", "", None]),
    (S.array_join(K, "?"), "array_join(ss, k, '?')", ["ba?aa", "x", "", None]),
    (X.array_union(Y), "array_union(xs, ys)", [[3, 1, None], [None], None, [2, 5]]),
    (X.array_intersect(Y), "array_intersect(xs, ys)", [[1], [], None, []]),
    (X.array_except(Y), "array_except(xs, ys)", [[3, None], [], None, [2, 5]]),
    (X.arrays_overlap(Y), "arrays_overlap(xs, ys)", [True, False, None, False]),
    (X.array_remove(1), "array_remove(xs, 1)", [[3, None], [], None, [2, 5]]),
    (X.array_compact(), "array_compact(xs)", [[3, 1, 1], [], None, [2, 5]]),
    (col("ls").flatten(), "flatten(ls)", [[1, 2, 3], None, [], None]),
    (X.slice(2, 2), "slice(xs, 2, 2)", [[1, None], [], None, [5]]),
    (X.slice(N, 1), "slice(xs, i, 1)", [[3], [], None, None]),
    (M.map_keys(), "map_keys(m)", [["a", "b"], [], None, ["c"]]),
    (M.map_values(), "map_values(m)", [[1, None], [], None, [3]]),
    (M.map_contains_key(K), "map_contains_key(m, k)", [True, False, None, True]),
    (M.element_at(K), "element_at(m, k)", [1, None, None, 3]),
    (M[K], "m[k]", [1, None, None, 3]),
    (M.map_filter(lambda k, v: v > 2), "map_filter(m, (k, v) -> v > 2)", [[], [], None, [("c", 3)]]),
    (
        M.transform_values(lambda k, v: func("concat", k, K)),
        "transform_values(m, (k2, v) -> concat(k2, k))",
        [[("a", "aa"), ("b", "ba")], [], None, [("c", "cc")]],
    ),
    (
        M.map_keys().map_from_arrays(M.map_values()),
        "map_from_arrays(map_keys(m), map_values(m))",
        [[("a", 1), ("b", None)], [], None, [("c", 3)]],
    ),
    (
        func("map", K, A, "z", 0),
        "map(k, a, 'z', 0)",
        [[(k, a), ("z", 0)] for k, a in zip("abcc", (10, 20, 30, None), strict=True)],
    ),
    (X == Y, "xs = ys", [False, False, None, False]),
    (func("array", 2, 5) != X, "xs <> array(2, 5)", [True, True, None, False]),
    (X < Y, "xs < ys", [False, True, None, False]),
    (func("equal_null", X, Y), "xs <=> ys", [False, False, False, False]),
    (func("array", None) <= Y, "array(NULL) <= ys", [True, True, True, False]),
    (None, "xs IN (array(), ys, NULL)", [None, True, None, None]),
    (None, "xs NOT IN (array(), ys)", [True, False, None, True]),
    (None, "(a, k) = (10, 'a')", [True, False, False, False]),
    (None, "(a, k) IN ((20, k), (NULL, 'c'))", [False, True, False, True]),
    (col("ps") > func("array"), "ps > array()", [True, False, None, True]),
    (col("ls").array_distinct(), "array_distinct(ls)", [[[1], [2, 3]], [[4], None], [], None]),
    (col("ls").array_position(Y), "array_position(ls, ys)", [1, 0, 0, None]),
    (col("ls").array_contains(X), "array_contains(ls, xs)", [False, None, None, None]),
    (col("ps").sort_array(), "sort_array(ps)", [[None, {"a": 1, "b": "x"}], [], None, [{"a": None, "b": "y"}]]),
    (func("array", X, Y).array_max(), "array_max(array(xs, ys))", [[3, 1, None, 1], [None], [2], [2, 5]]),
    (N.sequence(1), "sequence(i, 1)", [[1], [-1, 0, 1], [7, 6, 5, 4, 3, 2, 1], None]),
    (N.sequence(N * 3, N), "sequence(i, i * 3, i)", [[1, 2, 3], [-1, -2, -3], [7, 14, 21], None]),
    (
        D.sequence(dt.date(2024, 3, 1), dt.timedelta(days=30)),
        "sequence(d, DATE '2024-03-01', INTERVAL 30 DAY)",
        [[dt.date(2024, 1, 31), dt.date(2024, 3, 1)], ...],
    ),
    (
        func("sequence_months", D, dt.date(2024, 4, 30), 1),
        "sequence(d, DATE '2024-04-30', INTERVAL 1 MONTH)",
        [[dt.date(2024, 1, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 31), dt.date(2024, 4, 30)], ...],
    ),
    (
        None,
        "sequence(DATE '1969-12-30', DATE '1970-01-03', INTERVAL 36 HOUR)",
        [[dt.date(1969, 12, 30), dt.date(1969, 12, 31), dt.date(1970, 1, 2)], ...],
    ),
    (K.array_repeat(N), "array_repeat(k, i)", [["a"], [], ["c"] * 7, None]),
    (Y.array_repeat(2), "array_repeat(ys, 2)", [[[1], [1]], [[None], [None]], [[2], [2]], [[], []]]),
    (None, "array_append(ys, a)", [[1, 10], [None, 20], [2, 30], [None]]),
    (None, "array_prepend(xs, NULL)", [[None, 3, 1, None, 1], [None], None, [None, 2, 5]]),
    (None, "array()", [[], [], [], []]),
    (col("ps").transform(lambda p: p.field("a")), "transform(ps, p -> p.a)", [[1, None], [], None, [None]]),
    (X.reverse(), "reverse(xs)", [[1, None, 1, 3], [], None, [5, 2]]),
    (X.concat(Y), "concat(xs, ys)", [[3, 1, None, 1, 1], [None], None, [2, 5]]),
    (
        D.months_between(dt.date(2023, 12, 15)),
        "months_between(d, DATE '2023-12-15')",
        [1.51612903, 2.4516129, -647.48387097, None],
    ),
    (D.months_between(dt.date(2023, 11, 30)), "months_between(d, DATE '2023-11-30')", [2.0, 3.0, -647.0, None]),
    (func("make_date", 2024, N + 1, 29), "make_date(2024, i + 1, 29)", [dt.date(2024, 2, 29), ...]),
    (N.shiftleft(2), "shiftleft(i, 2)", [4, -4, 28, None]),
    (N.shiftright(1), "shiftright(i, 33)", [0, -1, 3, None]),
    (N.shiftrightunsigned(31), "shiftrightunsigned(i, 31)", [0, 1, 0, None]),
    (None, "i << 1", [2, -2, 14, None]),
]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return repr(left) == repr(right) if isinstance(left, float) else bool(left == right)


@pytest.mark.parametrize(("expr", "text", "wanted"), CASES, ids=[c[1] for c in CASES])
def test_values_by_method_and_by_text(expr: Expr | None, text: str, wanted: list[Any]) -> None:
    rows = ROWS
    if wanted[-1] is ...:
        wanted, rows = wanted[:-1], ROWS.slice(0, 1)
    for one in (parse_expr(text), *([] if expr is None else [expr])):
        actual = evaluate(one, rows)
        assert same(actual.to_pylist(), wanted), one
        actual.validate(full=True)
        assert expr_type(one, rows.schema) == actual.type
        again = pickle.loads(pickle.dumps(one))
        assert same(evaluate(again, rows).to_pylist(), wanted)
        assert repr(again) == repr(one)
        for batch in rows.to_batches():  # lists whose elements do not begin at the first
            for i in range(len(wanted)):
                assert same(evaluate(one, batch.slice(i)).to_pylist(), wanted[i:])
                assert same(evaluate(one, batch.slice(0, i)).to_pylist(), wanted[:i])


@pytest.mark.parametrize("longest", [2, 5, 31, 32, 33, 70])
def test_lists_are_sorted_as_a_function_says_and_equals_keep_their_order(longest: int) -> None:
    chance = random.Random(longest)
    lists = [[100 * chance.randrange(7) + n for n in range(chance.randrange(longest + 1))] for _ in range(200)]
    lists += [sorted(lists[0]), sorted(lists[1])[::-1], [*range(longest)], []]
    rows = pa.table({"xs": pa.array(lists, pa.list_(pa.int64())), "up": [n % 2 == 0 for n in range(len(lists))]})
    text = "array_sort(xs, (a, b) -> CASE WHEN up THEN a DIV 100 - b DIV 100 ELSE b DIV 100 - a DIV 100 END)"
    actual = evaluate(parse_expr(text), rows)
    assert actual.to_pylist() == [
        sorted(one, key=lambda x: x // 100) if n % 2 == 0 else sorted(one, key=lambda x: -(x // 100))
        for n, one in enumerate(lists)
    ]


def test_a_function_that_compares_and_gives_null_is_an_error() -> None:
    unknown = parse_expr("array_sort(xs, (a, b) -> a - b)")
    assert evaluate(unknown, ROWS.slice(1)).to_pylist() == [[], None, [2, 5]]
    with pytest.raises(OperatorError, match="compares gave null for two elements: let it give 0"):
        evaluate(unknown, ROWS)


def test_parameters_are_distinguished() -> None:
    inner = X.transform(lambda x: Y.transform(lambda x: x))
    assert repr(inner) == "transform(xs, x -> transform(ys, x_2 -> x_2))"
    hidden = X.transform(lambda x: (lambda outer: Y.transform(lambda x: x + outer))(x))
    assert evaluate(hidden, ROWS).to_pylist()[0] == [[4], [2], [None], [2]]
    assert evaluate(parse_expr("transform(xs, x -> transform(ys, x -> x))"), ROWS).to_pylist()[0] == [[1]] * 4
    column = X.transform(lambda a: a + A)
    assert repr(column) == "transform(xs, a -> (a + a))"
    assert evaluate(column, ROWS).to_pylist()[0] == [13, 11, None, 11]
    assert columns_of(column) == {"xs", "a"}
    assert X.transform(lambda x: x).same_as(X.transform(lambda x: x))
    assert not X.transform(lambda x: x).same_as(X.transform(lambda y: y + 1))


LEAKED: list[Expr] = []
X.transform(lambda x: LEAKED.append(x) or x)  # type: ignore[func-returns-value]
REFUSED: list[Callable[[], Any]] = [
    lambda: X.transform(5),  # type: ignore[arg-type]
    lambda: X.transform(lambda: 1),  # type: ignore[arg-type]
    lambda: X.transform(lambda x, y, z: x),  # type: ignore[arg-type]
    lambda: X.exists(lambda x, at: x > at),  # type: ignore[arg-type,misc]
    lambda: X.transform(lambda x: len(x)),
    lambda: X.transform(lambda x: [x]),
    lambda: X.transform(lambda *x: 1),
    lambda: X.transform(len),  # type: ignore[arg-type]
    lambda: X.filter(lambda x: x > 1 and x < 3),
    lambda: func("lower", lambda x: x),
    lambda: func("transform", X, X),
    lambda: func("map", "a"),
    lambda: func("map", "a", 1, "b"),
    lambda: X.sort_array("up"),  # type: ignore[arg-type]
    lambda: func("timestampadd", "fortnight", 1, D),
    lambda: col("x") + (lambda x: x),
    lambda: parse_expr("array_sort(xs, a -> a)"),
    lambda: evaluate(X.array_sort(lambda a, b: a < b), ROWS),
    lambda: evaluate(X.array_sort(lambda a, b: None), ROWS),
    lambda: parse_expr("transform(xs, x)"),
    lambda: parse_expr("lower(x -> x)"),
    lambda: evaluate(LEAKED[0] + 1, ROWS),
    lambda: evaluate(X.filter(lambda x: x + 1), ROWS),
    lambda: evaluate(A.transform(lambda x: x), ROWS),
    lambda: evaluate(X.transform(lambda x: x.lower()), ROWS),
    lambda: evaluate(S.aggregate(0, lambda a, x: x), ROWS),
    lambda: evaluate(S.array_max() + lit("a"), ROWS),
    lambda: evaluate(S.array_union(X), ROWS),
    lambda: evaluate(func("array", M).array_distinct(), ROWS),
    lambda: evaluate(func("array", M).sort_array(), ROWS),
    lambda: evaluate(X == S, ROWS),
    lambda: evaluate(M == M, ROWS),
    lambda: evaluate(func("array", M) == func("array", M), ROWS),
    lambda: evaluate(func("named_struct", "a", A) == func("named_struct", "a", K), ROWS),
    lambda: evaluate(func("named_struct", "a", A) < func("named_struct", "a", A, "b", A), ROWS),
    lambda: evaluate(func("named_struct", "a", A) == A, ROWS),
    lambda: evaluate(X == A, ROWS),
    lambda: evaluate(X + X, ROWS),
    lambda: evaluate(A.sequence(K), ROWS),
    lambda: evaluate(A.sequence(1.5), ROWS),
    lambda: evaluate(D.sequence(D, 1), ROWS),
    lambda: evaluate(A.sequence(D), ROWS),
    lambda: evaluate(func("sequence_months", A, A, 1), ROWS),
    lambda: evaluate(A.array_repeat(1.5), ROWS),
    lambda: func("explode", X),
    lambda: parse_expr("posexplode_outer(xs)"),
    lambda: evaluate(X.array_join(","), ROWS),
    lambda: evaluate(X.array_position("a"), ROWS),
    lambda: evaluate(X.slice("a", 1), ROWS),
    lambda: evaluate(M.map_contains_key(1), ROWS),
    lambda: evaluate(M.element_at(A), ROWS),
    lambda: evaluate(func("map", 1.5, "a"), ROWS),
    lambda: evaluate(A.months_between(D), ROWS),
    lambda: evaluate(K.shiftleft(1), ROWS),
    lambda: evaluate(func("make_date", 2024.0, 1, 1), ROWS),
]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(at: int) -> None:
    with pytest.raises(ExpressionError, match="Hint:"):
        actual = REFUSED[at]()
        if isinstance(actual, Expr):
            evaluate(actual, ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "slice(xs, 0, 1)",
        "slice(xs, 1, -1)",
        "map_from_arrays(ss, ss)",
        "map_from_arrays(xs, ys)",
        "map_from_arrays(array('a', 'a'), array(1, 2))",
        "map(nullif(k, 'a'), 1)",
        "map(k, 1, 'b', 2)",
        "make_date(2023, 2, 29)",
        "make_date(300000, 1, 1)",
        "make_timestamp(2024, 1, 1, 24, 0, 0)",
        "make_timestamp(2024, 1, 1, 0, 0, 60.5)",
        "timestampadd(MICROSECOND, 9223372036854775807, d)",
        "transform(xs, x -> 1 / (x - 1))",
        "aggregate(xs, 9223372036854775807, (a, x) -> a + coalesce(x, 1))",
    ],
)
def test_what_cannot_be_computed_is_an_error(text: str) -> None:
    with pytest.raises(OperatorError, match=r"cannot be computed.*Hint:"):
        evaluate(parse_expr(text), ROWS)


def test_elements_behind_the_one_that_decides_need_no_value() -> None:
    rows = pa.table({"xs": [[2, 0], [0, 2], [2]]})
    one = evaluate(parse_expr("exists(xs, x -> 4 / x > 1)"), rows.take([0, 2]))
    assert one.to_pylist() == [True, True]
    with pytest.raises(OperatorError):
        evaluate(parse_expr("exists(xs, x -> 4 / x > 1)"), rows)
    assert evaluate(parse_expr("forall(xs, x -> 4 / x > 9)"), rows.take([0, 2])).to_pylist() == [False, False]


def test_no_rows_have_the_types_of_some() -> None:
    empty = ROWS.slice(0, 0)
    for _, text, _ in CASES:
        expr = parse_expr(text)
        assert evaluate(expr, empty).type == evaluate(expr, ROWS.slice(0, 1)).type


def test_nulls_without_a_type_are_lists_too() -> None:
    for text in (
        "array_distinct(NULL)",
        "transform(NULL, x -> 1)",
        "exists(NULL, x -> true)",
        "map_keys(NULL)",
        "slice(NULL, 1, 1)",
    ):
        assert evaluate(parse_expr(text), ROWS).to_pylist() == [None] * 4
    assert evaluate(parse_expr("transform(array(NULL), x -> coalesce(x, a))"), ROWS).to_pylist() == [[10], [20], [30], [None]]
    assert evaluate(parse_expr("array_max(array(NULL))"), ROWS).to_pylist() == [None] * 4


def test_lists_are_rebuilt_without_a_loop_over_rows() -> None:
    rows = pa.table({"xs": [list(range(i % 5)) for i in range(200_000)]})
    calls = [0]

    def counted(x: Expr) -> Expr:
        calls[0] += 1
        return x + 1

    grown = X.transform(counted)
    assert evaluate(grown.aggregate(0, lambda a, x: a + x), rows).to_pylist()[:5] == [0, 1, 3, 6, 10]
    assert calls == [1]


def test_steps_filters_and_keys_take_them() -> None:
    stream = stream_of("id string, tags array<string>, at bigint")
    tagged = stream.filter("exists(tags, t -> t LIKE 'a%')").with_column("tags", col("tags").transform(lambda t: t.upper()))
    driver = Driver(tagged.with_column("text", col("tags").array_join("|")).select("id", "text"))
    sent = [
        {"id": "1", "tags": ["ab", "c", None], "at": 1},
        {"id": "2", "tags": ["b"], "at": 2},
        {"id": "3", "tags": None, "at": 3},
    ]
    assert driver.send(sent).results.to_pylist() == [{"id": "1", "text": "AB|C"}]
    with pytest.raises(ExpressionError, match="Hint:"):
        stream.filter(col("tags").transform(lambda t: t))
    with pytest.raises(ColumnError, match="Hint:"):
        stream.with_column("x", col("tags").transform(lambda t: col("nothing")))


def test_months_are_rounded_as_java_rounds() -> None:
    rows = pa.table({"e": [dt.datetime(2024, 3, 15, 12, tzinfo=UTC)], "s": [dt.datetime(2024, 1, 31, tzinfo=UTC)]})
    assert evaluate(parse_expr("months_between(e, s, false)"), rows).to_pylist() == [2 + (-16 * 86_400 + 43_200) / 2_678_400]
    assert evaluate(parse_expr("months_between(e, s)"), rows).to_pylist() == [1.5]


def test_decimals_stay_exact() -> None:
    rows = pa.table({"xs": pa.array([[Decimal("1.25"), Decimal("1.2")]], pa.list_(pa.decimal128(5, 2)))})
    assert evaluate(parse_expr("array_max(xs)"), rows).to_pylist() == [Decimal("1.25")]
    assert evaluate(parse_expr("make_timestamp(2024, 1, 1, 0, 0, xs[0])"), rows).to_pylist() == [
        dt.datetime(2024, 1, 1, 0, 0, 1, 250_000, UTC)
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sequence(1, a, 0)", "row 0 the step of a sequence does not lead"),
        ("sequence(a, 1, 1)", "does not lead from its start to its end"),
        ("sequence(d, d, INTERVAL 0 DAY)", "a day or more"),
        ("sequence(d, DATE '2024-01-01', INTERVAL 12 HOUR)", "a day or more"),
        ("sequence(-9223372036854775807, 9223372036854775807)", "18,446,744,073,709,551,615 elements"),
        ("sequence(0, 268435455)", "268,435,456 elements, and not more than 268,435,454"),
        ("array_repeat(ys, 2000000000)", "2,000,000,000 elements"),
        ("array_repeat(k, 9223372036854775807)", "9,223,372,036,854,775,807 elements"),
        ("array_repeat(a > 0, 600000000)", "lists of a batch have 2,400,000,000 elements"),
    ],
)
def test_series_without_end_or_beyond_measure_are_errors(text: str, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        evaluate(parse_expr(text), ROWS)


def test_long_lists_are_compared_in_few_rounds() -> None:
    n = 300_000
    one = pa.array([list(range(n)), list(range(n - 1)), [*range(n - 1), n]])
    rows = pa.table({"x": one, "y": pa.array([list(range(n))] * 3)})
    assert evaluate(parse_expr("x = y"), rows).to_pylist() == [True, False, False]
    assert evaluate(parse_expr("x < y"), rows).to_pylist() == [False, True, False]


def test_lists_of_random_parts_are_ordered_as_python_orders_them() -> None:
    chance = random.Random(7)
    lists = [[chance.choice([None, 0, 1, 2]) for _ in range(chance.randrange(9))] for _ in range(300)]
    others = chance.sample(lists, len(lists))
    rows = pa.table({"x": pa.array(lists, pa.list_(pa.int64())), "y": pa.array(others, pa.list_(pa.int64()))})

    def key(values: list[int | None]) -> list[int]:
        return [-1 if v is None else v for v in values]

    for op, holds in (("<", operator.lt), ("=", operator.eq), (">=", operator.ge)):
        wanted = [holds(key(a), key(b)) for a, b in zip(lists, others, strict=True)]
        assert evaluate(parse_expr(f"x {op} y"), rows).to_pylist() == wanted
        structs = evaluate(parse_expr(f"struct(x, 1) {op} struct(y, 1)"), rows)
        assert structs.to_pylist() == wanted


LARGE = 2**40
HIDDEN: dict[str, pa.Array] = {
    "array<int>": pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, LARGE, LARGE, 2]), mask=pa.array([False, True, False])
    ),
    "struct<a: int>": pa.StructArray.from_arrays([pa.array([1, LARGE, 2])], ["a"], mask=pa.array([False, True, False])),
    "map<string, int>": pa.array([[("a", 1)], [("b", LARGE)], [("c", 2)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("type_", HIDDEN)
def test_values_outside_of_a_slice_and_below_nulls_do_not_count(type_: str) -> None:
    """They are in memory, and would not fit."""
    column = HIDDEN[type_]
    cast = parse_expr(f"cast(x AS {type_})")
    for row in (0, 2):
        part = pa.record_batch([column.slice(row, 1)], names=["x"])
        assert evaluate(cast, part).to_pylist() == column.slice(row, 1).to_pylist()
    if column.null_count:
        assert evaluate(cast, pa.record_batch([column], names=["x"])).to_pylist() == column.to_pylist()
    else:
        with pytest.raises(OperatorError, match="not in range"):
            evaluate(cast, pa.record_batch([column], names=["x"]))
