"""The micro-batch loop of driver, bounded and streaming: chunks or rows and a moment → results, late rows, counters, facts.

May import kernels, planner and plan. It knows no Spark and does no I/O: whoever calls it brings the state and hands on what
comes out.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
