"""``krishiv why CHECKPOINT --job jobs.py:orders``: what became of a key at a time in a query, running or stopped."""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa

from krishiv_py.api.outputs import Output, named_outputs
from krishiv_py.api.stages.running import RunMethods
from krishiv_py.cli.run import load
from krishiv_py.errors import CheckpointError, PlanError, shown
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.several import several
from krishiv_py.runtime.checkpoint.begun import engine_of
from krishiv_py.session import Session
from krishiv_py.storage.folders import absolute
from krishiv_py.types import type_text


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
        made = function(session)
        listed = list(made) if isinstance(made, (list, tuple)) else [made]
        if not listed or not all(isinstance(output, Output) for output in listed):
            hint = "let it take a session and return stream.to(sink), or a list of these"
            raise PlanError(f"the job {given.job} returned no outputs", got=shown(made), hint=hint)
        only = listed[0].stream if len(listed) == 1 and listed[0].name is None else listed
        key = None if given.key is None else _key(_plan(only), given.stage, given.key)
        time = int(given.time) if given.time is not None and given.time.lstrip("-").isdecimal() else given.time
        print(session.why(given.checkpoint, only, key, time, given.stage))


def _plan(stream: RunMethods | list[Output]) -> PhysicalPlan:
    if isinstance(stream, RunMethods):
        return stream._plan()
    return several([(name, output.stream._plan()) for name, output in named_outputs(stream, "krishiv why").items()])


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
