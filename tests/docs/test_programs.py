"""The programs of the pages run as they are printed, block after block: those that say what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCKS: Final = {path.stem: re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL) for path in DOCS.glob("*.md")}
"""By page its blocks of Python; those with prompts are doctests."""
PAGES: Final = sorted(page for page, blocks in BLOCKS.items() if any(re.search(r"^ *assert ", block, re.M) for block in blocks))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    for number, block in enumerate(BLOCKS[page]):
        exec(compile(block, f"{page}.md, block {number}", "exec"), names)
    assert list(tmp_path.iterdir()) == [], "a program of a page leaves nothing where it is run"


def test_the_pages_that_say_what_comes_out() -> None:
    assert {"capture", "history", "savepoints", "upgrading"} <= set(PAGES) and len(PAGES) >= 7
