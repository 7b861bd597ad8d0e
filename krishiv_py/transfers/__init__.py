"""Holds what takes a query elsewhere, of whichever engine it is: savepoints of checkpoints, moves, captures, and histories.

This room knows both engines; they do not know each other.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
