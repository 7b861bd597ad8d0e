"""The table of aims says what was missed, what was measured too seldom, and what was not measured."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from attrs import evolve

from benchmarks.aims import table
from benchmarks.record import Record
from benchmarks.summary import interleaved, summarize

NOON = datetime.fromisoformat("2026-01-01T12:00:00+00:00")


def rounds(
    job: str, side: str, cpu_s: list[float], ok: bool = True, begin: datetime = NOON, on: str = "AMD EPYC"
) -> list[Record]:
    """Records of a side over set B, an hour apart; a short run took 1 s and a tenth of the events."""

    def leg(seconds: float) -> dict[str, Any]:
        return {"cpu_s": seconds, "wall_s": seconds, "peak_pss_mb": 1.0, "exit_code": 0, "timed_out": False}

    def turn(number: int, seconds: float) -> Record:
        legs = (2_000_000, leg(seconds), 200_000, leg(1.0))
        started = (begin + timedelta(hours=number)).isoformat()
        kept = Record("backlog", job, "B-2000000", side, number, 42, "event", *legs, verdict={"ok": ok}, started=started)
        return evolve(kept, machine={"processor": on})

    return [turn(number, seconds) for number, seconds in enumerate(cpu_s)]


def verdict_of(records: list[Record], measure: str) -> str:
    """What is said of a measure."""
    (row,) = [line for line in table(summarize(records)) if line.startswith(f"| {measure}")]
    return row.split("|")[3].strip()


def test_a_ratio_is_of_medians() -> None:
    records = rounds("J1", "krishiv", [2, 3, 4, 3, 9]) + rounds("J1", "flink", [5, 9, 7, 2, 70])
    assert verdict_of(records, "of PyFlink") == "J1 3.00 (at least 0.12)", "7 - 1 CPU seconds beyond the start over 3 - 1"


def test_few_rounds_and_a_miss_are_reported() -> None:
    records = rounds("J1", "krishiv", [2] * 5) + rounds("J1", "bytewax", [3, 3]) + rounds("J4", "krishiv", [2] * 5)
    records += rounds("J4", "bytewax", [3] * 5)
    assert verdict_of(records, "of Bytewax") == "**J1 2.00 (2), missed**, J4 2.00", "J4 has a lower bound"


def test_what_failed_or_drowned_gives_no_ratio() -> None:
    records = rounds("J1", "krishiv", [2] * 5) + rounds("J1", "pathway", [9] * 5)
    records += rounds("J4", "krishiv", [2] * 5) + rounds("J4", "pathway", [9] * 5, ok=False)
    records += rounds("J5", "krishiv", [0.9]) + rounds("J5", "pathway", [9] * 5)
    assert verdict_of(records, "of Pathway") == "J1 8.00, J5 below noise (1)"
    records = rounds("J1", "krishiv", [0.9, 2, 2, 3, 2]) + rounds("J1", "pathway", [9, 8, 9, 9, 9])
    assert verdict_of(records, "of Pathway") == "J1 below noise, at least 3.50", "7 over 2, whatever the medians say"
    assert table([]) == []


def test_rounds_apart_are_distinguished_from_interleaved_ones() -> None:
    ours = rounds("J1", "krishiv", [2] * 5)
    evening = NOON + timedelta(hours=8)
    theirs = rounds("J1", "flink", [9] * 3, begin=NOON + timedelta(minutes=10)) + rounds("J1", "flink", [9] * 9, begin=evening)
    one, other = summarize(ours + theirs)
    assert (one.rounds, other.rounds, interleaved(one, other), interleaved(other, one)) == (5, 12, 3, 3)
    assert verdict_of(ours + theirs, "of PyFlink") == "J1 8.00 (3)"
    assert verdict_of(rounds("J1", "krishiv", [0.9, 2]) + theirs, "of PyFlink") == "J1 below noise, at least 8.00 (2)"


def test_a_turn_is_of_one_round_only() -> None:
    # Two of theirs close to one of ours are one pair; what lies a quarter of an hour off is of another round.
    theirs = rounds("J1", "flink", [9]) + rounds("J1", "flink", [9], begin=NOON + timedelta(minutes=1))
    one, other = summarize(rounds("J1", "krishiv", [2]) + theirs)
    assert interleaved(one, other) == 1
    one, other = summarize(rounds("J1", "krishiv", [2]) + rounds("J1", "flink", [9], begin=NOON + timedelta(minutes=16)))
    assert interleaved(one, other) == 0


def test_more_rounds_do_not_hide_the_worst() -> None:
    # However many there are: one round below the start drowns the median, one dear round is next to it.
    theirs = rounds("J1", "flink", [9] * 9)
    assert verdict_of(rounds("J1", "krishiv", [0.9] + [3] * 7 + [5]) + theirs, "of PyFlink") == "J1 below noise, at least 2.00"
    assert verdict_of(rounds("J1", "krishiv", [3.0] * 8 + [11.0]) + theirs, "of PyFlink") == "J1 4.00 (at least 0.80)"


def test_processors_are_not_mixed() -> None:
    intel = "Intel(R) Xeon(R) Processor @ 2.80GHz"
    theirs = rounds("J1", "flink", [9] * 3)
    slow = rounds("J1", "krishiv", [5] * 2, on=intel)
    assert verdict_of(rounds("J1", "krishiv", [2] * 3) + slow + theirs, "of PyFlink") == "J1 8.00 (3)"
    assert not [line for line in table(summarize(slow + theirs)) if line.startswith("| of PyFlink")]
    both = rounds("J1", "krishiv", [2] * 3) + slow + theirs + rounds("J1", "flink", [13] * 2, on=intel)
    assert verdict_of(both, "of PyFlink") == "J1 3.00", "12 over 4 there, 8 over 1 here; five rounds in all"
    assert {s.processor for s in summarize(both)} == {"AMD EPYC", "Intel Xeon"}
