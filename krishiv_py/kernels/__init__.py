"""The semantics, once: pure Arrow/NumPy. No pyspark, no clock, no input or output."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
