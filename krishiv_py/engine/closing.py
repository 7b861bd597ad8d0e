"""Keys of a running query: closed, with what that costs in results, and why one has no result at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError, shown
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.ttl import KeyDropping
from krishiv_py.plan.durations import TimePoint, time_point_us
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.why import KeyRows, QueryProgress, why
from krishiv_py.types import type_text

CLOSED: Final = "close_key_dropped"
"""The counter of windows (of look-back windows: rows) that have no result because their key was closed."""


def keys_to_close(plan: PhysicalPlan, key: Any, name: str | None) -> dict[int, pa.Table]:
    """Return a `key` as state holds it, for :func:`forget`, by the numbers of the stages in which it is closed.

    These are the stage of this `name`, or all with state that read the source.

    Raises
    ------
    PlanError
        For a name that no stage with windows has; without a name for stages with different keys; for a key with another
        number of columns, a value of another type, and windows that are not kept by key.
    """
    numbers = [n for n in plan.roots if not plan.stages[n].stateless] or [0] if name is None else [plan.stage_called(name)]
    if len({plan.stages[n].spec.keys for n in numbers}) > 1:
        keyed = "; ".join(f"{plan.stages[n].spec.name!r}: {list(plan.stages[n].spec.keys)}" for n in numbers)
        raise PlanError("the outputs have different keys", got=keyed, hint="pass stage=..., one of them")
    keys = {}
    for n in numbers:
        stage = StageOperator(plan.stages[n].spec)
        key_dropping(stage)
        keys[n] = _one_key(stage, key)
    return keys


def keys_of(stage: StageOperator, key: Any) -> pa.Table:
    """Return a key of a stage as its state holds it, or each of a list of keys.

    Raises
    ------
    PlanError
        For a key with another number of columns, and a value of another type.
    """
    if not isinstance(key, list):
        return _one_key(stage, key)
    keys = [_one_key(stage, one) for one in key]
    return pa.concat_tables(keys) if keys else pa.schema(stage.layout.key_fields).empty_table()


def forget(stage: StageOperator, bucket: Bucket, keys: pa.Table, moment: Moment) -> int:
    """Drop keys from the state of a bucket; `moment` is what was in force in its last step.

    Returns how many windows will not have their result.
    """
    return key_dropping(stage).drop_keys(bucket, keys, moment)


def key_dropping(stage: StageOperator) -> KeyDropping:
    """Return the operator of a stage that can forget keys.

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
        wanted = ", ".join(f"{n} ({type_text(f.type)})" for n, f in zip(stage.spec.keys, fields, strict=True))
        hint = f"pass the value of {wanted} alone" if len(fields) == 1 else f"pass a tuple of {wanted}"
        raise PlanError("not a key of this query", got=shown(key), hint=hint) from problem
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def why_text(
    plan: PhysicalPlan,
    stage: StagePlan,
    now: QueryProgress,
    key: Any,
    time: TimePoint | None,
    state: Callable[[], pa.Table | None],
    results: pa.Table | None,
) -> str:
    """Say what became of a key at a time.

    Raises
    ------
    PlanError
        For a value that cannot be a key of the stage, and for several keys.
    DurationError
        For a value that is not a time.
    """
    time_us = None if time is None else time_point_us(time, "time")
    if isinstance(key, list):
        raise PlanError("why() takes one key", got=shown(key), hint="pass a tuple for a key of several columns")
    keys = None if key is None else keys_of(StageOperator(stage.spec), key)
    try:
        table = state()
    except PlanError:  # the state of these windows is rows
        table = None
    held, given = KeyRows.of(stage, table, keys), KeyRows.of(stage, results, keys)
    names = list(stage.spec.keys)
    if table is not None and keys is not None and set(names) <= set(table.column_names):
        table = table.filter(pa.array(among(table, keys.rename_columns(names), names)))
    return why(stage, plan.clocks, now, None if key is None else repr(key), time_us, held, given, table)
