"""What is made of the definitions of functions is up to date."""

from __future__ import annotations

import pytest

from krishiv_py import Expr
from krishiv_py.functions.known import FUNCTIONS
from scripts import functions


@pytest.mark.parametrize("path", [functions.METHODS, functions.PAGE, functions.REFERENCE], ids=lambda path: str(path.name))
def test_methods_and_pages_are_those_of_the_definitions(path: object) -> None:
    """``python -m scripts.functions`` writes them."""
    wanted = {str(p): text for p, text in functions.files().items()}
    with open(str(path), encoding="utf-8") as file:
        assert file.read() == wanted[str(path)]


def test_every_public_method_of_columns_is_on_a_page() -> None:
    public = {n for n in dir(Expr) if n[0] != "_" and callable(getattr(Expr, n))} - {"children", "parts"}
    listed = {*functions.own_methods(), *(f.method for f in FUNCTIONS.values() if f.method)}
    assert public == listed
    page = functions.PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(public) if f".{name}(" not in page] == []


def test_a_family_of_definitions_has_a_place() -> None:
    assert {f.family for f in FUNCTIONS.values()} <= set(functions.FAMILIES)
