"""The messages of errors, read from the code: what is wrong and what to write, by class. A page of the site shows them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from krishiv_py import errors

PACKAGE: Final = Path(errors.__file__).parent
CLASSES: Final = tuple(name for name, kind in vars(errors).items() if isinstance(kind, type) and name.endswith("Error"))
_ANY: Final = "…"
"""What stands for a value that only a run knows."""


Known: TypeAlias = dict[str, list[str]]
"""The texts that a name can be."""


def _alternatives(node: ast.expr | None, known: Known) -> list[str]:
    """Return the texts that an expression can be; of no other expression than texts, their names, joined texts and choices."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Name):
        return known.get(node.id, [])
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else _ANY for part in node.values)]
    if isinstance(node, ast.IfExp):
        return _alternatives(node.body, known) + _alternatives(node.orelse, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_alternatives(side, known) or [_ANY] for side in (node.left, node.right))
        return [a + b for a in left for b in right]
    return []


def _assigned(statement: ast.stmt, known: Known) -> Known:
    """Return the names that a statement gives texts."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return {}
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    return {name.id: _alternatives(text, known) for name, text in pairs if isinstance(name, ast.Name)}


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Give the statements inside a statement, a block at a time."""
    for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield from (block for name in ("body", "orelse", "finalbody") if (block := getattr(part, name, None)))


def _calls(block: list[ast.stmt], known: Known) -> Iterator[tuple[ast.Call, Known]]:
    """Give the calls in a block, each with what names are there; `known` becomes what they are at the end."""
    for statement in block:
        nodes: list[ast.AST] = [statement]
        for node in nodes:
            inside = ast.iter_child_nodes(node)
            nodes += [one for one in inside if not isinstance(one, (ast.stmt, ast.ExceptHandler, ast.match_case))]
            if isinstance(node, ast.Call):
                yield node, known
        known |= _assigned(statement, known)
        before = dict(known)
        for inner in _blocks(statement):
            then = dict(before)
            yield from _calls(inner, then)
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) or isinstance(inner[-1], (ast.Raise, ast.Return)):
                continue
            for name, texts in then.items():
                known[name] = known.get(name, []) + [text for text in texts if text not in known.get(name, [])]


@cache
def messages() -> dict[str, dict[str, list[str]]]:
    """Return the messages of each class, each with its hints; a message that is put together at run time is not among them."""
    by_class: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in CLASSES}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node, known in _calls(ast.parse(file.read_text(encoding="utf-8")).body, {}):
            if not (isinstance(node.func, ast.Name) and node.func.id in by_class and node.args):
                continue
            hints = [hint for word in node.keywords if word.arg == "hint" for hint in _alternatives(word.value, known)]
            for what in _alternatives(node.args[0], known):
                if re.search(r"\w{3}", what.replace(_ANY, "")):
                    kept = by_class[node.func.id][what]
                    kept += [hint for hint in hints if hint not in kept and hint.strip(_ANY)]
    return {name: dict(sorted(texts.items(), key=lambda item: item[0].lstrip("`'…. "))) for name, texts in by_class.items()}


def _cell(text: str) -> str:
    """Return a text as it is, in a cell of a table."""
    plain = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|~$#])", r"\\\1", plain).replace("\\<", "&lt;").replace("\\>", "&gt;")


def table(name: str) -> str:
    """Return the messages of a class as a table in Markdown."""
    rows = [
        f"| {_cell(what)} | {'<br>'.join(map(_cell, hints)) or 'see the message: it depends on what you wrote'} |"
        for what, hints in messages()[name].items()
    ]
    return "\n".join(["| Message | What to write |", "|---|---|", *rows]) if rows else ""
