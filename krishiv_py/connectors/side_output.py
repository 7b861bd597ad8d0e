"""Late rows to a sink (SEMANTICS §4.3)."""

from __future__ import annotations

import attrs

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import known_sink
from krishiv_py.plan.options.late import LateEventHandler, LateRows, LateWanted


@attrs.frozen(eq=False)
class SideOutputLateEventHandler:
    """Writes whole late rows to a separate sink, exactly once together with the results.

    Attributes
    ----------
    sink : Sink
        Where late rows go.
    """

    sink: Sink = attrs.field()

    @sink.validator
    def _is_known(self, _attribute: object, value: object) -> None:
        known_sink(value, "late rows")

    @property
    def wants(self) -> LateWanted:
        """Whole rows."""
        return "rows"

    def handle(self, late: LateRows) -> None:
        """Nothing: the runner writes the rows of `late` to :attr:`sink`, so that both outputs are published together."""


def side_output(handler: LateEventHandler) -> Sink | None:
    """Return the sink late rows go to; None if the handler takes them itself."""
    return handler.sink if isinstance(handler, SideOutputLateEventHandler) else None
