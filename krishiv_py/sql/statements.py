"""Text to one statement, and what of SQL is refused: anything that is not known here, so nothing is ignored in silence."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import PlanError, message, shown
from krishiv_py.plan.durations import to_us
from krishiv_py.plan.expressions.sqltext import one_kind_of_error
from krishiv_py.sql.windows import interval_us

_CAPITAL_M: Final = re.compile(r"\s*[\d.]+\s*M\s*")
Statement: TypeAlias = "sg.Select | sg.Set"

_SHOW: Final = (
    "write SELECT tumble_start(ts, INTERVAL '1 minute') AS window_start, COUNT(*) AS n FROM t "
    "GROUP BY tumble_start(ts, INTERVAL '1 minute')"
)
_SET: Final = "write SET watermark.lag = INTERVAL '5' SECOND"
_IN_SPARK: Final = "do it in Spark first, and register session.from_dataframe(frame)"
_ON_RESULTS: Final = "do it on the results: what collect() returns, or in Spark on to_dataframe()"
_ONE_BY_ONE: Final = "run one query for each grouping"
_UNDERSTOOD: Final = frozenset({"expressions", "from", "from_", "where", "group"})
_REFUSED: Final[dict[str, tuple[str, str]]] = {
    "having": ("HAVING", _ON_RESULTS),
    "order": ("ORDER BY", _ON_RESULTS),
    "sort": ("SORT BY", _ON_RESULTS),
    "limit": ("LIMIT", _ON_RESULTS),
    "offset": ("OFFSET", _ON_RESULTS),
    "qualify": ("QUALIFY", _ON_RESULTS),
    "joins": ("JOIN", _IN_SPARK),
    "laterals": ("LATERAL VIEW", _IN_SPARK),
    "with": ("WITH", _IN_SPARK),
    "with_": ("WITH", _IN_SPARK),
    "distinct": ("SELECT DISTINCT", "the rows of a window are distinct by GROUP BY"),
    "windows": ("WINDOW", _SHOW),
    "sample": ("TABLESAMPLE", _IN_SPARK),
    "pivots": ("PIVOT", _IN_SPARK),
    "version": ("AS OF", _IN_SPARK),
    "all": ("GROUP BY ALL", "name the groups"),
    "cube": ("GROUP BY CUBE", _ONE_BY_ONE),
    "rollup": ("GROUP BY ROLLUP", _ONE_BY_ONE),
    "grouping_sets": ("GROUP BY GROUPING SETS", _ONE_BY_ONE),
    "db": ("a schema before the table", "use the name it is registered by"),
}


def refused(construct: str, got: str, hint: str = _SHOW) -> PlanError:
    """The error for a `construct` that streams do not have here."""
    return PlanError(message(f"{construct} is not supported in SQL over streams", got, "the query has no plan", hint))


def _shown(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    return ", ".join(p.sql("spark") if isinstance(p, sg.Expression) else str(p) for p in parts)


def _only(node: sg.Expression, understood: frozenset[str]) -> None:
    for key, value in node.args.items():
        if value and key not in understood:
            construct, hint = _REFUSED.get(key, (key.strip("_").upper(), _SHOW))
            raise refused(construct, _shown(value), hint)


def statement_of(text: str) -> Statement:
    """The one statement of a text.

    Raises
    ------
    PlanError
        For text that is no SQL, several statements, and statements other than SELECT and SET.
    """
    if not isinstance(text, str):
        raise PlanError(message("a query is a text", shown(text), "there is nothing to parse", _SHOW))
    try:
        with one_kind_of_error():
            found = [tree for tree in sqlglot.parse(text, dialect="spark") if tree is not None]
    except sqlglot.errors.SqlglotError as problem:
        raise PlanError(message("this is no SQL", text, str(problem).splitlines()[0].rstrip("."), _SHOW)) from problem
    if len(found) != 1:
        raise PlanError(
            message("sql() takes one statement", f"{len(found)} statements", "it has one result", "call it for each")
        )
    _check_units(text)
    tree = found[0]
    if isinstance(tree, sg.Set):
        return tree
    if isinstance(tree, sg.Select):
        check_select(tree)
        return tree
    construct = str(tree.this).upper() if isinstance(tree, sg.Command) else tree.key.upper()
    if construct == "SET":
        raise PlanError(message("this SET cannot be read", text.strip(), "nothing was set", _SET))
    raise refused(construct, text.strip(), _IN_SPARK if isinstance(tree, sg.Query) else _SHOW)


def _check_units(text: str) -> None:
    """Refuse ``INTERVAL '1' M`` as durations do: the parser makes a minute of it, and keeps no trace of what was written."""
    tokens = [*sqlglot.tokenize(text, dialect="spark"), None, None]
    for at, token in enumerate(tokens[:-2]):
        value, unit = tokens[at + 1], tokens[at + 2]
        if token is not None and token.text.upper() == "INTERVAL" and value is not None:
            for written in (value.text, f"{value.text} {'' if unit is None else unit.text}"):
                if _CAPITAL_M.fullmatch(written):
                    to_us(written, "INTERVAL")


def check_select(tree: sg.Select) -> None:
    """Refuse every clause that is not understood."""
    _only(tree, _UNDERSTOOD)
    source = table_of(tree)
    _only(source, frozenset({"this", "alias"}))
    if source.alias_column_names:
        raise refused("renaming columns in FROM", source.sql("spark"), ".rename(...) the stream before it is registered")
    group = tree.args.get("group")
    if group is None:
        raise PlanError(
            message(
                "the query has no GROUP BY", tree.sql("spark"), "a stream never ends, so the result would never come", _SHOW
            )
        )
    for item in group.expressions:
        if isinstance(item, (sg.Rollup, sg.Cube, sg.GroupingSets)):
            raise refused(f"GROUP BY {item.key.upper()}", item.sql("spark"), _ONE_BY_ONE)
    _only(group, frozenset({"expressions"}))


def table_of(tree: sg.Select) -> sg.Table:
    """The one table of a query."""
    clause = tree.args.get("from_") or tree.args.get("from")
    if clause is None:
        raise PlanError(message("the query has no FROM", tree.sql("spark"), "there is nothing to read", _SHOW))
    source = clause.this
    if isinstance(source, sg.Table) and isinstance(source.this, sg.Identifier):
        return source
    construct = "a subquery in FROM" if isinstance(source, sg.Subquery) else "a function in FROM"
    raise refused(construct, source.sql("spark"), "register the stream, and name it in FROM")


def lag_of(statement: sg.Set) -> int:
    """The lag of ``SET watermark.lag = INTERVAL '5' SECOND``, in µs."""
    items = statement.expressions
    setting = items[0].this if len(items) == 1 else None
    if not isinstance(setting, sg.EQ):
        raise PlanError(message("SET sets one thing", statement.sql("spark"), "nothing was set", _SET))
    name = setting.this.sql("spark")
    if name.replace("`", "").lower() != "watermark.lag":
        raise PlanError(message("there is no such setting", name, "nothing was set", _SET))
    return interval_us(setting.expression, "watermark.lag", allow_zero=True)
