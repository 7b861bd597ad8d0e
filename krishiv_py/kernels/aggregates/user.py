"""Aggregates that a user writes, and the accumulators they keep.

As bytes they are pickles that can hold values, but name no code beyond a short list. A checkpoint lies in a folder that
others may be able to write, and an ordinary pickle runs what it names when it is read. Here plain Python values need no name
at all; whatever has one must be on the list below, or be a class that the plan itself names: that of an empty accumulator, or
one of the aggregator's ``state_types``. What may not be read is refused when written.

NumPy's own functions for reading trust what they read: a forged dtype makes pointers of any bytes. So no function, class or
dtype of NumPy is within reach of a pickle. Arrays are written as :func:`array_of` takes them, and older state, which holds
NumPy's own form, is read by functions of ours under NumPy's names.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.connectors.values import UnfitError, column
from krishiv_py.errors import RAISED, failure_text, shown
from krishiv_py.failures.redaction import HIDDEN, is_secret
from krishiv_py.kernels.aggregates.base import AggKernel, GroupError, Rows, computes
from krishiv_py.plan.aggregates.user import Aggregator, Udaf, partial_of
from krishiv_py.plan.expressions.expr import Col, Expr, Field
from krishiv_py.plan.expressions.trees import walk

_PLAIN: Final = frozenset(
    {
        *(
            ("builtins", n)
            for n in (
                *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int"),
                *("list", "set", "slice", "str", "tuple"),
            )
        ),
        *(("collections", n) for n in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(("datetime", n) for n in ("date", "datetime", "time", "timedelta", "timezone")),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        ("uuid", "SafeUUID"),
    }
)
"""Modules and names of types that hold values and run nothing."""
_REBUILD: Final = frozenset({("copyreg", "__newobj__"), ("copyreg", "_reconstructor"), ("builtins", "object")})
"""Names that pickles of ordinary classes are made with."""
_CODE: Final = re.compile(r"[<>|=]?[biufcSUVmM]\d{1,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""A dtype of values without pointers, as ``dtype.str`` writes it."""
_LAST_CHARACTER: Final = 0x10FFFF


class StateTypes:
    """Writes and reads accumulators of one aggregator."""

    def __init__(self, classes: Iterable[type]) -> None:
        named = [c for c in classes if c.__module__ != "builtins" and not issubclass(c, (np.ndarray, np.generic, np.dtype))]
        self.classes = {(c.__module__, c.__qualname__): c for c in named}

    def dumps(self, accumulator: object) -> bytes:
        """Return the accumulator as bytes.

        Raises
        ------
        TypeError
            When it holds something of a class that is not known.
        """
        out = pa.BufferOutputStream()
        _Pickler(out, self.classes).dump(accumulator)
        return bytes(out.getvalue())

    def loads(self, blob: bytes) -> Any:
        """Return the accumulator that was written.

        Raises
        ------
        pickle.UnpicklingError
            When it names anything that is not known, or changes a class.
        """
        reader = _Unpickler(pa.BufferReader(blob), self.classes)
        try:
            value = reader.load()
        finally:
            changed = reader.restore()
        if changed:
            raise pickle.UnpicklingError("the state changes a class, which no accumulator does")
        return value


class _Pickler(pickle.Pickler):
    def __init__(self, out: pa.BufferOutputStream, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(out, protocol=5)
        self.classes = classes

    def reducer_override(self, obj: Any) -> Any:
        """Called for a value that is not a plain value: an object, or a class or function that is named."""
        if type(obj) in (np.ndarray, _OldArray):
            return array_of, (_layout(obj.dtype), obj.shape, obj.tobytes())
        if isinstance(obj, np.generic) and type(obj).__module__ == "numpy":
            held = obj.item() if isinstance(obj, (np.str_, np.bytes_)) else obj.tobytes()
            return scalar_of, ("" if isinstance(obj, (np.str_, np.bytes_)) else _layout(obj.dtype), held)
        named = obj if hasattr(obj, "__qualname__") else type(obj)
        name = (getattr(named, "__module__", ""), named.__qualname__)
        if name in _PLAIN or name in self.classes or name in _REBUILD or obj is array_of or obj is scalar_of:
            return NotImplemented
        raise TypeError(f"an accumulator may not hold {'.'.join(name)}: reading a checkpoint must run no code")


class _Unpickler(pickle.Unpickler):
    def __init__(self, given: pa.BufferReader, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(given)
        self.classes = classes
        self.as_found: dict[type, dict[str, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        own = _READERS.get((module, name))
        if own is not None:
            return own
        class_found = self.classes.get((module, name))
        if class_found is None:
            if (module, name) not in _PLAIN and (module, name) not in _REBUILD:
                raise pickle.UnpicklingError(
                    f"the state names {module}.{name}, which no accumulator of this aggregate may hold"
                )
            class_found = super().find_class(module, name)
        if isinstance(class_found, type) and module != "builtins":
            self.as_found.setdefault(class_found, dict(vars(class_found)))
        return class_found

    def restore(self) -> bool:
        """Undo what the pickle did to a class itself, which its opcodes can; returns whether there was anything."""
        changed = False
        for class_, before in self.as_found.items():
            for name in [n for n, v in vars(class_).items() if n not in before or v is not before[n]]:
                changed = True
                if name in before:
                    setattr(class_, name, before[name])
                else:
                    delattr(class_, name)
        return changed


def array_of(layout: Any, shape: Any, data: Any) -> npt.NDArray[Any]:
    """Return an array from its layout (:func:`_layout`), its shape, and its values as bytes, row by row.

    Raises
    ------
    ValueError
        When there may be no such array.
    """
    dtype = _dtype(layout)
    if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape) or type(data) not in (bytes, bytearray):
        raise ValueError("an array in state has no shape or no bytes")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array in state has {len(data)} bytes, which is not what its shape needs")
    array: npt.NDArray[Any] = np.frombuffer(data, np.uint8).copy().view(dtype).reshape(shape)
    _check_values(array)
    return array


def scalar_of(layout: Any, data: Any) -> Any:
    """Return a NumPy scalar from its layout and bytes; a text or bytes of NumPy from its value, with no layout.

    Raises
    ------
    ValueError
        When there may be no such scalar.
    """
    if layout == "" and type(data) in (str, bytes):
        return np.str_(data) if isinstance(data, str) else np.bytes_(data)
    return array_of(layout, (), data)[()]


def _layout(dtype: np.dtype[Any]) -> Any:
    """Return a dtype without pointers as plain values: its ``str``, or a tuple for one of fields or of arrays."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        layout: Any = (_layout(base), shape)
    elif dtype.names is not None:
        fields = [dtype.fields[n] for n in dtype.names] if dtype.fields else []
        layout = (dtype.names, tuple(_layout(f[0]) for f in fields), tuple(int(f[1]) for f in fields), dtype.itemsize)
    else:
        layout = dtype.str
    try:
        same = _dtype(layout) == dtype
    except ValueError:
        same = False
    if not same:
        raise TypeError(f"an accumulator may not hold NumPy values of dtype {dtype}: only those without pointers")
    return layout


def _dtype(layout: Any, level: int = 0) -> np.dtype[Any]:
    if type(layout) is str and _CODE.fullmatch(layout):
        try:
            dtype = np.dtype(layout)
        except TypeError as problem:
            raise ValueError(f"an array in state is of no dtype: {layout}") from problem
    elif type(layout) is tuple and len(layout) == 2 and level < 20:
        dtype = np.dtype((_dtype(layout[0], level + 1), _naturals(layout[1])))
    elif type(layout) is tuple and len(layout) == 4 and level < 20:
        names, inner, offsets, size = layout
        if type(names) is not tuple or not all(type(n) is str for n in names) or type(inner) is not tuple:
            raise ValueError("an array in state has no names of fields")
        formats = [_dtype(i, level + 1) for i in inner]
        parts = {
            "names": list(names),
            "formats": formats,
            "offsets": list(_naturals(offsets)),
            "itemsize": _naturals((size,))[0],
        }
        dtype = np.dtype(parts)  # type: ignore[call-overload]
    else:
        raise ValueError("an array in state is of a dtype that no accumulator may hold")
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("an array in state is of a dtype that no accumulator may hold")
    return dtype


def _naturals(given: Any) -> tuple[int, ...]:
    if type(given) is not tuple or not all(type(n) is int and 0 <= n < 1 << 31 for n in given):
        raise ValueError("an array in state has sizes that are not whole numbers")
    return given


def _check_values(array: npt.NDArray[Any]) -> None:
    """Refuse bytes that are not values of their dtype: truth values other than 0 and 1, characters that are not Unicode."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            _check_values(array[name])
    elif array.dtype.kind in "bU":
        raw = np.ascontiguousarray(array).reshape(-1)
        if array.dtype.kind == "b":
            wrong = raw.view(np.uint8) > 1
        else:
            wrong = raw.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)) > _LAST_CHARACTER
        if wrong.any():
            raise ValueError("an array in state holds bytes that are not values of its dtype")


class _OldDtype:
    """Takes the place of a dtype in NumPy's own form: what is known of its layout."""

    __slots__ = ("layout",)

    def __init__(self, code: Any, *_: Any) -> None:
        self.layout: Any = code

    def __setstate__(self, state: Any) -> None:
        _, order, base, names, fields, size, *_rest = state
        if base is not None:
            self.layout = (_layout_of(base[0]), base[1])
        elif names is not None:
            parts = [fields[n] for n in names]
            self.layout = (names, tuple(_layout_of(p[0]) for p in parts), tuple(p[1] for p in parts), size)
        else:
            unit = ""
            if str(self.layout)[:1] in ("m", "M") and len(state) > 8:
                name, count, *_ = state[8][1]
                unit = "" if name == b"generic" else f"[{count}{name.decode()}]"
            self.layout = f"{order}{self.layout}{unit}"


class _OldArray(np.ndarray[Any, Any]):
    """An array from NumPy's own form that checks its state; :class:`StateTypes` writes it as any other array."""

    def __setstate__(self, state: Any) -> None:
        if self.size:
            raise ValueError("an array in state is set twice")
        _, shape, dtype, fortran, data = state
        array = array_of(_layout_of(dtype), shape, data)
        if fortran:
            array = array.reshape(-1).reshape(shape, order="F")
        super().__setstate__((1, shape, array.dtype, False, array.tobytes()))  # type: ignore[arg-type]  # as NumPy writes it


def _layout_of(given: Any) -> Any:
    if not isinstance(given, _OldDtype):
        raise ValueError("an array in state is of no dtype")
    return given.layout


def _old_dtype(code: Any, *rest: Any) -> _OldDtype:
    return _OldDtype(code, *rest)


def _old_array(*_: Any) -> npt.NDArray[Any]:
    return _OldArray((0,), np.int8)


def _old_scalar(dtype: Any, data: Any) -> Any:
    layout = _layout_of(dtype)
    if data == b"" and layout in ("<U0", ">U0", "|S0"):
        return np.str_("") if "U" in layout else np.bytes_(b"")
    return array_of(layout, (), data)[()]


def _old_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> npt.NDArray[Any]:
    flat = array_of(_layout_of(dtype), shape, data)
    if order == "K" and axes is not None:
        return flat.transpose(_naturals(tuple(axes)))
    return flat.reshape(-1).reshape(shape, order="F" if order == "F" else "C")


def _checked(class_: type[Any]) -> Callable[..., Any]:
    """Dates and times from bytes, of which Python itself checks one only."""

    def read(*args: Any) -> Any:
        return class_(*args).replace()

    return read


_READERS: Final[dict[tuple[str, str], Any]] = {
    (__name__, "array_of"): array_of,
    (__name__, "scalar_of"): scalar_of,
    ("numpy", "dtype"): _old_dtype,
    ("numpy", "ndarray"): "ndarray",
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _old_array for core in ("_core", "core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _old_scalar for core in ("_core", "core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _old_buffer for core in ("_core", "core")},
    **{("datetime", c.__name__): _checked(c) for c in (dt.date, dt.datetime, dt.time)},
}
"""Stand-ins for what names in a pickle name."""
_TOO_MANY = "return a list with one accumulator for each of the n_groups groups"


@attrs.frozen(eq=False, slots=False)
class User(AggKernel):
    """Runs an :class:`~krishiv_py.Aggregator`. With `secret` no value is shown: the column is called as secrets are."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.binary()]
    in_order: ClassVar[bool] = True

    aggregator: Aggregator[Any]
    type: pa.DataType
    label: str
    secret: bool = False

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def _fail(self, step: str, problem: BaseException, value: object, group: int | None) -> GroupError:
        what = f"{self.label} failed in `{step}`"
        return GroupError(what, self._shown(value), failure_text(problem), f"fix the aggregator's `{step}`", group)

    def _shown(self, value: object) -> str:
        return HIDDEN if self.secret else shown(value)

    def _create(self, group: int | None) -> Any:
        try:
            return self.aggregator.create()
        except RAISED as problem:
            raise self._fail("create", problem, "an empty accumulator", group) from problem

    @cached_property
    def _types(self) -> StateTypes:
        return StateTypes([type(self._create(None)), *getattr(self.aggregator, "state_types", ())])

    @cached_property
    def _partial(self) -> Callable[..., Any] | None:
        return partial_of(self.aggregator)

    def _written(self, accumulators: list[Any], step: str) -> list[pa.Array]:
        out, types = [], self._types
        for group, accumulator in enumerate(accumulators):
            try:
                out.append(types.dumps(accumulator))
            except RAISED as problem:  # pickling calls user code too
                hint = "keep plain values in it, or name its classes: state_types = (MyClass,) on the aggregator"
                what = f"{self.label}: what `{step}` returned cannot be kept in state"
                raise GroupError(what, self._shown(accumulator), failure_text(problem), hint, group) from problem
        return [pa.array(out, pa.binary())]

    def _read(self, blob: bytes, group: int) -> Any:
        types = self._types
        try:
            return types.loads(blob)
        except RAISED as problem:  # whatever the class of an accumulator raises
            hint = "name the class in `state_types` of the aggregator if you trust the checkpoint, or start with a new one"
            what = f"{self.label}: an accumulator in state cannot be read"
            raise GroupError(what, self._shown(blob[:60]), failure_text(problem), hint, group) from problem

    def _added(self, values: list[Any], ids: Ints, n: int) -> list[Any]:
        accumulators = [self._create(group) for group in range(n)]
        for value, id_ in zip(values, ids.tolist(), strict=True):
            try:
                accumulators[id_] = self.aggregator.add(accumulators[id_], value)
            except RAISED as problem:  # user code: whatever it raises is reported with its row
                raise self._fail("add", problem, value, id_) from problem
        return accumulators

    def _at_once(self, partial: Callable[..., Any], values: pa.Array, ids: Ints, n: int) -> list[Any]:
        try:
            accumulators = list(partial(values, ids, n))
        except RAISED as problem:  # user code, see above
            only = int(ids[0]) if len(ids) and (ids == ids[0]).all() else None
            raise self._fail("partial", problem, values.to_pylist()[:20], only) from problem
        if len(accumulators) != n:
            what = f"{self.label}: `partial` gave another number of accumulators than there are groups"
            raise GroupError(what, f"{len(accumulators)} for {n} groups", "results would go to other keys", _TOO_MANY)
        return accumulators

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        if self._partial is not None:
            return self._written(self._at_once(self._partial, kept, ids, rows.n), "partial")
        return self._written(self._added(kept.to_pylist(), ids, rows.n), "add")

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        merged: list[Any] = [None] * n
        seen = np.zeros(n, np.bool_)
        for blob, group in zip(partials[0].to_pylist(), ids.tolist(), strict=True):
            accumulator = self._read(blob, group)
            try:
                merged[group] = self.aggregator.merge(merged[group], accumulator) if seen[group] else accumulator
            except RAISED as problem:  # user code, see above
                raise self._fail("merge", problem, accumulator, group) from problem
            seen[group] = True
        return self._written(merged, "merge")

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        results = []
        for group, blob in enumerate(partials[0].to_pylist()):
            accumulator = self._read(blob, group)
            try:
                results.append(self.aggregator.finish(accumulator))
            except RAISED as problem:  # user code, see above
                raise self._fail("finish", problem, accumulator, group) from problem
        try:
            return column(results, self.type)
        except UnfitError as problem:
            raise self._fail("finish", problem, results[problem.row], problem.row) from problem

    def noted(self, func: str) -> str:
        return f"{func} {type(self.aggregator).__qualname__}"


def _is_secret(expr: Expr) -> bool:
    """Return whether a column or field it reads is called as secrets are."""
    return any(is_secret(node.name) for node in walk(expr) if isinstance(node, (Col, Field)))


@computes(Udaf)
def _user(call: Udaf, type_: pa.DataType) -> User:
    assert call.udaf is not None and call.result_type is not None
    return User(call.udaf, call.result_type, str(call), _is_secret(call.arg))
