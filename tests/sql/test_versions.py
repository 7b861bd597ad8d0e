"""FOR SYSTEM_TIME AS OF over tables that change: what .versioned_join gives (SEMANTICS §16.7)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from krishiv_py import OrderError, PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

ORDERS = "id bigint, customer bigint, at bigint, op_code string"
CUSTOMERS = "op string, id bigint, city string, seq bigint, at bigint"


def context() -> SqlContext:
    """Orders, and customers as they change; both have columns of the same names."""
    made = SqlContext()
    made.register("orders", stream_of(ORDERS), event_time="at", lag=0)
    changes = stream_of(CUSTOMERS)
    made.register("customers", changes.watermark("at", 0).from_changelog("log", key="id", sequence="seq"))
    made.register("timeless", changes.from_changelog("log", key="id", sequence="seq"))
    return made


def versions(changes: list[dict[str, Any]], key: Any, at: int) -> dict[str, Any] | None:
    """The row that was valid at a time."""
    known = [c for c in changes if c["id"] == key and c["at"] <= at]
    newest = max(known, key=lambda c: (c["at"], c["seq"]), default=None)
    return None if newest is None or newest["op"] == "-D" else newest


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN"])
@pytest.mark.parametrize("seed", range(6))
def test_each_row_meets_the_version_of_its_time(how: str, seed: int) -> None:
    draw = random.Random(seed)
    rows = "o.id, o.customer, o.at, c.id AS cid, c.city, c.at AS since"
    plan: Any = context().sql(
        f"SELECT {rows} FROM orders AS o {how} customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id"
    )
    driver, given, orders, changes = Driver(plan), [], list[dict[str, Any]](), list[dict[str, Any]]()
    for batch in range(5):
        times = range(batch * 10 + 1, batch * 10 + 11)
        new = [{"id": n, "customer": draw.choice((1, 2, 3, None)), "at": draw.choice(times), "op_code": "x"} for n in range(4)]
        made = [
            {
                "op": draw.choice(("+I", "+U", "-D")), "id": draw.randrange(1, 4), "city": draw.choice(("Ulm", "Rom", None)),
                "seq": batch * 10 + n, "at": draw.choice(times),
            }
            for n in range(3)
        ]  # fmt: skip
        orders, changes = [*orders, *new], [*changes, *made]
        given += driver.send({"left": new, "right": made}).results.to_pylist()
    given += driver.close().results.to_pylist()
    wanted = []
    for row in orders:
        version = versions(changes, row["customer"], row["at"])
        if version is not None or how == "LEFT JOIN":
            of = {name: None if version is None else version[name] for name in ("id", "city", "at")}
            own = {name: row[name] for name in ("id", "customer", "at")}
            wanted.append({**own, "cid": of["id"], "city": of["city"], "since": of["at"]})
    assert sorted(map(repr, given)) == sorted(map(repr, wanted))


def test_conditions_on_the_version_are_asked_of_it() -> None:
    plan: Any = context().sql(
        "SELECT o.id, c.city FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c "
        "ON o.customer = c.id AND c.city <> 'Ulm' AND o.op_code = 'x' AND c.at >= o.at - 3"
    )
    driver = Driver(plan)
    new = [
        {"id": n, "customer": 1, "at": at, "op_code": code}
        for n, at, code in ((1, 5, "x"), (2, 9, "x"), (3, 9, "y"), (4, 11, "x"))
    ]
    made = [{"op": "+U", "id": 1, "city": city, "seq": at, "at": at} for city, at in (("Ulm", 3), ("Rom", 7))]
    given = driver.send({"left": new, "right": made}).results.to_pylist() + driver.close().results.to_pylist()
    assert given == [{"id": 2, "city": "Rom"}]


@pytest.mark.parametrize(
    ("query", "error", "why"),
    [
        ("JOIN timeless FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id", OrderError, "have no event time"),
        ("FULL JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id", PlanError, "a full join AS OF"),
        ("JOIN customers FOR SYSTEM_TIME AS OF o.customer AS c ON o.customer = c.id", PlanError, "AS OF another time"),
        ("JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.op_code = c.city", PlanError, "found by the key of its table"),
    ],
)
def test_other_joins_as_of_are_refused(query: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        context().sql(f"SELECT o.id, c.city FROM orders o {query}")
