"""``krishiv move CHECKPOINT --to ENGINE``: the query of a checkpoint goes on on the other engine."""

from __future__ import annotations

import argparse

from krishiv_py.session import Session


def add_move(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...); no query may run from it")
    parser.add_argument("--to", required=True, choices=("spark", "in-process"), help="the engine that is to run the query")
    parser.add_argument("--into", metavar="NEW", help="a new folder; by default CHECKPOINT-on-spark or CHECKPOINT-in-process")
    parser.add_argument(
        "--buckets", type=int, metavar="N", help="for Spark: how many tasks may share the state; by default one for each core"
    )


def move_checkpoint(given: argparse.Namespace) -> None:
    """Move a checkpoint, and say where it is.

    Raises
    ------
    CheckpointError
        As :meth:`krishiv_py.Session.move`.
    PlanError
        As :meth:`krishiv_py.Session.move`.
    """
    # to Spark nothing of Spark is needed: its first micro-batch takes the state over
    with Session.in_process() if given.to == "spark" else Session.embedded() as session:
        moved = session.move(given.checkpoint, given.to, given.into, buckets=given.buckets)
    print(f"the query of {given.checkpoint} goes on from {moved}: start it with checkpoint={moved!r}")
