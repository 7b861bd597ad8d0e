"""``krishiv diff CHECKPOINT job.py:orders``: what becomes of the state of a checkpoint if the job begins from it."""

from __future__ import annotations

import argparse

from krishiv_py.api.outputs import named_outputs
from krishiv_py.cli.run import load, outputs_of
from krishiv_py.plan.checks import ENGINES
from krishiv_py.planner.history import read_called
from krishiv_py.planner.several import several
from krishiv_py.runtime.in_place import changes_against
from krishiv_py.session import Session


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = "Exit codes: 0 no state is lost; 1 state is lost, or it could not be looked at."
    parser.add_argument("checkpoint", help="the folder of a checkpoint or savepoint")
    parser.add_argument("job", help="a function of a file or module: jobs.py:orders, package.jobs:orders")
    parser.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        metavar="SOURCE",
        help="a source whose archive the job begins with: what is new and reads it is rebuilt; may be repeated",
    )
    parser.add_argument("--engine", choices=ENGINES, default="in-process", help="the session that the job is made with")


def diff(given: argparse.Namespace) -> int:
    """Print what becomes of each stage; returns 1 where state is lost.

    Raises
    ------
    CheckpointError
        When no checkpoint or savepoint is there.
    PlanError
        When the job cannot be loaded or returns no outputs, and when it does not read a source of ``--bootstrap``.
    """
    _, function = load(given.job)
    with Session.builder().engine(given.engine).get_or_create() as session:
        outputs = outputs_of(given.job, function(session))
        if len(outputs) == 1 and outputs[0].name is None:
            plan = outputs[0].stream._plan("streaming")
        else:
            plan = several([(n, o.stream._plan("streaming")) for n, o in named_outputs(outputs, "krishiv diff").items()])
        archives = {read_called(plan, name, "--bootstrap") for name in given.bootstrap}
        changes = changes_against(given.checkpoint, plan, archives)
    for change in changes:
        print(change)
    return 1 if any(change.loses for change in changes) else 0
