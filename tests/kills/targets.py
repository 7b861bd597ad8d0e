"""What is in topics, Delta tables and tables of PostgreSQL, in one form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from krishiv_py.testing.broker import Broker
from tests.kafka.test_sink import committed
from tests.kills.events import LATE, Expected, Rows, counted
from tests.kills.job import Places
from tests.tables.server import Server
from tests.tables.stores import delta_rows


def rows_of(places: Places, target: str, name: str, broker: Broker | None, server: Server) -> list[dict[str, Any]]:
    """The rows that a reader sees; of a topic of changes, the last record of each key."""
    called = f"{places.prefix}_{name}"
    if target == "delta":
        return delta_rows(Path(places.work) / called)
    if target == "postgres":
        return [actual for (actual,) in server.rows(f"SELECT row_to_json(t) FROM {called} t")]
    assert broker is not None
    records = committed(broker, called)
    numbered = [tuple(dict(m.headers())[name] for name in ("krishiv-batch", "krishiv-row")) for m in records]
    assert len(set(numbered)) == len(numbered), "a row was written twice"
    if name != "table":
        return [json.loads(m.value()) for m in records]
    last = {m.key(): m.value() for m in records}
    return [json.loads(value) for value in last.values() if value is not None]


def differences(places: Places, expected: Expected, broker: Broker, server: Server) -> dict[str, tuple[Rows, Rows]]:
    """Of each output that is wrong: what is missing, and what is there too much."""
    wrong = {}
    for target in places.targets:
        for name in ("log", "table"):
            actual = counted(rows_of(places, target, name, broker, server))
            wrong[f"{target} {name}"] = _apart(expected.log if name == "log" else expected.table, actual)
    late = counted(rows_of(places, places.late, "late", broker, server), LATE)
    wrong[f"{places.late} late"] = _apart(expected.late, late)
    counts = Path(places.work, "rows").read_text()
    assert counts == expected.counts, f"the query counted {counts}, and it must be {expected.counts}"
    return {output: actual for output, actual in wrong.items() if any(actual)}


def _apart(expected: Rows, actual: Rows) -> tuple[Rows, Rows]:
    return expected - actual, actual - expected
