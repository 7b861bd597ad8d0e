"""Streams with a key, with and without event time."""

from __future__ import annotations

import attrs

from krishiv_py.api.joins.verbs import JoinMethods
from krishiv_py.api.stages.dedup import DedupMethods
from krishiv_py.api.stages.order import ON_TIMED, RESULTS, instead, needs
from krishiv_py.api.stages.windows import WindowMethods
from krishiv_py.errors import OrderError, PlanError, message, shown
from krishiv_py.plan.checks import known_column


def checked_keys(keys: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Key columns that exist, each once."""
    for at, key in enumerate(keys):
        if not isinstance(key, str):
            raise PlanError(message("keys are column names", shown(key), "rows cannot be grouped", 'write .key_by("user_id")'))
        known_column(key, names, "key_by")
        if key in keys[:at]:
            raise PlanError(message("a key column is named twice", key, "it would appear twice in results", "name it once"))
    return keys


@instead(ON_TIMED)
@needs(".tumbling_window(...) or another window", "agg", *RESULTS)
@attrs.frozen(eq=False)
class KeyedStream(WindowMethods, JoinMethods, DedupMethods):
    """Rows with event time and key, ready for windows."""

    def key_by(self, *keys: str) -> KeyedStream:
        """Always refused, for any `keys`: a stream is keyed once."""
        raise OrderError(
            message(
                "the stream is keyed already",
                ", ".join(self.keys),
                "two groupings cannot both hold",
                "name all key columns in one key_by",
            )
        )
