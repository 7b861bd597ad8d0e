"""Texts that are read as dates or times by a pattern."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing import text
from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.formats import read_regex
from krishiv_py.functions.computing.values import INSTANT, FaultError, Value, arrays, coerced, joined


def read_by(value: Value, pattern: str, type_: pa.DataType, tried: bool) -> Value:
    """Texts as a ``date``, or a ``timestamp`` in UTC; where a text does not fit, null if it is only `tried`.

    Raises
    ------
    FaultError
        For a text that the pattern does not read.
    """
    require(pa.types.is_string, value)
    (column,), single = arrays(pc.cast(value, pa.string()))
    times, bad = text.times_by(column, read_regex(pattern))
    if bad is not None and bad.any() and not tried:
        row = int(np.flatnonzero(bad)[0])
        raise FaultError(f"{text.shown(column, row)} in row {row} is not written as {pattern!r}")
    instants = coerced(times, INSTANT)
    return joined(instants if type_ == INSTANT else pc.cast(times, type_, safe=False), single)
