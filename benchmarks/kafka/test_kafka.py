"""What needs no broker: the events as JSON, and the table."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import evolve

from benchmarks.data import Spec, draw
from benchmarks.kafka.report import latencies, read, table, write
from benchmarks.kafka.topics import values
from benchmarks.record import Record

MACHINE = {"processor": "AMD EPYC"}


def test_a_value_holds_the_row_it_was_made_of() -> None:
    rows = draw(Spec(2_000, "K"), 3)
    result = [json.loads(value) for value in values(rows)]
    assert [f["event_time"] * 1_000 for f in result] == rows["event_time"].cast("int64").to_pylist()
    assert [(f["user_id"], f["amount"]) for f in result] == list(
        zip(rows["user_id"].to_pylist(), rows["amount"].to_pylist(), strict=True)
    )
    assert all(0 <= f["user_id"] < 5_000 for f in result)


def test_only_checked_turns_count_and_a_round_is_compared_with_its_own(tmp_path: Path) -> None:
    leg = {"cpu_s": 30.0, "wall_s": 20.0, "peak_pss_mb": 900.0, "exit_code": 0, "timed_out": False}
    first = Record(
        "kafka",
        "J1",
        "2,000,000, 5,000",
        "krishiv",
        0,
        42,
        "event",
        2_000_000,
        leg,
        100_000,
        {**leg, "cpu_s": 20.0},
        machine=MACHINE,
    )
    good = evolve(first, verdict={"ok": True}, started="2026-01-01T08:00")
    slow = evolve(good, side="native_rocksdb", long={**leg, "cpu_s": 60.0})
    turns = [good, slow, evolve(good, round=1, started="2026-01-01T09:00", long={**leg, "cpu_s": 40.0})]
    turns += [
        evolve(slow, round=1, started="2026-01-01T09:00"),
        evolve(slow, verdict={"ok": False}, long={**leg, "cpu_s": 1.0}),
    ]
    for turn in turns:
        write(turn, tmp_path / "kafka.jsonl")
    lines = table(read(tmp_path / "kafka.jsonl")).splitlines()
    assert lines[2].startswith("| AMD EPYC | 2,000,000, 5,000 | J1 | krishiv | 2 | 35.0 (20.0) |")
    assert lines[3].endswith("| 60.0 (20.0) | 48 | 20.0 | 900 | 3.00 (2.00, 4.00) |  |")


def test_latencies_have_a_table_of_their_own() -> None:
    leg = {"cpu_s": 70.0, "wall_s": 120.0, "peak_pss_mb": 900.0, "exit_code": 0, "timed_out": False}
    first = Record(
        "kafka latency",
        "S1",
        "5,000 a second, 5,000",
        "krishiv",
        0,
        42,
        "second",
        120,
        leg,
        40,
        {**leg, "cpu_s": 30.0},
        machine=MACHINE,
    )
    turns = [evolve(first, extra={"latency_p50_s": p50, "latency_p99_s": 3.0}) for p50 in (1.5, 2.0, 4.0)]
    assert latencies(turns).splitlines()[2:] == [
        "| AMD EPYC | 5,000 a second, 5,000 | krishiv | 3 | 0.50 | 2.00 | 3.00 | 900 |"
    ]
    assert len(table(turns).splitlines()) == 2
