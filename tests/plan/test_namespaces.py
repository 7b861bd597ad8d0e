"""Groups of methods of columns: the same calls as the methods of the column."""

from __future__ import annotations

import inspect

import pytest

from krishiv_py import Expr, ExpressionError, MethodError, col
from krishiv_py.functions.known import FUNCTIONS
from scripts.functions import FAMILIES

GROUPED = [(space, f.method) for f in FUNCTIONS.values() for _, _, space in [FAMILIES[f.family]] if space and f.method]
X = col("x")


@pytest.mark.parametrize(("space", "method"), GROUPED, ids=[f"{s}.{m}" for s, m in GROUPED])
def test_a_group_has_the_methods_of_its_family(space: str, method: str) -> None:
    grouped, flat = getattr(getattr(X, space), method), getattr(X, method)
    assert inspect.signature(grouped) == inspect.signature(flat)
    assert method in dir(getattr(X, space))


def test_calls_of_a_group_are_those_of_the_column() -> None:
    pairs: list[tuple[Expr, Expr]] = [
        (X.str.lpad(5, "0"), X.lpad(5, "0")),
        (X.dt.hour("Europe/Berlin"), X.hour("Europe/Berlin")),
        (X.dt.date_trunc("day"), X.date_trunc("day")),
        (X.list.transform(lambda item: item + 1), X.transform(lambda item: item + 1)),
        (X.map.map_keys(), X.map_keys()),
        (X.struct.field("a"), X.field("a")),
        (X.between(1, col("y")), (X >= 1) & X.__le__(col("y"))),
    ]
    for grouped, flat in pairs:
        assert grouped.same_as(flat)


OTHERS = {
    "str": {"to_lowercase": "lower()", "strip_chars": "trim()", "len_chars": "length()", "zfill": 'lpad(10, "0")'},
    "dt": {"truncate": 'date_trunc("hour")', "strftime": 'date_format("yyyy-MM-dd")', "weekday": "dayofweek()"},
    "list": {"len": "size()", "contains": "array_contains(1)", "first": "get(0)", "eval": "transform(", "reverse": "reverse("},
    "map": {"keys": "map_keys()", "contains_key": 'map_contains_key("key")'},
}


@pytest.mark.parametrize(("space", "name"), [(s, n) for s, names in OTHERS.items() for n in names])
def test_names_of_polars_are_answered(space: str, name: str) -> None:
    with pytest.raises(MethodError) as actual:
        getattr(getattr(X, space), name)
    assert f'write col("x").{OTHERS[space][name]}' in str(actual.value)


def test_a_group_is_no_value() -> None:
    with pytest.raises(TypeError):
        X.str + "a"  # type: ignore[operator]
    with pytest.raises(ExpressionError, match="Hint:"):
        X.concat(X.str)
    with pytest.raises(TypeError, match="place"):
        X.list.get()  # type: ignore[call-arg]
