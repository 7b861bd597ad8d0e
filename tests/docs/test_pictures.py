"""The pictures of the docs show what the examples of their pages give, and each page that has one names it."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from scripts.docs import pictures


@pytest.mark.parametrize("page", pictures.PAGES)
def test_pictures_are_those_that_the_examples_give(page: str) -> None:
    drawn = pictures.drawn(page)
    assert set(drawn) == set(pictures.PAGES[page]), "each picture is on its page"
    for name, text in drawn.items():
        kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert kept == text, f"run python scripts/docs/pictures.py ({name})"


def test_every_picture_is_of_a_page_and_lies_within_its_frame() -> None:
    names = {name for page in pictures.PAGES.values() for name in page}
    assert {file.stem for file in pictures.FOLDER.glob("*.svg")} == names
    for file in pictures.FOLDER.glob("*.svg"):
        root = ET.parse(file).getroot()
        width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for name, value in element.attrib.items():
                if name in ("x", "x1", "x2", "cx"):
                    assert 0 <= float(value) <= width, (file.name, element.attrib)
                if name in ("y", "y1", "y2", "cy"):
                    assert 0 <= float(value) <= height, (file.name, element.attrib)
        sizes = [float(size) for size in re.findall(r"font(?:-size)?:(?:bold )?([\d.]+)px", file.read_text(encoding="utf-8"))]
        assert min(sizes) >= 13, "smaller letters cannot be read on a telephone"
        assert not re.search(r"(?:href|url\()", file.read_text(encoding="utf-8")), "nothing is loaded"
