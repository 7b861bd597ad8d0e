"""Streams with a key, with and without event time."""

from __future__ import annotations

import attrs

from krishiv_py.api.joins.verbs import JoinMethods
from krishiv_py.api.stages.dedup import DedupMethods
from krishiv_py.api.stages.order import ON_TIMED, RESULTS, instead, needs
from krishiv_py.api.stages.windows import WindowMethods
from krishiv_py.errors import OrderError, message
from krishiv_py.plan.expressions.expr import Expr


@instead(ON_TIMED)
@needs(".tumbling_window(...) or another window", "agg", *RESULTS)
@attrs.frozen(eq=False, repr=False)
class KeyedStream(WindowMethods, JoinMethods, DedupMethods):
    """Rows with event time and key, ready for windows."""

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedStream:
        """Always refused, for any `keys` and `named` ones: a stream is keyed once."""
        raise OrderError(
            message(
                "the stream is keyed already",
                ", ".join(self.keys),
                "two groupings cannot both hold",
                "name all key columns in one key_by",
            )
        )
