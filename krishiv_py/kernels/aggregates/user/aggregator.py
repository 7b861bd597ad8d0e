"""User-defined aggregates: accumulators as bytes, one per group."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.connectors.values import UnfitError, column
from krishiv_py.errors import RAISED, failure_text, shown
from krishiv_py.kernels.aggregates.base import Rows, valid_rows
from krishiv_py.kernels.aggregates.failed import GroupError
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.kernels.aggregates.user.accumulators import StateTypes
from krishiv_py.plan.aggregates.user import Aggregator, Udaf
from krishiv_py.plan.expressions.expr import Col, Expr, Field
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.redaction import HIDDEN, is_secret

_TOO_MANY = "return a list with one accumulator for each of the n_groups groups"


@attrs.frozen(eq=False, slots=False)
class User(AggKernel):
    """Runs an :class:`~krishiv_py.Aggregator`. With `secret` no value is shown: the column is called as secrets are."""

    in_order: ClassVar[bool] = True

    aggregator: Aggregator[Any]
    type: pa.DataType
    label: str
    secret: bool = False

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.binary()]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def _fail(self, step: str, problem: BaseException, value: object, group: int | None) -> GroupError:
        return GroupError(
            f"{self.label} failed in `{step}`",
            self._shown(value),
            failure_text(problem),
            f"fix the aggregator's `{step}`",
            group,
        )

    def _shown(self, value: object) -> str:
        return HIDDEN if self.secret else shown(value)

    def _create(self, group: int | None) -> Any:
        try:
            return self.aggregator.create()
        except RAISED as problem:
            raise self._fail("create", problem, "an empty accumulator", group) from problem

    @cached_property
    def _types(self) -> StateTypes:
        return StateTypes([type(self._create(None)), *getattr(self.aggregator, "state_types", ())])

    def _written(self, accumulators: list[Any], step: str) -> list[pa.Array]:
        out, types = [], self._types
        for group, accumulator in enumerate(accumulators):
            try:
                out.append(types.dumps(accumulator))
            except RAISED as problem:  # pickling calls user code too
                hint = "keep plain values in it, or name its classes: state_types = (MyClass,) on the aggregator"
                raise GroupError(
                    f"{self.label}: what `{step}` returned cannot be kept in state",
                    self._shown(accumulator),
                    failure_text(problem),
                    hint,
                    group,
                ) from problem
        return [pa.array(out, pa.binary())]

    def _read(self, blob: bytes, group: int) -> Any:
        types = self._types
        try:
            return types.loads(blob)
        except RAISED as problem:  # whatever the class of an accumulator raises
            hint = "name the class in `state_types` of the aggregator if you trust the checkpoint, or start with a new one"
            raise GroupError(
                f"{self.label}: an accumulator in state cannot be read",
                self._shown(blob[:60]),
                failure_text(problem),
                hint,
                group,
            ) from problem

    def _added(self, values: list[Any], ids: Ints, n: int) -> list[Any]:
        accumulators = [self._create(group) for group in range(n)]
        for value, at in zip(values, ids.tolist(), strict=True):
            try:
                accumulators[at] = self.aggregator.add(accumulators[at], value)
            except RAISED as problem:  # user code: whatever it raises is reported with its row
                raise self._fail("add", problem, value, at) from problem
        return accumulators

    def _at_once(self, partial: Callable[..., Any], values: pa.Array, ids: Ints, n: int) -> list[Any]:
        try:
            accumulators = list(partial(values, ids, n))
        except RAISED as problem:  # user code, see above
            only = int(ids[0]) if len(ids) and (ids == ids[0]).all() else None
            raise self._fail("partial", problem, values.to_pylist()[:20], only) from problem
        if len(accumulators) != n:
            raise GroupError(
                f"{self.label}: `partial` gave another number of accumulators than there are groups",
                f"{len(accumulators)} for {n} groups",
                "results would go to other keys",
                _TOO_MANY,
            )
        return accumulators

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        partial = getattr(self.aggregator, "partial", None)
        if partial is not None:
            return self._written(self._at_once(partial, kept, ids, rows.n), "partial")
        return self._written(self._added(kept.to_pylist(), ids, rows.n), "add")

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        merged: list[Any] = [None] * n
        seen = np.zeros(n, np.bool_)
        for blob, at in zip(partials[0].to_pylist(), ids.tolist(), strict=True):
            accumulator = self._read(blob, at)
            try:
                merged[at] = self.aggregator.merge(merged[at], accumulator) if seen[at] else accumulator
            except RAISED as problem:  # user code, see above
                raise self._fail("merge", problem, accumulator, at) from problem
            seen[at] = True
        return self._written(merged, "merge")

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        results = []
        for group, blob in enumerate(partials[0].to_pylist()):
            accumulator = self._read(blob, group)
            try:
                results.append(self.aggregator.finish(accumulator))
            except RAISED as problem:  # user code, see above
                raise self._fail("finish", problem, accumulator, group) from problem
        try:
            return column(results, self.type)
        except UnfitError as problem:
            raise self._fail("finish", problem, results[problem.at], problem.at) from problem

    def noted(self, func: str) -> str:
        return f"{func} {type(self.aggregator).__qualname__}"


def _is_secret(expr: Expr) -> bool:
    """Return whether a column or field it reads is called as secrets are."""
    return any(is_secret(node.name) for node in walk(expr) if isinstance(node, (Col, Field)))


@computes(Udaf)
def _user(call: Udaf, type_: pa.DataType) -> User:
    assert call.udaf is not None and call.result_type is not None
    return User(call.udaf, call.result_type, str(call), _is_secret(call.arg))
