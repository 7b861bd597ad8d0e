"""The plan under check: its stages, the columns its streams have, the lengths of time and constants it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.api.stages.running import RunMethods
from krishiv_py.errors import PlanError, shown
from krishiv_py.kernels.watermark import Clocks
from krishiv_py.plan.aggregates.user import Udaf
from krishiv_py.plan.described import WindowAssigner
from krishiv_py.plan.expressions.expr import IsIn, Lit
from krishiv_py.plan.expressions.udfs import Called
from krishiv_py.plan.nodes import MapBatches
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.query import DEFAULT_FUTURE_US, QueryOptions
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.processing import Processing
from krishiv_py.plan.steps import traced
from krishiv_py.planner.cut import Branch, StagePlan
from krishiv_py.planner.physical import PhysicalPlan, SourceRead
from krishiv_py.testing.sends import DriverInput

MOST_EDGE_US: Final = 400 * 86_400_000_000
"""Lengths of time above this are no edges: a stream would never reach them together with others."""
_MINUTE_US: Final = 60_000_000
_MOST_EDGES: Final = 12
ONLY_STREAM: Final = ""


@attrs.frozen(eq=False)
class StreamShape:
    """Describes one stream of a plan.

    Attributes
    ----------
    name : str
        The name by which a driver takes its rows; empty of the only one.
    schema : pyarrow.Schema
        Its columns.
    time : str or None
        The column that is its event time; None where that is computed.
    tick_us : int
        The resolution of that column, µs.
    lag_us : int
        The lag of its watermark, µs: rows within it are never late.
    keys : frozenset of str
        Columns that are keys, and fields of structs that are called so.
    """

    name: str
    schema: pa.Schema
    time: str | None
    tick_us: int
    lag_us: int
    keys: frozenset[str]


@attrs.frozen(eq=False)
class CheckedPlan:
    """Holds a plan under check, cut into its stages once.

    Attributes
    ----------
    stream : RunMethods
        The pipeline, as a driver runs it.
    plan : PhysicalPlan
        Its stages.
    streams : tuple of StreamShape
        The streams that it reads.
    edges_us : tuple of int
        Lengths of time that it names, µs: of windows, gaps, lags, lateness, TTL.
    constants : tuple
        The constants in its expressions.
    """

    stream: RunMethods
    plan: PhysicalPlan
    streams: tuple[StreamShape, ...]
    edges_us: tuple[int, ...]
    constants: tuple[Any, ...]
    inputs: DriverInput = attrs.field(init=False)

    @inputs.default
    def _inputs(self) -> DriverInput:
        return DriverInput(self.plan)

    @classmethod
    def of(cls, stream: object) -> CheckedPlan:
        """Return the plan of a pipeline.

        Raises
        ------
        PlanError
            For what is no pipeline, and for one that reads more than streams of a driver.
        """
        if not isinstance(stream, RunMethods):
            hint = "pass a pipeline that ends with .agg(...), a join or steps, or a function that returns one"
            raise PlanError("check takes a plan", got=shown(stream), hint=hint)
        plan = stream._plan("driver", late="shown")
        shapes = tuple(_shape(plan, read) for read in plan.reads)
        return cls(stream, plan, shapes, _edges_us(plan), _constants(plan))

    @property
    def stage(self) -> StagePlan:
        """The stage that gives the results."""
        return self.plan.stages[self.plan.outputs[0].stage]

    @property
    def by_row(self) -> bool:
        """Return whether rows are classified by those before them, so that late rows do not depend on batches."""
        timed = [stage for stage in self.plan.stages if stage.read and not stage.stateless]
        return bool(timed) and all(stage.spec.watermark.by_row for stage in timed)

    @property
    def joins(self) -> bool:
        """Return whether streams meet in a join only, so that their order among each other makes no difference."""
        return len(self.streams) > 1 and all(_is_join(stage) for stage in self.plan.stages if len(stage.inputs) > 1)

    @property
    def functions(self) -> bool:
        """Return whether code of a user runs in it."""
        return any(isinstance(part, USERS) for part in parts_of(self.plan))

    def clocks(self) -> Clocks:
        """Return clocks that have seen nothing."""
        return Clocks(self.plan.clocks)


USERS: Final = (Called, MapBatches, Processing, Udaf)
"""The parts that hold a function of a user."""


def _is_join(stage: StagePlan) -> bool:
    return stage.spec.operation.nature.joins


def _shape(plan: PhysicalPlan, read: SourceRead) -> StreamShape:
    times = [(branch, _time_of(branch)) for _, branch in read.takers]
    branch, time = next((one for one in times if one[1] is not None), times[0])
    keys = {_traced(one, key) or key for number, one in read.takers for key in plan.stages[number].spec.keys}
    tick_us = 1 if time is None or not pa.types.is_int64(read.source.schema.field(time).type) else 1_000
    name = ONLY_STREAM if read.name is None else read.name
    return StreamShape(name, read.source.schema, time, tick_us, _lag_us(branch), frozenset(keys))


def _traced(branch: Branch, column: str) -> str | None:
    named = traced(branch.spec.prefix, column)
    return named if named is not None and named in branch.source.schema.names else None


def _time_of(branch: Branch) -> str | None:
    return _traced(branch, branch.spec.time_column) if branch.spec.time_column else None


def _lag_us(branch: Branch) -> int:
    mark = branch.spec.watermark
    if isinstance(mark, WatermarkSpec):
        return mark.lag_us
    lags = dict(mark.sources)
    one = lags.get(str(branch.part))
    return one.lag_us if one is not None else min((spec.lag_us for spec in lags.values()), default=0)


def _edges_us(plan: PhysicalPlan) -> tuple[int, ...]:
    lengths = dict.fromkeys(
        abs(value)
        for part in parts_of(plan)
        if isinstance(part, (Operation, QueryOptions, WatermarkSpec, WindowAssigner)) or hasattr(part, "ttl_us")
        for name, value in _fields(part)
        if name.endswith("_us") and isinstance(value, int) and (name, value) != ("future_us", DEFAULT_FUTURE_US)
    )
    return tuple(sorted(us for us in lengths if 0 < us <= MOST_EDGE_US)[:_MOST_EDGES]) or (_MINUTE_US,)


def _constants(plan: PhysicalPlan) -> tuple[Any, ...]:
    parts = [part for part in parts_of(plan) if isinstance(part, (Lit, IsIn))]
    values = [value for part in parts for value in (part.values if isinstance(part, IsIn) else (part.value,))]
    return tuple({(type(value), value): value for value in values if isinstance(value, (bool, int, float, str))}.values())


def _fields(part: object) -> Iterator[tuple[str, Any]]:
    of_class: Any = type(part)
    for field in attrs.fields(of_class) if attrs.has(of_class) else ():
        try:
            yield field.name, getattr(part, field.name)
        except AttributeError:  # a slot that was never set
            continue


def parts_of(value: object) -> Iterator[Any]:
    """Yield the frozen values that a plan is made of, each once, in the order in which they are written."""
    seen, waiting = set[int](), [value]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, (pa.Schema, pa.DataType, str, bytes, int, float, type(None))):
            continue
        seen.add(id(part))
        below: list[Any] = []
        if isinstance(part, (tuple, list)):
            below = list(part)
        elif isinstance(part, dict):
            below = list(part.values())
        elif attrs.has(type(part)):
            yield part
            below = [each for _, each in _fields(part)]
        waiting.extend(reversed(below))


def rewritten(value: Any, change: Callable[[Any], Any], known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """Return a plan with parts changed; `change` gives another part, or the same. One part in two places stays one."""
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)][1]
    result = value
    if isinstance(value, tuple) and type(value) is tuple:
        parts = tuple(rewritten(part, change, known) for part in value)
        result = value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    elif attrs.has(type(value)):
        made = {
            field.alias or field.name: (old, new)
            for field in attrs.fields(type(value))
            if field.init and (old := getattr(value, field.name, None)) is not (new := rewritten(old, change, known))
        }
        below = attrs.evolve(value, **{name: new for name, (_, new) in made.items()}) if made else value
        result = change(below)
    known[id(value)] = value, result
    return result
