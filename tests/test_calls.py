"""The whole public API called with arguments that do not fit: an error of ours, with a hint, through one frame."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import calls, col, count
from krishiv_py.errors import CallError, KrishivError, MethodError
from krishiv_py.plan.expressions import elsewhere
from krishiv_py.testing import Driver, stream_of

FACES = (
    "krishiv_py",
    "krishiv_py.testing",
    "krishiv_py.windows",
    "krishiv_py.connectors",
    "krishiv_py.sql",
    "krishiv_py.metrics",
)
IMPLEMENTED = (("krishiv_py.spark.query", "StreamQuery"),)
"""Classes of values that a user gets under the name of a protocol."""


def public() -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Every function, constructor and method that a user can call: its name, itself, and how many arguments are Python's."""
    classes = {getattr(importlib.import_module(module), name) for module, name in IMPLEMENTED}
    for face in FACES:
        module = importlib.import_module(face)
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, FunctionType):
                yield f"{face}.{name}", thing, 0
            elif inspect.isclass(thing) and not issubclass(thing, BaseException):
                classes.add(thing)
    for cls in sorted(classes, key=lambda c: f"{c.__module__}.{c.__qualname__}"):
        if cls.__dict__.get("_is_protocol"):
            continue
        for name, member in inspect.getmembers(cls):
            own = (getattr(member, "__module__", None) or "").startswith("krishiv_py")
            if own and inspect.isroutine(member) and (not name.startswith("_") or name == "__init__"):
                bound = inspect.ismethod(member) or isinstance(inspect.getattr_static(cls, name), staticmethod)
                yield f"{cls.__qualname__}.{name}", member, 0 if bound else 1


CALLS = {name: (function, first) for name, function, first in public()}


def misfits(function: Callable[..., Any], first: int) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Arguments that Python cannot bind."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    own = list(inspect.signature(function).parameters.values())[first:]
    before = (None,) * first
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        yield "too many", (*before, *range(len(own) + 1)), {}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        yield "misspelt", before, {"misspelt": 5}
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own):
        yield "missing", before, {}
    if own and own[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        yield "twice", (*before, 1), {own[0].name: 1}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_do_not_fit_are_an_error_of_ours(name: str) -> None:
    function, first = CALLS[name]
    for kind, args, kwargs in misfits(function, first):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KrishivError) as caught:
            patch.delenv(calls.SWITCH, raising=False)
            function(*args, **kwargs)
        text = str(caught.value)
        assert "Hint: " in text, kind
        assert "got: " in text, kind
        if isinstance(caught.value, CallError) and kind == "misspelt":
            assert "misspelt" in text
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert len([f for f in frames if f.filename != __file__]) <= 1, kind


def test_the_walk_finds_what_users_call() -> None:
    wanted = {
        "krishiv_py.col",
        "krishiv_py.sum",
        "krishiv_py.testing.stream_of",
        "krishiv_py.windows.tumbling",
        "krishiv_py.metrics.serve",
        "Session.memory_stream",
        "Session.read_kafka",
        "SessionBuilder.config",
        "Sender.send",
        "Sender.__init__",
        "SqlContext.sql",
        "Driver.send",
        "KafkaSink.__init__",
        "WatermarkSpec.fixed_lag",
        "StreamQuery.await_termination",
        "TimedStream.key_by",
        "Expr.cast",
    }
    assert wanted - set(CALLS) == set()


def test_the_nearest_name_and_what_it_takes_are_named() -> None:
    with pytest.raises(CallError, match=r"'over'.*Hint: over is a method of what it returns: count\(\.\.\.\)\.over\(\.\.\.\)"):
        count(over="1 minute")  # type: ignore[call-arg]
    with pytest.raises(CallError, match=r"ParquetSink\(\) got an unexpected keyword .* 'pat'.*did you mean `path`\?.*\(path"):
        kv.ParquetSink(pat="out")  # type: ignore[call-arg]
    with pytest.raises(CallError, match=r"\.send\(\) takes 1 argument without a name, 2 were given"):
        Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())).send([], [])  # type: ignore[call-arg]
    with pytest.raises(CallError, match=r"Hint: write Session\.embedded\(\)"):
        kv.Session()  # type: ignore[call-arg]


WRONG_CALLS: dict[str, Callable[[], Any]] = {
    "binding": lambda: col(),  # type: ignore[call-arg]
    "check": lambda: stream_of("at bigint").watermark("att", 0),
    "parser": lambda: stream_of("at bigint").filter("at > "),
    "schema": lambda: stream_of("at bigit"),
    "operator": lambda: col("at") + object(),
    "constructor": lambda: kv.WatermarkSpec(-1),
    "class method": lambda: kv.WatermarkSpec.fixed_lag(-1),
    "property": lambda: kv.Session(None).spark,  # type: ignore[arg-type]
    "deep": lambda: stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(kv.sum("nowhere")),
    "driver": lambda: Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())).send([{"at": "x"}]),
}


@pytest.mark.parametrize("name", sorted(set(WRONG_CALLS) - {"property"}))
def test_a_traceback_shows_the_line_of_the_user_and_one_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(calls.SWITCH, raising=False)
    with pytest.raises(KrishivError) as caught:
        WRONG_CALLS[name]()
    shown = traceback.TracebackException.from_exception(caught.value)
    files = [Path(f.filename).name for f in shown.stack]
    assert files.count("calls.py") == 1
    assert set(files) == {Path(__file__).name, "calls.py"}
    assert shown.__cause__ is None or all("krishiv_py" not in f.filename for f in shown.__cause__.stack)
    assert shown.__context__ is None or shown.__suppress_context__


def test_a_variable_keeps_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calls.SWITCH, "1")
    with pytest.raises(KrishivError) as caught:
        WRONG_CALLS["deep"]()
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 4


def test_lines_of_a_user_inside_stay() -> None:
    def worse(x: kv.Expr) -> kv.Expr:
        return x.cast("wobble")

    with pytest.raises(KrishivError) as caught:
        col("xs").transform(worse)
    chain: BaseException | None = caught.value
    names: set[str] = set()
    while chain is not None:
        names |= {f.name for f in traceback.extract_tb(chain.__traceback__)}
        chain = chain.__cause__ or chain.__context__
    assert "worse" in names


def test_a_type_error_of_users_code_stays_one() -> None:
    def broken() -> int:
        raise TypeError("mine")

    session = kv.Session(None)  # type: ignore[arg-type]
    with pytest.raises((TypeError, AttributeError)) as caught:
        session.use_clock(broken)  # there is no runner: a fault inside stays what it is
    assert not isinstance(caught.value, KrishivError)


def test_what_is_checked_is_as_before() -> None:
    assert pickle.loads(pickle.dumps(kv.col)) is kv.col
    assert kv.col.__doc__ is not None
    assert list(inspect.signature(kv.col).parameters) == ["name"]
    assert next(iter(inspect.signature(kv.ParquetSink).parameters)) == "path"
    assert inspect.getsourcefile(inspect.unwrap(kv.Session.memory_stream)) == inspect.getsourcefile(kv.Session)


def test_a_script_ends_with_its_own_line(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text('from krishiv_py.testing import stream_of\nstream_of("at bigint").watermark("att", 0)\n')
    root, env = Path(kv.__file__).parents[1], {k: v for k, v in os.environ.items() if k != calls.SWITCH}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=root, env=env, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert [Path(line.split('"')[1]).name for line in lines] == ["job.py", "calls.py"]
    assert done.stderr.splitlines()[-1].startswith("krishiv_py.errors.ColumnError: watermark: there is no column 'att'")


LIBRARIES = {
    "PySpark": ("pyspark.sql", "Column", ()),
    "Polars": ("polars", "Expr", ("str", "dt", "list")),
    "pandas": ("pandas", "Series", ("str", "dt")),
}
ENV = {**vars(kv), "sum": kv.sum, "min": kv.min, "max": kv.max, "x": col("v"), "other": col("w")}


def named(library: str) -> set[str]:
    module, column, spaces = LIBRARIES[library]
    cls = getattr(pytest.importorskip(module), column)
    actual = {n for n in dir(cls) if not n.startswith("_")}
    for space in spaces:
        space_of = inspect.getattr_static(cls, space)
        kind = getattr(space_of, "_accessor", None) or type(importlib.import_module(module).col("a").__getattribute__(space))
        actual |= {n for n in dir(kind) if not n.startswith("_")}
    return actual


@pytest.mark.parametrize("library", LIBRARIES)
def test_names_of_other_libraries_have_a_hint(library: str) -> None:
    known = 0
    for name in sorted(named(library)):
        for column in (col("v"), col("v") + 1):
            try:
                getattr(column, name)
            except MethodError as problem:
                known += "docs/expressions.md" not in str(problem)
                assert "Hint: " in str(problem)
                if library == "PySpark":
                    assert "docs/expressions.md" not in str(problem), name
    assert known > 10


@pytest.mark.parametrize("name", sorted({*elsewhere._SAME, *elsewhere._WRITTEN}))
def test_a_hint_of_a_column_can_be_followed(name: str) -> None:
    hint = elsewhere.hint_of('col("v")', name)
    assert hint is not None
    assert isinstance(eval(hint.removeprefix("write "), ENV), kv.Expr)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ('sum("n") / count()', 2.0),
        ('100 * sum("n") / count()', 200.0),
        ('sum("n") + 1', 7),
        ('max("n") - min("n")', 2),
        ('avg("n") ** 2', 4.0),
        ('sum("n") > 5', True),
        ('sum("n").alias("total") / count("n").alias("how many")', 2.0),
        ('sum("n").filter("n > 1") * 2', 10),
        ('sum("n") % 4', 2),
        ('-sum("n")', -6),
        ("count().div(2)", 1),
        ('round(avg("n") / 3, 2)', 0.67),
    ],
)
def test_what_is_computed_of_aggregates(written: str, wanted: object) -> None:
    windows = stream_of("n bigint, at bigint").watermark("at", 0).tumbling_window(10)
    driver = Driver(windows.agg(count(), result=eval(written, ENV)))
    driver.send([{"n": n, "at": n} for n in (1, 2, 3)])
    (row,) = driver.close().results.to_pylist()
    assert (row["count"], row["result"]) == (3, wanted)


def test_an_operator_that_aggregates_do_not_have_says_what_to_write() -> None:
    with pytest.raises(KrishivError, match=r"an aggregate has no operator //.*\.div\(2\)"):
        eval("count() // 2", ENV)


@pytest.mark.parametrize("value", [col("n"), count(), stream_of("n bigint")], ids=["column", "aggregate", "stream"])
def test_what_only_refuses_to_be_gone_through_is_no_rows(value: Any) -> None:
    """A class with methods for ``iter()`` and ``next()`` counts as an iterator, also where both only refuse."""
    with pytest.raises(KrishivError, match=r"not a batch .*Hint: send a pyarrow RecordBatch"):
        Driver(stream_of("n bigint")).send(value)
    with pytest.raises(CallError, match="has no next row"):
        next(value)
