"""On a machine that is not in UTC answers about times are the same, on every engine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("zones")  # the answers in UTC are made once
ZONES = ("America/New_York", "Asia/Kolkata")


def printed(engine: str, zone: str) -> list[str]:
    """What the program prints on a machine in a zone."""
    command = [sys.executable, "-m", "tests.engines.zones", engine]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "TZ": zone}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


@functools.cache
def in_utc() -> list[str]:
    """Return the answers of the driver in UTC."""
    return printed("driver", "UTC")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("zone", ZONES)
def test_on_the_driver(zone: str) -> None:
    assert printed("driver", zone) == in_utc()
    assert len(in_utc()) > 10


def by_driver(names: Sequence[str] | None = None) -> set[str]:
    """Return those that Spark gives, too; ``tests/spark/test_examples.py`` looks for some of them in each run."""
    answers = {line.partition(":")[0]: line for line in in_utc() if not line.startswith("shown")}
    return {answers[name] for name in names or answers}


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark() -> None:
    wanted = printed("spark", "UTC")
    assert {line.partition(":")[0] for line in set(wanted) - by_driver()} == {"sql", "json", "read", "frame", "made"}
    assert by_driver() < set(wanted)
    for zone in ZONES:
        assert printed("spark", zone) == wanted
