"""The folder of a sink that writes files."""

from __future__ import annotations

import os

from krishiv_py.connectors.sink import FolderSink, Sink
from krishiv_py.connectors.tables.keys import columns
from krishiv_py.plan.checks import a_text
from krishiv_py.storage.folders import absolute, of_this_machine


def a_folder(value: str | os.PathLike[str]) -> str:
    """A folder as text; converts the `path` of a sink."""
    text = a_text(os.fspath(value) if isinstance(value, os.PathLike) else value, "path", 'pass a folder: "out/results"')
    return text if "://" in text else of_this_machine(text)


def partition_by(value: object) -> tuple[str, ...]:
    """Return the columns whose values become folders."""
    return columns(value, "partition_by")


def folder_of(sink: Sink | None) -> str | None:
    """The folder a sink writes into, the same for every task wherever its process was started; None if it has none."""
    return absolute(os.fspath(sink.path)) if isinstance(sink, FolderSink) else None
