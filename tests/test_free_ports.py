"""Ports of servers of tests: others than the system gives by itself, so that a client left over meets no socket of others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from krishiv_py.testing.broker import _HIGHEST, _LOWEST, free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux tells the range")
def test_ports_lie_outside_of_the_systems_own_range() -> None:
    low, high = map(int, RANGE.read_text().split())
    actual = free_ports(50)
    assert len({*actual}) == 50
    if low > _LOWEST or high < _HIGHEST:  # else there are no others
        assert not [port for port in actual if low <= port <= high]


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = iter([taken.getsockname()[1], *free_ports(1)])
        monkeypatch.setattr("krishiv_py.testing.broker.secrets.choice", lambda _: next(given))
        assert free_ports(1) != [taken.getsockname()[1]]
