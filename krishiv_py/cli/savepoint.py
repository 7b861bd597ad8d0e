"""``krishiv savepoint CHECKPOINT PATH``: writes the state of a checkpoint as values."""

from __future__ import annotations

import argparse

from krishiv_py.runtime.checkpoint.begun import engine_of
from krishiv_py.session import Session
from krishiv_py.storage.folders import absolute


def add_savepoint(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); no query may run from it")
    parser.add_argument("path", help="a new folder")


def write_savepoint(given: argparse.Namespace) -> None:
    """Write a savepoint, and say where it is.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.savepoint`.
    """
    on_spark = engine_of(absolute(given.checkpoint).rstrip("/")) == "spark"
    with Session.embedded() if on_spark else Session.in_process() as session:
        savepoint = session.savepoint(given.checkpoint, given.path)
    print(f"the savepoint is {savepoint}: start its query with savepoint={savepoint!r} and a new checkpoint")
