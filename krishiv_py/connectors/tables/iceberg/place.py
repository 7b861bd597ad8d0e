"""Catalogs and tables of Iceberg: their arguments, how they are opened, and the errors of pyiceberg."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from krishiv_py.connectors.tables.delta.place import options
from krishiv_py.errors import PlanError, failure_text, require_extra
from krishiv_py.failures.redaction import HIDDEN, is_secret, redacted
from krishiv_py.plan.checks import a_text
from krishiv_py.storage.datasets import Dataset, files_at, server_of

COMPACTED: Final = "krishiv.compaction"
"""The mark in the summary of a snapshot that only merges files and changes no rows."""


def iceberg(name: str) -> Any:
    """Return a module of pyiceberg.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Iceberg", ("pyiceberg",), "iceberg", "no Iceberg table can be read or written")
    return importlib.import_module(f"pyiceberg.{name}")


def a_table(value: object) -> str:
    """Return `value`, which must be a namespace and a name.

    Raises
    ------
    PlanError
        For anything else.
    """
    hint = 'pass namespace and name: "reports.results"'
    text = a_text(value, "table", hint)
    if text.count(".") < 1 or not all(text.split(".")):
        raise PlanError("`table` has no namespace", got=repr(text), hint=hint)
    iceberg("catalog")
    return text


def a_catalog(value: object) -> Mapping[str, str]:
    """Return the properties of a catalog; a text is the name of one in ``~/.pyiceberg.yaml``.

    Raises
    ------
    PlanError
        For anything else.
    """
    if isinstance(value, str):
        return {"name": a_text(value, "catalog", "pass the name of a catalog of ~/.pyiceberg.yaml, or its properties")}
    if not isinstance(value, Mapping):
        hint = 'pass {"type": "sql", "uri": ..., "warehouse": ...}, or the name of a catalog of ~/.pyiceberg.yaml'
        raise PlanError("`catalog` is not a catalog", got=type(value).__name__, hint=hint)
    return options(value)


def properties(value: object) -> Mapping[str, str]:
    """Return the properties of a table.

    Raises
    ------
    PlanError
        For anything but texts by name.
    """
    if not isinstance(value, Mapping):
        hint = 'pass a dict: {"write.parquet.compression-codec": "zstd"}'
        raise PlanError("`properties` is not a dict", got=type(value).__name__, hint=hint)
    return options(value)


def dataset(catalog: Mapping[str, str], table: str) -> Dataset:
    """Return the name of a table for other programs: in the warehouse of its catalog, else by the catalog's address or name."""
    if catalog.get("warehouse"):
        files = files_at(catalog["warehouse"])
        within = "file:" if files.namespace == "file" else f"{files.namespace}/"
        return Dataset(f"{within}{files.name}", table)
    uri = catalog.get("uri", "")
    return Dataset(f"iceberg://{server_of(uri) if '://' in uri else catalog.get('name', 'default')}", table)


def opened(catalog: Mapping[str, str]) -> Any:
    """Return the catalog of these properties."""
    given = dict(catalog)
    return iceberg("catalog").load_catalog(given.pop("name", "default"), **given)


def without_secrets(problem: BaseException, catalog: Mapping[str, str]) -> str:
    """Return the text of an exception without the secrets of a catalog."""
    text = failure_text(problem)
    for name, value in catalog.items():
        if is_secret(name) and value:
            text = text.replace(value, HIDDEN)
    return redacted(text)
