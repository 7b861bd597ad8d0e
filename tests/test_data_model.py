"""What public objects claim to be: duck typing, in frameworks and in Python itself, believes the methods that a class has."""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import copy
import functools
import importlib
import inspect
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.connectors import Source
from krishiv_py.errors import KrishivError
from krishiv_py.testing import Driver, stream_of
from tests.test_calls import FACES, IMPLEMENTED


def public_classes() -> Iterator[type]:
    """Every class that a user can meet by name, and those of values under the name of a protocol."""
    actual = {getattr(importlib.import_module(module), name) for module, name in IMPLEMENTED}
    for face in FACES:
        module = importlib.import_module(face)
        actual |= {getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
    kept = (cls for cls in actual if not issubclass(cls, BaseException))
    yield from sorted(kept, key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


CLASSES = {cls.__name__: cls for cls in public_classes()}
CLAIMS: dict[str, type] = {
    name: getattr(collections.abc, name)
    for name in (
        *("Awaitable", "Coroutine", "AsyncIterable", "AsyncIterator", "Iterable", "Iterator", "Generator", "Reversible"),
        *("Sized", "Container", "Collection", "Sequence", "Mapping", "Set", "Callable"),
    )
} | {"ContextManager": contextlib.AbstractContextManager, "AsyncContextManager": contextlib.AbstractAsyncContextManager}
MEANT = {
    "ContextManager": {"Query", "Sender", "Served", "Session", "StreamQuery", "Subscription"},
    **{claim: {"Subscription"} for claim in ("Iterable", "Iterator", "AsyncIterable", "AsyncIterator")},
    "Sized": {"Events", "OpenWindows"},
    "Callable": {"ColumnFunction"},
}
"""The classes that are what they claim."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_claims_only_what_it_is(name: str) -> None:
    cls = CLASSES[name]
    if issubclass(cls, (tuple, dict, int, str)):
        pytest.skip("one of Python's own")
    claimed = {claim for claim, kind in CLAIMS.items() if issubclass(cls, kind)}
    assert claimed == {claim for claim, names in MEANT.items() if name in names}


def test_an_async_framework_hands_all_objects_through() -> None:
    async def called(function: Callable[[], Any]) -> Any:
        value = function()
        return await value if inspect.isawaitable(value) else value

    with kv.Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        windows = stream.watermark("at", 0).tumbling_window(10)
        query = windows.agg(kv.count()).start(kv.MemorySink())
        things: list[object] = [
            session,
            stream,
            sender,
            windows,
            query,
            query.progress,
            kv.MemorySink(),
            kv.col("a"),
            kv.count(),
        ]
        for thing in things:
            assert asyncio.run(called(functools.partial(operator.getitem, [thing], 0))) is thing


def test_a_class_of_a_user_that_lacks_methods_says_which() -> None:
    class Half(Source):
        def plan(self, last: Any) -> Any:
            return None

    class Whole(Half):
        schema = stream_of("a bigint").schema

        def read(self, planned: Any, columns: Any) -> Any:
            return []

    with pytest.raises(TypeError, match=r"Half.*read"):
        Half()  # type: ignore[abstract]
    with pytest.raises(TypeError):
        Whole(5)  # type: ignore[call-arg]
    assert isinstance(pickle.loads(pickle.dumps(kv.MemorySink())), kv.MemorySink)
    assert type(copy.copy(Whole())) is Whole


def stages() -> list[Any]:
    rows = stream_of("a bigint, at bigint")
    timed = rows.watermark("at", 0)
    windows = timed.tumbling_window(10)
    return [rows, timed, timed.key_by("a"), windows, windows.agg(kv.count())]


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: type(stage).__name__)
def test_items_and_rows_of_a_stream_answer_with_what_to_write(stage: Any) -> None:
    written: dict[str, Callable[[], Any]] = {
        'col("a") for a column': lambda: stage["a"],
        ".collect() for the rows": lambda: list(stage),
        "Driver(stream).send(rows)": lambda: stage[:10],
        ".filter(condition)": lambda: stage[kv.col("a") > 1],
        ".select(*columns)": lambda: stage[["a"]],
    }
    for hint, wrong in written.items():
        with pytest.raises(KrishivError) as caught:
            wrong()
        assert hint in str(caught.value).split("Hint: ")[1]
    with pytest.raises(TypeError):
        stage["x"] = 1
    assert stage
    assert not callable(stage) and f"{stage}" == str(stage)


def test_operators_that_people_write_on_a_column_answer_with_what_to_write() -> None:
    column: Any = kv.col("a")
    written: dict[str, Callable[[], Any]] = {
        ".div(2)": lambda: column // 2,
        "use &, |, ~": lambda: column > 1 and column < 5,
        "bit_xor": lambda: column ^ 2,
    }
    for hint, wrong in written.items():
        with pytest.raises(KrishivError) as caught:
            wrong()
        assert hint in str(caught.value).split("Hint: ")[1]
    for use in (len, iter, next, float, int, operator.index, hash, lambda x: x << 1, lambda x: 1 in x):
        with pytest.raises(TypeError):
            use(column)


def test_a_stream_among_rows_is_refused() -> None:
    for value in stages():
        with pytest.raises(KrishivError):
            Driver(stream_of("n bigint")).send(value)
        with pytest.raises(KrishivError):
            Driver(stream_of("n bigint")).send([value])
