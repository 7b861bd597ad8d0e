"""Which kernel serves which window kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from krishiv_py.errors import PlanError, message
from krishiv_py.kernels.results.contract import WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.windows.count.plain import CountOperator
from krishiv_py.kernels.windows.count.triggered import TriggeredCountOperator
from krishiv_py.kernels.windows.fixed.panes import PaneOperator
from krishiv_py.kernels.windows.fixed.plain import FixedOperator
from krishiv_py.kernels.windows.fixed.triggered import TriggeredOperator
from krishiv_py.kernels.windows.ranged.distinct import DistinctOperator
from krishiv_py.kernels.windows.ranged.lookback import LookBackOperator
from krishiv_py.kernels.windows.session.capped.plain import CappedSessionOperator
from krishiv_py.kernels.windows.session.capped.triggered import CappedTriggeredOperator
from krishiv_py.kernels.windows.session.growing.triggered import TriggeredSessionOperator
from krishiv_py.kernels.windows.session.plain import SessionOperator
from krishiv_py.kernels.wrappers.fire_first import PunctualOperator
from krishiv_py.kernels.wrappers.rename import ProjectedOperator
from krishiv_py.kernels.wrappers.ttl import ExpiringOperator
from krishiv_py.kernels.wrappers.ttl_fixed import ExpiringFixed
from krishiv_py.plan.windows.count import CountWindow
from krishiv_py.plan.windows.distinct import SlidingWindows
from krishiv_py.plan.windows.fixed import HoppingWindow
from krishiv_py.plan.windows.lookback import LookBackWindow
from krishiv_py.plan.windows.panes import PaneWindow
from krishiv_py.plan.windows.session import SessionWindow


@attrs.frozen(eq=False)
class Link:
    """One operator of a chain: what it is, and how it is made around the next one."""

    title: str
    make: Callable[[OperatorSpec, Any], WindowOperator]


def chain(spec: OperatorSpec) -> tuple[Link, ...]:
    """The operators that a specification is run by, the one around all others first; nothing is built."""
    links = [_window(spec)]
    if spec.options.ttl is not None:
        fixed = isinstance(spec.window, HoppingWindow)
        links.insert(
            0, Link("time to live of windows", ExpiringFixed) if fixed else Link("time to live of keys", ExpiringOperator)
        )
    if spec.options.late_rule == "window":
        links.insert(0, Link("fire before rows are taken in", lambda _, inner: PunctualOperator(inner)))
    if spec.output is not None:
        links.insert(0, Link("other names", ProjectedOperator))
    return tuple(links)


def operator_for(spec: OperatorSpec) -> WindowOperator:
    """The operator of a specification."""
    links = list(chain(spec))
    around = links.pop(0) if spec.output is not None else None
    plain = attrs.evolve(spec, output=None)
    found: WindowOperator | None = None
    for link in reversed(links):
        found = link.make(plain, found)
    assert found is not None
    return found if around is None else around.make(spec, found)


def _window(spec: OperatorSpec) -> Link:
    window, options = spec.window, spec.options
    if isinstance(window, PaneWindow):
        return _alone("panes", PaneOperator)
    if isinstance(window, HoppingWindow):
        once = options.fires_once
        return _alone("fixed windows", FixedOperator) if once else _alone("fixed windows with triggers", TriggeredOperator)
    if isinstance(window, LookBackWindow):
        return _alone("look-back windows", LookBackOperator)
    if isinstance(window, SlidingWindows):
        return _alone("distinct-set windows", DistinctOperator)
    once = options.fires_by_default
    if isinstance(window, CountWindow):
        return _alone("count windows", CountOperator) if once else _alone("count windows with triggers", TriggeredCountOperator)
    if isinstance(window, SessionWindow):
        if window.max_duration_us is None:
            return _alone("sessions", SessionOperator) if once else _alone("sessions with triggers", TriggeredSessionOperator)
        capped = "sessions with a longest duration"
        return _alone(capped, CappedSessionOperator) if once else _alone(f"{capped} and triggers", CappedTriggeredOperator)
    raise PlanError(message("no kernel for this window", window.kind, "it cannot be computed", "use another window"))


def _alone(title: str, operator: Callable[[OperatorSpec], WindowOperator]) -> Link:
    return Link(title, lambda spec, _: operator(spec))
