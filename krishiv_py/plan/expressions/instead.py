"""Errors of SQL that expressions do not have say what to write: the nearest function, or the way that exists."""

from __future__ import annotations

import difflib
import functools
from typing import Final

from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.sqltext import spelled

ELSEWHERE: Final = (
    "the functions are in docs/expressions.md; a column that they cannot compute is added to the stream by "
    ".map_batches(function, schema), before text names it"
)
_CLOCK: Final = "use the event time of rows: a result must be the same when it is computed again"
_CHANCE: Final = "use a hash of a column, xxhash64(id): a result must be the same when it is computed again"
_OF_NODES: Final[dict[str, str]] = {
    **dict.fromkeys(("CurrentTimestamp", "CurrentDate", "CurrentTime", "Localtimestamp", "Localtime"), _CLOCK),
    **dict.fromkeys(("Rand", "Randn", "Uuid"), _CHANCE),
    "ToChar": "write date_format(ts, 'yyyy-MM-dd HH:mm:ss') of a time, CAST(x AS string) of a number",
    "StrToUnix": "write unix_timestamp(ts) of a time, unix_timestamp(to_timestamp(x, 'yyyy-MM-dd')) of a text",
    "Any": "write array_contains(xs, x) for a list, x IN (1, 2) for constants",
    "All": "write forall(xs, x -> x = 1) for a list, AND for constants",
    "Unnest": "write array_contains(xs, x)",
    "Order": "write COLLECT_LIST(x), FIRST(x) and LAST(x), which go by event time, or MIN_BY(x, y) and MAX_BY(x, y)",
    "Limit": "write ROW_NUMBER() OVER (...) <= 3 in QUALIFY for the first rows of each window",
    "HavingMax": "write MAX_BY(x, ts), or MIN_BY(x, ts)",
    "Distinct": "leave DISTINCT out; COUNT(DISTINCT x) and COLLECT_SET(x) are of distinct values",
    "Slice": "write slice(xs, 1, 2): from which element on, counted from 1, and how many",
    "Between": "write x BETWEEN least(a, b) AND greatest(a, b)",
    "Collate": "leave COLLATE out: texts are compared by their bytes; lower(x) = lower(y) for any case",
    "Overlay": "write concat(substring(x, 1, 2), 'new', substring(x, 6, 100))",
    "RegexpReplace": "write regexp_replace(x, 'pattern', 'new'), which replaces all",
    "RegexpSplit": "write split(x, 'pattern'), which gives all parts",
    "SplitPart": "write element_at(split(x, ','), 1)",
}
"""The text that is written in the place of a node, by the name of its class."""
_OF_NAMES: Final = {
    **dict.fromkeys(("now", "current_timestamp", "current_date", "curdate", "getdate", "sysdate", "proctime"), _CLOCK),
    **dict.fromkeys(("random", "rand", "uuid", "newid"), _CHANCE),
    **dict.fromkeys(("any", "some"), _OF_NODES["Any"]),
    "all": _OF_NODES["All"],
    "average": "write AVG(x)",
    "len": "write length(x)",
    "to_unix_timestamp": "write unix_timestamp(ts)",
    "datetrunc": "write date_trunc('minute', ts)",
    "string_agg": "write array_join(COLLECT_LIST(x), ',')",
}


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for f in FUNCTIONS.values() if f.in_text for name in (f.name, *f.names)))


def unsupported(node: sg.Expression) -> ExpressionError:
    """Return the error for a node that expressions do not have."""
    kind = type(node).__name__
    if not isinstance(node, sg.Anonymous):
        hint = _OF_NODES.get(kind, ELSEWHERE)
        return ExpressionError("this SQL is not supported in an expression", got=spelled(node), hint=hint)
    name = node.name.lower()
    near = difflib.get_close_matches(name, _names(), n=1, cutoff=0.7)
    hint = _OF_NAMES.get(name) or (f"did you mean {near[0]}(...)? Otherwise: {ELSEWHERE}" if near else ELSEWHERE)
    return ExpressionError(f"there is no function {name}", got=spelled(node), hint=hint)
