"""A plan over archives in place of its live sources, and the seam at which the live sources go on (SEMANTICS §12.5).

Both have the stages of the plan as they are; only what a stage reads is another. So state that was built over the archives is
the state that the live query goes on with.
"""

from __future__ import annotations

import datetime as dt
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.expressions.expr import Expr, col, lit
from krishiv_py.plan.nodes import Expect, FileSource, Node, Prefix, Project, SourceNode, prefix_of, source_of
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.plan.steps import needed_columns, pruned
from krishiv_py.planner.cut import Branch
from krishiv_py.planner.physical import PhysicalPlan, SourceRead
from krishiv_py.types import conversion, type_text

BEFORE_SEAM: Final = "before_until"
"""The counter of live rows that are of the history, by their time."""
AFTER_SEAM: Final = "after_until"
"""The counter of rows of an archive that are of the live source, by their time."""
Seam: TypeAlias = "dict[str, int]"
"""From which event time on rows are those of the live source, µs, by the name of the source."""


@attrs.frozen(eq=False)
class Archive:
    """Rows of the past of a source: the node that gives them, and the columns that this node has."""

    node: Node
    schema: pa.Schema

    @property
    def source(self) -> SourceNode:
        """Return where its rows come from."""
        return source_of(self.node)


def names_of(read: SourceRead) -> list[str]:
    """Return by which names a stream of a plan is known, the first one being what texts call it."""
    source, result = read.source, [read.name] if read.name else []
    own = getattr(source, "name", None)
    if isinstance(own, str):
        kind, _, rest = own.partition(" ")
        result += [rest, own] if isinstance(source, RangeSource) and kind in ("kafka", "delta", "iceberg") and rest else [own]
    if isinstance(source, FileSource):
        result.append(posixpath.basename(source.path.rstrip("/*")) or "files")
    return result or [source.title.lower()]


def read_called(plan: PhysicalPlan, name: str, what: str) -> int:
    """Return the number of the stream that has a name.

    Raises
    ------
    PlanError
        For a name that none has, or several have.
    """
    known = [names_of(read) for read in plan.reads]
    result = [number for number, names in enumerate(known) if name in names]
    if len(result) == 1:
        return result[0]
    first = ", ".join(repr(names[0]) for names in known)
    if result:
        hint = "read each with a name of its own, for instance through session.union({...})"
        raise PlanError(f"{what} names several sources", got=repr(name), then="which one is meant is not known", hint=hint)
    raise PlanError(f"{what} names a source that the query does not read", got=repr(name), hint=f"the sources are {first}")


def over_archives(plan: PhysicalPlan, archives: Mapping[int, Archive], seam: Seam, *, one_batch: bool = False) -> PhysicalPlan:
    """Return a plan whose streams are the archives; a stream without one has no rows, or `one_batch` without rows.

    Raises
    ------
    SchemaError
        When an archive lacks a column of its source, or has it in another type.
    PlanError
        For malformed input that only the archive puts aside, and a seam where no event time is known.
    """
    replaced: dict[int, Branch] = {}
    sources: dict[int, SourceNode] = {}
    single = _only_clocks(plan, archives)
    for number, read in enumerate(plan.reads):
        archive, name = archives.get(number), names_of(read)[0]
        source: SourceNode = _nothing(read.source, one_batch) if archive is None else _unbounded(archive.source)
        sources[number] = source
        if archive is not None:
            _check(archive, read, name, number in single)
        for _, branch in read.takers:
            result = attrs.evolve(branch, source=source)
            if archive is not None:
                result = attrs.evolve(result, spec=_spec(branch.spec, archive, read.source, number in single))
            if archive is not None and name in seam:
                result = _before(result, seam[name], name)
            replaced[id(branch)] = result
    marks = {read.takers[0][0] for number, read in enumerate(plan.reads) if number in single}

    def spec(number: int, given: OperatorSpec) -> OperatorSpec:
        return _single(given) if number in marks else given

    return _changed(plan, replaced, spec)


def after_seam(plan: PhysicalPlan, seam: Seam) -> PhysicalPlan:
    """Return a plan that takes only rows from the seam on; it stays as it is where there is none."""
    replaced: dict[int, Branch] = {}
    for read in plan.reads:
        name = names_of(read)[0]
        for _, branch in read.takers:
            replaced[id(branch)] = _after(branch, seam[name], name) if name in seam else branch
    return _changed(plan, replaced, lambda number, spec: spec)


def reads_of(plan: PhysicalPlan) -> list[frozenset[int]]:
    """Return which streams the rows of each stage come from, through the stages before it."""
    own: list[set[int]] = [set() for _ in plan.stages]
    for number, read in enumerate(plan.reads):
        for stage, _ in read.takers:
            own[stage].add(number)
    result: list[frozenset[int]] = []
    for number, stage_plan in enumerate(plan.stages):
        result.append(frozenset(own[number]).union(*(result[before] for before in stage_plan.after)))
    return result


def stages_archived(plan: PhysicalPlan, archives: Collection[int]) -> frozenset[int]:
    """Return the stages whose rows all come from streams that have archives."""
    return frozenset(n for n, reads in enumerate(reads_of(plan)) if archives and reads <= frozenset(archives))


def clocks_joined(plan: PhysicalPlan, archives: Mapping[int, Archive]) -> set[int]:
    """Return the clocks that follow partitions live and one archive before: all partitions begin where the archive ends."""
    return {
        clock
        for n in _only_clocks(plan, archives)
        for clock in [plan.stages[plan.reads[n].takers[0][0]].clock]
        if clock is not None
    }


def _changed(
    plan: PhysicalPlan, replaced: Mapping[int, Branch], spec: Callable[[int, OperatorSpec], OperatorSpec]
) -> PhysicalPlan:
    stages = []
    for number, stage in enumerate(plan.stages):
        inputs = tuple(replaced.get(id(branch), branch) for branch in stage.inputs)
        inputs = tuple(attrs.evolve(branch, spec=spec(number, branch.spec)) for branch in inputs)
        stages.append(attrs.evolve(stage, spec=spec(number, stage.spec), inputs=inputs))
    return attrs.evolve(plan, stages=tuple(stages))


def _spec(spec: OperatorSpec, archive: Archive, live: SourceNode, single: bool) -> OperatorSpec:
    """Return a specification whose steps begin with those of an archive."""
    kept, names = set(spec.needs_columns), archive.schema.names
    filled = live.named_sources[0] if single and live.named_sources else None
    columns: tuple[tuple[str, Expr], ...] = tuple(
        (n, lit(None).cast("string") if n == filled and n not in names else col(n)) for n in spec.needs_columns
    )
    steps: tuple[Prefix, ...] = (*pruned(prefix_of(archive.node), kept & set(names)), Project(Node(), columns), *spec.prefix)
    detached = tuple(attrs.evolve(step, input=Node()) for step in steps)
    needs = needed_columns(prefix_of(archive.node), kept & set(names), archive.source.schema)
    return attrs.evolve(spec, source_schema=archive.source.schema, prefix=detached, needs_columns=needs)


def _check(archive: Archive, read: SourceRead, name: str, single: bool) -> None:
    live, filled = read.source, read.source.named_sources
    for column in read.needs_columns:
        wanted = live.schema.field(column).type
        if column not in archive.schema.names:
            if single and filled is not None and column == filled[0]:
                continue
            got = f"{column!r}, and the archive has {', '.join(archive.schema.names)}"
            hint = f"give the archive the columns of the live source: .with_column({column!r}, ...) or .rename(...)"
            raise SchemaError(f"the archive of {name!r} lacks a column of the source", got=got, hint=hint)
        result = archive.schema.field(column).type
        if result != wanted:
            got = f"{column}: {type_text(result)} for {type_text(wanted)}"
            hint = f"write .with_column({column!r}, {conversion(column, result, wanted)}) on the archive"
            raise SchemaError(f"the archive of {name!r} has a column in another type than the source", got=got, hint=hint)
    if archive.source.puts_aside and not live.puts_aside:
        raise PlanError(
            f"the archive of {name!r} puts malformed input aside, and the live source does not",
            got='on_malformed="side_output" of the archive only',
            then="the late output has no columns for it",
            hint='read both with on_malformed="side_output", or the archive with "fail"',
        )


def _only_clocks(plan: PhysicalPlan, archives: Mapping[int, Archive]) -> set[int]:
    """Return the streams whose partitions have a watermark each, live, and which an archive gives as one stream."""
    result = set()
    for number, archive in archives.items():
        stage, _ = plan.reads[number].takers[0]
        spec, named = plan.stages[stage].spec, plan.reads[number].source.named_sources
        mark = spec.watermark
        if (
            named is not None
            and named[0] not in archive.schema.names
            and spec.source_column == named[0]
            and isinstance(mark, MultiSourceWatermarkSpec)
            and mark.unknown_spec is not None
        ):
            result.add(number)
    return result


def _single(spec: OperatorSpec) -> OperatorSpec:
    mark = spec.watermark
    assert isinstance(mark, MultiSourceWatermarkSpec) and mark.unknown_spec is not None
    return attrs.evolve(spec, watermark=mark.unknown_spec, source_column=None)


def _before(branch: Branch, us: int, name: str) -> Branch:
    time, seam = _time(branch, us, name)
    return _parted(branch, time.is_null() | (time < seam), AFTER_SEAM)


def _after(branch: Branch, us: int, name: str) -> Branch:
    time, seam = _time(branch, us, name)
    return _parted(branch, time.is_null() | (time >= seam), BEFORE_SEAM)


def _parted(branch: Branch, condition: Expr, reason: str) -> Branch:
    """Return a branch that takes the rows of its side of the seam, and counts the others under a `reason`."""
    spec = branch.spec
    parted = Expect(Node(), condition, name=reason, on_fail="drop")
    return attrs.evolve(branch, spec=attrs.evolve(spec, prefix=(*spec.prefix, parted)))


def _time(branch: Branch, us: int, name: str) -> tuple[Expr, Expr]:
    """Return the event time of rows and a time as it is there.

    Raises
    ------
    PlanError
        Where rows have no event time, or that of the clock.
    """
    spec = branch.spec
    if not spec.time_column or spec.watermark._by_clock:
        got = "rows without a watermark" if not spec.time_column else "processing time"
        hint = "leave `until` out, and let the live source begin where the archive ends"
        raise PlanError(f"`until` is an event time, and rows of {name!r} have none", got=got, hint=hint)
    if spec.time_kind == "bigint_ms":
        return col(spec.time_column), lit(-(-us // 1_000))
    instant = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=us)
    return col(spec.time_column), lit(instant if spec.time_kind == "timestamp" else instant.replace(tzinfo=None))


def _unbounded(source: SourceNode) -> SourceNode:
    """Return a copy of a source whose end does not end the input."""
    return attrs.evolve(source, bounded=False)  # type: ignore[misc]  # every source that is read here has it


def _nothing(live: SourceNode, one_batch: bool) -> RangeSource:
    column, names = live.named_sources or (None, ())
    return RangeSource("no archive", NoRows(live.schema, column, names, one_batch), live.schema, False)


@attrs.frozen(eq=False)
class NoRows(Source):
    """A source without rows, with the columns and partitions of another one, which may have `one_batch`."""

    schema: pa.Schema
    source_column: str | None
    watermark_sources: tuple[str, ...]
    one_batch: bool

    def plan(self, last: JsonValue) -> Planned | None:
        """Plan nothing, or a batch without rows."""
        return Planned(1, [0]) if self.one_batch and last is None else None

    def read(self, planned: JsonValue, columns: object) -> Iterator[pa.RecordBatch]:
        """Read nothing."""
        return iter(())
