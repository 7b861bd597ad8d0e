"""Modules that tasks cannot import: what is sent to them of such a module travels whole."""

from __future__ import annotations

from types import ModuleType

from pyspark import cloudpickle


def travels(module: ModuleType) -> None:
    """Send functions and classes of a module as they are; workers do not find the file of a job on their path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
