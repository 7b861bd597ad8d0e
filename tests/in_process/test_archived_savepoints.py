"""Savepoints that were written by earlier versions open, and their queries go on.

Each folder below ``archived`` is a savepoint as one library wrote it. To write one of today, run
``python -m tests.in_process.test_archived_savepoints FOLDER``; the others stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import count, sum
from krishiv_py.testing import Driver, stream_of

ARCHIVED = Path(__file__).parent / "archived"
SENT: list[Any] = [
    {
        "left": [{"user": user, "at": 1_000 * n, "amount": n + len(user)} for n, user in enumerate(["a", "bb", "a", "ccc"])],
        "right": [{"user": "a", "seen": 2_500, "price": 7}, {"user": "bb", "seen": 90_000, "price": 9}],
    },
    {
        "left": [{"user": "a", "at": 31_000, "amount": 64}, {"user": "bb", "at": 95_000, "amount": 128}],
        "right": [{"user": "a", "seen": 31_500, "price": 8}],
    },
]


def pipeline() -> Any:
    """A join, sessions of its results, and windows over these: rows, partial aggregates, spans and timers."""
    left = stream_of("user string, at bigint, amount bigint").watermark("at", "20 seconds").key_by("user")
    right = stream_of("user string, seen bigint, price bigint").watermark("seen", "20 seconds").key_by("user")
    pairs = left.interval_join(right, lower="-10 seconds", upper="10 seconds", how="left").named("pairs")
    visits = pairs.key_by("user").session_window("20 seconds").agg(count(), sum("amount").alias("total")).named("visits")
    return visits.key_by("user").tumbling_window("2 minutes").agg(sum("total").alias("total")).named("per_two_minutes")


@pytest.mark.parametrize("folder", sorted(path.name for path in ARCHIVED.iterdir()))
def test_an_archived_savepoint_opens(folder: str) -> None:
    whole = Driver(pipeline())
    expected = whole.send(SENT[0]).results.num_rows, whole.send(SENT[1]).results.to_pylist(), whole.close().results.to_pylist()
    driver = Driver(pipeline(), savepoint=str(ARCHIVED / folder))
    assert (0, driver.send(SENT[1]).results.to_pylist(), driver.close().results.to_pylist()) == expected


if __name__ == "__main__":
    first = Driver(pipeline())
    first.send(SENT[0])
    first.savepoint(sys.argv[1])
