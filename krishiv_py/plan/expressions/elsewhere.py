"""Methods of columns in PySpark, Polars and pandas, and what is written for them here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from krishiv_py.errors import MethodError
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.expr import Expr, python_text

_SAME: Final = {
    **dict.fromkeys(("isNull", "isna", "isnull"), "is_null()"),
    **dict.fromkeys(("isNotNull", "notna", "notnull"), "is_not_null()"),
    "getField": 'field("name")',
    "astype": 'cast("double")',
    "is_in": "isin(1, 2)",
    "is_between": "between(1, 5)",
    "rename": 'alias("name")',
    "name": 'alias("name")',
    "to_integer": 'cast("bigint")',
    "to_decimal": 'cast("decimal(10, 2)")',
    **{name: call for known in FUNCTIONS.values() for name, call in known.elsewhere.items()},
}
"""Methods that are called otherwise here; those of functions are in their definitions, some as ``list.len`` of a namespace."""
_WRITTEN: Final = {
    **dict.fromkeys(("fillna", "fill_null", "combine_first"), "coalesce({x}, 0)"),
    "fill_nan": "when({x}.isnan(), 0.0).otherwise({x})",
    "is_not_nan": "~{x}.isnan()",
    "clip": "greatest(least({x}, 5), 1)",
    "where": "when({x} > 1, {x})",
    "mask": "when({x} <= 1, {x})",
    "add": "{x} + 1",
    **dict.fromkeys(("sub", "subtract"), "{x} - 1"),
    **dict.fromkeys(("mul", "multiply"), "{x} * 2"),
    **dict.fromkeys(("truediv", "divide"), "{x} / 2"),
    "mod": "{x} % 2",
    "neg": "-{x}",
    "eq": "{x} == 1",
    "ne": "{x} != 1",
    "lt": "{x} < 1",
    "le": "{x} <= 1",
    "gt": "{x} > 1",
    "ge": "{x} >= 1",
    "and_": "({x} > 1) & ({x} < 5)",
    "or_": "({x} > 1) | ({x} < 5)",
    "not_": "~({x} > 1)",
    "ne_missing": "~{x}.equal_null(other)",
    **dict.fromkeys(("bitwiseAND", "bitwise_and"), 'func("bit_and", {x}, 7)'),
    **dict.fromkeys(("bitwiseOR", "bitwise_or"), 'func("bit_or", {x}, 7)'),
    **dict.fromkeys(("bitwiseXOR", "bitwise_xor", "xor"), 'func("bit_xor", {x}, 7)'),
    "hash": 'func("xxhash64", {x})',
    "is_infinite": '{x}.abs() == float("inf")',
    "is_finite": '({x}.abs() < float("inf"))',
    "log1p": "(1 + {x}).ln()",
    "millisecond": "{x}.unix_millis() % 1000",
    "microsecond": "{x}.unix_micros() % 1000000",
    "otherwise": "when({x} > 1, {x}).otherwise(0)",
    "when": "when({x} > 1, {x}).otherwise(0)",
}
_AGGREGATES: Final = {
    **{n: n for n in ("sum", "min", "max", "avg", "count", "first", "last", "median", "mode", "variance", "stddev")},
    "mean": "avg",
    "std": "stddev",
    "var": "variance",
    **dict.fromkeys(("nunique", "n_unique", "count_distinct"), "count_distinct"),
    **dict.fromkeys(("approx_n_unique", "approx_count_distinct"), "approx_count_distinct"),
    **dict.fromkeys(("quantile", "percentile"), "percentile"),
    **dict.fromkeys(("implode", "collect_list", "tolist", "to_list"), "collect_list"),
    **dict.fromkeys(("unique", "collect_set"), "collect_set"),
    **dict.fromkeys(("any", "bool_or"), "bool_or"),
    **dict.fromkeys(("all", "bool_and"), "bool_and"),
    "arg_max": "max_by",
    "idxmax": "max_by",
    "arg_min": "min_by",
    "idxmin": "min_by",
}
_OTHERWISE: Final = {
    **dict.fromkeys(
        ("asc", "desc", "asc_nulls_first", "asc_nulls_last", "desc_nulls_first", "desc_nulls_last", "sort", "sort_by", "rank"),
        'a stream has no order; write .top_rows(3, "amount") after a window for the first rows of each window',
    ),
    **dict.fromkeys(
        ("over", "shift", "diff", "rolling", "ewm", "expanding", "cum_sum", "cumsum", "pct_change", "forward_fill", "ffill"),
        'what looks at other rows is a window: write .lookback_window("1 hour") on the stream, or .asof_join(...)',
    ),
    **dict.fromkeys(
        ("apply", "map", "map_elements", "map_batches", "pipe"),
        "write .map_batches(function) on the stream: it gets Arrow batches",
    ),
    **dict.fromkeys(("explode", "flat_map"), 'write .unnest("column") on the stream'),
    **dict.fromkeys(("drop_nulls", "dropna"), 'write .filter("column IS NOT NULL") on the stream'),
    **dict.fromkeys(("cat", "bin"), "functions are methods of the column: {x}.lower()"),
    "arr": "write {x}.list.size()",
    **dict.fromkeys(("withField", "dropFields"), 'write func("named_struct", "a", {x}.field("a"))'),
    "capitalize": "write .map_batches(function) on the stream: it gets Arrow batches",
    "outer": "lateral columns are not known; a lookup is .lookup_join(table, on=...) on the stream",
    **dict.fromkeys(("head", "limit", "tail", "sample"), "a stream has no end; write .filter(...), or {x}.substring(1, 3)"),
    **dict.fromkeys(
        ("tz_convert", "tz_localize", "convert_time_zone", "replace_time_zone"),
        'times are in UTC; write .window(calendar_window("day", "Europe/Berlin")) for windows of local days',
    ),
}


def method_error(thing: str, kind: str, name: str, own: Iterable[str]) -> MethodError:
    """Return the error for an attribute `name` that a column, written as `thing`, does not have.

    Parameters
    ----------
    thing : str
        How the column is written in Python.
    kind : str
        What it is, in words.
    name : str
        The name that was not found.
    own : iterable of str
        The names that there are.
    """
    hint = hint_of(thing, name)
    if hint is None:
        near = difflib.get_close_matches(name, list(own), n=3, cutoff=0.6)
        hint = (
            f"did you mean {' or '.join(f'.{n}' for n in near)}?"
            if near
            else "functions are in docs/expressions.md; anything else is computed by .map_batches(function) on the stream"
        )
    return MethodError(f"{kind} has no attribute {name!r}", got=f"{thing}.{name}", hint=hint.rstrip("?"))


def namespace_error(of: Expr, namespace: str, name: str, own: Iterable[str]) -> MethodError:
    """Return the error for an attribute `name` that a `namespace` of a column does not have.

    Parameters
    ----------
    of : Expr
        The column.
    namespace : str
        The name of the group of methods, such as ``str``.
    name : str
        The name that was not found.
    own : iterable of str
        The names that there are.
    """
    thing = python_text(of)
    call = _SAME.get(f"{namespace}.{name}")
    if call is None and name not in _SAME and callable(getattr(Expr, name, None)):
        call = f"{name}(...)"
    kind = f"the namespace {namespace} of a column"
    if call is None:
        return method_error(thing, kind, name, own)
    return MethodError(f"{kind} has no attribute {name!r}", got=f"{thing}.{namespace}.{name}", hint=f"write {thing}.{call}")


def hint_of(thing: str, name: str) -> str | None:
    """Return what to write for a `name` of another library, None for one that no library is known for."""
    if name in _SAME:
        return f"write {thing}.{_SAME[name]}"
    if name in _WRITTEN:
        return f"write {_WRITTEN[name].format(x=thing)}"
    if name in _AGGREGATES:
        call = _AGGREGATES[name]
        by = ', "other"' if call in ("max_by", "min_by") else ""
        return f"write {call}({thing}{by}) as an aggregate of a window: .agg({call}({thing}{by}))"
    return _OTHERWISE[name].format(x=thing) if name in _OTHERWISE else None
