"""After kills of ``krishiv run``, of broker and database, every target holds each row once, as the driver gives it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krishiv_py.testing.broker import Broker
from tests.kills.in_process import WHAT, campaign, one_run
from tests.tables.server import Server

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s kills` sets 100, and in process there are three times as many
SEED = int(os.environ.get("KRISHIV_SEED", "0"))


@pytest.mark.skipif(KILLS > 1, reason="the long form has more")
def test_a_job_goes_on_after_a_kill(broker: Broker, server: Server, tmp_path: Path) -> None:
    for seed in range(3):  # on a machine with other work a job may end before its kill
        if one_run("tumbling", "memory", ["worker", "tree"], seed, broker, server, tmp_path)[0].kills == ["worker", "tree"]:
            return
    pytest.fail("three jobs end before they can be killed")


@pytest.mark.skipif(KILLS == 1, reason="nox -s kills")
def test_nothing_is_lost_or_doubled(broker: Broker, server: Server, tmp_path: Path) -> None:
    done = campaign(3 * KILLS, SEED, broker, server, tmp_path)
    assert sum(done[what] for what in WHAT) == 3 * KILLS
