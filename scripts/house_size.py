"""Print the size of the house: files, lines, imports, and how many files one call visits.

Run it before and after a redesign: ``python scripts/house_size.py``. With ``--visited`` it lists the files that a send visits.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import threading
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "krishiv_py"


def documentation(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    lines = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def kinds_of_lines(source: str, tree: ast.Module) -> Counter[str]:
    """Return how many lines hold code, documentation, only a comment, or nothing."""
    docs = documentation(tree)
    comments = {t.start[0] for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT}
    kinds = Counter[str]()
    for number, line in enumerate(source.splitlines(), 1):
        if number in docs:
            kinds["docstring"] += 1
        elif not line.strip():
            kinds["blank"] += 1
        else:
            kinds["comment" if number in comments and line.lstrip().startswith("#") else "code"] += 1
    return kinds


def own_imports(tree: ast.Module) -> int:
    """Return how many import statements name a module of the package."""
    names = (
        node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    return sum(name.split(".")[0] == PACKAGE.name for name in names)


def files_visited(call: Callable[[], Any]) -> Counter[str]:
    """Return the files of the package whose functions run during a call, and how many calls go to each."""
    visited = Counter[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            visited[str(Path(name).relative_to(PACKAGE))] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return visited


def one_send() -> Counter[str]:
    """Return what a send visits that lets one tumbling window fire, after the same has run once."""
    import krishiv_py as kv
    from krishiv_py.testing import Driver, stream_of

    stream = stream_of("user string, amount bigint, at bigint").watermark("at", 0).key_by("user")
    driver = Driver(stream.tumbling_window(10).agg(kv.count(), kv.sum("amount")))
    for moment in (1, 15):
        driver.send([{"user": "a", "amount": 1, "at": moment}])
    return files_visited(lambda: driver.send([{"user": "a", "amount": 1, "at": 25}]))


def main() -> None:
    """Print a line for each measure."""
    sys.path.insert(0, str(PACKAGE.parent))
    totals, lengths, imports = Counter[str](), [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        totals += kinds_of_lines(source, tree)
        lengths.append(len(source.splitlines()))
        imports += own_imports(tree)
    visited = one_send()
    print(f"files              {len(lengths)}")
    print(f"lines of a file    {statistics.mean(lengths):.0f} at the mean, {statistics.median(lengths):.0f} at the median")
    print(f"files below 80     {sum(n < 80 for n in lengths)}")
    for kind, n in totals.most_common():
        print(f"lines: {kind:11} {n}")
    print(f"imports within     {imports}")
    print(f"one send visits    {len(visited)} files in {visited.total()} calls")
    if "--visited" in sys.argv:
        for name, calls in visited.most_common():
            print(f"{calls:7} {name}")


if __name__ == "__main__":
    main()
