"""The whole public API called with arguments that do not fit, and by names that other libraries use."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import col, count, foreign
from krishiv_py.errors import KrishivError, MethodError
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
def test_arguments_that_do_not_fit_are_an_error_of_the_call(name: str) -> None:
    """Python's own, which names the function and the argument, or one of ours."""
    function, first = CALLS[name]
    for kind, args, kwargs in misfits(function, first):
        with pytest.raises((TypeError, KrishivError)) as caught:
            function(*args, **kwargs)
        text = str(caught.value)
        assert "misspelt" in text if kind == "misspelt" else function.__name__ in text or "got: " in text, (kind, text)


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


@pytest.mark.parametrize("name", sorted({name for names in (*foreign.CALLS, *foreign.WRITTEN) for name in names.split()}))
def test_a_hint_of_a_column_can_be_followed(name: str) -> None:
    hint = foreign.ways("column")[name].replace("{x}", 'col("v")')
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
def test_a_plan_is_no_rows(value: Any) -> None:
    with pytest.raises(KrishivError, match=r"not a batch .*Hint: send a pyarrow RecordBatch"):
        Driver(stream_of("n bigint")).send(value)
