"""The identity of results: which of their columns tell them apart, and so which keys a table of them can have.

A table with a key has one row for each value of the key. It holds what the results come to only where the key tells results
apart, and where whatever is no longer valid is also withdrawn::

    results by user and minute    key [user, window_start]      each result has a row
                                  key [window_start]            the row of one user takes the place of another's
    emit("updates"), HAVING       a result that falls below the bound is not given again, so its row would stay
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.tables.keys import OP, KeyedTable, columns
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.steps import Unnest
from krishiv_py.kernels.joins.lookup import Lookup
from krishiv_py.plan.expressions.expr import BinOp, Cast, Col, Expr, Func, Lit, StructOf, columns_of, unnamed
from krishiv_py.plan.expressions.udfs import Called
from krishiv_py.plan.nodes import Expect, Filter, MapBatches, Prefix, Project, Stage, prefix_of, source_of
from krishiv_py.plan.running import uses_clock
from krishiv_py.planner.hidden import row_schema
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan, table_of

_INDEX: Final = "pane_index"
_RETRACTIONS: Final = '.emit("retractions") right after .agg(...)'
_BOUNDS: Final = {"window_start", "window_end"}
_ITEM: Final = "the item of a list"
_ROW: Final = "the row of the table that is looked up"
_TELLING: Final = frozenset({"concat", "concat_ws", "md5", "sha2", "xxhash64", "hash", "to_json", "array"})
"""Functions of whose values one takes it that they differ where the arguments do: names for several columns."""


@attrs.frozen
class _Column:
    """A column of results.

    Attributes
    ----------
    tells : frozenset of str
        The parts of the identity that it determines.
    steady : bool
        Whether a result that is given again has the same value.
    marks : bool
        Whether it says something of the change, and nothing of the result.
    numbers : bool
        Whether it is the number of the firing, so that each firing is a row of its own.
    """

    tells: frozenset[str] = frozenset()
    steady: bool = True
    marks: bool = False
    numbers: bool = False


@attrs.frozen
class _Results:
    """The results of a stage after some steps.

    Attributes
    ----------
    columns : dict
        Their columns by name.
    parts : tuple of str or None
        The identity: what a key has to determine. None where the plan does not know what tells rows apart.
    fixed : frozenset of str
        The parts that are equal in all results.
    leaves_out : str
        The step that may leave a result out which it gave before; empty where none does.
    splits : str
        The step that may take one change of a result and leave another out; empty where none does.
    or_parts : tuple of str or None
        What else tells results apart: rows of a table by the key that they had before. None where nothing does.
    """

    columns: Mapping[str, _Column]
    parts: tuple[str, ...] | None
    fixed: frozenset[str] = frozenset()
    leaves_out: str = ""
    splits: str = ""
    or_parts: tuple[str, ...] | None = None

    def of(self, names: frozenset[str]) -> list[_Column]:
        """Return those of the columns with these names."""
        return [self.columns[name] for name in names if name in self.columns]

    def through(self, expr: Expr) -> _Column:
        """Return the column that an expression makes."""
        bare = unnamed(expr)
        if isinstance(bare, Col) and bare.name in self.columns:
            return self.columns[bare.name]
        read = self.of(columns_of(bare))
        return _Column(self._determined(bare), all(c.steady for c in read), any(c.marks for c in read))

    def _determined(self, expr: Expr) -> frozenset[str]:
        """Return the parts of the identity that the value of an expression determines."""
        determined, pending = frozenset[str](), [expr]
        while pending:
            node = unnamed(pending.pop())
            if isinstance(node, Col):
                determined |= self.columns[node.name].tells if node.name in self.columns else frozenset()
            elif isinstance(node, Called) or (isinstance(node, Func) and node.name in _TELLING) or isinstance(node, StructOf):
                pending += node._children()
            elif isinstance(node, Cast) and _keeps_apart(node.type):
                pending.append(node.arg)
            elif isinstance(node, BinOp) and node.op in ("+", "-") and Lit in (type(node.left), type(node.right)):
                pending += node._children()
        return determined

    def after(self, step: Prefix) -> _Results:
        """Return the results after a step."""
        if isinstance(step, Project):
            made = {name: self.through(expr) for name, expr in step.columns}
            if uses_clock(step):
                made = {n: attrs.evolve(c, steady=c.steady and n in self.columns) for n, c in made.items()}
            along = {name: self.columns[name] for name in step.along([*self.columns])}
            return attrs.evolve(self, columns=made | along)
        if isinstance(step, Expect):
            return self  # it stops the query
        if isinstance(step, Filter):
            return self._filtered(step)
        return self._mapped(step)

    def _filtered(self, step: Filter) -> _Results:
        read = self.of(columns_of(step.condition))
        fixed = self.fixed.union(*(self.columns[n].tells for n in _constants(step.condition) if n in self.columns))
        text = f"the filter {step.condition!r}"
        leaves_out = self.leaves_out or ("" if all(c.steady for c in read) else text)
        splits = self.splits or (text if any(c.marks for c in read) else "")
        return attrs.evolve(self, fixed=fixed, leaves_out=leaves_out, splits=splits)

    def _mapped(self, step: MapBatches) -> _Results:
        function, more = step.function, tuple[str, ...]()
        names = [*step.schema.names, *step.along([*self.columns])]
        if isinstance(function, Lookup):
            table = table_of(function)
            stays = table is not None and table.load is None
            steady = stays and all(c.steady for c in self.of(function.reads))
            made, leaves_out = _Column(steady=steady), not steady and function.how != "left"
            more = (_ROW,) if stays and self.parts is not None and function.repeats() else ()
            made = attrs.evolve(made, tells=frozenset(more))
        elif isinstance(function, Unnest):
            made, leaves_out = _Column(steady=False), True
        else:  # a function of the user makes what it likes, a name of the row as well
            every = frozenset(self.parts or ())
            made, leaves_out = _Column(every), step.shown is None
        columns = {name: self.columns.get(name, made) for name in names}
        if isinstance(function, Unnest):
            columns[function.column], more = made, (function.rank or _ITEM,)
            if function.rank is not None:
                columns[function.rank] = _Column(frozenset([function.rank]))
        left = step.detail() if leaves_out else ""
        parts = None if self.parts is None else (*self.parts, *more)
        return attrs.evolve(self, columns=columns, parts=parts, leaves_out=self.leaves_out or left)


def _keeps_apart(type_: pa.DataType) -> bool:
    """Return whether values that are cast to a type stay apart: numbers and instants in their texts, or as wide numbers."""
    kinds = (pa.types.is_string, pa.types.is_int64, pa.types.is_timestamp)
    return any(is_kind(type_) for is_kind in kinds)


def _constants(condition: Expr) -> list[str]:
    """Return the columns that have one value in all rows for which a condition is true."""
    names, pending = list[str](), [condition]
    while pending:
        node = pending.pop()
        if isinstance(node, BinOp) and node.op == "and":
            pending += node._children()
        elif isinstance(node, BinOp) and node.op == "==":
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(one, Col) and isinstance(other, Lit):
                    names.append(one.name)
    return names


def _results(stage: Stage) -> _Results:
    """Return the results of a stage, before steps."""
    operation, row = stage.operation, row_schema(stage.input)
    if operation.nature.gives_rows and not operation.gives_table:
        return _rows(stage)
    own = [field.name for field in operation.result_fields(row, pa.null()) or ()]
    columns = {name: _Column() for name in (*own, *operation.carried(row), "window_start", "window_end")}
    if operation.gives_table:
        columns = {name: _Column(steady=False) for name in columns}
    below = source_of(stage.input)
    rows_of_table = operation.nature.gives_rows and isinstance(below, Stage) and below.operation.gives_table
    before = _rows(stage) if rows_of_table else _Results({}, None)
    columns |= {n: _Column(c.tells, steady=bool(c.tells)) for n, c in before.columns.items() if n in columns}
    columns |= {key: _Column(frozenset([key]) | columns[key].tells) for key in operation.keys if key in columns}
    columns |= {key: _Column(frozenset([key])) for key in operation.keys if key not in columns}
    columns |= {name: _Column(steady=False) for name in operation.changing}
    apart, parts = operation.apart_by, before.parts
    if operation.row_key is not None:
        parts = operation.row_key
        columns |= {name: _Column(frozenset([name]) | columns[name].tells) for name in parts}
    elif apart is not None:
        parts = (*operation.keys, *apart[0])
        single = all(len(names) == 1 for names in apart)  # each of them says which window it is
        columns |= {name: _Column(frozenset([apart[0][0] if single else name])) for names in apart for name in names}
    if stage.time is not None and stage.time.column in columns:
        columns[stage.time_column] = columns[stage.time.column]
    results = _Results(columns, parts, before.fixed, or_parts=before.parts)
    if operation.result_columns is not None:
        results = attrs.evolve(results, columns={name: results.through(expr) for name, expr in operation.result_columns})
    said = {OP: _Column(steady=False, marks=True)} if stage.options.emit_mode == "retractions" else {}
    if stage.options.pane:
        said |= {name: _Column(steady=False, marks=True, numbers=name == _INDEX) for name in ("pane_timing", _INDEX)}
    return attrs.evolve(results, columns={**results.columns, **said})


def _rows(stage: Stage) -> _Results:
    """Return the rows that a stage gives as it gets them, and what tells them apart: nothing of pairs, changes and sources."""
    below = source_of(stage.input)
    names = [field.name for field in stage.operation.result_fields(row_schema(stage.input), pa.null()) or ()]
    are_changes = stage.operation.takes_changes and not stage.operation.gives_table
    if stage.operation.nature.joins or are_changes or not isinstance(below, Stage):
        return _Results({name: _Column() for name in names}, None)
    rows = _results(below)
    for step in prefix_of(stage.input):
        rows = rows.after(step)
    columns = {name: _Column(rows.columns[name].tells if name in rows.columns else frozenset()) for name in names}
    return _Results(columns, rows.parts, rows.fixed)


def check_keys(plan: PhysicalPlan, sinks: Sequence[Sink | None], *, early: bool = False) -> None:
    """Refuse sinks whose key does not fit the results of a plan.

    Parameters
    ----------
    plan : PhysicalPlan
        The plan.
    sinks : sequence of Sink or None
        Where its outputs go.
    early : bool
        Whether early results of a snapshot are given, too.

    Raises
    ------
    PlanError
        Where a row would take the place of another result's, or stay although its result is not valid any more; with the key,
        or the emission, to use.
    """
    for output, sink in zip(plan.outputs, sinks, strict=True):
        key = () if sink is None else columns(sink.key, f"key of {sink.title}")
        if sink is not None and not key and isinstance(sink, KeyedTable) and not sink.log:
            _check_adding(plan, output, sink.title)
        if sink is not None and key and set(key) <= set(output.schema.names):  # else the sink says which columns there are
            _check_key(plan, output, key, sink.title, early=early)


def _results_of(plan: PhysicalPlan, output: OutputPlan) -> _Results:
    """Return the results of an output."""
    stage = plan.stages[output.stage]
    results = _results(stage.node)
    for step in output.steps if plan.named else stage.spec.after:
        results = results.after(step)
    return results


def _check_adding(plan: PhysicalPlan, output: OutputPlan, sink: str) -> None:
    """Refuse the changes of a table for a sink that adds rows: the ones that are no longer valid would stay among them."""
    if not plan.stages[output.stage].node.operation.gives_table or OP not in output.schema.names:
        return
    results = _results_of(plan, output)
    telling = [next((n for n in output.schema.names if _tells(results, n, p)), None) for p in results.parts or ()]
    if results.parts == ():  # one row, which any of its columns tells
        telling = [name for name in output.schema.names if name != OP][:1]
    named = _listed([name for name in telling if name is not None]) if telling and None not in telling else "[...]"
    raise PlanError(
        f"{sink} adds rows, and these results change",
        got="a sink without a key",
        then="a result that is no longer valid would stay among its rows",
        hint=f"pass key={named}, and it holds the content; or log=True, and it keeps the changes, with `op`",
    )


def _tells(results: _Results, name: str, part: str) -> bool:
    return name in results.columns and part in results.columns[name].tells


def _check_key(plan: PhysicalPlan, output: OutputPlan, key: Sequence[str], sink: str, *, early: bool) -> None:
    stage, results = plan.stages[output.stage], _results_of(plan, output)
    _check_apart(results, key, sink, output.schema.names)
    mode = stage.node.options.emit_mode
    if mode == "retractions":
        _check_withdrawals(results, key, sink)
    elif (mode == "updates" or early) and not any(column.numbers for column in results.of(frozenset(key))):
        _check_updates(results, key, sink, stage.node, early=early and mode == "final")


def _check_apart(results: _Results, key: Sequence[str], sink: str, names: Sequence[str]) -> None:
    """Refuse a key that two results may share."""
    determined = results.fixed.union(*(column.tells for column in results.of(frozenset(key))))
    missing = [part for part in results.parts or () if part not in determined]
    if not missing or (results.or_parts is not None and set(results.or_parts) <= determined):
        return
    needed = [name for name in key if results.columns[name].steady]
    absent = list[str]()
    for part in missing:
        telling = [name for name in names if name in results.columns and part in results.columns[name].tells]
        (needed if telling else absent).append(part if part in telling or not telling else telling[0])
    if _ITEM in absent:
        hint = 'number the items: .unnest(..., rank="place"), and name that column in `key`'
    elif _ROW in absent:
        hint = "keep a column that tells the rows of that table apart, and name it in `key`"
    elif absent:
        hint = f"keep {', '.join(absent)} in the last .select(...) of the pipeline, and pass key={_listed([*needed, *absent])}"
    else:
        hint = f"pass key={_listed(needed)}"
        if not set(missing) - _BOUNDS:
            hint += f"; who reads the table picks the newest of each {', '.join(key) or 'key'} by {needed[-1]}"
    raise PlanError(
        f"`key` of {sink} does not tell results apart",
        got=f"key={_listed(key)}, without {', '.join(missing)}",
        then="the row of one result would take the place of another's",
        hint=hint,
    )


def _check_withdrawals(results: _Results, key: Sequence[str], sink: str) -> None:
    """Refuse a key, or a step, by which a withdrawal does not find the row that it is of."""
    marks = [name for name in key if results.columns[name].marks]
    if marks:
        then = "a result is withdrawn under another value of it, so its row would stay"
        hint = f"pass key={_listed([name for name in key if name not in marks])}"
        raise PlanError(f"`key` of {sink} has a column that tells of the change", got=marks[0], then=then, hint=hint)
    if results.splits:
        then = f"a result may pass and its withdrawal not, so its row would stay in {sink}"
        hint = "leave the condition out: a table with a key has no withdrawn rows"
        raise PlanError("a step leaves withdrawals out", got=results.splits, then=then, hint=hint)


def _check_updates(results: _Results, key: Sequence[str], sink: str, stage: Stage, *, early: bool) -> None:
    """Refuse results that are given again, and not withdrawn, where a row would stay that is not valid any more."""
    what = "early results of a snapshot" if early else f"results of .emit({stage.options.emit_mode!r})"
    hint = f"leave snapshot out, or give {sink} no key" if early else f'write {_RETRACTIONS}, or .emit("final")'
    changing = [name for name in key if not results.columns[name].steady]
    if stage.options.accumulation == "discarding":
        hint = 'leave .accumulation("discarding") out, or write .with_pane() and name pane_index in `key`, too'
        raise PlanError(
            f"results that discard do not replace one another in {sink}",
            got='accumulation("discarding") and a key',
            then="a row would hold the last part of a result only",
            hint=hint,
        )
    if stage.operation.moves:
        got, then = stage.operation.describe(), "a session that grows or merges would leave its old row behind"
    elif results.leaves_out:
        got, then = results.leaves_out, "a result that no longer passes would leave its old row behind"
    elif changing:
        got, then = f"{changing[0]} in `key`", "a result with another value would leave its old row behind"
    else:
        return
    raise PlanError(f"{what} do not withdraw rows of {sink}", got=got, then=then, hint=hint)


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
