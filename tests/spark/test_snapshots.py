"""Snapshots of several stages and outputs on Spark: those of the driver, and the next run goes on as if there had been none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.testing import Driver
from tests.spark.conftest import DDL, row


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the early results of a snapshot")
def test_stages_and_outputs_give_what_is_open_early(session: kv.Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    rows = stream.watermark("at", 5)
    per_user = rows.key_by("user").tumbling_window(1_000).agg(kv.sum("amount").alias("total"))
    users = per_user.key_by().with_pane().tumbling_window(4_000).agg(kv.count(), kv.sum("total"))
    plans: dict[str, Any] = {"users": users, "per_user": per_user.filter("total > 1")}
    outputs = [plan.to(kv.MemorySink(), name=name) for name, plan in plans.items()]
    driver = Driver([plan.to(kv.MemorySink(), name=name) for name, plan in plans.items()])
    given: dict[str, list[Any]] = {name: [] for name in plans}
    snapshot = kv.Batches.available_now(snapshot=True)
    for sent, until in (
        ([row("a", 10, 1), row("a", 1_500, 2), row("b", 1_600, 3), row("b", 4_100, 9)], snapshot),
        ([row("a", 4_200, 4), row("b", 20, 5)], kv.Batches.available_now(flush=True)),
    ):
        sender.send(sent)
        query = session.start(outputs, checkpoint=str(tmp_path / "checkpoint"), batches=until)
        assert query.await_termination()
        for out in (driver.send(sent), driver.close() if until.flush else driver.snapshot()):
            for name, table in out.by_output.items():
                given[name] += [tuple(r.values()) for r in table.to_pylist()]
        for name, expected in given.items():
            actual = [tuple(r.values()) for r in query.results(name).to_pylist()]
            assert sorted(actual, key=repr) == sorted(expected, key=repr)
        assert query.progress.counters == driver.progress.counters
        assert query.progress.watermark_us == driver.watermark_us
    assert [r[2:5] for r in given["users"]] == [(3, 6, "final"), (1, 9, "early"), (2, 13, "final")]
