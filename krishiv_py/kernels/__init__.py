"""The semantics, once: pure Arrow/NumPy. No pyspark, no clock, no input or output."""
