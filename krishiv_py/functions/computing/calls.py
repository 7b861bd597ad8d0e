"""The kernel of each function, by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing import (
    arithmetic,
    calendar,
    combinations,
    dates,
    functions,
    hashes,
    lists,
    maps,
    numbers,
    parsed_json,
    pieces,
    series,
    strings,
    zones,
)
from krishiv_py.functions.computing.compare import compare
from krishiv_py.functions.computing.jsonpath import json_path
from krishiv_py.functions.computing.values import Value

Call: TypeAlias = Callable[[list[Value], list[Any]], Value]
"""Of the values of all arguments, and of those that are constants as plain Python."""


def extreme(values: list[Value], op: str) -> Value:
    """The greatest (``>``) or least (``<``) of values that are not null; null if all are."""
    found, *others = functions.alike(values)
    for other in others:
        better = pc.or_(pc.is_null(found), pc.fill_null(compare(op, other, found), False))
        found = pc.if_else(better, other, found)
    return found


_PLAIN_TIME: Final = "yyyy-MM-dd HH:mm:ss"

CALLS: Final[dict[str, Call]] = {
    "add_months": lambda v, _: dates.add_months(v[0], v[1]),
    "abs": lambda v, _: arithmetic.absolute(v[0]),
    "at_time_zone": lambda v, plain: zones.at_time_zone(v[0], plain[1]),
    "from_utc_timestamp": lambda v, plain: zones.from_utc(v[0], plain[1]),
    "to_utc_timestamp": lambda v, plain: zones.to_utc(v[0], plain[1]),
    "array_contains": lambda v, _: strings.array_contains(v[0], v[1]),
    "concat": lambda v, _: (lists.chained if any(pa.types.is_list(x.type) for x in v) else strings.concat)(v),
    "concat_ws": lambda v, _: pieces.concat_ws(v[0], v[1:]),
    "contains": lambda v, _: functions.found_in(v[0], v[1], at_start=False),
    "date_add": lambda v, _: dates.moved(v[0], v[1], 1),
    "date_format": lambda v, plain: dates.date_format(v[0], plain[1]),
    "date_sub": lambda v, _: dates.moved(v[0], v[1], -1),
    "date_trunc": lambda v, plain: _truncated(str(plain[0]).lower(), v[1], *plain[2:]),
    "datediff": lambda v, _: dates.days_between(v[0], v[1]),
    "element_at": lambda v, _: (maps.at_key if pa.types.is_map(v[0].type) else strings.element_at)(v[0], v[1]),
    "ends_with": lambda v, plain: strings.ends_with(v[0], plain[1]),
    "ilike": lambda v, plain: strings.like(v[0], plain[1], fold=True),
    "from_json": lambda v, plain: parsed_json.from_json(v[0], plain[1]),
    "from_unixtime": lambda v, plain: dates.from_unixtime(v[0], plain[1] if len(plain) > 1 else _PLAIN_TIME),
    "hash": lambda v, _: hashes.hashed(v, wide=False),
    "item": lambda v, _: (maps.at_key if pa.types.is_map(v[0].type) else strings.item)(v[0], v[1]),
    "last_day": lambda v, _: dates.last_day(v[0]),
    "length": lambda v, _: functions.length(v[0]),
    "like": lambda v, plain: strings.like(v[0], plain[1], fold=False),
    "lower": lambda v, _: functions.in_case(v[0], upper=False),
    "lpad": lambda v, plain: strings.pad("lpad", v[0], plain[1], plain[2] if len(plain) > 2 else " "),
    "md5": lambda v, _: hashes.digest(v[0], "md5"),
    "plus_days": lambda v, _: dates.plus_days(v[0], v[1]),
    "plus_months": lambda v, _: dates.plus_months(v[0], v[1]),
    "ltrim": lambda v, plain: strings.trim("ltrim", v[0], plain[1] if len(plain) > 1 else " "),
    "regexp_count": lambda v, plain: strings.regexp_count(v[0], plain[1]),
    "regexp_extract": lambda v, plain: strings.regexp_extract(v[0], plain[1], plain[2] if len(plain) > 2 else 1),
    "regexp_replace": lambda v, plain: strings.regexp_replace(v[0], plain[1], plain[2]),
    "rlike": lambda v, plain: strings.rlike(v[0], plain[1]),
    "round": lambda v, plain: arithmetic.rounded(v[0], plain[1] if len(plain) > 1 else 0),
    "rpad": lambda v, plain: strings.pad("rpad", v[0], plain[1], plain[2] if len(plain) > 2 else " "),
    "second_fraction": lambda v, _: dates.second_fraction(v[0]),
    "sha2": lambda v, plain: hashes.sha2(v[0], plain[1]),
    "size": lambda v, _: strings.size(v[0]),
    "split_part": lambda v, plain: strings.split_part(v[0], plain[1], plain[2]),
    "timestamp_micros": lambda v, _: dates.instant(v[0], 1),
    "timestamp_millis": lambda v, _: dates.instant(v[0], 1_000),
    "timestamp_seconds": lambda v, _: dates.instant(v[0], 1_000_000),
    "unix_micros": lambda v, _: dates.since_1970(v[0], 1),
    "unix_millis": lambda v, _: dates.since_1970(v[0], 1_000),
    "unix_seconds": lambda v, _: dates.since_1970(v[0], 1_000_000),
    "unix_timestamp": lambda v, _: dates.unix_timestamp(v[0]),
    "xxhash64": lambda v, _: hashes.hashed(v, wide=True),
    "rtrim": lambda v, plain: strings.trim("rtrim", v[0], plain[1] if len(plain) > 1 else " "),
    "split": lambda v, plain: strings.split(v[0], plain[1]),
    "starts_with": lambda v, _: functions.found_in(v[0], v[1], at_start=True),
    "substring": lambda v, plain: strings.substring(v[0], plain[1], plain[2] if len(plain) > 2 else None),
    "trim": lambda v, plain: strings.trim("trim", v[0], plain[1] if len(plain) > 1 else " "),
    "width_bucket": lambda v, _: arithmetic.width_bucket(*v),
    "upper": lambda v, _: functions.in_case(v[0], upper=True),
}

_MORE: Final[dict[str, Call]] = {
    "array": lambda v, _: pieces.list_of(v),
    "bit_and": lambda v, _: numbers.bits("bit_and", v[0], v[1]),
    "bit_not": lambda v, _: numbers.inverted(v[0]),
    "bit_or": lambda v, _: numbers.bits("bit_or", v[0], v[1]),
    "bit_xor": lambda v, _: numbers.bits("bit_xor", v[0], v[1]),
    "ceil": lambda v, _: numbers.whole(v[0], up=True),
    "div": lambda v, _: numbers.quotient(v[0], v[1]),
    "exp": lambda v, _: numbers.power_of_e(v[0]),
    "floor": lambda v, _: numbers.whole(v[0], up=False),
    "get": lambda v, _: pieces.element_or_null(v[0], v[1], from_one=False),
    "get_json_object": lambda v, plain: parsed_json.get_json_object(v[0], json_path(plain[1])),
    "instr": lambda v, _: pieces.place_of(v[0], v[1]),
    "isnan": lambda v, _: numbers.is_nan(v[0]),
    "ln": lambda v, _: numbers.logarithm(v[0], None),
    "log": lambda v, _: numbers.logarithm_by(v[0], v[1]),
    "log10": lambda v, _: numbers.logarithm(v[0], 10),
    "log2": lambda v, _: numbers.logarithm(v[0], 2),
    "pmod": lambda v, _: numbers.positive_remainder(v[0], v[1]),
    "pow": lambda v, _: numbers.power(v[0], v[1]),
    "repeat": lambda v, plain: pieces.repeated_text(v[0], plain[1]),
    "replace": lambda v, plain: pieces.replaced(v[0], plain[1], plain[2]),
    "reverse": lambda v, _: (lists.turned if pa.types.is_list(v[0].type) else pieces.backwards)(v[0]),
    "sign": lambda v, _: numbers.sign(v[0]),
    "sqrt": lambda v, _: numbers.root(v[0]),
    "translate": lambda v, plain: pieces.translated(v[0], plain[1], plain[2]),
}


_OF_LISTS: Final[dict[str, Call]] = {
    "array_compact": lambda v, _: lists.array_compact(v[0]),
    "array_distinct": lambda v, _: lists.array_distinct(v[0]),
    "array_except": lambda v, _: lists.array_set(v[0], v[1], kept=False),
    "array_intersect": lambda v, _: lists.array_set(v[0], v[1], kept=True),
    "array_join": lambda v, _: lists.array_join(v[0], v[1], v[2] if len(v) > 2 else None),
    "array_max": lambda v, _: lists.extreme_element(v[0], greatest=True),
    "array_min": lambda v, _: lists.extreme_element(v[0], greatest=False),
    "array_position": lambda v, _: lists.array_position(v[0], v[1]),
    "array_remove": lambda v, _: lists.array_remove(v[0], v[1]),
    "array_repeat": lambda v, _: series.array_repeat(v[0], v[1]),
    "array_union": lambda v, _: lists.array_union(v[0], v[1]),
    "arrays_overlap": lambda v, _: lists.arrays_overlap(v[0], v[1]),
    "distinct_key": lambda v, _: combinations.distinct_key(v),
    "flatten": lambda v, _: lists.flattened(v[0]),
    "make_date": lambda v, _: calendar.make_date(v),
    "make_timestamp": lambda v, _: calendar.make_timestamp(v),
    "map": lambda v, _: maps.map_of(v),
    "map_contains_key": lambda v, _: maps.map_contains_key(v[0], v[1]),
    "map_from_arrays": lambda v, _: maps.map_from_arrays(v[0], v[1]),
    "map_keys": lambda v, _: maps.map_keys(v[0]),
    "map_values": lambda v, _: maps.map_values(v[0]),
    "months_between": lambda v, plain: calendar.months_between(v[0], v[1], plain[2] if len(plain) > 2 else True),
    "sequence": lambda v, _: series.sequence(v[0], v[1], v[2] if len(v) > 2 else None),
    "sequence_months": lambda v, _: series.sequence_months(v[0], v[1], v[2]),
    "shiftleft": lambda v, _: numbers.shifted("left", v[0], v[1]),
    "shiftright": lambda v, _: numbers.shifted("right", v[0], v[1]),
    "shiftrightunsigned": lambda v, _: numbers.shifted("unsigned", v[0], v[1]),
    "slice": lambda v, _: lists.sliced(v[0], v[1], v[2]),
    "sort_array": lambda v, plain: lists.sorted_list(v[0], *((True, True) if len(plain) < 2 or plain[1] else (False, False))),
    "timestampadd": lambda v, plain: calendar.timestampadd(str(plain[0]).lower(), v[1], v[2]),
}


def _truncated(unit: str, value: Value, zone: str = "UTC") -> Value:
    return dates.truncated(unit, value) if zone == "UTC" else zones.truncated(unit, value, zone)


def _of_part(name: str) -> Call:
    return lambda v, _: dates.part(name, v[0])


CALLS.update(_MORE | _OF_LISTS | {name: _of_part(name) for name in dates.PARTS})
