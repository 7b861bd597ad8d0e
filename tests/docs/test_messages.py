"""The error index has each class of errors, and its tables have the messages of the code with their hints."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.docs import messages

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


def test_each_class_has_a_section_with_its_messages() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert set(sections) == {*messages.CLASSES} - {"KrishivError"}
    assert re.findall(r"<!-- messages of (\w+) -->", PAGE) == sections


def test_messages_have_what_to_write() -> None:
    by_class = messages.messages()
    texts = [hints for of_class in by_class.values() for hints in of_class.values()]
    assert len(texts) > 700
    assert sum(map(bool, texts)) > 0.7 * len(texts)
    assert messages.table("ColumnError").startswith("| Message | What to write |\n|---|---|\n| ")


def test_a_cell_is_one_line_of_plain_text() -> None:
    for name in messages.CLASSES:
        for line in messages.table(name).splitlines():
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, line
