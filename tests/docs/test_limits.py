"""The table of what goes with what is the one that the planner gives."""

from __future__ import annotations

from scripts.docs import limits


def test_the_page_has_the_table_of_the_planner() -> None:
    assert limits.PAGE.read_text(encoding="utf-8") == limits.page(), "run python -m scripts.docs.limits"
