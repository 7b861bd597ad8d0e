"""The reference on the site has every public name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import krishiv_py

DOCS = Path(__file__).parents[2] / "docs"
BESIDES = {"krishiv_py": {"max", "min", "sum"}}
"""Public names that a star import leaves out."""
NOT_FOR_USERS = {"krishiv_py.metrics.seconds"}
FACES = [m.name for m in pkgutil.iter_modules(krishiv_py.__path__, "krishiv_py.") if m.name != "krishiv_py.spark"]
PUBLIC = [
    "krishiv_py",
    "krishiv_py.display.plots",
    "krishiv_py.logs",
    *(face for face in FACES if hasattr(importlib.import_module(face), "__all__")),
]
"""Modules a user imports from: also every room at the top whose face has an ``__all__``."""


def entries() -> list[str]:
    """What the pages of the reference ask for, by full names."""
    return [
        name for page in sorted((DOCS / "reference").glob("*.md")) for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    ]


def public_names(module: str) -> set[str]:
    """What a module offers: its ``__all__``, or the functions it defines where it has none."""
    loaded = importlib.import_module(module)
    defined = {n for n, v in vars(loaded).items() if inspect.isfunction(v) and v.__module__ == module and n[0] != "_"}
    return {*getattr(loaded, "__all__", defined), *BESIDES.get(module, ())}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module: str) -> None:
    """A new one gets a line ``::: krishiv_py.name`` in the page of docs/reference where a reader looks for it."""
    missing = {f"{module}.{name}" for name in public_names(module)} - set(entries())
    assert missing - NOT_FOR_USERS == set()


def test_every_entry_is_there_once_and_names_something() -> None:
    actual = entries()
    assert sorted(set(actual)) == sorted(actual)
    for name in actual:
        thing: object = krishiv_py
        if name.count(".") > 1:
            thing = importlib.import_module(name.rpartition(".")[0])
        assert hasattr(thing, name.rpartition(".")[2]), name


def test_the_contents_name_every_entry() -> None:
    listed = re.findall(r"\]\[(krishiv_py[\w.]*)\]", (DOCS / "reference" / "index.md").read_text())
    assert sorted(listed) == sorted(name for name in entries() if name != "krishiv_py.errors")


def test_every_rule_that_is_cited_is_in_the_semantics() -> None:
    """Docstrings, errors and pages name rules such as §2.3; the site links them."""
    rules = (DOCS / "semantics.md").read_text()
    known = set(re.findall(r"^## §(\d+)", rules, re.M))
    for start in re.findall(r"^\*\*((?:§\d+\.\d+(?:, )?)+)", rules, re.M):
        known.update(re.findall(r"[\d.]+", start))
    files = [*DOCS.glob("*.md"), *(DOCS.parent / "krishiv_py").rglob("*.py")]
    cited = {rule: path.name for path in files for rule in re.findall(r"§(\d+(?:\.\d+)?)", path.read_text())}
    assert {rule: name for rule, name in cited.items() if rule not in known} == {}


def test_the_tutorial_shows_what_its_example_runs() -> None:
    program = (DOCS.parent / "examples" / "tutorial.py").read_text()
    shown = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.S)
    assert len(shown) == 3
    assert [block for block in shown if block not in program] == []


def test_the_tutorial_runs_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Block after block in one Python, with nothing that the page does not say."""
    page = (DOCS / "tutorial.md").read_text()
    given: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "tutorial.md", "exec"), given)
    printed = re.search(r"```text\n(\{'sensor'.*?)```", page, re.S)
    assert printed is not None and capsys.readouterr().out == printed[1]
