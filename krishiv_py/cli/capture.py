"""``krishiv capture CHECKPOINT OUT --job jobs.py:orders``: the last batches of a query as a folder that runs on any machine."""

from __future__ import annotations

import argparse

from krishiv_py.cli.run import load, outputs_of
from krishiv_py.errors import PlanError
from krishiv_py.runtime.capture import Captured
from krishiv_py.runtime.checkpoint.begun import engine_of
from krishiv_py.session import Session
from krishiv_py.storage.folders import absolute


def add_capture(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); its query may run")
    parser.add_argument("out", help="a new folder")
    parser.add_argument("--job", required=True, help="what the query was started with: jobs.py:orders, as for krishiv run")
    parser.add_argument("--last", nargs="+", metavar="N", help="the last N batches: --last 50, or --last 50 batches")
    parser.add_argument("--savepoint", help="the batches after this savepoint of the query")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns that are null in the capture")
    parser.add_argument("--hash", nargs="+", default=[], metavar="COLUMN", help="columns whose values are hashed")


def write_capture(given: argparse.Namespace) -> None:
    """Write a capture, and say what is in it.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.capture`.
    PlanError
        For a number that is wrong, for a job that gives no outputs, and for columns that cannot be hidden.
    """
    last = None
    if given.last is not None:
        words = given.last[1:]
        if not given.last[0].isdecimal() or words not in ([], ["batches"]):
            raise PlanError("--last takes a number of batches", got=" ".join(given.last), hint="write --last 50")
        last = int(given.last[0])
    on_spark = engine_of(absolute(given.checkpoint).rstrip("/")) == "spark"
    _, function = load(given.job)
    with Session.embedded() if on_spark else Session.in_process() as session:
        outputs = outputs_of(given.job, function(session))
        only = outputs[0].stream if len(outputs) == 1 and outputs[0].name is None else outputs
        folder = session.capture(
            given.checkpoint,
            only,
            given.out,
            last=last,
            savepoint=given.savepoint,
            leave_out=given.leave_out,
            hashes=given.hash,
        )
    batches = Captured.open(folder).batches
    span = f"batches {batches[0].number} to {batches[-1].number}" if batches else "no batch"
    print(f"the capture {folder} has {span}: run it with Driver.from_capture({folder!r}, stream)")
