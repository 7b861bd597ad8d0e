"""Functions that load tables of lookup joins, and cannot be sent to tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.errors import RAISED


def keep_with_driver(tables: tuple[LookupTable, ...]) -> None:
    """Functions that cannot be sent to tasks stay where they are: in a query, the driver alone calls them."""
    for table in tables:
        table.driver_only = table.driver_only or not _travels(table.load)


def _travels(load: Callable[[], Any] | None) -> bool:
    try:
        cloudpickle.dumps(load)  # type: ignore[no-untyped-call]
    except RAISED:  # whatever the objects it refers to raise: a Spark session, a lock, a connection
        return False
    return True
