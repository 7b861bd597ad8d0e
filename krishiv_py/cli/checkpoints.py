"""Commands about a checkpoint: ``capture``, ``diff``, ``move``, ``savepoint`` and ``why``."""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa

from krishiv_py.api.stages.running import Output, RunMethods, named_outputs
from krishiv_py.cli.run import load, made_by
from krishiv_py.errors import CheckpointError, PlanError, shown
from krishiv_py.plan.checks import ENGINES
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.several import several
from krishiv_py.runtime.beginning import changes_against
from krishiv_py.runtime.capture import Captured
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, engine_of
from krishiv_py.runtime.savepoints import is_savepoint
from krishiv_py.session import Session
from krishiv_py.storage.local import absolute
from krishiv_py.types import type_text


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
        folder = session.capture(
            given.checkpoint,
            _as_started(given.checkpoint, made_by(given.job, function, session)),
            given.out,
            last=last,
            savepoint=given.savepoint,
            leave_out=given.leave_out,
            hashes=given.hash,
        )
    batches = Captured.open(folder).batches
    span = f"batches {batches[0].number} to {batches[-1].number}" if batches else "no batch"
    print(f"the capture {folder} has {span}: run it with Driver.from_capture({folder!r}, stream)")


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
        plan = _plan(_as_started(given.checkpoint, made_by(given.job, function, session)), "krishiv diff")
        changes = changes_against(given.checkpoint, plan, given.bootstrap)
    for change in changes:
        print(change)
    return 1 if any(change.loses for change in changes) else 0


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


def add_why(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="the folder of start(..., checkpoint=...)")
    parser.add_argument("--job", required=True, help="what the query was started with: jobs.py:orders, as for krishiv run")
    parser.add_argument(
        "--key", action="append", metavar="VALUE", help="the key; of several columns once for each, in their order"
    )
    parser.add_argument("--time", help="the event time: ISO text as it is printed, or milliseconds since the epoch")
    parser.add_argument("--stage", help="a stage by its name; by default the last one with windows")


def say_why(given: argparse.Namespace) -> None:
    """Print what became of a key at a time.

    Raises
    ------
    CheckpointError
        Where no query has begun, and where it has another plan.
    PlanError
        For a job that gives no outputs, and a key or stage that it does not have.
    DurationError
        For a value that is not a time.
    """
    engine = engine_of(absolute(given.checkpoint).rstrip("/"))
    if engine is None:
        hint = "pass the folder of start(..., checkpoint=...) or krishiv run --checkpoint"
        raise CheckpointError("no query has begun from this checkpoint", got=given.checkpoint, hint=hint)
    _, function = load(given.job)
    with Session.in_process() if engine == "in-process" else Session.embedded() as session:
        only = _as_started(given.checkpoint, made_by(given.job, function, session))
        key = None if given.key is None else _key(_plan(only, "krishiv why"), given.stage, given.key)
        time = int(given.time) if given.time is not None and given.time.lstrip("-").isdecimal() else given.time
        print(session.why(given.checkpoint, only, key, time, given.stage))


def _as_started(checkpoint: str, outputs: list[Output]) -> RunMethods | list[Output]:
    """Return what the query was started with: one output alone may be of ``stream.start`` or ``session.start``."""
    folder = absolute(checkpoint).rstrip("/")
    note = {} if is_savepoint(folder) else CheckpointNotes(folder).plan() or {}
    alone = len(outputs) == 1 and outputs[0].name is None and "outputs" not in note.get("plan", {})
    return outputs[0].stream if alone else outputs


def _plan(only: RunMethods | list[Output], command: str) -> PhysicalPlan:
    if isinstance(only, RunMethods):
        return only._plan("streaming")
    return several([(name, output.stream._plan("streaming")) for name, output in named_outputs(only, command).items()])


def _key(plan: PhysicalPlan, stage: str | None, texts: list[str]) -> Any:
    """Return the values that texts stand for, by the types of the key columns.

    Raises
    ------
    PlanError
        For another number of columns, and a text that is not such a value.
    """
    fields = plan.stages[plan.stage_called(stage)].layout.key_fields
    if len(fields) != len(texts):
        names = ", ".join(plan.stages[plan.stage_called(stage)].spec.keys) or "(none)"
        raise PlanError("not a key of this query", got=f"{len(texts)} values", hint=f"the key columns are {names}")
    values = []
    for field, text in zip(fields, texts, strict=True):
        try:
            values.append(pa.array([text]).cast(field.type).to_pylist()[0])
        except pa.ArrowException as problem:
            got = shown(text)
            raise PlanError("not a key of this query", got=got, hint=f"pass a {type_text(field.type)}") from problem
    return values[0] if len(values) == 1 else tuple(values)
