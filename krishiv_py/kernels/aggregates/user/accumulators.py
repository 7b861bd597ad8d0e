"""Accumulators of user-defined aggregates as bytes: pickles that can hold values, but name no code beyond a short list.

A checkpoint lies in a folder that others may be able to write, and an ordinary pickle runs what it names when it is read.
Here plain Python values need no name at all; whatever has one must be on the list below, or be a class that the plan itself
names: that of an empty accumulator, or one of the aggregator's ``state_types``. What may not be read is refused when written.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

_PLAIN: Final = frozenset(
    {
        *(
            ("builtins", n)
            for n in (
                "bool",
                "bytearray",
                "bytes",
                "complex",
                "dict",
                "float",
                "frozenset",
                "int",
                "list",
                "set",
                "slice",
                "str",
                "tuple",
            )
        ),
        *(("collections", n) for n in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(("datetime", n) for n in ("date", "datetime", "time", "timedelta", "timezone")),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        ("uuid", "SafeUUID"),
        *((f"numpy.{core}.multiarray", n) for core in ("_core", "core") for n in ("_reconstruct", "scalar")),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    }
)
"""Modules and names of types that hold values and run nothing."""
_REBUILD: Final = frozenset({("copyreg", "__newobj__"), ("copyreg", "_reconstructor"), ("builtins", "object")})
"""What pickles of ordinary classes are made with."""


class StateTypes:
    """Writes and reads accumulators of one aggregator."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.classes = {(c.__module__, c.__qualname__): c for c in classes if c.__module__ != "builtins"}

    def dumps(self, accumulator: object) -> bytes:
        """The accumulator as bytes.

        Raises
        ------
        TypeError
            When it holds something of a class that is not known.
        """
        out = pa.BufferOutputStream()
        _Pickler(out, self.classes).dump(accumulator)
        return bytes(out.getvalue())

    def loads(self, blob: bytes) -> Any:
        """The accumulator that was written.

        Raises
        ------
        pickle.UnpicklingError
            When it names anything that is not known.
        """
        return _Unpickler(pa.BufferReader(blob), self.classes).load()


class _Pickler(pickle.Pickler):
    def __init__(self, out: pa.BufferOutputStream, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(out, protocol=5)
        self.classes = classes

    def reducer_override(self, obj: Any) -> Any:
        """Called for what is no plain value: an object, or a class or function that is named."""
        named = obj if hasattr(obj, "__qualname__") else type(obj)
        name = (getattr(named, "__module__", ""), named.__qualname__)
        generic = isinstance(obj, (np.generic, np.ndarray, np.dtype)) or name in _REBUILD
        if name in _PLAIN or name in self.classes or generic:
            return NotImplemented
        raise TypeError(f"an accumulator may not hold {'.'.join(name)}: reading a checkpoint must run no code")


class _Unpickler(pickle.Unpickler):
    def __init__(self, given: pa.BufferReader, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(given)
        self.classes = classes

    def find_class(self, module: str, name: str) -> Any:
        known = self.classes.get((module, name))
        if known is not None:
            return known
        if (module, name) in _PLAIN or (module, name) in _REBUILD:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the state names {module}.{name}, which no accumulator of this aggregate may hold")
