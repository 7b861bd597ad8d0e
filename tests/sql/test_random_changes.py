"""Random queries over changelogs: after every batch the content is what DuckDB gives (SEMANTICS §16.3)."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Content, Rows, counted, folded

ORDERS = pa.schema(
    [("id", pa.int64()), ("shop", pa.string()), ("kind", pa.int64()), ("amount", pa.int64()), ("price", pa.float64())]
)
SHOPS = pa.schema([("shop", pa.string()), ("city", pa.string()), ("size", pa.int64())])
CONDITIONS = ("amount > 3", "kind = 1 OR amount IS NULL", "price < 1.5", "shop IN ('x', 'y')", "NOT (amount BETWEEN 2 AND 5)")
AGGREGATES = (
    "COUNT(*) AS {}", "COUNT(amount) AS {}", "SUM(amount) AS {}", "MIN(price) AS {}", "MAX(amount) AS {}", "SUM(price) AS {}",
    "COUNT(DISTINCT amount) AS {}", "COUNT(*) FILTER (WHERE amount > 4) AS {}", "AVG(amount) AS {}",
    "SUM(amount) FILTER (WHERE price IS NOT NULL) AS {}", "COUNT(DISTINCT price) AS {}",
)  # fmt: skip
HOWS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


class Texts:
    """Makes queries that both read."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def orders(self) -> str:
        """The orders, or some of them."""
        where = self.draw.choice(("", f" WHERE {self.draw.choice(CONDITIONS)}"))
        return f"(SELECT id, shop, kind, amount, price FROM orders{where})" if where else "orders"

    def aggregates(self) -> tuple[str, list[str]]:
        """Some aggregates, and what they are called."""
        picked = self.draw.sample(AGGREGATES, self.draw.randrange(1, 4))
        names = [f"a{n}" for n in range(len(picked))]
        return ", ".join(text.format(name) for text, name in zip(picked, names, strict=True)), names

    def query(self) -> str:
        """A query of one to three stages."""
        kinds = (
            self.plain,
            self.grouped,
            self.global_,
            self.distinct,
            self.ranked,
            self.pairs,
            self.of_pairs,
            self.totals_joined,
        )
        return self.draw.choice((*kinds, self.of_totals, self.related))()

    def plain(self) -> str:
        return f"SELECT id, upper(shop) AS s, amount + kind AS m FROM {self.orders()} o WHERE {self.draw.choice(CONDITIONS)}"

    def grouped(self) -> str:
        keys = self.draw.choice(("shop", "kind", "shop, kind", "amount", "upper(shop)"))
        named = "upper(shop) AS k" if "upper" in keys else keys
        texts, _ = self.aggregates()
        having = self.draw.choice(("", " HAVING COUNT(*) > 1", " HAVING MAX(amount) > 4", " HAVING SUM(amount) IS NOT NULL"))
        return f"SELECT {named}, {texts} FROM {self.orders()} o GROUP BY {keys}{having}"

    def global_(self) -> str:
        return f"SELECT {self.aggregates()[0]} FROM orders"

    def distinct(self) -> str:
        return f"SELECT DISTINCT {self.draw.choice(('shop', 'shop, kind', 'amount > 3 AS much, kind'))} FROM {self.orders()} o"

    def ranked(self) -> str:
        by = self.draw.choice(
            ("amount DESC NULLS LAST, id NULLS LAST", "price NULLS LAST, id DESC NULLS LAST", "id NULLS LAST")
        )
        over = f"ROW_NUMBER() OVER (PARTITION BY {self.draw.choice(('shop', 'kind', 'shop, kind'))} ORDER BY {by})"
        if self.draw.random() < 0.5:
            return f"SELECT id, shop, amount FROM {self.orders()} o QUALIFY {over} <= {self.draw.randrange(1, 4)}"
        inside = f"SELECT id, shop, kind, {over} AS place FROM {self.orders()} o"
        return f"SELECT id, shop, place FROM ({inside}) t WHERE place <= {self.draw.randrange(1, 4)}"

    def pairs(self) -> str:
        how = self.draw.choice(HOWS)
        return f"SELECT o.id, o.amount, s.city, s.size FROM {self.orders()} o {how} shops s ON o.shop = s.shop"

    def of_pairs(self) -> str:
        texts, _ = self.aggregates()
        inside = f"SELECT o.amount, o.price, s.city FROM {self.orders()} o {self.draw.choice(HOWS)} shops s ON o.shop = s.shop"
        return f"SELECT city, {texts} FROM ({inside}) t GROUP BY city"

    def totals_joined(self) -> str:
        texts, names = self.aggregates()
        inside = f"SELECT shop, {texts} FROM {self.orders()} o GROUP BY shop"
        picked = ", ".join(f"t.{name}" for name in names)
        return f"SELECT s.city, {picked} FROM ({inside}) t {self.draw.choice(HOWS)} shops s ON t.shop = s.shop"

    def of_totals(self) -> str:
        inside = f"SELECT shop, kind, COUNT(*) AS n, SUM(amount) AS total FROM {self.orders()} o GROUP BY shop, kind"
        outside = self.draw.choice(
            ("n, COUNT(*) AS many, MAX(total) AS most", "n, SUM(total) AS total, COUNT(DISTINCT shop) AS shops")
        )
        return f"WITH t AS ({inside}) SELECT {outside} FROM t GROUP BY n"

    def related(self) -> str:
        kind = self.draw.choice(("EXISTS", "NOT EXISTS"))
        more = self.draw.choice(("", " AND s.size > 1"))
        return f"SELECT id, shop FROM {self.orders()} o WHERE {kind} (SELECT 1 FROM shops s WHERE s.shop = o.shop{more})"


def batches_of(draw: random.Random) -> list[tuple[Rows, Rows]]:
    """Changes of both tables: new rows, other rows, moved keys of groups, deletions, deletions of nothing."""
    made = []
    for _ in range(draw.randrange(3, 7)):
        orders: Rows = [
            {
                "op": draw.choice(("+I", "+U", "+U", "-D")), "id": draw.randrange(9), 
                "shop": draw.choice(("x", "y", "Z", None)),
                "kind": draw.randrange(2), "amount": draw.choice((None, *range(8))),
                "price": draw.choice((None, 0.25, 1.5, -0.0, 1e9)),
            }
            for _ in range(draw.randrange(8))
        ]  # fmt: skip
        shops: Rows = [
            {
                "op": draw.choice(("+I", "+U", "-D")), "shop": draw.choice("xyZw"), "city": draw.choice(("Ulm", "Rom", None)),
                "size": draw.randrange(3),
            }
            for _ in range(draw.randrange(3))
        ]  # fmt: skip
        made.append((orders, shops))
    return made


def same_kinds(rows: Rows) -> Rows:
    """Rows with whole numbers as such: sums of DuckDB are wider, and -0.0 is 0.0."""
    return [{name: int(v) if isinstance(v, (float, Decimal)) and v == int(v) else v for name, v in row.items()} for row in rows]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(scaled(60)))
def test_a_random_query_is_what_duckdb_gives_after_every_batch(seed: int) -> None:
    draw = random.Random(seed)
    text = Texts(draw).query()
    context = SqlContext()
    context.register(
        "orders",
        stream_of("op string, id bigint, shop string, kind bigint, amount bigint, price double").from_changelog(
            "log", key="id"
        ),
    )
    context.register("shops", stream_of("op string, shop string, city string, size bigint").from_changelog("log", key="shop"))
    plan: Any = context.sql(text)
    driver, contents, given = Driver(plan), (Content("id", None), Content("shop", None)), Rows()
    for orders, shops in batches_of(draw):
        for rows, content in zip((orders, shops), contents, strict=True):
            for row in rows:
                content.apply(row)
        sent: Any = {"left": orders, "right": shops} if "shops s" in text else orders
        given += driver.send(sent).results.to_pylist()
        database = duckdb.connect()
        for name, content, schema in (("orders", contents[0], ORDERS), ("shops", contents[1], SHOPS)):
            database.register(name, pa.Table.from_pylist(content.rows, schema))
        wanted = database.sql(text).arrow().read_all().to_pylist()
        if not given and "GROUP BY" not in text and wanted and set(wanted[0]) == {f"a{n}" for n in range(len(wanted[0]))}:
            continue  # SQL has a row of no rows
        assert folded(same_kinds(given)) == counted(same_kinds(wanted)), text
