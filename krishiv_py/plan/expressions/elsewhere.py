"""Methods of columns in PySpark, Polars and pandas, and what is written for them here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from krishiv_py.errors import MethodError, message

_SAME: Final = {
    "isNull": "is_null()",
    "isNotNull": "is_not_null()",
    "isNaN": "isnan()",
    "startswith": 'starts_with("a")',
    "endswith": 'ends_with("a")',
    "substr": "substring(1, 3)",
    "getItem": "getitem(0)",
    "getField": 'field("name")',
    "eqNullSafe": "equal_null(other)",
    "astype": 'cast("double")',
    "is_in": "isin(1, 2)",
    "is_nan": "isnan()",
    "isna": "is_null()",
    "isnull": "is_null()",
    "notna": "is_not_null()",
    "notnull": "is_not_null()",
    "eq_missing": "equal_null(other)",
    "rename": 'alias("name")',
    "to_lowercase": "lower()",
    "to_uppercase": "upper()",
    "strip": "trim()",
    "lstrip": "ltrim()",
    "rstrip": "rtrim()",
    "strip_chars": "trim()",
    "strip_chars_start": "ltrim()",
    "strip_chars_end": "rtrim()",
    "len": "length()",
    "len_chars": "length()",
    "len_bytes": "length()",
    "ljust": "rpad(10)",
    "rjust": "lpad(10)",
    "pad_start": "lpad(10)",
    "pad_end": "rpad(10)",
    "zfill": 'lpad(10, "0")',
    "match": 'rlike("a+")',
    "fullmatch": 'rlike("^a+$")',
    "extract": 'regexp_extract("(a+)", 1)',
    "replace_all": 'replace("a", "b")',
    "count_matches": 'regexp_count("a")',
    "find": 'instr("a")',
    "json_path_match": 'get_json_object("$.a")',
    "json_decode": 'from_json("a bigint")',
    "strptime": 'to_timestamp("yyyy-MM-dd HH:mm:ss")',
    "to_datetime": 'to_timestamp("yyyy-MM-dd HH:mm:ss")',
    "strftime": 'date_format("yyyy-MM-dd")',
    "to_string": 'date_format("yyyy-MM-dd")',
    "truncate": 'date_trunc("hour")',
    "trunc": 'date_trunc("hour")',
    "weekday": "dayofweek()",
    "week": "weekofyear()",
    "ordinal_day": "dayofyear()",
    "epoch": "unix_micros()",
    "offset_by": "plus_days(1)",
    "log": "ln()",
    "floordiv": "div(2)",
    "power": "pow(2)",
    "sgn": "sign()",
    "signum": "sign()",
    "ceiling": "ceil()",
    "absolute": "abs()",
    "name": 'alias("name")',
    "to_integer": 'cast("bigint")',
    "to_decimal": 'cast("decimal(10, 2)")',
    "dayofmonth": "day()",
}
_WRITTEN: Final = {
    **dict.fromkeys(("between", "is_between"), "({x} >= 1) & ({x} <= 5)"),
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
        'a stream has no order; write .top_rows(3, "amount") behind a window for the first rows of each window',
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
    **dict.fromkeys(("str", "dt", "list", "arr", "struct", "cat", "bin"), "functions are methods of the column: {x}.lower()"),
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
    return MethodError(
        message(f"{kind} has no attribute {name!r}", f"{thing}.{name}", "nothing can be computed", hint.rstrip("?"))
    )


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
