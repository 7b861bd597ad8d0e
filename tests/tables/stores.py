"""Delta and Iceberg tables in folders, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
from pyiceberg.catalog import load_catalog

from krishiv_py import IcebergSink


def catalog(folder: Path) -> dict[str, str]:
    """A catalog in SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def iceberg(folder: Path, name: str, key: Sequence[str] = ()) -> IcebergSink:
    """A sink for a table of that catalog."""
    return IcebergSink(f"reports.{name}", catalog=catalog(folder), key=key)


def iceberg_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """What a table holds."""
    actual = load_catalog("default", **catalog(folder)).load_table(f"reports.{name}").scan().to_arrow()
    rows: list[dict[str, Any]] = actual.to_pylist()
    return rows


def delta_rows(path: Path) -> list[dict[str, Any]]:
    """What a table holds."""
    rows: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows
