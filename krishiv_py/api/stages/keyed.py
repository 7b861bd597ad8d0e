"""Streams with a key, with and without event time."""

from __future__ import annotations

import attrs

from krishiv_py.api.joins import JoinMethods
from krishiv_py.api.stages.dedup import DedupMethods
from krishiv_py.api.stages.order import ON_TIMED, RESULTS, instead, needs
from krishiv_py.api.stages.windows import WindowMethods


@instead(ON_TIMED)
@needs(".tumbling_window(...) or another window", "agg", *RESULTS)
@attrs.frozen(eq=False, repr=False)
class KeyedStream(WindowMethods, JoinMethods, DedupMethods):
    """Rows with event time and key, ready for windows.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    >>> driver = Driver(keyed.tumbling_window(10).agg(count()))
    >>> _ = driver.send([{"user": "ann", "at": 1}, {"user": "bob", "at": 2}, {"user": "ann", "at": 3}])
    >>> [(row["user"], row["count"]) for row in driver.close().results.to_pylist()]
    [('ann', 2), ('bob', 1)]
    """
