"""After kills of all that a query needs, every target holds each row once, as the driver and a plain computation give it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krishiv_py.testing.broker import Broker
from tests.kills.campaign import campaign, one_run
from tests.kills.job import KINDS
from tests.tables.server import Server

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s kills` sets 100, of all kinds together
SEED = int(os.environ.get("KRISHIV_SEED", "0"))
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.slow  # in each run a job in process goes on after a kill, and a query on Spark in tests/crash
@pytest.mark.skipif(KILLS > 1, reason="the long form has more")
def test_some(broker: Broker, server: Server, tmp_path: Path) -> None:
    left, run = ["broker"], 0  # tests/crash kills the process tree
    while left:  # on a machine with other work a job may end before its kill
        assert run < 3, f"three jobs end before they can be killed: {left}"
        killed, _ = one_run("all", left, SEED + run, broker, server, tmp_path)
        left, run = left[killed:], run + 1


@pytest.mark.skipif(KILLS == 1, reason="nox -s kills")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_doubled(kind: str, broker: Broker, server: Server, tmp_path: Path) -> None:
    each = -(-KILLS // len(KINDS))
    assert campaign(kind, each, SEED, broker, server, tmp_path) == each
