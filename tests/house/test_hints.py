"""What a hint tells to write is there: its calls, their arguments, its commands; and it is Python that parses."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import krishiv_py
from krishiv_py.cli import main as cli
from krishiv_py.functions.known import FUNCTIONS
from tests.house.test_reference import entries

pytestmark = pytest.mark.xdist_group("texts")  # which are read once
ROOM: Final = Path(krishiv_py.__file__).parent
HOLE: Final = "HOLE"
"""Stands for what only a run knows."""
NO_HINTS: Final = {"ui.py", "page.py", "html.py", "agreement.py", "postgres.py", "transient.py", "json_values.py"}
"""Files whose other texts are HTML, SQL of a database, programs or patterns; their hints call nothing."""
CALL: Final = re.compile(r"(?<![\w.`$\\])(\.?[A-Za-z_][\w.]*)\(")
OF_OTHERS: Final = {
    *("str", "round", "float", "list", "sorted", "dir", "help", "divmod", "glob", "run", "result", "exit", "replace", "slice"),
    *("date", "time", "timedelta", "Decimal", "decode", "encode", "timestamp", "fromtimestamp", "combine", "astype"),
    *("timedelta64", "to_frame", "from_pylist", "to_pylist", "float64", "int32", "listTables", "withWatermark"),
    *("run_coroutine_threadsafe", "function", "pipeline", "MyAggregator", "executor"),
}
"""Names of Python, NumPy, Arrow, pandas and PySpark, and of a reader's own functions."""
SQL: Final = re.compile(r"[A-Z][A-Z_0-9]+|explode|posexplode|tumble(?:_start)?|hop|session|t|if|startswith|endswith|decimal")


def public() -> dict[str, list[inspect.Signature | None]]:
    """Return what can be called, by its last name: functions, classes and their methods; None where no signature is known."""
    made = defaultdict[str, list[inspect.Signature | None]](list)

    def add(name: str, thing: Any, *, bound: bool = False) -> None:
        try:
            signature = inspect.signature(thing)
        except (ValueError, TypeError):
            made[name].append(None)
            return
        parameters = list(signature.parameters.values())
        if bound and parameters and parameters[0].name == "self":
            signature = signature.replace(parameters=parameters[1:])
        made[name].append(signature)

    for entry in entries():
        module, _, name = entry.rpartition(".")
        thing = getattr(importlib.import_module(module), name)
        if callable(thing):
            add(name, thing)
        if inspect.isclass(thing):
            for member in (member for member in dir(thing) if member[0] != "_" and callable(getattr(thing, member, None))):
                static = isinstance(inspect.getattr_static(thing, member), (staticmethod, classmethod))
                add(member, getattr(thing, member), bound=not static)
    return made


PUBLIC: Final = public()


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return the texts for readers, without docstrings, with their places."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOM.rglob("*.py")):
        if path.name in NO_HINTS or path.parent.name == "sql":  # tests/sql has cases of its hints
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in ast.walk(node) if part is not node}
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                text = node.value
            if " " in text and not text.startswith("<"):
                yield f"{path.relative_to(ROOM)}:{getattr(node, 'lineno', 0)}", text


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a text calls, each with the text of the call up to its closing bracket."""
    for match in CALL.finditer(text):
        depth, quote = 0, ""
        for place in range(match.end() - 1, len(text)):
            sign = text[place]
            if quote:
                quote = "" if sign == quote else quote
            elif sign in "\"'" and not (sign == "'" and text[place - 1].isalpha()):
                quote = sign
            elif sign in "([{":
                depth += 1
            elif sign in ")]}":
                depth -= 1
            if depth == 0:
                yield match[1].rpartition(".")[2], text[match.start() : place + 1]
                break
        else:
            yield match[1].rpartition(".")[2], text[match.start() :]


NO_CODE: Final = re.compile(
    r"cast\(\w+ as|max\(event time|max\(a, b\)|KafkaSink\(HOLE|\w+\((?:columns|validity|on)\)|\.?\w+\($"
)
"""Text of SQL, of built-in functions, names of arguments of a call, and how a text begins."""


def is_of_python(name: str, call: str) -> bool:
    """Return whether a call is one that Python has to read: of a public name, and not of SQL."""
    return name in PUBLIC and not (name in FUNCTIONS and name not in vars(krishiv_py)) and not NO_CODE.match(call)


def test_every_call_in_a_text_is_of_something_that_exists() -> None:
    unknown = []
    for where, text in texts():
        for name, _ in calls(text):
            known = name in PUBLIC or name in OF_OTHERS or name.lower() in FUNCTIONS or HOLE in name
            if not known and not SQL.fullmatch(name):
                unknown.append(f"{where} {name}( in: {text[:90]}")
    assert unknown == []


def fault(call: str) -> str | None:
    """Return why a call cannot be written as it is; None if it can."""
    try:
        node = ast.parse(f"x{call}" if call.startswith(".") else call, mode="eval").body
    except SyntaxError as problem:
        return f"does not parse: {problem.msg}"
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    signatures = PUBLIC.get(name, [None])
    if None in signatures or HOLE in name:
        return None
    names = [word.arg for word in node.keywords if word.arg is not None and HOLE not in word.arg]
    has_rest = any(isinstance(arg, (ast.Starred, ast.Constant)) and getattr(arg, "value", 0) is ... for arg in node.args)
    plain = [arg for arg in node.args if not (isinstance(arg, ast.Constant) and arg.value is ...)]
    for signature in signatures:
        assert signature is not None
        try:
            bound = signature.bind_partial(*plain, **dict.fromkeys(names))
        except TypeError:
            continue
        needed = [
            p.name
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        if has_rest or HOLE in call or not node.args + node.keywords or set(needed) <= set(bound.arguments):
            return None
    return f"does not fit {' or '.join(map(str, signatures))}"


def test_calls_in_texts_parse_and_have_arguments_that_are_taken() -> None:
    faults = []
    for where, text in texts():
        for name, call in calls(text):
            if is_of_python(name, call) and (why := fault(call)) is not None:
                faults.append(f"{where} {call}: {why}")
    assert faults == []


def test_types_in_errors_are_named_as_schema_texts_name_them() -> None:
    """Arrow's own names, such as int64, are no types of a schema or a cast."""
    arrow = []
    for path in sorted(ROOM.rglob("*.py")):
        parts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword)]
        for part in (part for part in parts if part.arg in ("got", "then", "hint")):
            for node in ast.walk(part.value):
                shown = node.value if isinstance(node, ast.FormattedValue) else None
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
                    shown = node.args[0]
                if isinstance(shown, ast.Attribute) and shown.attr in ("type", "value_type"):
                    arrow.append(f"{path.relative_to(ROOM)}:{shown.lineno} {ast.unparse(shown)}")
    assert arrow == []


WORD: Final = re.compile(r"(?<![\w.\"'/?&;-])([a-z_]\w+)=(?=[\[{(\"'\w.])")
SETTINGS: Final = {
    "dbname",
    "host",
    "user",
    "openjdk",
    "use_ssl",
    "tz",
    "id",
    "header",
    "total",
    "late_rule",
    "tzinfo",
    "before",
}
"""Parts of addresses, of SQL and of commands, of Python's own calls, and names of a reader's own."""


def test_every_argument_that_a_text_names_is_one() -> None:
    known = {p for signatures in PUBLIC.values() for s in signatures if s is not None for p in s.parameters}
    known |= {field.name for cls in map(_class, entries()) if cls is not None and attrs.has(cls) for field in attrs.fields(cls)}
    unknown = []
    for where, text in texts():
        for name in WORD.findall(text):
            if name not in known | SETTINGS and HOLE not in name and f"timedelta({name}=" not in text:
                unknown.append(f"{where} {name}= in: {text[:90]}")
    assert unknown == []


def _class(entry: str) -> type | None:
    module, _, name = entry.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    return thing if inspect.isclass(thing) else None


def commands() -> dict[str, set[str]]:
    """Return the commands of ``krishiv``, each with its options."""
    (subparsers,) = [
        action for action in cli.parser()._actions if hasattr(action, "choices") and isinstance(action.choices, dict)
    ]
    return {
        name: {option for action in parser._actions for option in action.option_strings}
        for name, parser in dict(subparsers.choices or {}).items()
    }


def test_every_command_and_option_that_a_text_names_is_one() -> None:
    known, unknown = commands(), []
    for where, text in texts():
        for command, rest in re.findall(r"`?\bkrishiv ([a-z]+)\b([^`;,:]*)", text):
            if command not in known:
                unknown.append(f"{where} krishiv {command}")
            unknown += [
                f"{where} {option} of {command}"
                for option in re.findall(r"(?<![\w-])(--[a-z-]+)", rest)
                if command in known and option not in known[command]
            ]
    assert unknown == []
