"""Define what of a plan is needed to read its state without it: stages and sources, and what the columns of state are."""

from __future__ import annotations

from typing import Any

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.plan.nodes import FileSource, MemorySource
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.redaction import noted

_KINDS = {FileSource: "files", MemorySource: "memory", RangeSource: "ranges"}


def outline_of(plan: PhysicalPlan) -> dict[str, Any]:
    """Return what a checkpoint notes of its plan: stages and sources, and how its clock is kept."""
    return {
        "stages": [_stage(stage) for stage in plan.stages],
        "sources": [_KINDS.get(type(read.source), "other") for read in plan.reads],
        "last": plan.last,
        "tick_us": plan.stages[0].spec.tick_us,
        "ledger": plan.keeps_ledger,
    }


def _stage(stage: StagePlan) -> dict[str, Any]:
    spec = stage.spec
    return {
        "name": spec.name,
        "keys": len(spec.keys),
        "state": not stage.stateless,
        "times": [list(t) for t in stage.times],
        "columns": {} if stage.stateless else _columns(stage),
    }


def _columns(stage: StagePlan) -> dict[str, str]:
    """Return what the columns of tables of state are, by their names there."""
    layout, spec = stage.layout, stage.spec
    found = {"__t": "event time, µs", "s": "begin of a slice of windows, µs", "w": "begin of a window, µs"}
    found |= {name: f"key {key}" for name, key in zip(layout.key_names, spec.keys, strict=True)}
    for names, call in zip(layout.partial_names, spec.aggs, strict=True):
        found |= {name: f"{call.output_name}: part {n} of {call}" for n, name in enumerate(names, 1)}
    for at, (value, where) in enumerate(layout.inputs):
        what = "true" if value is None else repr(value)
        found[f"a{at}"] = f"input {what}" if where is None else f"input {what} where {where!r}"
    found |= {name: f"column {field.name} of the row" for name, field in zip(layout.own_names, layout.own_fields, strict=True)}
    found |= {
        field.name: f"column {name} of the row" for name, field in zip(layout.carried, layout.carried_fields, strict=True)
    }
    return {name: noted(text) for name, text in found.items()}
