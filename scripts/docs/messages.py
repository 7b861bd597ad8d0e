"""The messages of errors, read from the code: what is wrong and what to write, by class. A page of the site shows them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

from krishiv_py import errors

PACKAGE: Final = Path(errors.__file__).parent
CLASSES: Final = tuple(name for name, kind in vars(errors).items() if isinstance(kind, type) and name.endswith("Error"))
_ANY: Final = "…"
"""What stands for a value that only a run knows."""


def _alternatives(node: ast.expr | None) -> list[str]:
    """Return the texts that an expression can be; of no other expression than texts, joined texts and choices."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else _ANY for part in node.values)]
    if isinstance(node, ast.IfExp):
        return _alternatives(node.body) + _alternatives(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _alternatives(node.left) or [_ANY] for b in _alternatives(node.right) or [_ANY]]
    return []


@cache
def messages() -> dict[str, dict[str, list[str]]]:
    """Return the messages of each class, each with its hints; a message that is put together at run time is not among them."""
    by_class: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in CLASSES}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in by_class and node.args):
                continue
            hints = [hint for word in node.keywords if word.arg == "hint" for hint in _alternatives(word.value)]
            for what in _alternatives(node.args[0]):
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
