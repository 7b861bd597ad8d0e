"""SQL that the parser takes and nobody reads is refused; no part of a text is dropped in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import expressions as sg

import krishiv_py
from krishiv_py import KrishivError
from krishiv_py.plan.expressions.allread import check_read, read_parts
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

ROOT = Path(krishiv_py.__file__).parent
OF_CLASSES = frozenset(
    {"AggFunc", "Binary", "Connector", "Expression", "Query", "SetOperation", "DataType.Type", "Func", "DType"}
)
"""Classes of nodes of which only subclasses are made."""
REFUSED_ELSEWHERE = frozenset(
    {
        *("Command", "Cube", "Except", "GroupingSets", "Intersect", "Limit", "Parameter", "Placeholder", "Rollup", "Schema"),
        *(
            "ILike",
            "Like",
            "CurrentTimestamp",
            "ApproxDistinct",
            "CountIf",
            "Rank",
            "DenseRank",
            "RowNumber",
            "CommentColumnConstraint",
        ),
        *("NotNullColumnConstraint", "Create", "JSONPathKey", "JSONPathRoot", "JSONPathSubscript", "TsOrDsAdd"),
    }
)
"""Classes that are refused whole, have no parts, or are read by their definition of an aggregate."""


def context() -> SqlContext:
    made = SqlContext()
    for name in "lr":
        made.register(name, stream_of("k string, v bigint, ts bigint, xs array<bigint>, t timestamp").watermark("ts", 10**6))
    return made


WINDOW = "GROUP BY k, tumble(ts, INTERVAL '1' MINUTE)"
TABLE = "TABLE(TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
TEXTS = [
    "SELECT k FROM l@v1",
    "SELECT k FROM l@20240101000000000",
    "SELECT l.k FROM l JOIN r@v2 ON l.k = r.k AND l.ts = r.ts",
    "SELECT k FROM l VERSION AS OF 1",
    "SELECT k FROM l TIMESTAMP AS OF '2024-01-01'",
    "SELECT k FROM l /*+ OPTIONS('scan.startup.mode' = 'latest-offset') */",
    "SELECT k FROM l /* seen */ /*+ OPTIONS('a' = 'b') */ WHERE v > 1",
    "SELECT /*+ BROADCAST(l) */ k FROM l",
    "SELECT CAST('abcdef' AS VARCHAR(3)) AS x FROM l",
    "SELECT k::VARCHAR(3) AS x FROM l",
    "SELECT CAST(k AS CHAR(3)) AS x FROM l",
    "SELECT CAST(k AS CHARACTER VARYING(3)) AS x FROM l",
    "SELECT CAST(v AS INT(3)) AS x FROM l",
    "SELECT CAST(v AS FLOAT(3)) AS x FROM l",
    "SELECT TRY_CAST(k AS VARCHAR(2)) AS x FROM l",
    "SELECT CAST(t AS TIMESTAMP(3)) AS x FROM l",
    "SELECT k FROM l PARTITION (p = 1)",
    "SELECT k FROM l WITH (NOLOCK)",
    "SELECT k FROM l WITH ORDINALITY",
    "SELECT k INTO x FROM l",
    "SELECT k FROM l FOR SHARE",
    "SELECT k FROM l CLUSTER BY k",
    "SELECT k FROM l DISTRIBUTE BY k",
    "WITH x AS MATERIALIZED (SELECT k FROM l) SELECT k FROM x",
    "SET GLOBAL watermark.lag = '5 s'",
    f"SELECT k, ARRAY_AGG(v ORDER BY ts) AS n FROM l {WINDOW}",
    f"SELECT k, FIRST(v ORDER BY ts DESC) AS n FROM l {WINDOW}",
    f"SELECT k, ARRAY_AGG(v LIMIT 2) AS n FROM l {WINDOW}",
    f"SELECT k, ANY_VALUE(v HAVING MAX ts) AS n FROM l {WINDOW}",
    f"SELECT k, PERCENTILE(v, 0.5, 1) AS n FROM l {WINDOW}",
    f"SELECT k, MAX(v, 2) AS n FROM l {WINDOW}",
    f"SELECT k, COUNT(*) AS n FROM l {WINDOW} WITH TOTALS",
    f"SELECT window_start, COUNT(*) AS n FROM {TABLE} WITH ORDINALITY GROUP BY window_start, window_end",
    f"SELECT window_start, COUNT(*) AS n FROM {TABLE} TABLESAMPLE (10 PERCENT) GROUP BY window_start, window_end",
    "SELECT k FROM l UNION ALL BY NAME SELECT k FROM r",
    "SELECT k FROM l WHERE v BETWEEN SYMMETRIC 3 AND 1",
    "SELECT k COLLATE UTF8_BINARY AS x FROM l",
    "SELECT round(v, 2, 1) AS x FROM l",
    "SELECT split(k, 'b', 2) AS x FROM l",
    "SELECT ceil(v TO DAY) AS x FROM l",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_nobody_reads_is_refused_with_its_text_and_a_hint_of_its_own(text: str) -> None:
    with pytest.raises(KrishivError) as caught:
        context().sql(text)
    says = str(caught.value)
    assert "Hint: " in says and "(got: )" not in says and "(got: True)" not in says and "\0" not in says
    assert "SELECT tumble_start" not in says or "this is not SQL" in says  # an example of something else


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k -- /*+ x */\n FROM l",
        "SELECT /* plain */ k FROM l -- the rest /*+ x */",
        "SELECT '/*+ a */' AS x, 'VARCHAR(3)' AS y FROM l",
        "SELECT k AS `char(3)`, .5 AS a, v+.25 AS b, 1e3 AS c, 5L AS d, 007 AS e FROM l",
        "SELECT CAST(v AS DECIMAL(10, 2)) AS x, CAST(t AS TIMESTAMP(6)) AS y FROM l",
    ],
)
def test_what_only_looks_like_it_is_taken(text: str) -> None:
    assert context().sql(text) is not None


def named_classes() -> Iterator[str]:
    for path in (*ROOT.joinpath("sql").glob("*.py"), *ROOT.joinpath("plan/expressions").glob("*.py")):
        yield from re.findall(r"\bsg\.([A-Z]\w+)", path.read_text())


def test_every_class_of_nodes_that_the_library_reads_says_which_parts_it_reads() -> None:
    wanted = set(named_classes()) - OF_CLASSES - REFUSED_ELSEWHERE
    assert sorted(wanted - set(read_parts())) == []
    assert [name for name in wanted if not hasattr(sg, name)] == []


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT k, COUNT(DISTINCT v) AS n, SUM(v) FILTER (WHERE v > 1) AS s FROM l WHERE v > 0 {WINDOW} HAVING COUNT(*) > 1",
        "SELECT l.k, CASE WHEN l.v > 1 THEN 'a' END AS c, CAST(l.v AS string) AS s FROM l JOIN r ON l.k = r.k AND l.ts = r.ts",
        "WITH a AS (SELECT k, ts FROM l) SELECT k FROM a UNION ALL (SELECT k FROM r WHERE v BETWEEN 1 AND 2)",
        f"SELECT k FROM {TABLE} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY v DESC) = 1",
        "SELECT x FROM l LATERAL VIEW explode(xs) e AS x WHERE v IN (1, 2) AND NOT k IS NULL AND k LIKE 'a%' AND xs[0] = -1",
    ],
)
def test_any_other_part_of_any_node_is_refused(text: str) -> None:
    """Each part that a class of nodes may have, and that nobody reads, is set by hand."""
    made = context()
    assert made.sql(text) is not None
    tree: Any = sqlglot.parse_one(text.replace("TUMBLE(TABLE l", "TUMBLE(l"), dialect="spark")
    check_read(tree)
    tried = 0
    for node in list(tree.walk()):
        parts = read_parts().get(type(node).__name__)
        for name in node.arg_types if parts is not None else ():
            if parts is None or name in parts or name.rstrip("_") in parts or node.args.get(name):
                continue
            node.set(name, sg.Literal.string("odd"))
            with pytest.raises(KrishivError, match="odd"):
                check_read(tree)
            node.set(name, None)
            tried += 1
    assert tried > 10


def test_a_membership_in_a_table_gives_each_row_once() -> None:
    pa = pytest.importorskip("pyarrow")
    made = context()
    made.register("d", pa.table({"k": ["a", "a", None], "n": [1, 2, 3]}))
    rows = [{"k": k, "v": v, "ts": 1} for k, v in [("a", 1), ("b", 2), (None, 2), ("a", 9)]]
    for text, wanted in {
        "SELECT l.k, v FROM l LEFT SEMI JOIN d ON l.k = d.k": [("a", 1), ("a", 9)],
        "SELECT l.k, v FROM l LEFT ANTI JOIN d ON l.k = d.k": [("b", 2), (None, 2)],
        "SELECT k, v FROM l WHERE EXISTS (SELECT 1 FROM d WHERE d.k = l.k)": [("a", 1), ("a", 9)],
        "SELECT k, v FROM l WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.k = l.k) AND v > 0": [("b", 2), (None, 2)],
        "SELECT k, v FROM l WHERE k IN (SELECT k FROM d)": [("a", 1), ("a", 9)],
        "SELECT k, v FROM l WHERE v IN (SELECT n FROM d AS x WHERE x.k = l.k)": [("a", 1)],
        "SELECT k, v FROM l WHERE upper(k) IN (SELECT upper(k) FROM d) AND v > 1": [("a", 9)],
        "SELECT l.k, v FROM l LEFT JOIN d ON l.k = d.k WHERE d.k IS NULL": [("b", 2), (None, 2)],
    }.items():
        query = made.sql(text)
        assert query is not None
        driver = Driver(query)
        results = [*driver.send(rows).results.to_pylist(), *driver.close().results.to_pylist()]
        assert [tuple(r.values()) for r in results] == wanted, text
    with pytest.raises(KrishivError, match="NOT EXISTS"):
        made.sql("SELECT k FROM l WHERE k NOT IN (SELECT k FROM d)")
