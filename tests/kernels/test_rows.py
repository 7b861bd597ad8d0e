"""Streams without windows on the driver (SEMANTICS §7.4)."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py.errors import OrderError, PlanError
from krishiv_py.testing import Driver, stream_of

SCHEMA = "id bigint, name string, at bigint"
ROWS = [{"id": i, "name": "ab"[i % 2], "at": None if i == 2 else 5 - i} for i in range(4)]


def test_rows_come_out_at_once_in_their_order_over_a_restart(tmp_path: Path) -> None:
    driver = Driver(stream_of(SCHEMA).filter("id <> 1").select("id", twice="id * 2"), sink=kv.ParquetSink(str(tmp_path)))
    actual = [driver.send(ROWS).results, driver.restarted().send(ROWS).results]
    wanted = [{"id": i, "twice": 2 * i} for i in (0, 2, 3)]
    assert [t.to_pylist() for t in actual] == [wanted, wanted]
    assert driver.close().results.num_rows == 0
    assert pq.read_table(tmp_path).num_rows == 6
    assert driver.progress.rows == driver.progress.firings == 3 and driver.progress.open_rows == 0


def test_a_watermark_without_a_window_changes_nothing() -> None:
    driver = Driver(stream_of(SCHEMA).watermark("at", 0))
    for _ in range(2):
        out = driver.send(ROWS)
        assert out.results.to_pylist() == ROWS and out.late.num_rows == 0
    assert "do not wait" in driver.why_not_fired(0)
    assert "nothing is kept" in driver._plan.steps[1].why


def test_what_has_no_effect_or_no_meaning_is_refused() -> None:
    timed = stream_of(SCHEMA).watermark("at", 0)
    with pytest.raises(OrderError, match="window"):
        timed.allowed_lateness(5).collect()
    with pytest.raises(PlanError, match="no state"):
        Driver(timed).state()
    with pytest.raises(PlanError, match="session"):
        stream_of(SCHEMA).collect()
    with pytest.raises(PlanError, match="LateEventHandler"):
        stream_of(SCHEMA).with_late_event_handler(print)  # type: ignore[arg-type]


def test_a_late_handler_goes_along_to_the_windows() -> None:
    handler = kv.CountingLateEventHandler()
    stream = stream_of(SCHEMA).with_late_event_handler(handler).filter("id < 9").watermark("at", 0).key_by("name")
    driver = Driver(stream.tumbling_window(1).agg(kv.count()))
    driver.send(ROWS)
    assert handler.total == 1 and handler.by_reason == {"null_time": 1}
