"""The table of what becomes of state is the one that the code gives."""

from __future__ import annotations

from scripts.docs import changes


def test_the_page_has_the_table_of_the_code() -> None:
    assert changes.PAGE.read_text(encoding="utf-8") == changes.page(), "run python -m scripts.docs.changes"
