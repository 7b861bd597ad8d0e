"""Every hint of SQL that says what to write is followed, runs, and gives the right rows; a hint without a case fails."""

from __future__ import annotations

import ast
import datetime as dt
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

import krishiv_py
from krishiv_py.errors import KrishivError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

ROOM: Final = Path(krishiv_py.__file__).parent / "sql"
MAKERS: Final = frozenset({"refused", "_refused"})
"""Functions that make an error with the hint of their caller."""
CODE: Final = re.compile(
    r"\b(?:SELECT|FROM|WHERE|GROUP BY|JOIN|OVER|ON|CAST|INTERVAL|PARTITION BY|QUALIFY|write [A-Z]+\()\b|\w+\(\w+"
)
"""A hint with this in it is code that somebody will copy."""
EVENTS: Final = [
    {"user": "a", "amount": 5, "at": 1_000, "xs": [5], "t": "1970-01-01T00:00:01Z"},
    {"user": "a", "amount": 2, "at": 9_000, "xs": [3, 4], "t": "1970-01-01T00:00:09Z"},
    {"user": "b", "amount": 7, "at": 61_000, "xs": None, "t": "1970-01-01T00:01:01Z"},
]
STAMPED: Final = [{"user": "a", "t": "1970-01-01T00:00:01Z"}]
OTHERS: Final = [{"user": "a", "amount": 1, "at": 2_000}, {"user": "c", "amount": 3, "at": 5_000}]
TEXTS: Final = [{"amount": "5", "at": 1_000}, {"amount": "7", "at": 1_000}]
MOMENTS: Final = [dt.datetime(1970, 1, 1, 0, 0, s, tzinfo=dt.timezone.utc) for s in (0, 5, 30)]
SPANS: Final = pa.table({"user": ["a", "a"], "name": ["early", "late"], "since": MOMENTS[:2], "until": MOMENTS[1:]})
NAMES: Final = pa.table({"user": ["a", "a", "b"], "name": ["five", "two", "three"], "code": [5.0, None, 6.0]})


@attrs.frozen
class Case:
    """A text that is refused, a part of its hint, the texts that follow it, and the rows of the last one where they count."""

    refused: str
    hint: str
    follow: tuple[str, ...]
    rows: str | None
    before: str | None

    def refuse(self) -> str:
        """Return what the error says, after the setting that comes before."""
        made = context()
        if self.before is not None:
            made.sql(self.before)
        with pytest.raises(KrishivError) as caught:
            made.sql(self.refused)
        return str(caught.value)


def cases() -> list[Case]:
    made = []
    for block in Path(__file__).with_name("hints.txt").read_text().split("\n\n"):
        lines = [line.split(": ", 1) for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            one = {key: value for key, value in lines if key != "follow"}
            follow = tuple(value for key, value in lines if key == "follow")
            made.append(Case(one["refused"], one.get("hint", ""), follow, one.get("rows"), one.get("before")))
    return made


def context() -> SqlContext:
    made = SqlContext()
    made.register(
        "events", stream_of("user string, amount bigint, at bigint, xs array<bigint>, t timestamp").watermark("at", 400_000)
    )
    made.register("others", stream_of("user string, amount bigint, at bigint").watermark("at", 400_000))
    made.register("texts", stream_of("amount string, at bigint").watermark("at", 400_000))
    made.register("lagless", stream_of("user string, at bigint"), event_time="at")
    made.register("stamped", stream_of("user string, t timestamp").watermark("t", 400_000))
    made.register("names", NAMES)
    made.register("spans", SPANS)
    return made


def run(made: SqlContext, text: str) -> list[tuple[Any, ...]]:
    query = made.sql(text)
    if query is None:
        return []
    driver = Driver(query)
    sides = {"others": OTHERS, "texts": TEXTS, "lagless": [{"user": "a", "at": 1}], "stamped": STAMPED, "events": EVENTS}
    read = [rows for name, rows in sides.items() if re.search(rf"\b{name}\b", text)]
    if "UNION ALL" in text:
        results = driver.send({"events": EVENTS, "others": OTHERS}).results.to_pylist()
    elif len(read) == 1 and text.count("stamped") < 2:
        results = driver.send(read[0]).results.to_pylist()
    else:
        results = driver.send({"left": STAMPED if "stamped" in text else EVENTS, "right": read[0]}).results.to_pylist()
    results += driver.close().results.to_pylist()
    return sorted((tuple(row.values()) for row in results), key=repr)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.refused[:60])
def test_a_hint_that_is_followed_runs_and_gives_the_right_rows(case: Case) -> None:
    says = case.refuse()
    assert case.hint in says.partition("Hint: ")[2], says
    made = context()
    results = [run(made, text) for text in case.follow]
    if case.rows is not None:
        assert results[-1] == sorted(ast.literal_eval(case.rows), key=repr)


@attrs.frozen
class Place:
    """A call that makes an error with a hint of code: the file, its lines, and what it says first."""

    file: str
    first: int
    last: int
    text: str


def _hint(call: ast.Call) -> ast.expr | None:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    named = next((k.value for k in call.keywords if k.arg == "hint"), None)
    return call.args[2] if named is None and name in MAKERS and len(call.args) > 2 else named


def places() -> Iterator[Place]:
    """Yield the calls whose hint is code, also where a name holds it."""
    for path in sorted(ROOM.glob("*.py")):
        tree = ast.parse(path.read_text())
        texts: dict[str, str] = {}
        for node in ast.walk(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value is not None:
                texts[target.id] = f"{texts.get(target.id, '')} {ast.unparse(node.value)}"
        for node in ast.walk(tree):
            hint = _hint(node) if isinstance(node, ast.Call) else None
            if hint is not None and isinstance(node, ast.Call):
                names = [texts.get(n.id, "") for n in ast.walk(hint) if isinstance(n, ast.Name)]
                if CODE.search(" ".join([ast.unparse(hint), *names])):
                    yield Place(path.name, node.lineno, node.end_lineno or node.lineno, ast.unparse(node)[:90])


NOT_FROM_TEXT: Final = (
    *(
        "'a table is named by a text'",
        "'not a stream that can be queried'",
        "what, got=type(table)",
        "'this stream has its event",
    ),
    *("'the table goes by the clock", "'a table that does not change has no watermark'", "'INSERT INTO is for sql_outputs()'"),
    *(
        "'there is no INSERT INTO'",
        "'two queries go to one sink'",
        "f'there is no sink",
        "'a query is a text'",
        "'a query without a sink'",
    ),
    *("'WITH before INSERT INTO'", "'INSERT OVERWRITE'", "'INSERT of something", "'naming columns in INSERT INTO'"),
    *("then='a NUL is in it'", "'the query selects nothing'"),
    *("'the streams of UNION ALL have options that differ'", "'the streams of UNION ALL have clocks that differ'"),
    *("'UNION ALL over a stream of several sources'"),
)
"""Errors of calls other than ``sql(text)``: tests/sql/test_inserts.py and tests/sql/test_refused.py have theirs."""


def test_every_hint_of_code_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, int]] = set()
    plain = KrishivError.__init__

    def noting(self: KrishivError, *what: object, **parts: Any) -> None:
        frame = sys._getframe(1)
        for _ in range(4):  # the call, and the functions that make errors for others
            seen.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            if frame.f_back is None:
                break
            frame = frame.f_back
        plain(self, *what, **parts)

    monkeypatch.setattr(KrishivError, "__init__", noting)
    for case in cases():
        case.refuse()
    missing = [
        place
        for place in places()
        if not any(file == place.file and place.first <= line <= place.last for file, line in seen)
        and not any(text in place.text for text in NOT_FROM_TEXT)
    ]
    assert [f"{p.file}:{p.first} {p.text}" for p in missing] == []
