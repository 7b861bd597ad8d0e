"""Tests that share a server run in one process: what the test runner promises, and did not keep in every version."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("house")
def test_a_group_is_part_of_what_the_test_runner_calls_a_test(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput") or not request.config.getoption("loadgroup", False):
        pytest.skip("one process, or groups are not asked for")
    assert request.node.nodeid.endswith("@house")
