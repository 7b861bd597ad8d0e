"""What pages write in code is there: keyword arguments of calls, attributes of public classes, options of the command."""

from __future__ import annotations

import argparse
import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from krishiv_py.cli.main import parser
from tests.house.test_reference import entries

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {str(path.relative_to(ROOT)): path.read_text() for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]}
OF_OTHERS: Final = {
    *(("trigger", "availableNow"), ("trigger", "processingTime"), ("SlidingWindows", "ofTimeDifferenceAndGrace")),
    *(("connect", "isolation_level"), ("watermark", "lagg")),
}
"""Names of Spark, Kafka Streams and SQLite that are ours too, with what they have there; and a mistake that a page shows."""


def offered() -> dict[str, Any]:
    """Return what has an entry in the reference, by the last part of its name."""
    return {name.rpartition(".")[2]: pkgutil.resolve_name(name) for name in entries()}


def pieces(text: str) -> Iterator[str]:
    """Return the code of a page: blocks of Python, examples with prompts, and code between backquotes."""
    yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        yield "\n".join(re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", block, re.MULTILINE))
    for code in re.findall(r"`([^`\n]+)`", text):
        yield code if code[0] != "." else f"x{code}"


def calls(text: str) -> Iterator[ast.Call]:
    """Return the calls of the code of a page, where it is code of Python."""
    for piece in pieces(text):
        try:
            tree = ast.parse(piece)
        except SyntaxError:
            continue
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def taken() -> dict[str, set[str] | None]:
    """Return the parameters of all functions, classes and methods of a name; None where one takes any."""
    result: dict[str, set[str] | None] = {}

    def add(name: str, thing: Any) -> None:
        try:
            parameters = inspect.signature(thing).parameters.values()
        except (TypeError, ValueError):
            return
        known = result.setdefault(name, set())
        if known is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            result[name] = None
        else:
            known.update(parameter.name for parameter in parameters)

    for name, thing in offered().items():
        add(name, thing)
    for thing in offered().values():
        for name in dir(thing) if inspect.isclass(thing) else ():
            if not name.startswith("_") and callable(member := getattr(thing, name)):
                add(name, member)
    return result


def test_arguments_on_pages_are_taken() -> None:
    known, looked_at, wrong = taken(), 0, set()
    for page, text in PAGES.items():
        for call in calls(text):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            parameters = known.get(name)
            for word in (word.arg for word in call.keywords if word.arg and parameters is not None):
                looked_at += 1
                if word not in (parameters or ()) and (name, word) not in OF_OTHERS:
                    wrong.add((page, name, word))
    assert wrong == set() and looked_at > 300


def test_attributes_on_pages_are_there() -> None:
    known, looked_at, wrong = offered(), 0, set()
    for page, text in PAGES.items():
        for owner, name in (named for code in pieces(text) for named in re.findall(r"\b([A-Z]\w+)\.(\w+)", code)):
            if inspect.isclass(known.get(owner)) and (owner, name) not in OF_OTHERS:
                looked_at += 1
                if not hasattr(known[owner], name) and name not in fields(known[owner]):
                    wrong.add((page, owner, name))
    assert wrong == set() and looked_at > 120


def fields(owner: type) -> set[str]:
    """Return what the instances of a class have, by its annotations."""
    return {name for base in owner.__mro__ for name in vars(base).get("__annotations__", ())}


def test_options_of_the_command_on_pages_are_there() -> None:
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    looked_at = 0
    for page, text in PAGES.items():
        for command, rest in re.findall(r"(?:`|^|\$ )krishiv ([a-z]+)\b([^`\n]*)", text, re.MULTILINE):
            options = {option for action in commands.choices[command]._actions for option in action.option_strings}
            for option in re.findall(r"(?<=\s)--[a-z-]+", rest.partition("#")[0]):
                looked_at += 1
                assert option in options, (page, command, option)
    assert looked_at > 20
