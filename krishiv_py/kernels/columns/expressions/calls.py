"""The kernel of each function, by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc

from krishiv_py.kernels.columns.expressions import arithmetic, dates, functions, strings
from krishiv_py.kernels.columns.expressions.compare import compare
from krishiv_py.kernels.columns.expressions.values import Value

Call: TypeAlias = Callable[[list[Value], list[Any]], Value]
"""Of the values of all arguments, and of those that are constants as plain Python."""


def extreme(values: list[Value], op: str) -> Value:
    """The greatest (``>``) or least (``<``) of values that are not null; null if all are."""
    found, *others = functions.alike(values)
    for other in others:
        better = pc.or_(pc.is_null(found), pc.fill_null(compare(op, other, found), False))
        found = pc.if_else(better, other, found)
    return found


CALLS: Final[dict[str, Call]] = {
    "abs": lambda v, _: arithmetic.absolute(v[0]),
    "concat": lambda v, _: strings.concat(v),
    "contains": lambda v, _: functions.found_in(v[0], v[1], at_start=False),
    "date_add": lambda v, _: dates.moved(v[0], v[1], 1),
    "date_sub": lambda v, _: dates.moved(v[0], v[1], -1),
    "date_trunc": lambda v, plain: dates.truncated(str(plain[0]).lower(), v[1]),
    "datediff": lambda v, _: dates.days_between(v[0], v[1]),
    "ends_with": lambda v, plain: strings.ends_with(v[0], plain[1]),
    "ilike": lambda v, plain: strings.like(v[0], plain[1], fold=True),
    "item": lambda v, plain: strings.item(v[0], plain[1]),
    "length": lambda v, _: functions.length(v[0]),
    "like": lambda v, plain: strings.like(v[0], plain[1], fold=False),
    "lower": lambda v, _: functions.in_case(v[0], upper=False),
    "ltrim": lambda v, plain: strings.trim("ltrim", v[0], plain[1] if len(plain) > 1 else " "),
    "regexp_extract": lambda v, plain: strings.regexp_extract(v[0], plain[1], plain[2] if len(plain) > 2 else 1),
    "regexp_replace": lambda v, plain: strings.regexp_replace(v[0], plain[1], plain[2]),
    "rlike": lambda v, plain: strings.rlike(v[0], plain[1]),
    "round": lambda v, plain: arithmetic.rounded(v[0], plain[1] if len(plain) > 1 else 0),
    "rtrim": lambda v, plain: strings.trim("rtrim", v[0], plain[1] if len(plain) > 1 else " "),
    "split": lambda v, plain: strings.split(v[0], plain[1]),
    "starts_with": lambda v, _: functions.found_in(v[0], v[1], at_start=True),
    "substring": lambda v, plain: strings.substring(v[0], plain[1], plain[2] if len(plain) > 2 else None),
    "trim": lambda v, plain: strings.trim("trim", v[0], plain[1] if len(plain) > 1 else " "),
    "upper": lambda v, _: functions.in_case(v[0], upper=True),
}


def _of_part(name: str) -> Call:
    return lambda v, _: dates.part(name, v[0])


CALLS.update({name: _of_part(name) for name in dates.PARTS})
