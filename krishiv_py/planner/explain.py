"""Define what there is to say about a plan, as one value; ``krishiv_py.display`` makes text or HTML of it.

Stages are known by their names: the one that ``.named(...)`` gave, else one that says what the stage is, so that it does not
depend on the other stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.failures.redaction import noted
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.nodes import FileSource, MemorySource, Node, Stage, chain, computed_in, prefix_of, source_of, stages_of
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.schema import RESERVED
from krishiv_py.plan.sides import TIME
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.fingerprint import STATE_PART, fingerprint
from krishiv_py.planner.physical import PhysicalPlan, SourceRead

_KINDS: Final = {FileSource: "files", MemorySource: "memory", RangeSource: "ranges"}
COMPARED: Final = (
    *("aggregate ", "allowed lateness", "emit", "time to live", "column ", "key ", "late rule", "clock"),
    *("source column", "watermark's start", STATE_PART),
)
"""The parts of a fingerprint that are compared one by one (:mod:`krishiv_py.planner.evolution`)."""


def outline_of(plan: PhysicalPlan) -> dict[str, Any]:
    """Return what a checkpoint notes of its plan: stages and sources, and how its clock is kept."""
    names = stage_names(plan.stages)
    return {
        "stages": [_stage(stage, name) for stage, name in zip(plan.stages, names, strict=True)],
        "sources": [_KINDS.get(type(read.source), "other") for read in plan.reads],
        "reads": [_read(plan, read) for read in plan.reads],
        "clocks": [_clock(plan, number) for number in range(len(plan.clocks.clocks))],
        "last": plan.last,
        "tick_us": plan.stages[0].spec.tick_us,
        "ledger": plan.keeps_ledger,
    }


def _read(plan: PhysicalPlan, read: SourceRead) -> dict[str, Any]:
    """Return how a stream is known again in another plan: by its name, by where it reads, and by stage and clock."""
    source = read.source
    place = source.places[0][1] if source.places else source.name if isinstance(source, RangeSource) else ""
    number, branch = next(((n, b) for n, b in read.takers if not plan.stages[n].stateless), read.takers[0])
    known = {"name": read.name or "", "place": noted(place), "source": branch.part or ""}
    return {**known, "stage": number, "clock": plan.stages[number].clock}


def _clock(plan: PhysicalPlan, number: int) -> dict[str, Any]:
    """Return the stage that a clock follows, and how far it is behind each of its sources, µs."""
    mark = plan.clocks.clocks[number].watermark
    declared = mark.sources if isinstance(mark, MultiSourceWatermarkSpec) else (("", mark),)
    return {"stage": plan.clock_owners[number], "lags_us": {name: each.lag_us for name, each in declared}}


def stage_names(stages: tuple[StagePlan, ...]) -> list[str]:
    """Return what each stage is called where state is matched by name; of equal ones the later have a number."""
    names: list[str] = []
    for stage in stages:
        keys = f" by {', '.join(stage.spec.keys)}" if stage.spec.keys else ""
        own = stage.spec.options.named or f"{stage.spec.operation.describe()}{keys}"
        number = 1 + sum(1 for name in names if name == own or name.startswith(f"{own} ("))
        names.append(own if number == 1 else f"{own} ({number})")
    return names


def _stage(stage: StagePlan, name: str) -> dict[str, Any]:
    spec = stage.spec
    outline = {"name": name, "keys": len(spec.keys), "state": not stage.stateless, "times": [list(t) for t in stage.times]}
    outline |= {} if stage.times.floor_us == UNSET else {"floor_us": stage.times.floor_us}
    return outline if stage.stateless else {**outline, "columns": _columns(stage), "shape": shape_of(stage)}


def noted_call(call: AggCall, func: str) -> str:
    """Return what a checkpoint notes of an aggregate called as `func`."""
    return noted(f"{func}({call.arg!r}) where {call.where!r} over {call.over_us}")


def shape_of(stage: StagePlan) -> dict[str, Any]:
    """Return what decides how state of a stage is read, part by part."""
    layout, spec, options = stage.layout, stage.spec, stage.spec.options
    parts = fingerprint(spec) | {f"expression of {n}": noted(repr(e)) for n, e in computed_in(stage.node.input).items()}
    mark = spec.watermark
    return {
        "named": options.named is not None,
        "fixed": {name: text for name, text in parts.items() if not name.startswith(COMPARED)},
        "aggregates": [
            {
                "name": call.output_name,
                "call": noted_call(call, kernel.noted(call.func)),
                "parts": [str(t) for t in kernel.partial_types],
            }
            for call, kernel in zip(spec.aggs, layout.kernels, strict=True)
        ],
        "inputs": [noted(input_text(value, where)) for value, where in layout.inputs],
        "input types": [str(layout.row_schema.field(f"a{n}").type) for n in range(len(layout.inputs))],
        "state": [[field.name, str(field.type)] for field in spec.operation.state_fields],
        **({"state renamed": dict(renamed)} if (renamed := spec.operation.renamed_fields) else {}),
        "own": list(layout.own),
        "own types": [str(field.type) for field in layout.own_fields],
        "keys": [[name, str(type_)] for name, type_ in zip(spec.keys, layout.key_types, strict=True)],
        "carried": list(layout.carried),
        "row": layout.row_schema.names,
        "lateness_us": options.allowed_lateness_us,
        "left_us": options.left_us,
        "emit": options.emit_mode,
        "ttl": None if options.ttl is None else options.ttl._measured,
        "late rule": options.late_rule,
        "lag_us": mark.lag_us if isinstance(mark, WatermarkSpec) else 0,
        "wholes": [[name, list(of)] for name, of in spec.wholes],
        "blind_us": spec.blind_us,
        "early_us": spec.early_us,
        "given_us": spec.given_us,
    }


def input_text(value: object, where: object) -> str:
    """Return what tells an input of aggregates from others."""
    return f"{value!r} where {where!r}"


def _columns(stage: StagePlan) -> dict[str, str]:
    """Return what the columns of tables of state are, by their names there."""
    layout, spec = stage.layout, stage.spec
    meanings = {"__t": "event time, µs", "s": "begin of a slice of windows, µs", "w": "begin of a window, µs"}
    meanings |= {name: f"key {key}" for name, key in zip(layout.key_names, spec.keys, strict=True)}
    for names, call in zip(layout.partial_names, spec.aggs, strict=True):
        meanings |= {name: f"{call.output_name}: part {n} of {call}" for n, name in enumerate(names, 1)}
    for i, (value, where) in enumerate(layout.inputs):
        what = "true" if value is None else repr(value)
        meanings[f"a{i}"] = f"input {what}" if where is None else f"input {what} where {where!r}"
    meanings |= {
        name: f"column {field.name} of the row" for name, field in zip(layout.own_names, layout.own_fields, strict=True)
    }
    carried = zip(layout.carried_fields, layout.carried, strict=True)
    meanings |= {field.name: f"column {name} of the row" for field, name in carried}
    return {name: noted(text) for name, text in meanings.items()}


@attrs.frozen
class Part:
    """One piece of a plan: what it is, and its particulars."""

    title: str
    detail: str


@attrs.frozen
class CheckedStage:
    """A stage as it was checked.

    Attributes
    ----------
    name : str
        What it is called.
    rows : tuple of (str, str)
        Columns after its stateless steps, with their types.
    reads : tuple of str
        Columns it reads from its source, or from the stage before.
    time : str
        The event-time column, its kind and resolution.
    keeps : tuple of str
        The aggregates whose state grows with the rows of a window, and what it holds.
    depends : tuple of str
        What its results depend on besides the rows, their order by event time and the plan.
    takes, gives : str
        Where its results change: whether its rows do, and how results are changed.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    time: str
    keeps: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    takes: str = ""
    gives: str = ""


@attrs.frozen
class PlanOutline:
    """A plan, ready to be shown.

    Attributes
    ----------
    logical : tuple of Part
        The nodes of the logical plan, last one first.
    flow : tuple of Part
        What rows go through, in their order: source, stateless steps, watermark, key, window, aggregates, options.
    checked : tuple of Checked
        What each stage reads, the first one first.
    physical : PhysicalPlan
        What is run, with routes, reasons and warnings.
    """

    logical: tuple[Part, ...]
    flow: tuple[Part, ...]
    checked: tuple[CheckedStage, ...]
    physical: PhysicalPlan


_WHAT: Final = {
    "Join": "join",
    "Deduplicate": "deduplication",
    **{heading: heading.lower() for heading in ("Process", "Absence", "Match", "Previous", "Changelog", "History")},
    "TopRows": "first rows",
    "Changes": "changelog",
    "Union": "union",
    "Aggregate": "over",
}
"""The names in the flow of operations that are not windows, by their heading."""


def named_time(text: str) -> str:
    """Return a text of a plan without the name that the library has for the event time of both sides of a join."""
    return text.replace(TIME, "event time")


def explain(plan: PhysicalPlan) -> PlanOutline:
    """Gather what there is to say about a plan, of a running query or of one that may be run."""
    stages = stages_of(plan.node)
    return PlanOutline(
        logical=tuple(
            Part(n.heading, named_time(n.detail()))
            for n in (*reversed(plan.spec.after), *(n for stage in reversed(stages) for n in _nodes(stage)))
            if n.heading
        ),
        flow=(
            *(part for i, stage in enumerate(stages) for part in _flow(stage)[bool(i) :]),
            *(Part(step.title.lower(), step.detail()) for step in plan.spec.after),
        ),
        checked=tuple(map(_checked, plan.stages)),
        physical=plan,
    )


def _part(node: Node) -> Part:
    return Part(node.heading, named_time(node.detail()))


def _nodes(stage: Stage) -> Iterator[Node]:
    """Yield the nodes of a stage; the one below, whose results it reads, stands for itself."""
    yield stage
    yield from (node for node in chain(stage.input) if not isinstance(node, Stage))


def _checked(stage: StagePlan) -> CheckedStage:
    spec = stage.spec
    time = named_time(spec.time_column or "")
    return CheckedStage(
        name=spec.name,
        rows=tuple((f.name, str(f.type)) for f in spec.row_schema if not f.name.startswith(RESERVED)),
        reads=tuple(name for name in spec.needs_columns if not name.startswith(RESERVED)),
        time=f"{time} ({spec.time_kind}, resolution {spec.tick_us} µs)" if time else "none is needed",
        keeps=tuple(f"{k.keeps} of {c}" for c, k in zip(spec.aggs, stage.layout.kernels, strict=True) if k.keeps),
        depends=tuple(_depends(stage)),
        **_changes(stage),
    )


_GIVES: Final = {
    "retractions": "+I for a new result, -U and +U for one that changes, -D for one that is gone",
    "updates": "the new one of a result that changes, in the place of the one before",
}


_TAKES: Final = {True: "rows that are added and taken back", False: "rows that are added"}


def _changes(stage: StagePlan) -> dict[str, str]:
    """Return what a stage takes and gives, where its results change (SEMANTICS §16)."""
    operation, emit = stage.spec.operation, stage.spec.options.emit_mode
    if stage.stateless or emit not in _GIVES:
        given = "results that are final" if operation.nature.opens_windows else operation.describe()
        return {"takes": _TAKES[True], "gives": given} if stage.spec.changes else {}
    apart = operation.apart_by
    names = ", ".join((*stage.spec.keys, *apart[0])) if apart else ""
    by = f"results by {names}: " if names else "one result: " if apart == ((),) else ""
    return {"takes": _TAKES[bool(stage.spec.changes)], "gives": f"{by}{_GIVES[emit]}"}


def _depends(stage: StagePlan) -> Iterator[str]:
    """Yield what results of a stage depend on besides rows and plan (docs/same-answer.md)."""
    mark, options = stage.spec.watermark, stage.spec.options
    if stage.read and not stage.stateless and stage.spec.time_column and not mark._by_clock:
        partitioned = any(branch.source.partitioned for branch in stage.inputs if branch.after is None)
        in_order = "rows of each partition in order" if partitioned else "rows in order"
        yield in_order if mark.by_row else "how rows come in batches"
    idle_us = mark.idle_timeout_us if isinstance(mark, MultiSourceWatermarkSpec) else None
    by_ttl = options.ttl is not None and options.ttl.clock == "processing"
    if mark._by_clock or mark.idle_advance_us or idle_us or options.trigger._period_us or by_ttl:
        yield "the clock of the machine"


def _flow(node: Stage) -> tuple[Part, ...]:
    source, steps = source_of(node.input), prefix_of(node.input)
    rows = (
        Part("source", f"{source.title} {source.detail()}".rstrip()),
        *(Part(step.title.lower(), step.detail()) for step in steps),
    )
    if not node.input.column and not node.operation.takes_changes:
        return rows
    return (
        *rows,
        *([Part("watermark", named_time(node.input.detail()))] if node.input.column else []),
        Part("key", node.shown_keys),
        Part(_WHAT.get(node.heading, "window"), node.operation.describe()),
        *([Part("aggregates", node.shown_aggs)] if node.shown_aggs else []),
        Part("options", node.options.describe()),
    )
