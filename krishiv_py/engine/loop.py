"""The micro-batch loop: a batch, and the batch without rows that a query runs when the watermark has moved.

A stage behind others: it takes their results of a micro-batch in the same micro-batch (SEMANTICS §7.3).

Closing keys: which stages forget a key, and what that costs in results. The same for the test driver and for Spark.

Determine how a failure is named: operator, step, micro-batch, then what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.picking import pick
from krishiv_py.engine.stage import BatchDone, Packed, StageOperator
from krishiv_py.errors import KrishivError, PlanError, failure_text, own_type, shown
from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.wrappers.ttl import KeyDropping
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.types import type_text

NO_ROWS: Final = Packed()


def micro_batch(
    stage: StageOperator, bucket: Bucket, packed: Packed, moment: Moment, following: Callable[[], Moment], *, waits: bool
) -> Iterator[BatchDone]:
    """Run a micro-batch of one bucket, and the batch without rows that may follow it (SEMANTICS §2.3).

    Parameters
    ----------
    stage : Stage
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The rows of the batch.
    moment : Moment
        What is in force in it.
    following : callable
        What is in force after it; asked when it is done.
    waits : bool
        Whether the query waits for input after it, or the input has ended. Only then does a batch without rows follow, and
        only if the watermark has moved. Spark itself follows the same rule in a streaming query.
    """
    yield stage.step(bucket, packed, moment)
    then = following()
    if waits and then.watermark_us > moment.watermark_us:
        yield stage.step(bucket, NO_ROWS, then)


def in_order(rows: pa.Table, arrives_by: Sequence[str]) -> pa.Table:
    """The `rows` by end, start and key, nulls first; equal ones stay as they came."""
    if rows.num_rows < 2 or not arrives_by:
        return rows
    names = rows.column_names
    keys: list[tuple[str, str]] = []
    for name in arrives_by:
        if rows[name].null_count:  # false sorts before true
            rows = rows.append_column(f"{name}_valid", pc.is_valid(rows[name]))
            keys.append((f"{name}_valid", "ascending"))
        keys.append((name, "ascending"))
    return pick(rows, pc.sort_indices(rows, sort_keys=keys)).select(names)


def stepping(spec: OperatorSpec) -> OperatorSpec:
    """A specification whose stateless steps were run before the shuffle."""
    return attrs.evolve(spec, prefix=())


def as_rows(spec: OperatorSpec, results: pa.Table) -> pa.Table:
    """The results of a stage as rows of the one of `spec`, behind its stateless steps."""
    return prefixed(spec.prefix, results.select(list(spec.needs_columns)))


def packed_results(stage: StageOperator, given: Sequence[pa.Table], late_moment: Moment, read: Packed = NO_ROWS) -> Packed:
    """Return what :func:`as_rows` gave, as of when the stages before fired last, so that none is late.

    `read` are rows of a source next to them, which are judged already; they come behind.
    """
    if not given:
        return and_read(NO_ROWS, read)
    packing = stage.pack(late_moment, results=True)
    for batch in in_order(pa.concat_tables(given), stage.spec.arrives_by).combine_chunks().to_batches():
        packing.take(batch)
    return and_read(packing.packed(), read)


def and_read(results: Packed, read: Packed) -> Packed:
    """Return `results` of the stages before, and after them the rows that were `read` from a source."""
    chunks = (*results.chunks, *read.chunks)
    return Packed(chunks, (*results.late, *read.late), (*results.notes, *read.notes), of_source=len(read.chunks))


def follow(stage: StageOperator, bucket: Bucket, packed: Packed, late_moment: Moment, moment: Moment) -> Iterator[BatchDone]:
    """Fold results of the stages before in, then fire.

    Parameters
    ----------
    stage : Stage
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The results of the stages before, and rows of a source next to them.
    late_moment, moment : Moment
        What was in force in this stage when those before fired last, and what is in force now.
    """
    options = stage.spec.options
    if not packed.of_source or options.late_rule != "window" or options.late_by_batch_before:
        yield from micro_batch(stage, bucket, packed, late_moment, lambda: moment, waits=True)
        return
    # Rows of a source were judged by `moment`: they enter no window that has ended by then, on time for another or not.
    results = len(packed.chunks) - packed.of_source
    yield stage.step(bucket, attrs.evolve(packed, chunks=packed.chunks[:results]), late_moment)
    yield stage.step(bucket, Packed(packed.chunks[results:]), moment)


CLOSED: Final = "close_key_dropped"
"""The counter of windows (of look-back windows: rows) that have no result because their key was closed."""


def closing_stages(plan: PhysicalPlan, name: str | None) -> list[int]:
    """The numbers of the stages in which a key is closed: that of this `name`, or all with state that read the source.

    Raises
    ------
    PlanError
        For a name that no stage with windows has; without a name for stages with different keys.
    """
    if name is not None:
        return [plan.stage_called(name)]
    found = [n for n in plan.roots if not plan.stages[n].stateless] or [0]
    if len({plan.stages[n].spec.keys for n in found}) > 1:
        keyed = "; ".join(f"{plan.stages[n].spec.name!r}: {list(plan.stages[n].spec.keys)}" for n in found)
        raise PlanError("the outputs have different keys", got=keyed, hint="pass stage=..., one of them")
    return found


def closed_key(stage: StageOperator, key: Any) -> pa.Table:
    """Return a `key` of a stage as its state holds it, for :func:`forget`.

    Raises
    ------
    PlanError
        For a key with another number of columns, a value of another type, and windows that are not kept by key.
    """
    key_dropping(stage)
    return _one_key(stage, key)


def keys_of(stage: StageOperator, key: Any) -> pa.Table:
    """Return a key of a stage as its state holds it, or each of a list of keys.

    Raises
    ------
    PlanError
        For a key with another number of columns, and a value of another type.
    """
    listed = key if isinstance(key, list) else [key]
    found = [_one_key(stage, one) for one in listed]
    return pa.concat_tables(found) if found else pa.schema(stage.layout.key_fields).empty_table()


def forget(stage: StageOperator, bucket: Bucket, keys: pa.Table, moment: Moment) -> int:
    """Drop keys from the state of a bucket; `moment` is what was in force in its last step.

    Returns how many windows will not have their result.
    """
    return key_dropping(stage).drop_keys(bucket, keys, moment)


def key_dropping(stage: StageOperator) -> KeyDropping:
    """The operator of a stage that can forget keys.

    Raises
    ------
    PlanError
        For windows that are not kept by key.
    """
    operator: Any = stage.operator
    while not isinstance(operator, KeyDropping) and hasattr(operator, "inner"):
        operator = operator.inner
    if isinstance(operator, KeyDropping):
        return operator
    raise PlanError(
        "a key cannot be closed here",
        got=f"{stage.spec.name}: {stage.spec.operation.describe()}",
        then="these windows are kept by their end, and end by themselves",
        hint="move the watermark, or use look-back, session or count windows; of several outputs name one: stage=...",
    )


def _one_key(stage: StageOperator, key: Any) -> pa.Table:
    fields, values = stage.layout.key_fields, key if isinstance(key, tuple) else (key,)
    if len(values) != len(fields):
        got = f"{shown(key)}, of {len(values)} columns"
        hint = f"the key columns are {', '.join(stage.spec.keys) or '(none)'}"
        raise PlanError("not a key of this query", got=got, hint=hint)
    try:
        arrays = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as problem:
        hint = ", ".join(f"{n} is {type_text(f.type)}" for n, f in zip(stage.spec.keys, fields, strict=True))
        raise PlanError("not a key of this query", got=shown(key), hint=hint) from problem
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


PREPARE: Final = "prepare"
STEP: Final = "window step"


def located(problem: BaseException, operator: str, step: str, batch: int | None = None) -> KrishivError:
    """An error of ours that says where `problem` was met."""
    where = f"operator {operator}, {step}" + ("" if batch is None else f", batch {batch}")
    said = str(problem) if isinstance(problem, KrishivError) else failure_text(problem)
    return own_type(type(problem))(f"{where}: {said}")


@attrs.frozen
class AtStep:
    """Lets an error of ours from the body of a ``with`` name where it was met; others pass as they are."""

    operator: str
    step: str
    batch: int

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Name the place."""
        if isinstance(problem, KrishivError):
            raise located(problem, self.operator, self.step, self.batch) from problem
