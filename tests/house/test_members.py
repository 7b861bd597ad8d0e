"""Completion tells the truth: an object has the members that its reference documents, and no others."""

from __future__ import annotations

import importlib
import inspect
import re
from enum import Enum

import attrs

from tests.house.test_reference import DOCS, entries

LISTED = re.compile(r"^(\*{0,2}\w+(?:, \w+)*)(?: : .*)?\n    \S", re.MULTILINE)
"""An entry of a section of a docstring."""


def classes() -> dict[str, type]:
    """Return the classes of the reference by their entries."""
    places = [(entry, *entry.rpartition(".")[::2]) for entry in entries() if entry != "krishiv_py.errors"]
    actual = {entry: getattr(importlib.import_module(module), name) for entry, module, name in places}
    return {entry: cls for entry, cls in actual.items() if inspect.isclass(cls) and not issubclass(cls, (BaseException, Enum))}


def bases(cls: type) -> list[type]:
    """Return the class and those of the library that it is derived from."""
    return [base for base in cls.__mro__ if base.__module__.startswith("krishiv_py")]


def documented(cls: type) -> set[str]:
    """Return the members that a page shows: those with a text of their own, and those that the text of the class lists."""
    actual: set[str] = set()
    for base in bases(cls):
        actual |= {name for name, member in vars(base).items() if is_method(member) and member.__doc__}
        for names in LISTED.findall(inspect.cleandoc(base.__doc__ or "")):
            actual |= set(names.split(", "))
    return actual


def is_method(member: object) -> bool:
    """Return whether a member of a class is a method or a property."""
    return isinstance(member, (property, classmethod, staticmethod)) or inspect.isroutine(member)


def members(cls: type) -> set[str]:
    """Return the names that the library's part of an object offers to completion."""
    fields = {field.name for field in attrs.fields(cls)} if attrs.has(cls) else set()
    own = {name for base in bases(cls) for name in vars(base)}
    return {name for name in own | fields if not name.startswith("_")}


def test_an_object_has_the_members_that_its_reference_documents() -> None:
    """What only the library uses begins with an underscore; what a user reads is listed under Attributes or Parameters."""
    unknown = {entry: sorted(members(cls) - documented(cls)) for entry, cls in classes().items()}
    assert {entry: names for entry, names in unknown.items() if names} == {}


def test_pages_list_no_members_by_hand() -> None:
    """A page takes the members of a class from the class, so that a new one is shown without an edit."""
    pages = (DOCS / "reference").glob("*.md")
    assert [page.name for page in pages if re.search(r"^ +(inherited_)?members: \[", page.read_text(), re.MULTILINE)] == []
