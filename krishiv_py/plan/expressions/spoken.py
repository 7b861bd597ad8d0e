"""Functions of SQL text: from sqlglot's nodes to the library's names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.case import Case
from krishiv_py.plan.expressions.expr import BinOp, Cast, Expr, Func, Lit, UnOp
from krishiv_py.plan.expressions.further import UNIT_NAMES, further, further_by_name
from krishiv_py.plan.expressions.spans import part_of, times
from krishiv_py.plan.expressions.sqltext import ZONED

Read: TypeAlias = Callable[[sg.Expression], Expr]

_PLAIN: Final[dict[type[sg.Expression], tuple[str, tuple[str, ...]]]] = {
    sg.Lower: ("lower", ()),
    sg.Upper: ("upper", ()),
    sg.Length: ("length", ()),
    sg.Abs: ("abs", ()),
    sg.StartsWith: ("starts_with", ("expression",)),
    sg.EndsWith: ("ends_with", ("expression",)),
    sg.Contains: ("contains", ("expression",)),
    sg.Like: ("like", ("expression",)),
    sg.ILike: ("ilike", ("expression",)),
    sg.RegexpLike: ("rlike", ("expression",)),
    sg.RegexpExtract: ("regexp_extract", ("expression", "group")),
    sg.RegexpReplace: ("regexp_replace", ("expression", "replacement")),
    sg.RegexpSplit: ("split", ("expression",)),
    sg.Substring: ("substring", ("start", "length")),
    sg.DPipe: ("concat", ("expression",)),
    sg.Year: ("year", ()),
    sg.Quarter: ("quarter", ()),
    sg.Month: ("month", ()),
    sg.WeekOfYear: ("weekofyear", ()),
    sg.Day: ("day", ()),
    sg.DayOfMonth: ("day", ()),
    sg.DayOfYear: ("dayofyear", ()),
    sg.DayOfWeek: ("dayofweek", ()),
    sg.Hour: ("hour", ()),
    sg.Minute: ("minute", ()),
    sg.Second: ("second", ()),
    sg.DateDiff: ("datediff", ("expression",)),
    sg.AddMonths: ("add_months", ("expression",)),
    sg.FromJson: ("from_json", ("expression",)),
    sg.LastDay: ("last_day", ()),
    sg.UnixSeconds: ("unix_seconds", ()),
    sg.UnixMillis: ("unix_millis", ()),
    sg.UnixMicros: ("unix_micros", ()),
    sg.MD5: ("md5", ()),
    sg.SHA2: ("sha2", ("length",)),
    sg.ArrayContains: ("array_contains", ("expression",)),
    sg.ArraySize: ("size", ()),
    sg.SplitPart: ("split_part", ("delimiter", "part_index")),
    sg.RegexpCount: ("regexp_count", ("expression",)),
    sg.WidthBucket: ("width_bucket", ("min_value", "max_value", "num_buckets")),
}
_READ: Final = ("this", "expression", "group", "replacement", "start", "length", "negate", "safe", "null_if_pos_overflow")
_READ_MORE: Final = (
    "min_value",
    "max_value",
    "num_buckets",
    "delimiter",
    "part_index",
    "preserve_end_of_month",
    "null_if_pos_overflow",
)
_MANY: Final[dict[type[sg.Expression], str]] = {sg.Coalesce: "coalesce", sg.Greatest: "greatest", sg.Least: "least"}
_SIDES: Final = {"LEADING": "ltrim", "TRAILING": "rtrim"}


def spoken(node: sg.Expression, read: Read) -> Expr | None:
    """The expression of a function call, read with `read`; None for another node."""
    if type(node) in _PLAIN:
        name, more = _PLAIN[type(node)]
        if isinstance(node.args.get("expression"), (sg.Any, sg.All)) or any(
            value for key, value in node.args.items() if key not in (*_READ, *_READ_MORE) and value not in (None, [], False)
        ):
            return further(node, read)
        rest = [node.args[key] for key in more if node.args.get(key) is not None]
        found = Func(name, (read(_bare(node.this)), *(read(_bare(a)) for a in rest)))
        return UnOp("not", found) if node.args.get("negate") else found
    if type(node) in _MANY:
        return Func(_MANY[type(node)], tuple(read(e) for e in [node.this, *node.expressions]))
    if isinstance(node, (sg.Concat, sg.ConcatWs)):  # ConcatWs is a subclass of Concat
        return Func("concat_ws" if isinstance(node, sg.ConcatWs) else "concat", tuple(map(read, node.expressions)))
    if isinstance(node, sg.Trim):
        characters = node.args.get("expression")
        name = _SIDES.get(node.args.get("position") or "", "trim")
        return Func(name, (read(node.this), *([read(characters)] if characters is not None else [])))
    if isinstance(node, sg.Case):
        return _case(node, read)
    if isinstance(node, sg.Bracket) and len(node.expressions) == 1:
        index = read(node.expressions[0])
        if node.args.get("offset"):
            return Func("try_element_at" if node.args.get("safe") else "element_at", (read(node.this), index))
        return Func("item", (read(node.this), index)) if isinstance(index, Lit) or _told_apart() else None
    if isinstance(node, sg.Pad) and node.this is not None:
        by = node.args.get("fill_pattern")
        rest = [node.expression, *([by] if by is not None else [])]
        return Func("lpad" if node.args.get("is_left") else "rpad", (read(node.this), *map(read, rest)))
    if isinstance(node, sg.AtTimeZone):
        return Func("at_time_zone", (read(node.this), read(node.args["zone"])))
    if isinstance(node, sg.ConvertTimezone):
        source = node.args.get("source_tz")
        in_utc = Func("to_utc_timestamp", (read(node.args["timestamp"]), Lit("UTC") if source is None else read(source)))
        return Cast(Func("from_utc_timestamp", (in_utc, read(node.args["target_tz"]))), pa.timestamp("us"), named=True)
    if isinstance(node, sg.Anonymous):
        return _by_name(node.name.lower(), [read(e) for e in node.expressions])
    for reader in (_dates, times, further):
        expr = reader(node, read)
        if expr is not None:
            return expr
    return None


@functools.cache
def _told_apart() -> bool:
    """Whether the parser says that ``element_at(list, i + 1)`` is not ``list[i]``; not all versions do."""
    return bool(sqlglot.parse_one("element_at(a, b + 1)", dialect="spark").args.get("offset") == 1)


_NAMED: Final = (
    *("hash", "xxhash64", "timestamp_seconds", "timestamp_millis", "timestamp_micros", "plus_days", "plus_months"),
    *(
        "pmod",
        "get",
        "try_element_at",
        "try_to_timestamp",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bit_not",
        "equal_null",
        "isnan",
        "div",
    ),
    *("ceil", "floor", "sign", "signum", "get_json_object"),
)


def _zoned(name: str, args: list[Expr]) -> Expr:
    """A function whose last argument is a time zone."""
    if name in FUNCTIONS and FUNCTIONS[name].limits[1] >= len(args):
        return Func(name, tuple(args))
    value, *more, zone = args
    return Func("day" if name == "dayofmonth" else name, (Func("from_utc_timestamp", (value, zone)), *more))


def _by_name(name: str, args: list[Expr]) -> Expr | None:
    if name.startswith(ZONED):
        return _zoned(name.removeprefix(ZONED), args)
    if name == "cardinality":
        return Func("size", tuple(args))
    if name in ("date_part", "datepart") and len(args) == 2 and isinstance(args[0], Lit):
        return part_of(str(args[0].value), args[1])
    return Func(name, tuple(args)) if name in _NAMED else further_by_name(name, args)


def _bare(node: sg.Expression) -> sg.Expression:
    """Without the conversion sqlglot puts around a date."""
    return node.this if isinstance(node, sg.TsOrDsToDate) and not node.args.get("safe") else node


def _case(node: sg.Case, read: Read) -> Expr:
    subject = read(node.this) if node.this is not None else None
    args: list[Expr] = []
    for branch in node.args["ifs"]:
        condition = read(branch.this)
        args += [condition if subject is None else BinOp("==", subject, condition), read(branch.args["true"])]
    default = node.args.get("default")
    return Case((*args, *([read(default)] if default is not None else [])))


def _dates(node: sg.Expression, read: Read) -> Expr | None:
    if isinstance(node, sg.TimestampTrunc) and node.unit and node.args.get("zone") is None:
        unit = node.unit.name.lower()
        return Func("date_trunc", (Lit(UNIT_NAMES.get(unit, unit)), read(node.this)))
    if isinstance(node, sg.TsOrDsAdd) and node.unit and node.unit.name.upper() == "DAY":
        days = node.expression
        if isinstance(days, sg.Mul) and isinstance(days.expression, sg.Neg) and days.expression.this.name == "1":
            return Func("date_sub", (read(_bare(node.this)), read(days.this)))
        return Func("date_add", (read(_bare(node.this)), read(days)))
    return None
