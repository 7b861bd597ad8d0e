"""Keys in the state of a test driver: counted, and closed."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.engine.stage import Stage
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.state_table import keys_held
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.kernels.wrappers.ttl import KeyDropping
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.testing.driven import DrivenStage


def held_keys(stage: Stage, store: MemoryStore) -> int:
    """How many keys have something in state; without a key 1, or 0."""
    return keys_held(store.tables.values(), stage.layout.key_names)


def asked_stages(plan: PhysicalPlan, name: str | None) -> list[int]:
    """The numbers of the stages in which a key is closed: that of this `name`, or all with state that read the source.

    Raises
    ------
    PlanError
        For a name that no stage with windows has; without a name for stages with different keys.
    """
    if name is not None:
        return [plan.stage_called(name)]
    asked = [n for n in plan.roots if not plan.stages[n].keeps_nothing] or [0]
    if len({plan.stages[n].spec.keys for n in asked}) > 1:
        keyed = "; ".join(f"{plan.stages[n].spec.name!r}: {list(plan.stages[n].spec.keys)}" for n in asked)
        raise PlanError(
            message(
                "the outputs have different keys", keyed, "it is not known whose key this is", "pass stage=..., one of them"
            )
        )
    return asked


def close_key(stages: list[DrivenStage], key: Any, moment: Moment) -> int:
    """Forget a key in all of these stages, or in none; gives how many windows will not have their result.

    Raises
    ------
    PlanError
        For a key with another number of columns, a value of another type, and windows that are not kept by key.
    """
    found = [(_key_dropping(driven.stage), _one_key(driven.stage, key), driven) for driven in stages]
    return sum(_dropped(operator, dead, driven, moment.at(driven.plan.times)) for operator, dead, driven in found)


def _dropped(operator: KeyDropping, dead: pa.Table, driven: DrivenStage, moment: Moment) -> int:
    """Drop a key of a stage, and see what it still holds; gives how many windows will not have their result."""
    bucket = Bucket(driven.store, driven.meta)
    lost = operator.drop_keys(bucket, dead, moment)
    left = operator.step(bucket, [], attrs.evolve(moment, asks=False))  # without rows and at the same moment nothing fires
    driven.open_windows, driven.open_rows = left.open_windows, left.open_rows
    return lost


def _key_dropping(stage: Stage) -> KeyDropping:
    operator: Any = stage.operator
    while not isinstance(operator, KeyDropping) and hasattr(operator, "inner"):
        operator = operator.inner
    if isinstance(operator, KeyDropping):
        return operator
    raise PlanError(
        message(
            "a key cannot be closed here",
            f"{stage.spec.name}: {stage.spec.window.describe()}",
            "these windows are kept by their end, and end by themselves",
            "move the watermark, or use look-back, session or count windows; of several outputs name one: stage=...",
        )
    )


def _one_key(stage: Stage, key: Any) -> pa.Table:
    fields, values = stage.layout.key_fields, key if isinstance(key, tuple) else (key,)
    if len(values) != len(fields):
        got = f"{shown(key)}, of {len(values)} columns"
        hint = f"the key columns are {', '.join(stage.spec.keys) or '(none)'}"
        raise PlanError(message("not a key of this query", got, "nothing can be closed", hint))
    try:
        arrays = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as problem:
        hint = ", ".join(f"{n} is {f.type}" for n, f in zip(stage.spec.keys, fields, strict=True))
        raise PlanError(message("not a key of this query", shown(key), "nothing can be closed", hint)) from problem
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
