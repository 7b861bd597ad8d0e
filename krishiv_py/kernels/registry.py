"""Which kernel serves which window kind."""

from __future__ import annotations

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
from krishiv_py.kernels.wrappers.ttl import ExpiringOperator, KeyDropping
from krishiv_py.kernels.wrappers.ttl_fixed import ExpiringFixed
from krishiv_py.plan.windows.count import CountWindow
from krishiv_py.plan.windows.distinct import SlidingWindows
from krishiv_py.plan.windows.fixed import HoppingWindow
from krishiv_py.plan.windows.lookback import LookBackWindow
from krishiv_py.plan.windows.panes import PaneWindow
from krishiv_py.plan.windows.session import SessionWindow


def _fixed(spec: OperatorSpec) -> FixedOperator | TriggeredOperator:
    if isinstance(spec.window, PaneWindow):
        return PaneOperator(spec)
    return FixedOperator(spec) if spec.options.fires_once else TriggeredOperator(spec)


def _session(spec: OperatorSpec, window: SessionWindow) -> WindowOperator:
    if spec.options.fires_by_default:
        return SessionOperator(spec) if window.max_duration_us is None else CappedSessionOperator(spec)
    return TriggeredSessionOperator(spec) if window.max_duration_us is None else CappedTriggeredOperator(spec)


def operator_for(spec: OperatorSpec) -> WindowOperator:
    """The operator of a specification."""
    if spec.output is not None:
        return ProjectedOperator(spec, operator_for(attrs.evolve(spec, output=None)))
    found = _of_window(spec)
    return PunctualOperator(found) if spec.options.late_rule == "window" else found


def _of_window(spec: OperatorSpec) -> WindowOperator:
    if isinstance(spec.window, HoppingWindow):
        fixed = _fixed(spec)
        return fixed if spec.options.ttl is None else ExpiringFixed(spec, fixed)
    found = _by_rows(spec)
    if spec.options.ttl is None:
        return found
    if not isinstance(found, KeyDropping):
        raise PlanError(
            message(
                "no time to live with these triggers",
                spec.window.kind,
                "state would be kept for ever",
                "leave the trigger or with_state_ttl out",
            )
        )
    return ExpiringOperator(spec, found)


def _by_rows(spec: OperatorSpec) -> WindowOperator:
    """The operator of windows whose bounds follow from rows."""
    if isinstance(spec.window, LookBackWindow):
        return LookBackOperator(spec)
    if isinstance(spec.window, CountWindow):
        return CountOperator(spec) if spec.options.fires_by_default else TriggeredCountOperator(spec)
    if isinstance(spec.window, SessionWindow):
        return _session(spec, spec.window)
    if isinstance(spec.window, SlidingWindows):
        return DistinctOperator(spec)
    raise PlanError(message("no kernel for this window", spec.window.kind, "it cannot be computed", "use another window"))
