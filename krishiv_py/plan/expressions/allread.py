"""SQL that was parsed and would not be read: a part of a node, a number or a hint is refused, and not dropped."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.sqltext import spelled

_OF_NODES: Final[dict[str, str]] = {
    "Select": "expressions from from_ where group having qualify joins laterals distinct with with_ windows",
    "Union": "this expression with with_ distinct",
    "With": "expressions",
    "CTE TableAlias": "this alias columns",
    "From Where Having Qualify": "this",
    "Subquery": "this alias",
    "Group Order Set Tuple Array Distinct": "expressions",
    "Ordered": "this desc nulls_first",
    "Table": "this alias version",
    "Version": "this expression kind",
    "Join": "this on using method side kind",
    "Lateral": "this view outer alias",
    "Unnest": "expressions alias offset",
    "Explode ExplodeOuter _ExplodeOuter Posexplode PosexplodeOuter Inline": "this expressions",
    "Window": "this partition_by order spec over alias",
    "Lag Lead": "this offset default",
    "WindowSpec": "kind start start_side end end_side exclude",
    "Insert": "this expression",
    "SetItem": "this",
    "Alias": "this alias",
    "Column": "this table db catalog",
    "Identifier": "this quoted",
    "Star Null": "",
    "Boolean Var Paren Not Neg RawString Kwarg": "this expression",
    "HexString": "this is_integer",
    "Literal": "this is_string",
    "Interval IntervalSpan": "this unit expression",
    "Anonymous": "this expressions",
    "Dot PropertyEQ Is Escape Bracket": "this expression expressions offset safe",
    "EQ NEQ LT LTE GT GTE And Or": "this expression",
    "Add Sub Mul Div Mod": "this expression typed safe",
    "Between": "this low high",
    "In": "this expressions query",
    "Cast TryCast": "this to safe",
    "DataType": "this expressions nested values",
    "DataTypeParam ColumnDef": "this expression kind constraints",
    "Case": "this ifs default",
    "If": "this true false",
    "Lambda Struct": "this expressions",
    "Filter WithinGroup": "this expression",
    "IgnoreNulls RespectNulls Any All PercentileCont": "this",
    "Exists": "this expression",
    "Count": "this expressions big_int",
    "Quantile ApproxQuantile": "this quantile",
    "NullSafeEQ NullSafeNEQ Negative Nanvl SafeDivide Left Right JSONExtractScalar Log": "this expression",
    "Nvl2": "this true false",
    "GenerateSeries": "start end step",
    "ArraySort SortArray": "this expression asc nulls_first",
    "VarMap": "keys values",
    "TimestampAdd DateAdd TimestampDiff DateDiff": "this expression unit",
    "TimestampTrunc DateTrunc": "this unit",
    "Extract": "this expression",
    "ConvertTimezone": "source_tz target_tz timestamp",
    "TsOrDsToDate StrToTime TimeToStr UnixToStr StrToUnix TimeStrToTime": "this format safe",
}
"""The parts of nodes that are read, by the names of the classes. A test holds that no class the library names is missing."""
SAID: Final = frozenset(
    {
        *("coalesce", "flatten", "ignore_nulls", "is_length", "negate", "null_if_pos_overflow"),
        *("null_propagation", "preserve_end_of_month", "safe", "big_int", "nulls_excluded", "zero_start"),
    }
)
"""Parts of calls that say what Spark does in any case; and that a condition is negated."""


@functools.cache
def read_parts() -> Mapping[str, frozenset[str]]:
    """Return the parts of nodes that are read, by the name of the class."""
    parts = {name: frozenset(text.split()) for names, text in _OF_NODES.items() for name in names.split()}
    for known in FUNCTIONS.values():
        for node in known.nodes:
            read = {part.strip("*") for part in node.parts} | set(node.says)
            parts[node.kind] = parts.get(node.kind, frozenset()) | read | SAID
    return parts


def check_read(tree: sg.Expression) -> None:
    """Refuse a tree that says more than is read of it.

    Raises
    ------
    ExpressionError
        With the part, and the node it belongs to.
    """
    known = read_parts()
    for node in tree.find_all(sg.Expression):
        parts = known.get(type(node).__name__)
        if parts is None:
            continue
        for name, value in node.args.items():
            if value not in (None, [], False) and name.rstrip("_") not in parts and name not in parts:
                raise _unread(_text(value) or name, node)
        if isinstance(node, sg.TableAlias) and isinstance(node.this, sg.Parameter):  # table@v1
            table = node.parent.name if isinstance(node.parent, sg.Table) else "table"
            hint = f"leave it out: {table} has one version; write JOIN b FOR SYSTEM_TIME AS OF a.ts for versions by time"
            raise ExpressionError("a version after a table is not read", got=f"{table}@{node.this.name}", hint=hint)


def _text(value: object) -> str:
    """Return the text of a part of a node."""
    parts = value if isinstance(value, list) else [value]
    return ", ".join(spelled(p) for p in parts if isinstance(p, sg.Expression))


def _unread(part: str, node: sg.Expression) -> ExpressionError:
    then = f"{part} is not read, and would be dropped in silence"
    return ExpressionError("this part of the SQL is not supported", got=spelled(node), then=then, hint=f"leave {part} out")


_COMMENT: Final = re.compile(r"--[^\n]*|/\*(?!\+).*?\*/|(?P<hint>/\*\+.*?(?:\*/|$))", re.DOTALL)


def check_tokens(text: str, trees: Iterable[sg.Expression]) -> None:
    """Refuse a text with a hint in a comment, or a number, of which its `trees` know nothing: ``VARCHAR(3)``.

    Raises
    ------
    ExpressionError
        With what would be dropped.
    """
    tokens = sqlglot.tokenize(text, dialect="spark") if "/*+" in text or re.search(r"\d", text) else []
    ends = [0, *(t.end + 1 for t in tokens)]
    for end, begin in zip(ends, [*(t.start for t in tokens), len(text)], strict=True):
        for comment in _COMMENT.finditer(text, end, begin) if "/*+" in text[end:begin] else ():
            if comment["hint"]:
                hint = "leave it out: the plan follows from the query alone, and options are those of the registered stream"
                raise ExpressionError("a hint in a comment is not read", got=comment["hint"], hint=hint)
    have = Counter(leaf for tree in trees for leaf in _leaves(tree))
    for i, token in enumerate(tokens):
        if token.token_type is not sqlglot.TokenType.NUMBER:
            continue
        names = (token.text, f"0.{token.text}", f".{token.text}")  # .5 is two tokens
        leaf = next((name for name in names if have[name]), None)
        if leaf is None:
            begin = tokens[max(i - 2, 0)].start
            raise _unread_number(text[begin : token.end + 1], token.text, text[begin:])
        have[leaf] -= 1


def _leaves(tree: sg.Expression) -> Iterator[str]:
    for node in tree.walk():
        for value in node.args.values():
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                yield str(value)


_TEXT_TYPE: Final = re.compile(r"(?:var)?char\s*\(\s*(\d+)", re.IGNORECASE)


def _unread_number(near: str, number: str, after: str) -> ExpressionError:
    if _TEXT_TYPE.match(after):
        hint = f"write CAST(x AS string), and substring(x, 1, {number}) to cut a text"
        return ExpressionError("a text type has a length that would not count", got=f"{near})", hint=hint)
    then = "it would be dropped in silence"
    return ExpressionError(f"{number} is not read", got=near, then=then, hint=f"leave {number} out")
