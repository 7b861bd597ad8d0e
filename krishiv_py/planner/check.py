"""The checked stage: a logical plan against its schema, as an operator specification, with warnings for the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, SchemaError, unknown_column
from krishiv_py.kernels.columns.steps import step_schema
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output
from krishiv_py.plan.aggregates.selections import HIDDEN
from krishiv_py.plan.aggregates.user import Udaf
from krishiv_py.plan.changes import OP
from krishiv_py.plan.durations import show_length, show_us
from krishiv_py.plan.expressions.expr import Col, columns_of, lit
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.plan.expressions.udfs import Called
from krishiv_py.plan.nodes import (
    Filter,
    FunctionCheck,
    MapBatches,
    Node,
    Prefix,
    Project,
    SourceNode,
    Stage,
    UnionSource,
    names_time,
    prefix_of,
    source_of,
    stages_of,
    stages_read,
)
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.late import Fields, LateColumns
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.running import uses_clock
from krishiv_py.plan.schema import (
    RESERVED,
    check_key_type,
    in_order_of,
    left_out,
    refuse_left_out,
    require_columns,
    time_kind,
    without_order,
)
from krishiv_py.plan.steps import needed_columns, pruned, traced, uncomputed
from krishiv_py.planner.hidden import row_schema


def _stage_name(node: Stage, followed: bool) -> str:
    """Return what a stage is called in errors, metrics and late rows: by its number where there are several."""
    if node.options.named is not None:
        return node.options.named
    number = len(stages_of(node))
    return f"stage {number}" if number > 1 or followed else node.operation.title


def _check_names(node: Stage, schema: pa.Schema) -> None:
    # Spark ignores the case of names, so two that differ in it only would be one there
    outputs = [a.output_name.lower() for a in node.operation.aggs]
    keys = {k.lower() for k in node.operation.keys}
    own = {"window_start", "window_end", "op"} | ({"pane_timing", "pane_index"} if node.options.pane else set())
    for name in outputs:
        if outputs.count(name) > 1:
            raise PlanError("two aggregates have one output name", got=name, hint='name one with .alias("other")')
        if name in keys:
            raise PlanError("an aggregate is named like a key column", got=name, hint='rename it with .alias("other")')
        if name.startswith(HIDDEN):
            raise PlanError("the name of an aggregate is reserved", got=name, hint='rename it with .alias("other")')
        if name in own:
            raise PlanError("an aggregate is named like a window column", got=name, hint='rename it with .alias("other")')
    taken = {"window_start", "window_end", "op", "pane_timing", "pane_index", *outputs}
    for name in node.operation.carried(schema):
        if name.lower() in taken:
            hint = "rename it before: .rename, or name the aggregate otherwise with .alias"
            raise PlanError("a column of the row is named like another of the result", got=name, hint=hint)
    for key in node.operation.keys:
        if key.lower() in own:
            raise PlanError("a key is named like a window column", got=key, hint=".rename the column before key_by")


def _check_output(node: Stage) -> None:
    own = {"op"} | ({"pane_timing", "pane_index"} if node.options.pane else set())
    names = [name.lower() for name, _ in node.operation.result_columns or ()]
    for name in names:
        if names.count(name) > 1:
            raise PlanError("two result columns have one name", got=name, hint="name one with AS or .alias")
        if name in own:
            hint = "give it another name with AS or .alias"
            raise PlanError("a result column has a name of the library's own", got=name, hint=hint)


def _check_keys(node: Stage, schema: pa.Schema) -> None:
    refuse_left_out(node.operation.keys, schema, "key_by")
    for key in node.operation.keys:
        if key not in schema.names:
            raise unknown_column(key, schema.names, "key_by")
        check_key_type(key, schema.field(key).type)


def _late_columns(
    node: Stage, steps: tuple[Prefix, ...], schema: pa.Schema, late: LateColumns, wanted: set[str]
) -> tuple[str, ...]:
    names = [n for n in schema.names if not n.startswith(RESERVED)]
    if late == "rows":
        _check_whole_rows(node, "late rows", "the side output")
        return tuple(names)
    if late == "shown":
        free = uncomputed(steps, names)
        return tuple(n for n in names if n in wanted or n in free)
    return node.operation.keys if late == "keys" else ()


def _check_whole_rows(node: Stage, rows: str, output: str) -> None:
    unfit = left_out(source_of(node.input).schema)
    picked = any(isinstance(s, MapBatches) or (isinstance(s, Project) and s.picks) for s in prefix_of(node.input))
    if unfit and not picked:
        then = f"{output} would lack them"
        hint = "pick the columns of the stream: .select(...)"
        raise SchemaError(f"{rows} cannot be whole: columns were left out for their types", got=unfit, then=then, hint=hint)


def check_followed(node: Stage, operation: Operation | None = None) -> None:
    """Refuse a stage whose results cannot be the rows of another one (SEMANTICS §7), or of this `operation`.

    Raises
    ------
    PlanError
        For results without event time, and results that change.
    """
    tables = operation is not None and operation.takes_changes
    window = operation if operation is not None and operation.nature.opens_windows else None
    untimed = operation is not None and (operation.takes_changes or operation.gives_table) and window is None
    changes = node.options.emit_mode == "retractions"
    if window is not None and changes and node.operation.change_time("time") is not None:
        _check_windows_over(node, window)
        return
    if node.operation.gives_table and not (tables and changes and window is None):
        taken = "" if operation is None else f" before {operation.describe()}"
        raise PlanError(
            "a table that changes goes into aggregates, joins and first rows only",
            got=f"{node.operation.describe()}, emit({node.options.emit_mode!r}){taken}",
            then="what is withdrawn could not be taken back",
            hint='write .agg(...), .join(...) or .top_rows(...) after it, and leave .emit("updates") out',
        )
    if node.time is None and not (untimed and node.operation.late_by == "never"):
        hint = "end the pipeline here, or use windows by time"
        raise PlanError("results without event time cannot go into another stage", got=node.operation.describe(), hint=hint)
    if node.options.emit_mode != "final" and not (tables and changes):
        raise PlanError(
            "results that change cannot go into another stage",
            got=f"emit({node.options.emit_mode!r})",
            then="the next stage would count them more than once",
            hint='leave .emit out, or write .emit("final"), on the stage before',
        )


def _check_windows_over(node: Stage, window: Operation) -> None:
    """Refuse a `window` over the changes of a stage where it takes added rows only, or they have no event time (SEMANTICS
    §16.6).
    """
    if not window.takes_changes:
        raise PlanError(
            f"windows that are {window.describe()} take rows that are only added",
            got=f"the changes of {node.operation.describe()}",
            then="what is withdrawn could not be taken back",
            hint="use tumbling, hopping, calendar or session windows, or .agg(...) without a window",
        )
    if node.operation.change_time(node.input.column) is None:
        raise PlanError(
            "these changes have no event time",
            got=node.operation.describe(),
            then="nobody would know which window a row is in",
            hint='write .watermark("at", "5 s") before .from_changelog(...), and the window after it',
        )


_APPROXIMATE: Final = "approx_"
"""With this the names of approximate aggregates begin; the exact ones are called by the rest."""


def _check_over(node: Stage, over_us: int) -> None:
    back_us, got = node.operation.extent.looks_back_us, f"over({show_us(over_us)!r}) in {node.operation.describe()}"
    if back_us is None:
        then = "these windows belong to no row that it could look back from"
        hint = "leave .over(...) out, or use .lookback_window(...)"
        raise PlanError("an aggregate has a range of its own in look-back windows only", got=got, then=then, hint=hint)
    if over_us > back_us:
        then = "rows so far back are not kept"
        hint = f'write .lookback_window("{show_us(over_us)}")'
        raise PlanError("an aggregate looks back further than its window", got=got, then=then, hint=hint)


def _check_ttl(node: Stage) -> None:
    """Refuse a time to live by event time for rows that have none."""
    ttl = node.options.ttl
    if ttl is not None and ttl.clock == "event" and not node.input.column and not node.operation.nature.stateless:
        hint = 'write StateTtlConfig("1 day", clock="processing"), or .watermark("at", "5 s") before'
        raise PlanError("rows without event time have no time to live by it", got=node.options.describe(), hint=hint)


def _check_clock(node: Stage) -> None:
    if not node.input.spec._by_clock and any(isinstance(step, Project) and uses_clock(step) for step in prefix_of(node.input)):
        got = ".processing_time(), and no window after it"
        hint = 'add a window, such as .tumbling_window("1 minute"), or leave .processing_time() out'
        raise PlanError("rows without a window have no processing time", got=got, then="the column would be null", hint=hint)


def _output(node: Stage, row: pa.Schema, stays: bool) -> Output | None:
    """Return the columns of results, where they are not simply those of the window: an event time that nobody named is left
    out.
    """
    nature = node.operation.nature
    passes = nature.gives_rows and not nature.joins
    if node.operation.result_columns is not None or stays or not passes or names_time(node.input):
        return node.operation.result_columns
    fields = node.operation.result_fields(row, pa.null()) or []
    return tuple((f.name, Col(f.name)) for f in fields if f.name != node.input.column)


def _may_fail(call: AggCall) -> bool:
    """Return whether rows for which a function in an aggregate raises go to the late output."""
    if isinstance(call, Udaf) and call.on_error == "side_output":
        return True
    parts = (part for top in (call.arg, call.where) if top is not None for part in walk(top))
    return any(isinstance(part, Called) and part.called.on_error == "side_output" for part in parts)


def check(node: Stage, *, late: LateColumns = "count", after: Sequence[Prefix] = (), followed: bool = False) -> OperatorSpec:
    """Check a logical plan against its schema.

    Parameters
    ----------
    node : Stage
        The logical plan.
    late : {"rows", "keys", "count", "shown"}
        What the late handler wants of a late row, or, as the test driver shows it, all that comes without computing more.
    after : sequence of nodes
        Stateless steps over the results, first applied first.
    followed : bool
        Whether another stage reads the results, and so needs their event time and order.

    Raises
    ------
    PlanError
        With what, got, consequence and hint, for everything that cannot run.
    """
    rows = node.input.input
    every, steps, bottom = row_schema(rows), prefix_of(rows), source_of(rows)
    arrives_by, schema = in_order_of(every.names), without_order(every)
    kind = time_kind(schema, node.input.column) if node.input.column else "timestamp"
    _check_keys(node, schema)
    if not node.operation.aggs and not node.operation.nature.gives_rows:
        raise PlanError("agg() got no aggregate", got="0 aggregates", hint="write .agg(count())")
    for call in node.operation.aggs:
        if call.over_us is not None:
            _check_over(node, call.over_us)
        require_columns(call.arg, schema, f"agg({call.output_name})")
        if _changes(bottom) and call.func.startswith(_APPROXIMATE):
            exact = call.func.removeprefix(_APPROXIMATE)
            then = "its sketch cannot take back what is withdrawn"
            raise PlanError(
                f"{call.func} is for rows that are only added", got=str(call), then=then, hint=f"write {exact}(...)"
            )
        if call.where is not None:
            require_columns(call.where, schema, f"agg({call.output_name}).filter")
            step_schema(Filter(node.input, call.where), schema)
    if node.operation.nature.gives_rows:
        _check_whole_rows(node, "rows", "the results")
    else:
        _check_names(node, schema)
    _check_output(node)
    node.operation.check_columns(schema)
    node.operation.check_options(node.options)
    _check_ttl(node)
    operation = node.operation.row_by_row(node.options) if node.input.spec.by_row else node.operation
    for _, before in stages_read(rows):
        check_followed(before, node.operation)
    _check_clock(node)
    source = bottom.schema
    wanted = {*node.operation.keys, *node.operation.carried(schema), node.input.column}
    if (gap := node.operation.extent.gap_column) is not None:
        wanted.add(gap)
    if node.input.source_column:
        wanted.add(node.input.source_column)
    for call in node.operation.aggs:
        wanted |= columns_of(call.arg) - {"*"}
        wanted |= columns_of(call.where) if call.where is not None else set()
    late_columns = _late_columns(node, steps, schema, late, wanted)
    whole = late == "rows"
    changes = _changes(bottom)
    apart = _row_ids(bottom, steps, node.operation.keys) if changes and node.operation.nature.opens_windows else ()
    wanted |= {*late_columns, *arrives_by, *apart, *([changes] if changes else [])}
    prefix = steps if whole else pruned(steps, wanted)
    needs = tuple(source.names) if whole else needed_columns(steps, wanted, source)
    tried = tuple(call for call in node.operation.aggs if _may_fail(call))
    prefix = (*prefix, FunctionCheck(node.input, lit(True), calls=tried)) if tried else prefix
    prefix = tuple(attrs.evolve(step, input=Node()) for step in prefix)  # tasks need the steps, not the source below them
    spec = OperatorSpec(
        name=_stage_name(node, followed),
        source_schema=source,
        row_schema=schema,
        prefix=prefix,
        time_column=node.input.column,
        time_kind=kind,
        watermark=node.input.spec,
        source_column=node.input.source_column,
        operation=operation,
        options=node.options,
        needs_columns=needs,
        late_columns=late_columns,
        output=_output(node, schema, followed or bool(after)),
        malformed=malformed_fields(bottom) if whole else (),
        after=tuple(attrs.evolve(step, input=Node()) for step in after),
        followed=followed,
        arrives_by=arrives_by,
        changes=changes,
        row_ids=apart,
    )
    return spec


def _changes(bottom: SourceNode) -> str:
    """Return the column of the change kind of rows; empty where all are added."""
    return OP if OP in bottom.envelope else ""


def _row_ids(bottom: SourceNode, steps: tuple[Prefix, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns, besides those that are `known`, that tell rows of a table apart; none where steps leave some out."""
    if not isinstance(bottom, Stage) or bottom.operation.apart_by != ((),):
        return ()
    keys = bottom.operation.keys
    return tuple(key for key in keys if key not in known) if all(traced(steps, key) == key for key in keys) else ()


def malformed_fields(source: SourceNode) -> Fields:
    """Return what the late rows of a source tell of malformed input; of several streams, what any of them tells, the
    reason last.
    """
    if isinstance(source, UnionSource):
        fields = dict(field for _, node in source.parts for field in malformed_fields(source_of(node)))
        return tuple(sorted(fields.items(), key=lambda field: field[0] == "problem"))
    return source.malformed_fields if source.puts_aside else ()


def warnings(spec: OperatorSpec) -> tuple[str, ...]:
    """State that may grow without bound, and settings that can lose rows."""
    options = spec.options
    if not spec.time_column:
        return () if options.ttl is not None else spec.operation.warnings()
    forgets = options.ttl is not None and (spec.operation.extent.numbered or spec.operation.nature.gives_rows)
    texts = [] if forgets else list(spec.operation.warnings())
    from_stage = bool(spec.arrives_by)  # whose results are never late, nor ahead
    by_clock = spec.watermark._by_clock  # so no row is late
    lag_us = longest_lag_us(spec)
    if not from_stage and not by_clock:
        texts += _refused_while_open(spec, lag_us)
    joins = spec.operation.nature.joins
    if isinstance(spec.watermark, MultiSourceWatermarkSpec) and (joins or not from_stage) and not by_clock:
        several = len(spec.watermark.sources) + (spec.watermark.unknown_spec is not None) > 1
        if several and spec.watermark.idle_timeout_us is None:
            texts.append(
                "several sources and no idle time-out: one that falls silent holds the watermark, and with it all results; "
                f'set idle_timeout="30 s"{" of the join" if joins else ""}'
            )
    if not from_stage and not by_clock and lag_us >= options.future_us and options.future_reference == "watermark":
        enough = show_us(lag_us + options.future_us)
        texts.append(
            f"the lag ({show_us(lag_us)}) is not below the future tolerance ({show_us(options.future_us)}): rows "
            f'that come in order count as future; write future_tolerance("{enough}")'
        )
    refuses = options.future_action != "warn"
    if options.future_reference == "watermark" and (refuses or not (from_stage or by_clock)):
        fate = "would be refused, for refused rows do not move the watermark" if refuses else "counts as future"
        texts.append(
            f"future rows are classified by the watermark: after a lull longer than {show_us(options.future_us)}, and in a "
            f'catch-up batch of more time, every row {fate}; use reference="clock"'
        )
    waits = options.emit_mode == "final" and spec.operation.handled != "results"
    if waits and (options.trigger != Trigger() or options.accumulation == "discarding"):
        texts.append("emit=final writes one row per window: trigger and accumulation have no effect")
    if options.ttl is not None:
        forgotten = spec.operation.forgets_early(options.ttl.ttl_us, options.allowed_lateness_us)
        texts += [f"the state TTL ({show_us(options.ttl.ttl_us)}) is {forgotten}"] if forgotten else []
    if waits and options.allowed_lateness_us > 0 and spec.operation.unwaiting() is None:
        texts.append(f"emit=final waits for the allowed lateness: results come {show_us(options.allowed_lateness_us)} later")
    return tuple(texts)


_MUCH_LONGER: Final = 20
"""The number of times that a window is as long as rows are waited for before its plan says what becomes of the rows between."""


def _refused_while_open(spec: OperatorSpec, lag_us: int) -> list[str]:
    """Warn of a lag of 0, and of windows that are open, or look back, far longer than rows are waited for."""
    operation, waits_us = spec.operation, lag_us + spec.options.allowed_lateness_us
    by_time = spec.options.late_rule == "event" or operation.late_by == "time"
    far = operation.nature.opens_windows and by_time and operation.extent.length_us > _MUCH_LONGER * waits_us
    way = ""
    if far:
        more = " or .allowed_lateness(...)" if _takes(operation, ExplicitOptions(allowed_lateness_us=waits_us + 1)) else ""
        way = f"a larger lag{more} takes more of them"
        if operation.late_by in ("windows", "state") and _takes(operation, ExplicitOptions(late_rule="window")):
            way = f'.late_rule("window") takes rows as long as their window is open, as Flink does; {way}'
    if waits_us == 0 and isinstance(spec.watermark, WatermarkSpec):
        no_lag = "lag 0 and no allowed lateness: every row older than the newest of earlier batches is late"
        return [f"{no_lag}, also where its window ({operation.describe()}) would take it; {way}" if far else no_lag]
    if not far:
        return []
    return [
        f"windows ({operation.describe()}) are much longer than the {show_length(waits_us)} that rows are waited for: rows "
        f"that come after that are late, though their window would take them (late_rule=event); {way}"
    ]


def _takes(operation: Operation, explicit: ExplicitOptions) -> bool:
    """Return whether an option may be set; panes, for instance, have rules of their own."""
    try:
        operation.settled(explicit)
    except PlanError:
        return False
    return True


def longest_lag_us(spec: OperatorSpec) -> int:
    """Return the longest lag of a source, µs."""
    if isinstance(spec.watermark, WatermarkSpec):
        return spec.watermark.lag_us
    return max(source.lag_us for _, source in spec.watermark.sources)
