"""The cookbook's program of change data capture runs as it is, with a broker and a database."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from krishiv_py.testing.broker import Broker
from tests.tables.server import Server

PROGRAM = Path(__file__).parents[2] / "examples" / "cookbook" / "change_data_capture.py"


def test_it_runs(broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), broker.address, server.address()])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert "the tables are as the database is" in capsys.readouterr().out
    rows = server.rows('SELECT id, city, credit FROM "customers" ORDER BY id')
    assert rows == [(1, "Rom", 5), (3, "Rom", 9), (4, "Ulm", 7)]
