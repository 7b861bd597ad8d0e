"""Test pipelines in milliseconds, without Spark and without a JVM."""

from krishiv_py.testing.captures import Capture, Comparison, Explanation
from krishiv_py.testing.checking.check import check
from krishiv_py.testing.checking.report import CheckFailedError, Report
from krishiv_py.testing.driver import Driver, collect, replay
from krishiv_py.testing.sends import ManualClock, MicroBatch, StepOutput, micro_batches, stream_of, union_of

__all__ = [
    "Capture",
    "CheckFailedError",
    "Comparison",
    "Driver",
    "Explanation",
    "ManualClock",
    "MicroBatch",
    "Report",
    "StepOutput",
    "check",
    "collect",
    "micro_batches",
    "replay",
    "stream_of",
    "union_of",
]


def __dir__() -> list[str]:
    return __all__
