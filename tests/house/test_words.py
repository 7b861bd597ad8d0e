"""Words that the code and the docs do not use: each has a word of the field instead (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import krishiv_py

ROOT = Path(krishiv_py.__file__).parents[1]
CODE = [
    path
    for folder in ("krishiv_py", "tests", "examples", "benchmarks", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(
        part.startswith(".") for part in path.relative_to(ROOT).parts
    )  # environments of the peers are in benchmarks/.envs
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
THIS = "test_words.py"

IN_NAMES = (
    "told untold asked asks stands stood beside judged judges anew further spoken patience bench book beats wakes inlet lesser"
)
"""Words that are no part of a name."""
ALONE = "found at lost behind play looks"
"""Words that are no whole name: they fit any value, and so say nothing of this one. As a part
they do (``fired_at``, ``NotFoundError``)."""
IN_TEXTS = "told untold asked stands stood beside judged anew further spoken lesser"
PHRASES = "have no meaning|has no meaning|has not|have not|is no|are no|do not stand|stands at|begin anew|nothing was told"

ALLOWED = (
    r"\bstand(?:s|ing)? for\b|\bstands out\b",  # represents
    r"further (?:ahead|behind|than|back|apart|down|away|from|out)",  # a distance
    r"there (?:is|are) no\b",
    r"(?:is|are) no (?:longer|more|less|later|earlier|doubt)\b",  # an adverb
    r"(?:has|have) not\b.{0,40}\b(?:been|yet|begun|come|run|seen|sent|read|\w{3,}ed)\b",  # the perfect tense of a verb
)
"""What is plain English all the same."""

MOST: dict[str, int] = {
    "name: at": 340,
    "name: behind": 36,
    "name: beside": 9,
    "name: found": 24,
    "name: further": 1,
    "name: told": 19,
    "text: anew": 2,
    "text: asked": 109,
    "text: further": 22,
    "text: has not": 3,
    "text: is no": 2,
    "text: judged": 4,
    "text: spoken": 1,
    "text: stands": 7,
    "text: stood": 2,
    "text: told": 17,
    "text: untold": 2,
}
"""How often each is there today: these figures only go down. A new name or sentence takes a word of docs/glossary.md."""


def _is_of_numpy(node: ast.Attribute) -> bool:
    """``np.add.at`` is NumPy's own name."""
    return node.attr == "at" and isinstance(node.value, ast.Attribute) and ast.unparse(node.value.value) == "np"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but the marks of loads and stores: half of the time that `ast.walk` takes over a million of them."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif field != "ctx" and isinstance(value, ast.AST):
                waiting.append(value)


def words_of(tree: ast.AST, source: str) -> tuple[Counter[str], list[str]]:
    """The names of a file; and its texts, which are docstrings, other strings and comments."""
    names: Counter[str] = Counter()
    texts: list[str] = re.findall(r"(?:^|\s)# (.*)$", source, re.MULTILINE)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            names[node.attr] += not _is_of_numpy(node)
        elif isinstance(node, ast.Name):
            names[node.id] += 1
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                texts.append(node.value)
        elif isinstance(node, ast.arg | ast.keyword):
            names[node.arg or ""] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            names[node.name or ""] += 1
        elif isinstance(node, ast.alias):
            names[node.asname or node.name] += 1
    return names, texts


def counts() -> Counter[str]:
    parts, alone = set(IN_NAMES.split()), set(ALONE.split())
    words = re.compile(rf"\b(?:{'|'.join(IN_TEXTS.split())}|{PHRASES})\b", re.IGNORECASE)
    allowed = re.compile("|".join(ALLOWED), re.IGNORECASE)
    actual: Counter[str] = Counter()

    def read(text: str) -> None:
        flat = " ".join(text.split())
        if words.search(flat):
            actual.update(f"text: {word.lower()}" for word in words.findall(allowed.sub("", flat)))

    names: Counter[str] = Counter()
    for path in CODE:
        if path.name == THIS:
            continue
        source = path.read_text()
        own, texts = words_of(ast.parse(source), source)
        names.update(own)
        names[path.stem] += 1
        for text in texts:
            read(text)
    for name, times in names.items():
        pieces = {piece.lower() for piece in re.findall(r"[A-Z]+[a-z0-9]*|[a-z0-9]+", name)}
        actual.update({f"name: {word}": times for word in pieces & parts})
        if (plain := name.lower().strip("_")) in alone:
            actual[f"name: {plain}"] += times
    for path in PAGES:
        read(path.read_text())
    return actual


def test_private_words_are_not_added() -> None:
    more = {word: f"{n}, at most {MOST.get(word, 0)}" for word, n in sorted(counts().items()) if n > MOST.get(word, 0)}
    assert more == {}, "take a word of docs/glossary.md"
