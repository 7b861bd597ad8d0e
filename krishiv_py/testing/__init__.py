"""Test pipelines in milliseconds, without Spark and without a JVM."""

from krishiv_py.testing.clock import ManualClock
from krishiv_py.testing.driver import Driver, StepOutput
from krishiv_py.testing.streams import stream_of

__all__ = ["Driver", "ManualClock", "StepOutput", "stream_of"]
