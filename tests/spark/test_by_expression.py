"""Keys, gaps, identities and results by expression on Spark: the same as on the driver, over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.testing import Driver, stream_of

SCHEMA = "url string, gap int, v bigint, at bigint"
SENDS = [
    [{"url": f"S{i % 3}.org/{i}", "gap": 1 + i % 4, "v": i, "at": 10 * i} for i in range(20)] + [{"url": None, "at": 5}],
    [{"url": f"s{i % 4}.org/", "gap": 3, "v": -i, "at": 190 + 7 * i} for i in range(15)] + [{"url": "s0.org", "at": 1}],
]
SITE = col("url").split("/")[0].lower()


def per_site(stream: Any, late: kv.MemorySink, key: Any = SITE) -> kv.ResultStream:
    rows = stream.watermark("at", 20).drop_duplicates(col("v") % 16, within=50)
    firsts = rows.filter("gap IS NOT NULL").key_by(key.alias("site")).session_window(col("gap") * 8)
    plan: kv.ResultStream = firsts.agg(
        kv.count(),
        kv.sum(col("v") * 2).alias("s"),
        kv.max_by(col("url"), -col("v")),
        (kv.sum(col("v")) / kv.count()).round(2).alias("mean"),
        by_site=kv.concat(col("site"), kv.when(kv.count() > 1, " many").otherwise(" one")),
        length=col("window_end") - col("window_start"),
    )
    return plan.with_late_event_handler(kv.SideOutputLateEventHandler(late))


def lines(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.slow
def test_the_engines_agree_over_a_restart(session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(per_site(stream_of(SCHEMA), kv.MemorySink()))
    wanted = [line for rows in SENDS for line in lines(driver.send(rows).results)]
    wanted = sorted(wanted + lines(driver.close().results))
    assert len(wanted) > 8
    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    results, late, checkpoint = kv.MemorySink(), kv.MemorySink(), str(tmp_path / "checkpoint")
    for rows in SENDS:
        query = per_site(stream, late).start(results, checkpoint=checkpoint)
        try:
            sender.send(rows)
            if rows is SENDS[-1]:
                sender.close()
            query.process_all_available()
        finally:
            query.stop()
    with pytest.raises(kv.CheckpointError, match="expression of site"):
        per_site(stream, late, col("url")).start(results, checkpoint=checkpoint)
    assert lines(results.table()) == wanted
    assert lines(per_site(stream, late).collect()) == wanted
