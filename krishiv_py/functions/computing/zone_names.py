"""Names of time zones: those of Python's ``zoneinfo``, and offsets such as ``+05:30``."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final
from zoneinfo import ZoneInfo

_OFFSET: Final = re.compile(r"([+-])(\d{2}):(\d{2})")
_FURTHEST: Final = 18
"""Hours of the largest offset, as in Java."""


def zone_of(name: str) -> dt.tzinfo | None:
    """Return the time zone of this name; None where there is none.

    Examples
    --------
    >>> zone_of("Europe/Berlin"), zone_of("+05:30").utcoffset(None), zone_of("Berlin")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), datetime.timedelta(seconds=19800), None)
    """
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        hours, minutes = int(offset[2]), int(offset[3])
        length = dt.timedelta(hours=hours, minutes=minutes)
        valid = minutes < 60 and length <= dt.timedelta(hours=_FURTHEST)
        return dt.timezone(-length if offset[1] == "-" else length) if valid else None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; a malformed name; a folder of zones
        return None
