"""A plain, slow reference of the semantics: dicts, loops and Python integers, nothing shared with the library.

``Reference(config).run(steps)`` gives an ``Observed``; pane events have ``run_panes``. Times are integers
of any one unit.
"""

from tests.reference.count import CountWindow
from tests.reference.distinct import DistinctSet
from tests.reference.fixed import Fixed, Intervals
from tests.reference.lateness import FutureRule, Horizon, classify
from tests.reference.lookback import LookBack
from tests.reference.model import (
    Advance,
    Batch,
    Close,
    Config,
    Emission,
    Facts,
    Late,
    Observed,
    Result,
    Row,
    Step,
    Trigger,
    WatermarkSpec,
)
from tests.reference.panes import PaneConfig, PaneEvent, run_panes
from tests.reference.run import Reference
from tests.reference.session import Session
from tests.reference.watermark import Clock

__all__ = [
    "Advance",
    "Batch",
    "Clock",
    "Close",
    "Config",
    "CountWindow",
    "DistinctSet",
    "Emission",
    "Facts",
    "Fixed",
    "FutureRule",
    "Horizon",
    "Intervals",
    "Late",
    "LookBack",
    "Observed",
    "PaneConfig",
    "PaneEvent",
    "Reference",
    "Result",
    "Row",
    "Session",
    "Step",
    "Trigger",
    "WatermarkSpec",
    "classify",
    "run_panes",
]
