"""Deduplication on the driver (SEMANTICS §8): against the reference, and by hand."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import KrishivError
from krishiv_py.kernels import dedup
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import Driver, stream_of
from tests.reference.dedup import deduplicate
from tests.reference.model import Batch, Close, Row, WatermarkSpec

SCHEMA = "id bigint, key string, at bigint"
KEYS = st.sampled_from(["a", "b", None])
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.integers(-20, 60)), max_size=12), min_size=1, max_size=6)


def timed(lag: int = 0, schema: str = SCHEMA) -> Any:
    return stream_of(schema).watermark("at", lag)


def numbered(batches: list[list[tuple[str | None, int]]]) -> list[list[Row]]:
    count = iter(range(10_000))
    return [[Row(key, t, next(count)) for key, t in batch] for batch in batches]


def sent(batch: list[Row]) -> list[dict[str, Any]]:
    return [{"id": r.value, "key": r.key, "at": r.t} for r in batch]


@given(
    batches=BATCHES,
    within=st.integers(1, 40),
    lag=st.integers(0, 15),
    lateness=st.integers(0, 15),
    restarts=st.sets(st.integers(0, 6)),
)
def test_rows_pass_as_in_the_reference(
    batches: list[list[tuple[str | None, int]]], within: int, lag: int, lateness: int, restarts: set[int]
) -> None:
    rows = numbered(batches)
    wanted = deduplicate([*map(Batch, rows), Close()], within, WatermarkSpec(lag), lateness)
    stream = timed(lag).allowed_lateness(lateness).drop_duplicates("key", within=within, duplicates="side_output")
    driver = Driver(stream.with_late_event_handler(kv.SideOutputLateEventHandler(kv.MemorySink())))
    passed: list[tuple[int, int]] = []
    aside: dict[str, list[tuple[int, int]]] = {"late": [], "duplicate": []}
    for number, batch in enumerate([*rows, None]):
        driver = driver.restarted() if number in restarts else driver
        out = driver.close() if batch is None else driver.send(sent(batch))
        passed += [(number, i) for i in out.results["id"].to_pylist()]
        for row in out.late.to_pylist():
            aside[row["reason"]].append((number, row["id"]))
            assert row["lateness"] is None or row["reason"] == "late"
    assert passed == [(n, r.value) for n, r in wanted.passed], "in order of arrival, in the batch of arrival"
    assert aside["late"] == [(n, r.value) for n, r in wanted.late]
    assert aside["duplicate"] == [(n, r.value) for n, r in wanted.duplicates]
    assert driver.counters["duplicates"] == len(wanted.duplicates)
    assert driver.progress.open_rows == 0, "at the end of input nothing is remembered"


@given(
    rows=st.lists(st.tuples(KEYS, st.integers(0, 60)), min_size=1, max_size=40),
    cut=st.integers(1, 10),
    within=st.integers(1, 30),
)
def test_batching_makes_no_difference_under_the_same_watermarks(
    rows: list[tuple[str | None, int]], cut: int, within: int
) -> None:
    (batch,) = numbered([rows])
    whole, parts = (Driver(timed(1_000).drop_duplicates("key", within=within)) for _ in range(2))
    once = whole.send(sent(batch)).results
    actual = [parts.send(sent(batch[i : i + cut])).results for i in range(0, len(batch), cut)]
    assert pa.concat_tables(actual).equals(once)


@given(batches=BATCHES, within=st.integers(1, 40), lag=st.integers(0, 15))
def test_state_shows_what_is_remembered(batches: list[list[tuple[str | None, int]]], within: int, lag: int) -> None:
    rows = numbered(batches)
    wanted = deduplicate(map(Batch, rows), within, WatermarkSpec(lag), 0).remembered
    driver = Driver(timed(lag).key_by("key").drop_duplicates(within=within))
    for batch in rows:
        driver.send(sent(batch))
    shown = sorted((repr(r["key"]), r["passed_at"], r["kept_until"]) for r in driver.restarted().state().to_pylist())
    assert shown == sorted((repr(key), t, t + within) for key, times in wanted.items() for t in times)


def test_equal_are_nulls_nans_and_both_zeros_and_rows_come_out_as_they_came() -> None:
    nan = float("nan")
    driver = Driver(timed(schema="x double, at bigint").key_by("x").drop_duplicates(within=100))
    rows = [{"x": x, "at": 0} for x in (-0.0, 0.0, nan, -nan, None, None, 1.0)]
    actual = driver.send(rows).results["x"].to_pylist()
    assert math.copysign(1, actual[0]) == -1 and math.isnan(actual[1]) and actual[2:] == [None, 1.0]
    assert driver.send(rows).results.num_rows == 0
    assert driver.counters["duplicates"] == 10


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.string(), ["", "a", None, "ä" * 300]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.decimal128(20, 2), ["1.00", None, "1.01"]),
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(1969, 12, 31), None]),
        (pa.timestamp("us", "UTC"), [0, None, -1]),
        (pa.bool_(), [True, False, None]),
        (pa.float32(), [1.5, None]),
    ],
)
def test_every_type_that_can_be_a_key(column: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values).cast(column)
    table = pa.table({"k": array, "at": pa.array([5] * len(array)), "tags": pa.array([["x"]] * len(array))})
    driver = Driver(stream_of(table.schema).watermark("at", 0).drop_duplicates("k", within=10))
    assert driver.send(pa.concat_tables([table, table])).results.equals(table)
    assert driver.restarted().send(table).results.num_rows == 0


def test_identity_is_columns_or_keys_or_the_whole_row() -> None:
    rows = [{"id": i, "key": k, "at": 0} for i, k in [(1, "a"), (1, "b"), (2, "a"), (1, "a")]]

    def ids(stream: Any) -> list[tuple[int, str]]:
        return [(r["id"], r["key"]) for r in Driver(stream).send(rows).results.to_pylist()]

    assert ids(timed().drop_duplicates(within=1)) == [(1, "a"), (1, "b"), (2, "a")]
    assert ids(timed().key_by("key").drop_duplicates(within=1)) == [(1, "a"), (1, "b")]
    assert ids(timed().key_by("key").drop_duplicates("id", within=1)) == [(1, "a"), (2, "a")]
    assert timed().drop_duplicates("id", "id", within=1).keys == ("id",)
    assert timed().drop_duplicates("id", within=1).schema == stream_of(SCHEMA).schema


def test_handlers_get_duplicates_on_request_only() -> None:
    rows = [{"id": 1, "key": "a", "at": 0}, {"id": 2, "key": "a", "at": 0}]
    for duplicates, stated in (("count", {}), ("side_output", {"duplicate": 1})):
        handler = kv.CountingLateEventHandler()
        stream = timed().drop_duplicates("key", within=1, duplicates=duplicates).with_late_event_handler(handler)
        Driver(stream).send(rows)
        assert dict(handler.by_reason) == stated
    by_key = kv.CountByKeyLateEventHandler()
    Driver(timed().drop_duplicates("key", within=1, duplicates="side_output").with_late_event_handler(by_key)).send(rows)
    assert dict(by_key.by_key) == {("a",): 1}


def test_null_keys_can_go_aside_and_idle_identities_can_be_forgotten() -> None:
    aside = timed().null_keys("side_output").drop_duplicates("key", within=1)
    out = Driver(aside).send([{"id": 1, "key": None, "at": 0}])
    assert out.results.num_rows == 0 and out.late["reason"].to_pylist() == ["null_key"]
    stream = timed(1_000).with_state_ttl(kv.StateTtlConfig(100)).drop_duplicates("key", within=10_000)
    driver = Driver(stream)
    for moment, passes in ((0, True), (5_000, False), (20_000, True)):
        assert driver.send([{"id": 1, "key": "a", "at": moment}]).results.num_rows == passes
    driver = Driver(stream)
    driver.send([{"id": 1, "key": "a", "at": 0}])
    driver.send([{"id": 2, "key": "b", "at": 2_000}])
    driver.send([{"id": 2, "key": "b", "at": 2_500}])
    assert driver.send([{"id": 1, "key": "a", "at": 2_600}]).results.num_rows == 1, "forgotten after 100 ms without rows"
    assert driver.counters["ttl_dropped"] == 1


def test_hashes_that_collide_are_distinguished_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "key_hashes", lambda _, n: np.zeros(n, np.int64))
    driver = Driver(timed().drop_duplicates("id", within=10))
    rows = [{"id": i % 7, "key": "a", "at": 0} for i in range(20)]
    assert driver.send(rows).results["id"].to_pylist() == list(range(7))
    assert driver.send([*rows, {"id": 9, "key": "a", "at": 0}]).results["id"].to_pylist() == [9]


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda s: s.drop_duplicates("nope", within=1), "key"),
        (lambda s: s.drop_duplicates("key", within=None), 'within="10 minutes"'),
        (lambda s: s.drop_duplicates("key", within=0), "within"),
        (lambda s: s.drop_duplicates("key", within=1.5), "within"),
        (lambda s: s.drop_duplicates("key", within=1, duplicates="drop"), "side_output"),
        (lambda s: s.emit("updates").drop_duplicates("key", within=1), "leave"),
        (lambda s: s.drop_duplicates("key", within=1).trigger(kv.Trigger.on_count(2)), "leave"),
        (lambda s: s.drop_duplicates("key", within=1).with_pane(), "leave"),
        (lambda s: s.drop_duplicates("key", within=1).preset("ripple"), "leave"),
        (lambda s: s.drop_duplicates("key", within=1).collect_with_aggs([kv.count()]), ".collect()"),
    ],
)
def test_wrong_calls_say_what_to_write(call: Any, hint: str) -> None:
    with pytest.raises(KrishivError) as caught:
        call(timed())
    assert hint in str(caught.value)


def test_columns_that_cannot_be_compared_are_refused() -> None:
    stream = stream_of(pa.schema([("at", pa.int64()), ("tags", pa.list_(pa.string()))])).watermark("at", 0)
    with pytest.raises(KrishivError, match="tags"):
        stream.drop_duplicates(within=1)
    assert stream.drop_duplicates("at", within=1).schema.names == ["at", "tags"]


def test_a_checkpoint_follows_other_columns_but_not_another_identity() -> None:
    def noted(stream: Any) -> dict[str, str]:
        return fingerprint(stream._spec())

    plain = noted(timed().drop_duplicates("key", within=5))
    more = noted(timed(schema=f"{SCHEMA}, more double").drop_duplicates("key", within=5, duplicates="side_output"))
    assert differences(plain, more) == []
    assert differences(plain, noted(timed().drop_duplicates("id", within=5)))
    assert differences(plain, noted(timed().drop_duplicates("key", within=6)))
    assert differences(plain, noted(timed().key_by("key").lookback_window(5).agg(kv.count())))


def test_why_not_fired_and_progress_speak_of_rows() -> None:
    driver = Driver(timed().drop_duplicates("key", within=10))
    driver.send([{"id": 1, "key": "a", "at": 0}] * 3)
    assert "do not wait" in driver.why_not_fired(5)
    assert driver.progress.firings == 1 and driver.progress.open_rows == 1 and driver.open_windows == 0


def test_results_of_windows_can_be_deduplicated_and_rows_that_passed_windowed() -> None:
    rows = [{"id": 1, "key": k, "at": t} for k, t in (("a", 1), ("b", 2), ("a", 12), ("b", 30), ("a", 200))]
    counted = timed().key_by("key").tumbling_window(10).agg(kv.count())
    once = Driver(counted.drop_duplicates("key", within=100))
    actual = once.send(rows).results.to_pylist() + once.close().results.to_pylist()
    assert [(r["key"], r["window_start"]) for r in actual] == [("a", 0), ("b", 0), ("a", 200)]
    again = Driver(counted.drop_duplicates("key", within=100).tumbling_window(50).agg(kv.sum("count").alias("n")))
    actual = again.send(rows).results.to_pylist() + again.close().results.to_pylist()
    assert [(r["window_start"], r["n"]) for r in actual] == [(0, 2), (200, 1)]
