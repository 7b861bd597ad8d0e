"""Text to one statement; spellings that the parser has no rules for are rewritten, and what is not known here is refused."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.expressions.allread import check_read, check_tokens
from krishiv_py.plan.expressions.sqltext import check_units, check_whole, note_quotes, one_kind_of_error, respelled
from krishiv_py.plan.options.watermarks import CLOCKS, RowsClock
from krishiv_py.sql.windows import interval_us

_KEYWORDS: Final = frozenset({"WINDOW", "SESSION"})
_TABLE_FUNCTIONS: Final = frozenset({"TUMBLE", "HOP", "CUMULATE", "SESSION"})
PARTITION: Final = "partition_by"
"""The name of PARTITION BY in the arguments of a table function."""


def readable(text: str) -> str:
    """Return the `text` of a statement as the parser reads it.

    ``TUMBLE(TABLE t, ...)`` loses its TABLE, ``SESSION(t PARTITION BY a, ...)`` gets ``partition_by(a)`` as an argument, and
    ``window(...)``, ``window.start`` and ``session(...)`` are put in backquotes.

    Raises
    ------
    sqlglot.errors.TokenError
        For text that is none.
    """
    tokens = sqlglot.tokenize(text, dialect="spark")
    changes: list[tuple[int, int, str]] = []
    for i, token in enumerate(tokens):
        word = _word(tokens, i, text)
        if word in _KEYWORDS and _names(tokens, i, text):
            changes.append((token.start, token.end + 1, f"`{text[token.start : token.end + 1]}`"))
        if word in _TABLE_FUNCTIONS and _word(tokens, i + 1, text) == "(":
            changes += _arguments(tokens, i + 2, text)
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _word(tokens: list[Any], i: int, text: str) -> str:
    """Return a token as it is in the text, in capitals; so a name in quotes is not a keyword."""
    return text[tokens[i].start : tokens[i].end + 1].upper() if 0 <= i < len(tokens) else ""


def _names(tokens: list[Any], i: int, text: str) -> bool:
    """Return whether a keyword is meant as a name: not in ``WINDOW w AS (...)`` and ``SESSION`` settings."""
    following = _word(tokens, i + 1, text)
    if _word(tokens, i, text) == "SESSION":
        return following == "("
    return not (following not in ("", "(", ".", ",", ")", "AS") and _word(tokens, i + 2, text) == "AS")


def _after_parenthesis(tokens: list[Any], i: int, text: str) -> int:
    """Return the token after the brackets that open at a token."""
    depth = 0
    while (word := _word(tokens, i, text)) != "":
        depth += (word == "(") - (word == ")")
        i += 1
        if depth == 0:
            break
    return i


def _arguments(tokens: list[Any], i: int, text: str) -> list[tuple[int, int, str]]:
    """Changes in the arguments of a table function, which begin at a token."""
    changes: list[tuple[int, int, str]] = []
    while _word(tokens, i + 1, text) == "=>" and _word(tokens, i, text) != "DATA":  # another one by name, before the table
        i += 2
        while _word(tokens, i, text) not in ("", ",", ")"):
            i = _after_parenthesis(tokens, i, text) if _word(tokens, i, text) == "(" else i + 1
        i += 1
    if _word(tokens, i, text) == "DATA" and _word(tokens, i + 1, text) == "=>":
        i += 2
    if _word(tokens, i, text) == "TABLE" and _word(tokens, i + 1, text) not in ("(", "", ",", ")"):
        changes.append((tokens[i].start, tokens[i].end + 1, ""))
        i += 1
    elif _word(tokens, i, text) == "(":
        i = _after_parenthesis(tokens, i, text)
    while _word(tokens, i, text) not in ("", ",", "(", ")") and not _word(tokens, i, text).startswith("PARTITION"):
        i += 1
    if _word(tokens, i, text).split() == ["PARTITION", "BY"]:  # one token of two words
        changes.append((tokens[i].start, tokens[i].end + 1, f", {PARTITION}("))
        i += 1
        while _word(tokens, i, text) not in ("", ")"):
            if _word(tokens, i, text) == "," and (
                _word(tokens, i + 1, text) == "DESCRIPTOR" or _word(tokens, i + 2, text) == "=>"
            ):
                break
            i = _after_parenthesis(tokens, i, text) if _word(tokens, i, text) == "(" else i + 1
        if _word(tokens, i, text):
            changes.append((tokens[i].start, tokens[i].start, ")"))
    return changes


MATCH: Final = "match_recognize"
"""The call that MATCH_RECOGNIZE becomes."""
_CLAUSES: Final = {
    "PARTITION BY": "",
    "ORDER BY": "",
    "MEASURES": "",
    "ONE": "ROW",
    "ALL": "ROWS",
    "AFTER": "MATCH",
    "PATTERN": "(",
    "WITHIN": "INTERVAL",
    "DEFINE": "",
    "SUBSET": "",
}
"""The clauses of MATCH_RECOGNIZE, with the word that comes next."""
_NAVIGATION: Final = frozenset({"FIRST", "LAST", "PREV", "NEXT"})


def _matches_as_calls(text: str) -> str:
    """Return a text with ``match_recognize(t, partition_by(k))`` in the place of ``t MATCH_RECOGNIZE (PARTITION BY k)``."""
    while "match_recognize" in text.lower():
        tokens = sqlglot.tokenize(text, dialect="spark")
        found = [
            i
            for i in range(len(tokens))
            if _word(tokens, i, text) == "MATCH_RECOGNIZE"
            and _word(tokens, i + 1, text) == "("
            and i
            and not _is_call(tokens, i, text)
        ]
        if not found:
            break
        i = found[0]  # the first one is in no other
        begin, end = _table_before(tokens, i, text), _after_parenthesis(tokens, i + 1, text) - 1
        parts = [text[tokens[begin].start : tokens[i - 1].end + 1], *_clauses(tokens, i + 2, end, text)]
        text = f"{text[: tokens[begin].start]}{MATCH}({', '.join(parts)}{text[tokens[end].start :]}"
    return text


def _is_call(tokens: list[Any], i: int, text: str) -> bool:
    return _word(tokens, i - 1, text) in ("FROM", ",", "JOIN", "(")


def _table_before(tokens: list[Any], i: int, text: str) -> int:
    """Return the token that the table before MATCH_RECOGNIZE begins with: a name, or a query in brackets."""
    place, depth = i - 1, 0
    while place > 0:
        word = _word(tokens, place, text)
        depth += (word == ")") - (word == "(")
        if depth == 0:
            break
        place -= 1
    return place


def _clauses(tokens: list[Any], place: int, end: int, text: str) -> list[str]:
    """Return a call for each clause of MATCH_RECOGNIZE between two tokens."""
    begins, depth = [], 0
    for i in range(place, end):
        word = " ".join(_word(tokens, i, text).split())
        follows = _word(tokens, i + 1, text)
        if depth == 0 and word in _CLAUSES and _CLAUSES[word] in ("", follows) and follows not in ("AS", ".", ","):
            begins.append(i)
        depth += (word == "(") - (word == ")")
    calls = []
    for first, after in zip(begins, [*begins[1:], end], strict=True):
        word = " ".join(_word(tokens, first, text).split())
        raw = text[tokens[first].start : tokens[after - 1].end + 1]
        if word in ("ONE", "ALL"):
            calls.append(f"per_match({_quoted(raw)})")
        elif word == "AFTER":
            calls.append(f"skip({_quoted(' '.join(raw.split()[3:]))})")
        elif word == "PATTERN":
            calls.append(f"pattern({_quoted(raw[raw.index('(') + 1 : raw.rindex(')')])})")
        elif word == "DEFINE":
            calls.append(f"define({', '.join(_definitions(tokens, first + 1, after, text))})")
        elif word == "SUBSET":
            raise refused("SUBSET", raw, "name the steps one by one")
        else:
            calls.append(f"{word.lower().replace(' ', '_')}({_navigated(tokens, first + 1, after, text)})")
    return calls


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def _definitions(tokens: list[Any], place: int, end: int, text: str) -> list[str]:
    """Return the conditions of DEFINE, each as ``condition AS name``."""
    begins, depth = [place], 0
    for i in range(place, end):
        word = _word(tokens, i, text)
        depth += (word == "(") - (word == ")")
        if word == "," and depth == 0:
            begins.append(i + 1)
    given = []
    for first, after in zip(begins, [*(b - 1 for b in begins[1:]), end], strict=True):
        if _word(tokens, first + 1, text) != "AS" or after <= first + 2:
            raise PlanError(
                "DEFINE says what rows of a step are",
                got=text[tokens[first].start : tokens[after - 1].end + 1],
                hint="write DEFINE A AS price > 1, B AS price < LAST(A.price)",
            )
        name = text[tokens[first].start : tokens[first].end + 1]
        given.append(f"{_navigated(tokens, first + 2, after, text)} AS {name}")
    return given


def _navigated(tokens: list[Any], place: int, end: int, text: str) -> str:
    """Return the text between two tokens, with names of the library's own for functions of rows of a match."""
    if place >= end:
        return ""
    changes: list[tuple[int, int, str]] = []
    for i in range(place, end):
        word = _word(tokens, i, text)
        if word in _NAVIGATION and _word(tokens, i + 1, text) == "(":
            changes.append((tokens[i].start, tokens[i].end + 1, f"match_{word.lower()}"))
        if word in ("FINAL", "RUNNING") and _word(tokens, i + 2, text) == "(":
            changes.append((tokens[i].start, tokens[i].end + 1, f"match_{word.lower()}("))
            closed = tokens[_after_parenthesis(tokens, i + 2, text) - 1].end + 1
            changes.append((closed, closed, ")"))
    begin, stop = tokens[place].start, tokens[end - 1].end + 1
    for start, finish, new in sorted(changes, reverse=True):
        text, stop = text[:start] + new + text[finish:], stop + len(new) - (finish - start)
    return text[begin:stop]


Query: TypeAlias = "sg.Select | sg.SetOperation"
Statement: TypeAlias = "Query | sg.Set | sg.Insert"

_SHOW: Final = (
    "write SELECT tumble_start(ts, INTERVAL '1 minute') AS window_start, COUNT(*) AS n FROM t "
    "GROUP BY tumble_start(ts, INTERVAL '1 minute')"
)
_CLOCK: Final = "watermark.clock"
TTL_OF_SIDES: Final = ("state.ttl.left", "state.ttl.right")
_SETTINGS: Final = ("watermark.lag", _CLOCK, "deduplication.within", "state.ttl", *TTL_OF_SIDES)
_SET: Final = (
    "write SET watermark.lag = INTERVAL '5' SECOND, SET watermark.clock = 'row', "
    "SET deduplication.within = INTERVAL '10' MINUTE, or SET state.ttl = INTERVAL '1' DAY"
)
_ON_ROWS: Final = "leave it out; on bounded input do it on what collect() returns"
_TOP_N: Final = (
    "for the first rows of each window select window_start and window_end too, and write SELECT * FROM (this query) "
    "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC) <= 3; else sort what collect() returns"
)
_LEFT_OUT: Final = "leave it out"
_JOINED: Final = (
    "join the query around it: FROM a JOIN (SELECT ...) AS b ON a.id = b.id AND b.ts BETWEEN a.ts - INTERVAL '1' HOUR AND a.ts"
)
_ONE_BY_ONE: Final = "run one query for each grouping"
_NAMED_RESULT: Final = (
    "register what a query gives under a name: session.register('t', session.sql('SELECT ...')); "
    "sinks with register_sink, for INSERT INTO"
)
_STATEMENTS: Final = {
    "CREATE": _NAMED_RESULT,
    **dict.fromkeys(("DROP", "ALTER"), "register another stream under the name: session.register('t', stream)"),
    **dict.fromkeys(
        ("UPDATE", "DELETE", "MERGE"), "rows of a stream do not change: leave them out with WHERE, or write CASE WHEN"
    ),
    "EXPLAIN": "write it as the one statement of session.sql('EXPLAIN SELECT ...')",
    "DESCRIBE": "write session.sql('SELECT * FROM t').schema",
    "VALUES": "register a table, and join it: FROM t JOIN d ON t.id = d.id",
}
_UNDERSTOOD: Final = frozenset(
    {"expressions", "from", "from_", "where", "group", "having", "qualify", "joins", "laterals", "distinct", "with", "with_"}
)
_OF_OTHERS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), construct, hint)
    for pattern, construct, hint in (
        (
            r"\bEMIT\s+(ON\s+WINDOW\s+CLOSE|FINAL)\b",
            "EMIT ON WINDOW CLOSE",
            "leave it out: a window gives its result once, when it closes",
        ),
        (
            r"\bEMIT\s+(CHANGES|STREAM|AFTER|ON)\b",
            "EMIT",
            'leave it out, and set it on the plan: session.sql("SELECT ...").emit("updates"), or .emit("retractions")',
        ),
        (
            r"\bASOF\s+JOIN\b",
            "ASOF JOIN",
            "write JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.id = b.id, or LEFT JOIN to keep rows without one",
        ),
        (
            r"\bEXPECT\b",
            "EXPECT",
            "write it on the stream before the query reads it: "
            'session.register("orders", orders.expect("amount > 0", "side_output"))',
        ),
        (
            r"\bWINDOW\s+(TUMBLING|HOPPING|SESSION)\b",
            "WINDOW TUMBLING (...) of ksqlDB",
            "write GROUP BY tumble(ts, INTERVAL '1' MINUTE), hop(ts, slide, size) or session(ts, gap)",
        ),
        (
            r"\bWITHIN\s+(\(|\d+)",
            "WITHIN in a JOIN",
            "write ON a.id = b.id AND b.ts BETWEEN a.ts - INTERVAL '1' HOUR AND a.ts + INTERVAL '1' HOUR",
        ),
    )
)
"""Words of other systems for which the parser has no rules."""
_REFUSED: Final[dict[str, tuple[str, str]]] = {
    "order": ("ORDER BY", _TOP_N),
    "sort": ("SORT BY", _TOP_N),
    "limit": ("LIMIT", _TOP_N),
    "offset": ("OFFSET", _ON_ROWS),
    "into": ("SELECT INTO", "register a sink, and write INSERT INTO name SELECT ... for sql_outputs()"),
    "locks": ("FOR UPDATE", "leave it out: nothing changes the rows of a stream"),
    "hints": ("a hint", "leave it out: the plan follows from the query alone"),
    "by_name": ("UNION ALL BY NAME", "select the columns in one order, and write UNION ALL"),
    "ordinality": ("WITH ORDINALITY", "it belongs to UNNEST: CROSS JOIN UNNEST(xs) WITH ORDINALITY AS t(x, i)"),
    **{
        name: (f"{name.upper()} BY", "leave it out: the engine divides rows by their keys")
        for name in ("cluster", "distribute")
    },
    "joins": ("JOIN", "join in FROM of a query in brackets"),
    "hint": ("a hint", "leave it out: the plan follows from the query alone"),
    "sample": ("TABLESAMPLE", "write WHERE pmod(xxhash64(id), 100) < 10, which takes the same rows each time"),
    "pivots": ("PIVOT", "write an aggregate for each value: SUM(x) FILTER (WHERE kind = 'a') AS a"),
    "version": ("AS OF", "it belongs to the right side of a JOIN"),
    "recursive": ("WITH RECURSIVE", "write each step as a query of its own"),
    "all": ("GROUP BY ALL", "name the groups"),
    "cube": ("GROUP BY CUBE", _ONE_BY_ONE),
    "rollup": ("GROUP BY ROLLUP", _ONE_BY_ONE),
    "grouping_sets": ("GROUP BY GROUPING SETS", _ONE_BY_ONE),
    "totals": ("GROUP BY WITH TOTALS", _ONE_BY_ONE),
    "db": ("a schema before the table", "use the name it is registered by"),
    "on": ("DISTINCT ON", "write ROW_NUMBER() OVER (PARTITION BY ...) = 1 in a query around it"),
}


def refused(construct: str, got: str, hint: str = _LEFT_OUT) -> PlanError:
    """Return the error for a `construct` that streams do not have here."""
    return PlanError(f"{construct} is not supported in SQL over streams", got=got, hint=hint)


def _shown(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    return ", ".join(p.sql("spark") if isinstance(p, sg.Expression) else str(p) for p in parts if p is not True).strip()


def only(node: sg.Expression, understood: frozenset[str]) -> None:
    """Refuse what a node has besides the arguments that are `understood`."""
    for key, value in node.args.items():
        if value and key not in understood:
            construct, hint = _REFUSED.get(key, (key.strip("_").replace("_", " ").upper(), _LEFT_OUT))
            raise refused(construct, _shown(value) or construct, hint)


_EXPLAIN: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\b\s*(?:PLAN\s+FOR\b)?\s*(?P<kind>\w+\s+(?=(?:SELECT|WITH)\b))?(?P<query>.*)",
    re.IGNORECASE | re.DOTALL,
)


def explained(text: str) -> Query | None:
    """Return the query whose plan the statement EXPLAIN is about; None for another statement.

    Raises
    ------
    PlanError
        As :func:`statement_of`; for other statements than a query, and for kinds of EXPLAIN.
    """
    found = _EXPLAIN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    if found["kind"] is not None:
        hint = "write EXPLAIN SELECT ...: its text has the logical, the checked and the physical plan"
        raise refused(f"EXPLAIN {found['kind'].strip().upper()}", text.strip(), hint)
    statement = statement_of(found["query"])
    if isinstance(statement, (sg.Set, sg.Insert)):
        raise refused(f"EXPLAIN of {statement.key.upper()}", text.strip(), "write EXPLAIN SELECT ..., a query alone")
    return statement


def statement_of(text: str) -> Statement:
    """Return the one statement of a text.

    Raises
    ------
    PlanError
        For text that is not SQL, several statements, and statements other than SELECT, SET and INSERT.
    """
    statements = statements_of(text)
    if len(statements) != 1:
        raise PlanError("sql() takes one statement", got=f"{len(statements)} statements", hint="call it for each")
    return statements[0]


def statements_of(text: str) -> list[Statement]:
    """Return the statements of a text, in order. Raises as :func:`statement_of`."""
    if not isinstance(text, str):
        raise PlanError("a query is a text", got=shown(text), hint=_SHOW)
    if "\0" in text:
        raise PlanError("this is not SQL", got=shown(text), then="a NUL is in it", hint=_SHOW)
    try:
        with one_kind_of_error():
            called = _matches_as_calls(text)
            check_whole(called)
            written = readable(respelled(called))
            trees = sqlglot.parse(written, dialect="spark")
            statements = [
                tree for tree in trees if tree is not None and tree.key != "semicolon"
            ]  # a comment after the last one
            for tree in statements:
                note_quotes(tree, written)  # type: ignore[arg-type]  # it says Expr, which has what is used here
    except sqlglot.errors.SqlglotError as problem:
        for pattern, construct, hint in _OF_OTHERS:
            if (match := pattern.search(text)) is not None:
                raise refused(construct, match[0], hint) from problem
        raise PlanError("this is not SQL", got=text, then=str(problem).splitlines()[0].rstrip("."), hint=_SHOW) from problem
    check_units(text)
    check_tokens(written, statements)  # type: ignore[arg-type]  # it says Expr, which has what is used here
    return [_statement(tree, text) for tree in statements]


def _statement(tree: object, text: str) -> Statement:
    assert isinstance(tree, sg.Expression)
    if isinstance(tree, (sg.Set, sg.Insert)):
        return tree
    query = query_of(tree)
    if query is not None:
        return query
    construct = str(tree.this).upper() if isinstance(tree, sg.Command) else tree.key.upper()
    if construct == "SET":
        raise PlanError("this SET cannot be read", got=text.strip(), hint=_SET)
    raise refused(construct, text.strip(), _STATEMENTS.get(construct, _SHOW))


def query_of(tree: object) -> Query | None:
    """Return the query of a statement, without brackets around it; None for anything else."""
    while isinstance(tree, sg.Subquery) and isinstance(tree.this, (sg.Query, sg.Subquery)):
        only(tree, frozenset({"this", "alias"}))
        tree = tree.this
    return tree if isinstance(tree, (sg.Select, sg.SetOperation)) else None


def inserted(tree: Statement) -> tuple[str, Query]:
    """Return the sink that an INSERT INTO names, and its query.

    Raises
    ------
    PlanError
        For another statement, and for what INSERT has besides the two.
    """
    if not isinstance(tree, sg.Insert):
        raise PlanError("a query without a sink", got=tree.sql("spark"), hint="write INSERT INTO name SELECT ...")
    if clause_of(tree, "with") is not None:
        raise refused("WITH before INSERT INTO", tree.sql("spark"), "write INSERT INTO name WITH a AS (...) SELECT ...")
    if tree.args.get("overwrite"):
        raise refused("INSERT OVERWRITE", tree.sql("spark"), "write INSERT INTO: a sink keeps what it was given")
    query = query_of(tree.args.get("expression"))
    if query is None:
        raise refused("INSERT of something else than a query", tree.sql("spark"), "write INSERT INTO name SELECT ...")
    only(tree, frozenset({"this", "expression"}))
    if isinstance(tree.this, sg.Schema):
        raise refused("naming columns in INSERT INTO", tree.this.sql("spark"), "name them with AS in the query")
    only(tree.this, frozenset({"this"}))
    return tree.this.name, query


def check_select(tree: sg.Select) -> None:
    """Refuse every clause that is not understood."""
    only(tree, _UNDERSTOOD)
    distinct = tree.args.get("distinct")
    if distinct is not None:
        only(distinct, frozenset())
    group = tree.args.get("group")
    for item in () if group is None else group.expressions:
        if isinstance(item, (sg.Rollup, sg.Cube, sg.GroupingSets)):
            raise refused(f"GROUP BY {item.sql('spark').split('(')[0].strip()}", item.sql("spark"), _ONE_BY_ONE)
    if group is not None:
        only(group, frozenset({"expressions"}))
    for item in tree.expressions:
        if item.find(sg.Query) is not None:
            raise refused("a query inside of the SELECT list", item.sql("spark"), _JOINED)
    if clause_of(tree, "from") is None:
        raise PlanError("the query has no FROM", got=tree.sql("spark"), hint=_SHOW)
    if not tree.expressions:
        raise PlanError("the query selects nothing", got=tree.sql("spark"), hint="write SELECT *")


def clause_of(tree: sg.Expression, name: str) -> sg.Expression | None:
    """Return a clause, under the name it has in whichever version of the parser."""
    clause: sg.Expression | None = tree.args.get(f"{name}_") or tree.args.get(name)
    return clause


def no_group(tree: sg.Select) -> PlanError:
    """Return the error for aggregates over a whole stream."""
    then = "a stream never ends, so the result would never come"
    return PlanError("the query has no GROUP BY", got=tree.sql("spark"), then=then, hint=_SHOW)


def setting_of(statement: sg.Set) -> tuple[str, int | RowsClock]:
    """Return the setting of ``SET watermark.lag = INTERVAL '5' SECOND``, and its value in µs; or that of the clock of rows."""
    check_read(statement)
    items = statement.expressions
    setting = items[0].this if len(items) == 1 else None
    if not isinstance(setting, sg.EQ):
        raise PlanError("SET sets one thing", got=statement.sql("spark"), hint=_SET)
    quoted = isinstance(setting.this, sg.Literal) and setting.this.is_string  # Flink's SET 'name' = 'value'
    name = (setting.this.name if quoted else setting.this.sql("spark").replace("`", "")).lower()
    if name not in _SETTINGS:
        raise PlanError("there is no such setting", got=setting.this.sql("spark"), hint=_SET)
    if name == _CLOCK:
        value = setting.expression
        named = value.name.lower() if isinstance(value, (sg.Literal, sg.Column)) else None
        clock = next((known for known in CLOCKS if known == named), None)
        if clock is None:
            hint = "write SET watermark.clock = 'row', or 'batch'"
            raise PlanError("there is no such clock of rows", got=value.sql("spark"), hint=hint)
        return name, clock
    return name, interval_us(setting.expression, name, allow_zero=name == "watermark.lag")
