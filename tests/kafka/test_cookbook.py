"""The cookbook's program from Kafka to Kafka runs as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from krishiv_py.testing.broker import Broker

PROGRAM = Path(__file__).parents[2] / "examples" / "cookbook" / "kafka_counts.py"


def test_it_runs(broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), broker.address])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert "every result once" in capsys.readouterr().out
