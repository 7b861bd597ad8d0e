"""The lesson's conjunction correlator: which orbital objects were seen close to each other within 30 seconds?

Observations of several sensors arrive out of order. They are keyed by orbital shell; every one is paired with those of other
objects in its shell that were made at most 30 seconds before it, and pairs nearer than 5 km come out as conjunctions. Fixed
30-second buckets would miss every pair that straddles a boundary; the example counts how many.

    python examples/conjunctions.py

Runs in memory, without Spark; on a session the same pipeline is started with ``.start(sink)``.
"""

from __future__ import annotations

import random
from typing import TypedDict

from krishiv_py.testing import Driver, stream_of

WINDOW_MS = 30_000
LAG_MS = 2_000
NEAR_KM = 5.0
CONJUNCTION = f"""
    left_object <> right_object
    AND abs(left_x - right_x) < {NEAR_KM} AND abs(left_y - right_y) < {NEAR_KM}
"""


class Observation(TypedDict):
    """One sighting of one object by one sensor."""

    sensor: str
    object: int
    shell: str
    at: int
    x: float
    y: float


def observations(n: int) -> list[Observation]:
    """Sightings in order of arrival: radar reports at once, the optical sensor up to two seconds later."""
    rng = random.Random(4711)
    seen: list[tuple[int, Observation]] = []
    for i in range(n):
        moment = 1_700_000_000_000 + i * 40
        sensor, delay = rng.choice([("radar", 0), ("optical", rng.randrange(LAG_MS))])
        row: Observation = {
            "sensor": sensor,
            "object": rng.randrange(200),
            "shell": rng.choice(["LEO", "MEO", "GEO"]),
            "at": moment,
            "x": rng.uniform(0, 400),
            "y": rng.uniform(0, 400),
        }
        seen.append((moment + delay, row))
    return [row for _, row in sorted(seen, key=lambda pair: pair[0])]


def one_by_one(rows: list[Observation]) -> set[tuple[int, int, int, int]]:
    """The same question, answered by looking at every two rows."""
    result = set()
    ordered = sorted(rows, key=lambda row: row["at"])
    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            if b["at"] - a["at"] > WINDOW_MS:
                break
            near = abs(a["x"] - b["x"]) < NEAR_KM and abs(a["y"] - b["y"]) < NEAR_KM
            if near and a["shell"] == b["shell"] and a["object"] != b["object"]:
                result.add((a["object"], a["at"], b["object"], b["at"]))
    return result


def main() -> None:
    """Correlate, check, report."""
    stream = stream_of("sensor string, object bigint, shell string, at bigint, x double, y double")
    conjunctions = stream.watermark("at", LAG_MS).key_by("shell").lookback_window(WINDOW_MS).pairs(CONJUNCTION)
    rows = observations(2_000)
    driver = Driver(conjunctions)
    outputs = [driver.send(rows[i : i + 100]) for i in range(0, len(rows), 100)]
    outputs.append(driver.close())
    result = [pair for out in outputs for pair in out.results.to_pylist()]

    pairs = {(p["left_object"], p["left_at"], p["right_object"], p["right_at"]) for p in result}
    assert len(pairs) == len(result), "a pair came out twice"
    assert pairs == one_by_one(rows), "not the pairs that were close to each other"
    assert not any(out.late.num_rows for out in outputs)

    straddling = sum(p["left_at"] // WINDOW_MS != p["right_at"] // WINDOW_MS for p in result)
    assert straddling > 0
    print(f"{len(rows)} observations, {len(result)} conjunctions; fixed 30-second buckets would miss {straddling}")
    first = min(result, key=lambda p: (p["right_at"], p["left_at"]))
    print(
        f"the first: objects {first['left_object']} and {first['right_object']} in {first['left_shell']}, "
        f"{first['right_at'] - first['left_at']} ms apart"
    )


if __name__ == "__main__":
    main()
