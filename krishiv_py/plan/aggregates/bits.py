"""Bits of whole numbers, combined over the rows of a window."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr


@attrs.frozen(eq=False, repr=False)
class BitAnd(AggCall):
    """The bits that all numbers have."""

    func: ClassVar[str] = "bit_and"
    _takes: ClassVar[Takes] = "integers"


@aggregate("BIT_AND")
def bit_and(arg: Expr | str) -> AggCall:
    """Bits that all non-null values of `arg` have, in its type, which is one of whole numbers; null without values.

    Examples
    --------
    >>> from krishiv_py import bit_and, bit_or, bit_xor
    >>> from krishiv_py.testing import Driver, stream_of
    >>> windows = stream_of("flags int, at bigint").watermark("at", 0).tumbling_window(10)
    >>> driver = Driver(windows.agg(every=bit_and("flags"), any=bit_or("flags"), odd=bit_xor("flags")))
    >>> _ = driver.send([{"flags": flags, "at": 1} for flags in (0b111, 0b110, 0b010)])
    >>> [row] = driver.close().results.to_pylist()
    >>> bin(row["every"]), bin(row["any"]), bin(row["odd"])
    ('0b10', '0b111', '0b11')
    """
    return BitAnd(column_of(arg, "bit_and"))


@attrs.frozen(eq=False, repr=False)
class BitOr(AggCall):
    """The bits that any number has."""

    func: ClassVar[str] = "bit_or"
    _takes: ClassVar[Takes] = "integers"


@aggregate("BIT_OR")
def bit_or(arg: Expr | str) -> AggCall:
    """Bits that any non-null value of `arg` has, in its type, which is one of whole numbers; null without values."""
    return BitOr(column_of(arg, "bit_or"))


@attrs.frozen(eq=False, repr=False)
class BitXor(AggCall):
    """The bits that an odd number of numbers have."""

    func: ClassVar[str] = "bit_xor"
    _takes: ClassVar[Takes] = "integers"


@aggregate("BIT_XOR")
def bit_xor(arg: Expr | str) -> AggCall:
    """Bits that an odd number of non-null values of `arg` have, in its type, one of whole numbers; null without values."""
    return BitXor(column_of(arg, "bit_xor"))
