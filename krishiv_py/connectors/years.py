"""The years 1 to 9999: outside of them Python has no times, and texts of times are not the same everywhere."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import OperatorError, shown

_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = -62_135_596_800_000_000
_BEHIND_US: Final = 253_402_300_800_000_000


def check_years(values: pa.Array | pa.ChunkedArray, name: str, where: str) -> None:
    """Refuse a date or time before year 1 or after 9999 in a column called `name`; other columns pass.

    Raises
    ------
    OperatorError
        Saying that it cannot be written to `where`.
    """
    if pa.types.is_date32(values.type):
        numbers, first, least = values.cast(pa.int32()), _FIRST_US // _DAY_US, _BEHIND_US // _DAY_US
    elif pa.types.is_timestamp(values.type):
        numbers, first, least = values.cast(pa.int64()), _FIRST_US, _BEHIND_US
    else:
        return
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None and not (extremes["min"] >= first and extremes["max"] < least):
        raise not_written(name, where, "a time before year 1 or after 9999", "filter such rows")


def not_written(name: str, where: str, what: str, hint: str) -> OperatorError:
    """The error for a value of a column called `name` that `where` does not have."""
    return OperatorError(
        f"a value cannot be written to {where}", got=f"{what} in {shown(name)}", then="the batch is not written", hint=hint
    )
