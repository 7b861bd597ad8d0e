"""Sinks that are tables of other systems, each with one transaction for a micro-batch (docs/tables.md).

PostgreSQL, Delta Lake and Iceberg, and a Delta table as a source. Their packages are loaded when they are first needed.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
