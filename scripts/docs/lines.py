"""The lines of the five jobs of examples/migration, counted: ``python -m scripts.docs.lines`` writes them into the docs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "structured-streaming.md"
BEGIN: Final = "<!-- made by scripts/docs/lines.py -->\n"
END: Final = "<!-- end of what is made -->\n"


def counted(name: str) -> dict[str, int]:
    """Return the lines of each function of a file, without its signature and docstring."""
    tree = ast.parse((ROOT / "examples" / "migration" / f"{name}.py").read_text(encoding="utf-8"))
    lengths = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:]
            lengths[node.name] = (body[-1].end_lineno or 0) - body[0].lineno + 1
    return lengths


def table() -> str:
    """Return the table of lines."""
    by_hand, here = counted("by_hand"), counted("here")
    rows = [f"| `{name}` | {lines} | {here[name]} |" for name, lines in by_hand.items()]
    more = {name: lines for name, lines in here.items() if name not in by_hand}
    rows += [f"| `{name}` |  | {lines} |" for name, lines in more.items()]
    rows.append(f"| all | {sum(by_hand.values())} | {sum(here.values())} |")
    return "\n".join(["| Function | By hand | Here |", "|---|---|---|", *rows]) + "\n"


def page() -> str:
    """Return the page with the table as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
