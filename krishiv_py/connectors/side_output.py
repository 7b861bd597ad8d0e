"""Late rows to a sink (SEMANTICS §4.3)."""

from __future__ import annotations

import attrs

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import known_sink
from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.options.late import (
    LateEventHandler,
    LateRows,
    LateWanted,
    OnError,
    SparedLateEventHandler,
    a_late_handler,
)


@attrs.frozen(eq=False)
class SideOutputLateEventHandler:
    """Writes whole late rows to a separate sink, exactly once together with the results.

    Attributes
    ----------
    sink : Sink
        Where late rows go.

    Examples
    --------
    >>> from krishiv_py import MemorySink, SideOutputLateEventHandler, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> late = SideOutputLateEventHandler(MemorySink())
    >>> counts = stream_of("at bigint").watermark("at", 0).with_late_event_handler(late).tumbling_window("10 s").agg(count())
    >>> driver = Driver(counts)
    >>> _ = driver.send([{"at": 12_000}])
    >>> _ = driver.send([{"at": 1_000}])
    >>> late.sink.table().to_pylist(), late.wants
    ([{'at': 1000, 'reason': 'late', 'watermark': 12000, 'lateness': 11000}], 'rows')
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


def given_handler(handler: object, on_error: OnError) -> LateEventHandler:
    """`handler`, which must be one; with ``"side_output"`` the query goes on when it raises.

    Raises
    ------
    PlanError
        For other values, and for a side output, whose sink is written with the results: it cannot be left out.
    """
    one_of(on_error, "on_error", ("fail", "side_output"))
    given = a_late_handler(handler)
    if on_error == "fail":
        return given
    if side_output(given) is not None:
        raise PlanError(
            "a side output has no other output for its rows",
            got='on_error="side_output"',
            then="late rows and results are written together, or not at all",
            hint="leave on_error out",
        )
    return SparedLateEventHandler(given)


def side_output(handler: LateEventHandler) -> Sink | None:
    """Return the sink late rows go to; None if the handler takes them itself."""
    return handler.sink if isinstance(handler, SideOutputLateEventHandler) else None
