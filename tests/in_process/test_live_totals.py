"""The web service whose readers see a running total change: over server-sent events, as a page reads them."""

from __future__ import annotations

import pytest

from examples import live_totals


def test_each_reader_has_the_totals_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    live_totals.main(readers=2, orders=10)
    assert "2 readers, each with the same totals" in capsys.readouterr().out
