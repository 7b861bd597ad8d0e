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
    """Rows with event time and key, ready for windows."""
