"""Every hint that says what to write is followed: the call is refused, and with the hint it runs and gives the right rows.

The cases stand in ``cases/*.txt``, what is there for them in :func:`names`; hints without a case stand in ``without_case.txt``.
"""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import importlib
import math
import re
import textwrap
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

import krishiv_py
from krishiv_py import Session, connectors, features, testing, windows
from krishiv_py.api.stages.running import RunMethods
from krishiv_py.cli.main import main
from krishiv_py.errors import KrishivError
from krishiv_py.failures.redaction import redacted
from krishiv_py.testing import Driver, stream_of
from scripts.docs import messages
from tests.sql import test_hints_run as sql

HERE: Final = Path(__file__).parent
CODE: Final = re.compile(r"\w\(|\.\w+\(|\b[a-z_]+=|krishiv [a-z]|`|\"")
"""A hint with this in it is code that somebody will copy."""
WRITTEN: Final = re.compile(r"(?<![\w\"'=/:-])\.?([A-Za-z_]\w*)(?:\(|=)")
"""The name of a call or of an argument."""
EVENTS: Final = [
    {"user": "a", "amount": 5, "at": 1_000},
    {"user": "a", "amount": 2, "at": 9_000},
    {"user": "b", "amount": 7, "at": 61_000},
]
PAID: Final = [{"user": "a", "paid": 3, "paid_at": 2_000}, {"user": "c", "paid": 4, "paid_at": 5_000}]

VALUES: Final = {"Decimal": decimal.Decimal, "datetime": dt, "inf": math.inf}
"""What the rows of a case are written with, besides texts and numbers."""


@attrs.frozen
class Case:
    """A program that is refused, a part of its hint, the program that follows it, and the rows of that where they count."""

    file: str
    wrong: str
    hint: str
    right: str
    rows: str | None
    more: str
    """Names that the part of the hint has and the program has not: an alternative, or a name that a user replaces."""


def cases(folder: Path = HERE / "cases") -> Iterator[Case]:
    """Yield the cases of all files: blocks of lines ``key: text``, where indented lines go on with the text above."""
    for path in sorted(folder.glob("*.txt")):
        for block in path.read_text().split("\n\n"):
            parts: dict[str, list[str]] = {}
            key = ""
            for line in block.splitlines():
                if line.startswith("#"):
                    continue
                if line.startswith("    "):
                    parts[key].append(line)
                elif line:
                    key, _, text = line.partition(":")
                    parts[key] = [text.strip()] if text.strip() else []
            if parts:
                one = {key: textwrap.dedent("\n".join(lines)) for key, lines in parts.items()}
                yield Case(path.stem, one["wrong"], one["hint"], one["right"], one.get("rows"), one.get("without", ""))


ALL: Final = tuple(cases())
ON_SPARK: Final = tuple(cases(HERE / "cases/spark"))


def names(folder: Path, session: Session) -> dict[str, Any]:
    """Return what programs of cases find: the public names, streams, a table, a folder and a session in process."""
    made = {name: getattr(krishiv_py, name) for name in krishiv_py.__all__}
    made |= {name: getattr(module, name) for module in (testing, features) for name in module.__all__}
    events = stream_of("user string, amount bigint, at bigint")
    timed = events.watermark("at", "5 s")
    return {
        **made,
        **{module.__name__.rpartition(".")[2]: module for module in (krishiv_py, connectors, testing, windows, dt, math)},
        "import_module": importlib.import_module,
        "pa": pa,
        "pyarrow": pa,
        "Decimal": decimal.Decimal,
        "Path": Path,
        "folder": folder,
        "session": session,
        "krishiv": lambda line: main(line.format(folder=folder).split()),
        "events": events,
        "timed": timed,
        "keyed": timed.key_by("user"),
        "minutes": timed.key_by("user").tumbling_window("1 min"),
        "paid": stream_of("user string, paid bigint, paid_at bigint").watermark("paid_at", "5 s"),
        "cities": pa.table({"user": ["a", "b"], "city": ["Oslo", "Rome"]}),
        "EVENTS": EVENTS,
        "PAID": PAID,
        "rows_of": rows_of,
        "asks_broker": asks_broker,
        "read_frame": read_frame,
    }


def read_frame(frame: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a streaming DataFrame of Spark, without the event time that is added to it."""
    for running in Session.all_queries():
        running.process_all_available()
    frame = frame.select(*[column for column in frame.columns if column != "window_time"])
    name = f"hints_{uuid.uuid4().hex}"
    query = frame.writeStream.format("memory").queryName(name).outputMode("append").start()
    query.processAllAvailable()
    query.stop()
    return sorted((tuple(row) for row in frame.sparkSession.table(name).collect()), key=repr)


def asks_broker(call: Callable[[], Any]) -> None:
    """See that a call has nothing to refuse but a broker that does not answer."""
    with pytest.raises(KrishivError) as away:
        call()
    assert away.value.transient, away.value


def rows_of(made: Any, sent: Any = None) -> list[tuple[Any, ...]]:
    """Return the rows of a stream as a driver gives them for rows that are `sent`; of a query its results."""
    if hasattr(made, "process_all_available"):
        with made:
            made.process_all_available()
            return _rows(made.results())
    if not isinstance(made, RunMethods):
        return _rows(made)
    driver = Driver(made)
    names = list(driver._driver_input._streams)
    if sent is None:
        sent = {"left": EVENTS, "right": PAID} if names == ["left", "right"] else EVENTS
    return sorted(_rows(driver.send(sent).results) + _rows(driver.close().results), key=repr)


def _rows(table: Any) -> list[tuple[Any, ...]]:
    plain = table.to_pylist() if hasattr(table, "to_pylist") else list(table)
    return sorted((tuple(row.values()) if isinstance(row, Mapping) else row for row in plain), key=repr)


def run(program: str, names: dict[str, Any]) -> Any:
    """Run a program; returns the value of its last line if that is an expression."""
    tree = ast.parse(program)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<case>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<case>", "eval"), names) if isinstance(last, ast.Expr) else None


def refusal(case: Case, folder: Path, session: Session) -> str:
    """Return what the wrong program of a case is refused with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = run(case.wrong, names(folder, session))
            if isinstance(made, RunMethods) or hasattr(made, "process_all_available"):
                rows_of(made)
        except KrishivError as problem:
            return str(problem)
    return ""


def refusal_in_process(case: Case, folder: Path) -> str:
    """Return what the wrong program of a case is refused with in a session of its own."""
    with Session.in_process() as session:
        return refusal(case, folder, session)


def follow(case: Case, folder: Path, session: Session) -> None:
    """See that the program that follows a hint writes what that says, runs, and gives the right rows."""
    written = {name for name in WRITTEN.findall(case.hint) if name not in case.more.split()}
    assert all(re.search(rf"\b{name}\b", case.right) for name in written), (written, case.right)
    made = run(case.right, names(folder, session))
    results = rows_of(made) if case.rows is not None or isinstance(made, RunMethods) else []
    if case.rows is not None:
        assert results == sorted(eval(case.rows, dict(VALUES)), key=repr)


def hint_of(case: Case, folder: Path) -> str:
    """Return the part of the hint, in which ``{folder}`` stands for the folder of the program."""
    return case.hint.replace("{folder}", str(folder))


def named(case: Case) -> str:
    """Return what a case is called in reports."""
    return f"{case.file}: {case.wrong[:60]!r}"


@pytest.mark.parametrize("case", ALL, ids=named)
def test_a_hint_that_is_followed_runs_and_gives_the_right_rows(case: Case, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    says = refusal_in_process(case, tmp_path / "wrong")
    assert hint_of(case, tmp_path / "wrong") in says.partition("Hint: ")[2], says
    with Session.in_process() as session:
        follow(case, tmp_path / "right", session)


@pytest.mark.one_in(23)
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("case", ON_SPARK, ids=named)
def test_a_hint_of_a_session_on_spark_too(case: Case, session: Session, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    try:
        says = refusal(case, tmp_path / "wrong", session)
        assert hint_of(case, tmp_path / "wrong") in says.partition("Hint: ")[2], says
        follow(case, tmp_path / "right", session)
    finally:
        for query in session.queries:
            query.stop()


def hints() -> dict[str, str]:
    """Return the hints of code of the message catalogue, each with what is wrong; ``…`` stands for what only a run knows."""
    return {
        hint: what
        for of_class in messages.messages().values()
        for what, alternatives in of_class.items()
        for hint in alternatives
        if CODE.search(hint)
    }


def without_case() -> list[str]:
    """Return the hints that no case follows, as the file has them."""
    lines = (HERE / "without_case.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_each_hint_of_code_has_a_case_or_is_known_to_have_none(tmp_path: Path) -> None:
    says = []
    for number, case in enumerate(ALL):
        (tmp_path / str(number)).mkdir()
        says.append(refusal_in_process(case, tmp_path / str(number)).partition("Hint: ")[2])
    says += [f"{case.hint}." for case in ON_SPARK]  # whole: their tests see that these are refused so
    says += [case.refuse().partition("Hint: ")[2] for case in sql.cases()]
    open_ones = sorted(hint for hint in hints() if not any(_fits(hint, said) for said in says))
    assert open_ones == sorted(without_case())


def _fits(hint: str, said: str) -> bool:
    """Return whether a text of an error has a hint; one that ends in what only a run knows may go on."""
    pattern = ".*".join(map(re.escape, hint.split("…")))
    return re.match(pattern if hint.endswith("…") else rf"{pattern}\.", said, re.DOTALL) is not None


def test_no_hint_is_hidden_as_a_secret() -> None:
    for of_class in messages.messages().values():
        for texts in of_class.values():
            for text in (each.replace("…://", "abfss://") for each in texts):
                assert redacted(text) == text
