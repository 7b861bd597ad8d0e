"""Pages about aggregates say what their definitions say."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_py.plan.aggregates.calls import DEFINITIONS
from scripts.docs import aggregates

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_made_from_the_definitions() -> None:
    """``python -m scripts.docs.aggregates`` writes it."""
    assert aggregates.PAGE.read_text() == aggregates.page()


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_the_rules_and_the_page_of_sql_name_it(name: str) -> None:
    rules = (DOCS / "semantics.md").read_text().split("**§5.6")[1].split("**Ranks**")[0]
    assert f"`{name}`" in rules or f"`{name}(" in rules
    missing = [spelled for spelled in DEFINITIONS[name].sql if f"`{spelled}" not in (DOCS / "sql.md").read_text()]
    assert not missing
