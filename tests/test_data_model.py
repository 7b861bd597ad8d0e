"""Python's operators and built-in functions over every public class: where one does not fit, the error is ours."""

from __future__ import annotations

import builtins
import collections.abc
import copy
import importlib
import inspect
import math
import operator
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.connectors import Source
from krishiv_py.errors import CallError, KrishivError
from krishiv_py.plan.options.triggers import OpenWindows
from krishiv_py.testing import stream_of
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
TWO = {
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in ("matmul", "lshift", "rshift")},
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in ("and", "or", "xor", "lt", "le", "gt", "ge")},
    "__divmod__": divmod,
}
ONE: dict[str, Callable[[Any], Any]] = {
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in ("neg", "pos", "invert", "index")},
    **{f"__{n}__": getattr(builtins, n) for n in ("abs", "round", "int", "float", "complex", "len")},
    **{f"__{n}__": getattr(builtins, n) for n in ("reversed", "next", "iter", "bytes", "hash")},
    **{f"__{n}__": getattr(math, n) for n in ("floor", "ceil", "trunc")},
    "__getitem__": lambda x: x["a"],
    "__delitem__": lambda x: operator.delitem(x, 0),
    "__setitem__": lambda x: operator.setitem(x, "a", 1),
    "__contains__": lambda x: 1 in x,
    "__enter__": lambda x: x.__enter__(),
    "__exit__": lambda x: type(x).__exit__(x, None, None, None),
    "__aenter__": lambda x: x.__aenter__(),
    "__aexit__": lambda x: type(x).__aexit__(x, None, None, None),
    "__aiter__": aiter,
    "__anext__": anext,
    "__await__": lambda x: x.__await__(),
    "__format__": lambda x: format(x, ">10"),
}
REFLECTED = {f"__r{n.strip('_')}__": f for n, f in TWO.items() if n.strip("_") not in ("lt", "le", "gt", "ge")}


def defines(cls: type, name: str) -> bool:
    """Whether a class has an operator that does something."""
    for base in cls.__mro__:
        member = vars(base).get(name)
        if member is not None or name in vars(base):
            return member is not None and "__refuses__" not in getattr(member, "__dict__", ()) and base is not object
    return False


def uses(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every use of a value that its class does not define."""
    cls = type(value)
    for name, one in ONE.items():
        yield from [(name, lambda one=one: list(one(value)) if one is iter else one(value))] if not defines(cls, name) else []
    for name, two in TWO.items():
        yield from [(name, lambda two=two: two(value, 2))] if not defines(cls, name) else []
    for name, two in REFLECTED.items():
        yield from [(name, lambda two=two: two(2, value))] if not defines(cls, name) else []


@pytest.mark.parametrize("name", CLASSES)
def test_what_does_not_fit_is_an_error_of_ours(name: str) -> None:
    cls = CLASSES[name]
    if inspect.isabstract(cls) or cls.__dict__.get("_is_protocol") or issubclass(cls, (tuple, dict, int)):
        pytest.skip("nobody has a value of it, or it is one of Python's")
    value = next(iter(cls)) if isinstance(cls, collections.abc.Iterable) else object.__new__(cls)
    if isinstance(value, OpenWindows):  # which has a length
        object.__setattr__(value, "start", [0])
    for used, use in uses(value):
        if used == "__hash__" and cls.__dict__.get("__hash__", object.__hash__) is object.__hash__:
            continue
        with pytest.raises(KrishivError) as caught:
            use()
        text = str(caught.value)
        assert "got: " in text and "Hint: " in text, (used, text)
        assert len([f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename != __file__]) <= 1, used
    assert not isinstance(value, collections.abc.Iterator) or issubclass(cls, kv.Expr)


@pytest.mark.parametrize("name", [n for n, c in CLASSES.items() if inspect.isabstract(c) or c.__dict__.get("_is_protocol")])
def test_a_base_class_says_what_is_to_be_written(name: str) -> None:
    cls = CLASSES[name]
    for args in ((), (1, 2)):
        with pytest.raises(CallError, match=f"{name} is a base class.*Hint: write ") as caught:
            cls(*args)
        assert all(method in str(caught.value) for method in getattr(cls, "__abstractmethods__", ()))


def test_a_class_of_a_user_that_lacks_methods_says_which() -> None:
    class Half(Source):
        def plan(self, last: Any) -> Any:
            return None

    class Whole(Half):
        schema = kv.testing.stream_of("a bigint").schema

        def read(self, planned: Any, columns: Any) -> Any:
            return []

    with pytest.raises(CallError, match=r"Half lacks methods \(got: Half\(\.\.\.\), without read\).*define read in Half"):
        Half()  # type: ignore[abstract]
    with pytest.raises(CallError, match=r"Whole\(\) takes no arguments"):
        Whole(5)  # type: ignore[call-arg]
    assert isinstance(pickle.loads(pickle.dumps(kv.MemorySink())), kv.MemorySink)
    assert type(copy.copy(Whole())) is Whole


def test_hints_name_what_to_write() -> None:
    stream: Any = stream_of("a bigint, at bigint")
    column: Any = kv.col("a")
    written: dict[str, Callable[[], Any]] = {
        'with_column("x", ...)': lambda: operator.setitem(stream, "x", 1),
        'col("a") for a column': lambda: stream["a"],
        "stream.collect()": lambda: list(stream),
        "union_of": lambda: stream + stream,
        ".div(2)": lambda: divmod(column, 2),
        ".shiftleft(1)": lambda: column << 1,
        "in .agg(...)": lambda: operator.matmul(kv.count(), 2),
        "for each row": lambda: list(column),
    }
    for hint, wrong in written.items():
        with pytest.raises(KrishivError) as caught:
            wrong()
        assert hint in str(caught.value).split("Hint: ")[1]


def test_no_value_counts_as_rows_and_each_is_true() -> None:
    stream = stream_of("a bigint, at bigint")
    values: tuple[Any, ...] = (stream, stream.watermark("at", 0), kv.MemorySink(), kv.Batches.available_now())
    for value in values:
        assert value
        assert not isinstance(value, collections.abc.Iterable)
        assert not callable(value) and f"{value}" == str(value)
