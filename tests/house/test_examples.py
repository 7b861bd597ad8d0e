"""Every entry of the reference of streams, windows, sinks, sources, sessions, queries and their options has an example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.test_reference import DOCS

PAGES = ("streams", "windows", "sinks", "connectors", "sessions", "queries", "testing", "watermarks", "late-rows", "firing")
WITHOUT = {
    "krishiv_py.PostgresSink.table_id": "what the library compares tables of queries by",
    "krishiv_py.DeltaSink.table_id": "what the library compares tables of queries by",
    "krishiv_py.SqliteSink.table_id": "what the library compares tables of queries by",
    "krishiv_py.IcebergSink.table_id": "what the library compares tables of queries by",
    "krishiv_py.Session.streams": "the old name of queries",
    "krishiv_py.testing.Driver.try_add": "the old place of krishiv_py.compat.try_add",
    "krishiv_py.CountingLateEventHandler.handle": "what a query calls",
    "krishiv_py.CountByKeyLateEventHandler.handle": "what a query calls",
    "krishiv_py.SideOutputLateEventHandler.handle": "what a query calls",
}
"""Entries without an example, with the reason."""


def code_of(thing: Any) -> str:
    """Return the lines of code of the examples of a docstring."""
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)", thing.__doc__ or "", re.M))


def function_of(member: object) -> Any:
    """Return the function of a method or property; None for what is neither."""
    member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return inspect.unwrap(member) if inspect.isfunction(member) else None


def entries(page: str) -> Iterator[tuple[str, Any]]:
    """Give the entries of a page: functions and classes by their names."""
    for name in re.findall(r"^::: (\S+)", (DOCS / "reference" / f"{page}.md").read_text(), re.M):
        module, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(module), attribute)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield name, thing


def without_example(owner: type) -> list[str]:
    """Return the public methods and properties of a class that have no example."""
    return [name for name in dir(owner) if name[0] != "_" and lacks(name, owner)]


def lacks(name: str, owner: type) -> bool:
    """Return whether neither the docstring of a member nor that of a class that has it, too, uses it in an example."""
    member = function_of(inspect.getattr_static(owner, name))
    if member is None or ">>>" in (member.__doc__ or ""):
        return False
    used = re.compile(rf"\.{name}\b|def {name}\b|^\s*{name} =", re.M)
    return not any(hasattr(base, name) and used.search(code_of(base)) for base in owner.__mro__[:-1])


@pytest.mark.parametrize("page", PAGES)
def test_every_entry_has_an_example(page: str) -> None:
    """It is in the docstring of the method, or that of the class uses it: where users implement it, and what sinks share."""
    without = []
    for entry, thing in entries(page):
        if ">>>" not in (inspect.unwrap(thing).__doc__ or ""):
            without.append(entry)
        if inspect.isclass(thing):
            without += [f"{entry}.{name}" for name in without_example(thing)]
    assert [name for name in without if name not in WITHOUT] == []


@pytest.mark.parametrize("entry", WITHOUT)
def test_an_entry_that_may_lack_an_example_lacks_it(entry: str) -> None:
    owner, _, name = entry.rpartition(".")
    module, _, attribute = owner.rpartition(".")
    assert lacks(name, getattr(importlib.import_module(module), attribute))
