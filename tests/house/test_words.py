"""Words that are old or private, with the word to write instead; docs/glossary.md has the words of the field."""

from __future__ import annotations

import re
from pathlib import Path

import krishiv_py

ROOT = Path(krishiv_py.__file__).parents[1]
INSTEAD = {
    "anew": "again",
    "beside": "next to",
    "inlet": "source",
    "judged": "classified",
    "lesser": "smaller",
    "spoken": "sent",
    "told": "given, stated or shown",
    "untold": "not shown",
}
ENDINGS = {".py": ("krishiv_py", "tests", "examples", "benchmarks", "scripts"), ".md": (".", "docs")}


def test_old_words_are_not_written() -> None:
    words = re.compile(rf"\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)
    found = []
    for ending, folders in ENDINGS.items():
        for path in sorted(
            {p for folder in folders for p in (ROOT / folder).glob(f"**/*{ending}" if folder != "." else "*.md")}
        ):
            within = path.relative_to(ROOT)
            if path.name == Path(__file__).name or any(part.startswith(".") for part in within.parts):
                continue  # environments of peers are in benchmarks/.envs
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found += [f"{within}:{number}: write {INSTEAD[word.lower()]!r} for {word!r}" for word in words.findall(line)]
    assert found == []
