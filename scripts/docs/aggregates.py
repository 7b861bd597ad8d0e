"""The table of aggregates in the reference, made from their definitions: ``python -m scripts.docs.aggregates`` writes it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final

import krishiv_py  # noqa: F401  # which loads all definitions
from krishiv_py.plan.aggregates.calls import DEFINITIONS, AggregateDefinition

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "aggregates.md"
BEGIN: Final = "<!-- made by scripts/docs/aggregates.py -->\n"
END: Final = "<!-- end of what is made -->\n"


def table() -> str:
    """Return the table, with a row for each aggregate: how Python and SQL call it, and its result."""
    rows = [_row(name, DEFINITIONS[name]) for name in sorted(DEFINITIONS)]
    return "\n".join(["| Python | SQL | Result |", "|---|---|---|", *rows]) + "\n"


def _row(name: str, definition: AggregateDefinition) -> str:
    parameters = [p for p in inspect.signature(definition.function).parameters.values() if not p.name.startswith("_")]
    arguments = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in parameters]
    sql = ", ".join(f"`{spelled}`" for spelled in definition.sql)
    return f"| `{name}({', '.join(arguments)})` | {sql} | {_plain(inspect.getdoc(definition.function) or '')} |"


def _plain(docstring: str) -> str:
    """Return the first sentence of a docstring in Markdown."""
    text = " ".join(docstring.split("\n\n")[0].split())
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`").replace("|", r"\|")
    return re.sub(r" \(§[\d.]+\)", "", text)


def page() -> str:
    """Return the page with the table as it should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
