"""Test pipelines in milliseconds, without Spark and without a JVM."""

from krishiv_py import calls
from krishiv_py.testing.captures import Capture, Comparison
from krishiv_py.testing.clock import ManualClock
from krishiv_py.testing.collected import collect
from krishiv_py.testing.driver import Driver
from krishiv_py.testing.explanation import Explanation
from krishiv_py.testing.file_replay import replay
from krishiv_py.testing.sends import StepOutput
from krishiv_py.testing.streams import MicroBatch, micro_batches, stream_of, union_of

__all__ = [
    "Capture",
    "Comparison",
    "Driver",
    "Explanation",
    "ManualClock",
    "MicroBatch",
    "StepOutput",
    "collect",
    "micro_batches",
    "replay",
    "stream_of",
    "union_of",
]

calls.checked_face(globals())
